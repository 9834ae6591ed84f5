"""Processors at hand: affinity, and the quotas of control groups as Linux documents them; kinds."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest
import torch

from entrostat import _processors
from entrostat._processors import free_memory, processor_kind, processors
from entrostat.models import hardware as needs
from entrostat.study import workers as local

QUOTA, PERIOD = "cpu,cpuacct/cpu.cfs_quota_us", "cpu,cpuacct/cpu.cfs_period_us"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight processors, and a directory that stands for /sys/fs/cgroup."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(_processors, "_CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(_processors, "_OWN", tmp_path / "own")
    return tmp_path


def write(root: Path, own: str, files: dict[str, str]) -> None:
    (root / "own").write_text(own)
    for name, text in files.items():
        path = root / "cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("own", "files", "count"),
    [
        ("0::/\n", {}, 8),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "200000 100000\n"}, 2),  # docker run --cpus 2
        ("0::/\n", {"cpu.max": "150000 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "5000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "3200000 100000\n"}, 8),
        ("0::/\n", {"cpu.max": "nonsense"}, 8),
        # the group above grants less
        ("0::/a/b\n", {"a/b/cpu.max": "max 100000", "a/cpu.max": "300000 100000"}, 3),
        ("0::/a/b\n", {"a/b/cpu.max": "400000 100000", "c/cpu.max": "100000 100000"}, 4),
        # version 1: in a container the group's own path is not there
        ("2:memory:/d\n4:cpu,cpuacct:/d\n", {QUOTA: "250000\n", PERIOD: "100000\n"}, 3),
        ("4:cpu,cpuacct:/\n", {QUOTA: "-1\n", PERIOD: "100000\n"}, 8),
    ],
)  # fmt: skip
def test_quotas(machine: Path, own: str, files: dict[str, str], count: int) -> None:
    write(machine, own, files)
    assert processors() == count


def test_without_control_groups_the_affinity_counts(machine: Path) -> None:
    assert processors() == 8


def test_elsewhere_than_on_linux(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 5)
    assert processors() == 5
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert processors() == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("processor\t: 0\nmodel\t\t: 17\nmodel name\t: AMD EPYC\n\nmodel name\t: B\n", "AMD EPYC"),
        ("model name\t:\nmodel name\t: Neoverse: N1 \n", "Neoverse: N1"),
        ("processor\t: 0\nCPU part\t: 0xd0c\n", "as said elsewhere"),  # Linux on ARM
        (None, "as said elsewhere"),  # not Linux
    ],
)  # fmt: skip
def test_kind(text: str | None, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_processors, "_KIND", tmp_path / "cpuinfo")
    monkeypatch.setattr(platform, "processor", lambda: "as said elsewhere")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert processor_kind() == kind
    monkeypatch.setattr(platform, "processor", lambda: "")  # many distributions of Linux
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert processor_kind() == kind.replace("as said elsewhere", "arm64")


MEMORY = "4:memory:/d\n"


@pytest.mark.parametrize(
    ("own", "files", "free"),
    [
        ("0::/\n", {}, 51_200),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "9\n"}, 51_200),
        ("0::/\n", {"memory.max": "30000\n", "memory.current": "10000\n"}, 20_000),
        ("0::/\n", {"memory.max": "90000\n", "memory.current": "10000\n"}, 51_200),
        # files that were read are given back when memory is short
        ("0::/\n", {"memory.max": "30000\n", "memory.current": "29000\n",
                    "memory.stat": "anon 9000\ninactive_file 20000\n"}, 21_000),
        ("0::/\n", {"memory.max": "10000\n", "memory.current": "12000\n"}, 0),
        ("0::/a/b\n", {"a/memory.max": "8000", "a/memory.current": "3000",
                       "a/b/memory.max": "max", "a/b/memory.current": "1000"}, 5000),
        (MEMORY, {"memory/memory.limit_in_bytes": "40000\n",
                  "memory/memory.usage_in_bytes": "15000\n"}, 25_000),
        (MEMORY, {"memory/d/memory.limit_in_bytes": "40000\n",
                  "memory/d/memory.usage_in_bytes": "15000\n",
                  "memory/d/memory.stat": "total_inactive_file 5000\n"}, 30_000),
    ],
)  # fmt: skip
def test_free_memory_is_what_every_control_group_grants(
    machine: Path, own: str, files: dict[str, str], free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(machine, own, files)
    (machine / "meminfo").write_text("MemTotal: 90 kB\nMemAvailable:    50 kB\n")
    monkeypatch.setattr(_processors, "_MEMORY", machine / "meminfo")
    assert free_memory() == free
    # a study, which asks before it starts another training, and a run, which says what it needs
    assert local.free_memory() == needs.free_memory(torch.device("cpu")) == free
