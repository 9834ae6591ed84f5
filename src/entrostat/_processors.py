"""The processors of this process: how many there are, and of which kind."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator
from pathlib import Path

_CGROUPS, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_KIND = Path("/proc/cpuinfo")


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
    try:
        lines = _KIND.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, named), "") or platform.processor() or platform.machine()


def _quotas() -> Iterator[float]:
    """Processors' worth of time that each control group above this process grants."""
    try:
        own = _OWN.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in own:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2, where groups above bound those below
            group = _CGROUPS / path.lstrip("/")
            for one in (group, *group.parents):
                if one.is_relative_to(_CGROUPS):
                    yield from _ratio(_words(one / "cpu.max"))
        elif "cpu" in controllers.split(","):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            for one in {_CGROUPS / controllers, _CGROUPS / controllers / path.lstrip("/")}:
                yield from _ratio([word for name in names for word in _words(one / name)])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


def _ratio(words: list[str]) -> Iterator[float]:
    """Quota over period; nothing where there is no bound ("max", -1)."""
    if len(words) == 2 and all(word.isdecimal() and int(word) for word in words):
        yield int(words[0]) / int(words[1])
