"""Resources available to this process: number and kind of processors, free memory."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KIND, _MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def processors() -> int:
    """Number of processors that this process may use, at least 1.

    Takes into account its affinity mask (`taskset`, Slurm) and the quota of its control groups
    (Docker's `--cpus`, Kubernetes' limits), which `os.cpu_count` ignores.
    """
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed else os.cpu_count() or 1
    return max(1, min([count, *map(math.ceil, _quotas())]))


def processor_kind() -> str:
    """The processor's model name ("AMD EPYC 9454"), or its architecture ("arm64").

    Libraries select kernels by it, and different kernels round differently.
    """
    lines = _read(_KIND).splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), "") or platform.processor() or platform.machine()


def free_memory() -> int | None:
    """Bytes available without swapping (Linux); None if the system does not report them.

    The minimum of the machine's free memory and the rest of each control group's limit above this
    process (Docker's `--memory`, Kubernetes' limits). Reclaimable page cache counts as free.
    """
    found = [kilobytes(_MEMORY, "MemAvailable:")]
    for group, version in _groups("memory"):
        names = (
            ("memory.max", "memory.current", "inactive_file")
            if version == 2
            else ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        )
        limit, held = (_read(group / name).split() for name in names[:2])
        if len(limit) == len(held) == 1 and limit[0].isdecimal() and held[0].isdecimal():
            stat = _read(group / "memory.stat").split()
            cached = dict(zip(stat[::2], stat[1::2], strict=False)).get(names[2], "0")
            found.append(int(limit[0]) - int(held[0]) + int(cached))
    return min((max(0, each) for each in found if each is not None), default=None)


def kilobytes(path: Path, key: str) -> int | None:
    """Bytes in the line `KEY N kB` of a file under /proc; None without such a line."""
    found = (line.split()[1] for line in _read(path).splitlines() if line.startswith(key))
    return next((1024 * int(word) for word in found), None)


def _quotas() -> Iterator[float]:
    """The CPU quota, in processors, of each control group above this process."""
    for group, version in _groups("cpu"):
        if version == 2:
            words = _read(group / "cpu.max").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [_read(group / name).strip() for name in names]
        # "max" or -1 means no limit
        if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
            yield int(words[0]) / int(words[1])


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """The control groups above this process that limit a resource, with their version, 1 or 2."""
    for line in (_read(_OWN) or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, where parent groups limit their children
            group = _CGROUPS / path.lstrip("/")
            for one in (group, *group.parents):
                if one.is_relative_to(_CGROUPS):
                    yield one, 2
        elif controller in controllers.split(","):
            for one in {_CGROUPS / controllers, _CGROUPS / controllers / path.lstrip("/")}:
                yield one, 1


def _read(file: Path) -> str:
    """A file's text; "" if it does not exist, as on systems other than Linux."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
