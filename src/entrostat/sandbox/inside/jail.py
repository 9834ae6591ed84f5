"""The file system and rights of a program in namespaces. Linux.

The program has a new root on a tmpfs: Python's own files and the system's libraries, read-only; two
devices; /proc of its own pid namespace; and /tmp, the only writable place, of limited size.
"""

from __future__ import annotations

import os
import sys
import sysconfig

from . import kernel

USER = 1000  # inside; outside this is nobody if the user is root, else the user
NOBODY = 65534
HOME = "/tmp"  # noqa: S108 - the program's own
_SYSTEM = (
    "/lib", "/lib64", "/usr/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo",
    "/dev/null", "/dev/urandom",
)  # fmt: skip
# where the new root is built, invisible to others
_PLACES = ("/tmp", "/mnt", "/srv", "/media", "/opt", "/var/tmp")  # noqa: S108
_INODES = 4096


def visible() -> list[str]:
    """Paths that a program may read: Python's files and the libraries that it loads."""
    paths: list[str] = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib")]
    if sys.base_prefix != "/usr":
        paths += [os.path.join(sys.base_prefix, name) for name in ("lib", "bin")]
    kept: list[str] = []
    for path in sorted({*paths, sys.executable, *_SYSTEM}):
        inside = any(path.startswith(other + "/") for other in kept)
        if os.path.exists(path) and not inside:
            kept.append(path)
    return kept


def map_users(pid: int) -> None:
    """Map the users of a new user namespace; called from outside it.

    For root, programs run as nobody, and 0 is root until rights are dropped. For another user they
    run as that user, because the kernel allows no other mapping.
    """
    if os.geteuid() == 0:
        lines = f"0 0 1\n{USER} {NOBODY} 1\n"
        maps = {"uid_map": lines, "gid_map": lines}
    else:
        maps = {
            "setgroups": "deny",
            "uid_map": f"{USER} {os.geteuid()} 1\n",
            "gid_map": f"{USER} {os.getegid()} 1\n",
        }
    for name, text in maps.items():
        with open(f"/proc/{pid}/{name}", "w") as file:
            file.write(text)


def enter(paths: list[str], disk: int) -> None:
    place = next(
        place
        for place in _PLACES
        if os.path.isdir(place) and not any(path.startswith(place + "/") for path in paths)
    )
    kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
    _no_more_namespaces()
    flags = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", place, "tmpfs", flags, "mode=755,size=1m")
    os.mkdir(place + HOME)
    options = f"mode=1777,size={disk},nr_inodes={_INODES}"
    kernel.mount("tmpfs", place + HOME, "tmpfs", flags, options)
    for path in paths:
        _bind(path, place + path)
    _mount_proc(place + "/proc")
    flags |= kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY
    kernel.mount("", place, flags=flags)
    kernel.make_root(place)
    os.chdir(HOME)
    kernel.set_host_name("sandbox")


def _bind(path: str, target: str) -> None:
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
    kernel.mount(path, target, flags=kernel.MS_BIND | kernel.MS_REC)
    kernel.make_read_only(target)


def _mount_proc(target: str) -> None:
    """Mount the /proc of this pid namespace, unless the kernel denies it, as in containers."""
    os.mkdir(target)
    try:
        flags = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount("proc", target, "proc", flags, "subset=pid")
    except OSError:
        os.rmdir(target)


def _no_more_namespaces() -> None:
    """Forbid nested namespaces, whose rights could help attack the kernel; the filter does too."""
    try:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:
            file.write("0")
    except OSError:
        pass


def drop_rights() -> None:
    """Become the user without rights, permanently."""
    kernel.drop_bounding_set()
    if os.getuid() == 0:
        _become(USER)
    kernel.drop_capabilities()


def become_nobody() -> None:
    """Without namespaces: root becomes nobody; any other user stays the same."""
    if os.getuid() == 0:
        _become(NOBODY)


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
