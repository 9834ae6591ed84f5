"""The machine as this process may use it: its processors, their kind, and free memory."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KIND, _MEMORY = Path("/proc/cpuinfo"), Path("/proc/meminfo")


def processors() -> int:
    """Processors that this process may use, at least 1.

    By its affinity mask (`taskset`, Slurm) and by the quota of its control groups (Docker's
    `--cpus`, Kubernetes' limits), of which `os.cpu_count` knows nothing.
    """
    allowed = getattr(os, "sched_getaffinity", None)
    count = len(allowed(0)) if allowed else os.cpu_count() or 1
    return max(1, min([count, *map(math.ceil, _quotas())]))


def processor_kind() -> str:
    """What the processor calls itself ("AMD EPYC 9454"), or its architecture ("arm64").

    Kernels are chosen by it, and those of two kinds round differently.
    """
    lines = _read(_KIND).splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), "") or platform.processor() or platform.machine()


def free_memory() -> int | None:
    """Bytes that can be had without swapping (Linux); None where the system does not say.

    The least of what the machine has and what each control group above this process has left
    (Docker's `--memory`, Kubernetes' limits). Pages of files that the kernel would give back count
    as free.
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
    """Bytes in the line `KEY N kB` of a file under /proc; None where there is none."""
    found = (line.split()[1] for line in _read(path).splitlines() if line.startswith(key))
    return next((1024 * int(word) for word in found), None)


def _quotas() -> Iterator[float]:
    """Processors' worth of time that each control group above this process grants."""
    for group, version in _groups("cpu"):
        if version == 2:
            words = _read(group / "cpu.max").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [_read(group / name).strip() for name in names]
        # without a bound a word is "max", or -1
        if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
            yield int(words[0]) / int(words[1])


def _groups(controller: str) -> Iterator[tuple[Path, int]]:
    """The control groups above this process that bound a resource, and their version, 1 or 2."""
    for line in (_read(_OWN) or "0::/").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, where groups above bound those below
            group = _CGROUPS / path.lstrip("/")
            for one in (group, *group.parents):
                if one.is_relative_to(_CGROUPS):
                    yield one, 2
        elif controller in controllers.split(","):
            for one in {_CGROUPS / controllers, _CGROUPS / controllers / path.lstrip("/")}:
                yield one, 1


def _read(file: Path) -> str:
    """A file's text; "" where there is none, as on other systems than Linux."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
