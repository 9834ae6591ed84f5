"""System calls that Python lacks, through ctypes. Linux.

`os.unshare` exists from Python 3.12 on; mounts, capabilities and seccomp have no function. The
numbers are those of <sched.h>, <sys/mount.h>, <linux/prctl.h> and <linux/seccomp.h>.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys

NAMESPACES = {  # what each isolates, and its CLONE_ flag
    "user": 0x10000000,
    "pid": 0x20000000,
    "mount": 0x00020000,
    "network": 0x40000000,
    "ipc": 0x08000000,
    "uts": 0x04000000,
}
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND = 2, 4, 8, 32, 4096
MS_RDONLY, MS_REC, MS_PRIVATE = 1, 16384, 1 << 18
_ATTR_RDONLY, _ATTR_NOSUID, _AT_RECURSIVE = 1, 2, 0x8000
_MNT_DETACH = 2
_PDEATHSIG, _DUMPABLE, _CAPBSET_DROP, _SECCOMP, _NO_NEW_PRIVS, _SUBREAPER = 1, 4, 24, 22, 38, 36
_FILTER = 2
# numbers of system calls; only `mount_setattr` has the same on all processors
_NUMBERS = {
    "x86_64": {"clone": 56, "pivot_root": 155, "mount_setattr": 442},
    "aarch64": {"clone": 220, "pivot_root": 41, "mount_setattr": 442},
}

# PyDLL keeps the GIL, which the child of `clone` could not reacquire
_libc = ctypes.PyDLL(None, use_errno=True)


class _Attributes(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p)]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")
    return result


def _call(name: str, *arguments: object) -> int:
    numbers = _NUMBERS.get(platform.machine())
    if sys.platform != "linux" or numbers is None:
        raise OSError(f"{name}: unknown on {sys.platform} {platform.machine()}")
    return _checked(_libc.syscall(ctypes.c_long(numbers[name]), *arguments), name)


def fork_into(*namespaces: str) -> int:
    """Fork into new namespaces; returns the pid, 0 in the child. Needs a single-threaded process.

    The child is the first process of its pid namespace: when it ends, the kernel kills all others
    in it. (`unshare` plus fork works only once per process.)
    """
    flags = sum(NAMESPACES[name] for name in namespaces) | signal.SIGCHLD
    zero = ctypes.c_long(0)
    return _call("clone", ctypes.c_ulong(flags), zero, zero, zero, zero)


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    words = [word.encode() for word in (source, target, kind)]
    done = _libc.mount(*words, ctypes.c_ulong(flags), options.encode())
    _checked(done, f"mounting {target} ({kind or 'bind'})")


def make_read_only(path: str) -> None:
    """Make a mount and all mounts below it read-only and nosuid (Linux 5.12)."""
    attributes = _Attributes(_ATTR_RDONLY | _ATTR_NOSUID, 0, 0, 0)
    _call(
        "mount_setattr", ctypes.c_int(-100), ctypes.c_char_p(path.encode()),
        ctypes.c_uint(_AT_RECURSIVE), ctypes.byref(attributes),
        ctypes.c_size_t(ctypes.sizeof(attributes)),
    )  # fmt: skip


def make_root(path: str) -> None:
    """Make a mount the root directory; the old root becomes unreachable."""
    os.chdir(path)
    here = ctypes.c_char_p(b".")
    _call("pivot_root", here, here)
    _checked(_libc.umount2(b".", _MNT_DETACH), "unmounting the old root")
    os.chdir("/")


def set_host_name(name: str) -> None:
    _checked(_libc.sethostname(name.encode(), ctypes.c_size_t(len(name))), "sethostname")


def _prctl(option: int, value: int = 0, pointer: object = None) -> None:
    zero = ctypes.c_ulong(0)
    last = zero if pointer is None else pointer
    _checked(_libc.prctl(option, ctypes.c_ulong(value), last, zero, zero), f"prctl {option}")


def die_with_parent() -> None:
    """Get SIGKILL when the parent ends; reset when this process changes its user."""
    _prctl(_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_SUBREAPER, 1)


def set_dumpable(value: bool) -> None:
    """Set whether other processes of this user may inspect this one (ptrace, /proc/PID)."""
    _prctl(_DUMPABLE, int(value))


def forbid_new_rights() -> None:
    """Forbid programs that this process starts to gain rights."""
    _prctl(_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Give up all capabilities, permanently."""
    header = _CapabilityHeader(0x20080522, 0)
    none = (ctypes.c_uint32 * 6)()
    _checked(_libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")


def drop_bounding_set() -> None:
    """Empty the capability bounding set, so that no program can regain a capability."""
    for capability in range(64):
        try:
            _prctl(_CAPBSET_DROP, capability)
        except OSError:  # past the kernel's last capability
            return


def install_filter(instructions: bytes) -> None:
    """Have the kernel filter all further system calls by a BPF program."""
    program = _Program(len(instructions) // 8, instructions)
    _prctl(_SECCOMP, _FILTER, ctypes.byref(program))
