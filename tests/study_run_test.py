"""Studies end to end: killed at random moments, or done by a Ray cluster, they come to the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from processes import alive

ONE = """\
title = "One"
jobs = 2
seeds = [3]
[base]
iterations = 4
sampling = {prompts = 4, rollouts = 4}
eval = {prompts = 4, samples = 4, every = 2}
save = {best = "test/avg@k", rollouts_every = 0}
[[runs]]
name = "grpo"
[[runs]]
name = "repo"
method = "repo_r"
[[runs]]
name = "then"
after = "repo"
start = "best"
iterations = 2
"""
LIMIT = 240  # seconds for a study of some seconds, on a loaded machine


def begin(folder: Path, *more: str) -> subprocess.Popen[bytes]:
    words = ["study", "files", "--output", "out", *more]
    return subprocess.Popen(
        [sys.executable, "-m", "entrostat.cli", *words], cwd=folder,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def files(folder: Path) -> Path:
    """Two studies, of which most runs are the same."""
    (folder / "files").mkdir()
    (folder / "files/one.toml").write_text(ONE)
    (folder / "files/two.toml").write_text(ONE.replace("iterations = 2", "iterations = 3"))
    return folder


def figures(folder: Path) -> dict[str, Any]:
    """All that runs logged, by name, but for clocks, paths and the machine's memory."""
    found: dict[str, Any] = {}
    for log in sorted(folder.glob("out/[!.]*/*/*.jsonl")):
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        found[str(log.relative_to(folder))] = [
            {key: value for key, value in row.items() if not key.startswith("time/")}
            for row in rows
        ]
    found["results"] = json.loads((folder / "out/results.json").read_text())
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the studies come to when nothing happens."""
    folder = files(tmp_path_factory.mktemp("whole"))
    assert begin(folder).wait(LIMIT) == 0
    found = figures(folder)
    assert len(found) == 6 * 3 + 1  # metrics, evaluations, answers; what is made of them
    assert len({log.resolve() for log in folder.glob("out/[!.]*/*/metrics.jsonl")}) == 4
    assert (folder / "out/one/report.html").exists()
    return found


def trainings(study: int) -> list[int]:
    """Processes that a study has started."""
    try:
        found = Path(f"/proc/{study}/task/{study}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in found.split()]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the Linux kernel")
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_study_that_is_killed_comes_to_the_same(
    times: int, whole: dict[str, Any], tmp_path: Path
) -> None:
    """The study itself and single trainings, by SIGKILL, in turn."""
    folder, chance = files(tmp_path), random.Random(times)
    for turn in range(times):
        study = begin(folder)
        done = len(list(folder.glob("out/[!.]*/*/metrics.jsonl")))
        end = time.monotonic() + 60
        while time.monotonic() < end and study.poll() is None:  # until one more has begun
            time.sleep(0.05)
            if len(list(folder.glob("out/[!.]*/*/metrics.jsonl"))) > done:
                break
        time.sleep(chance.uniform(0, 1))
        running = trainings(study.pid)
        if turn % 2 and running:
            os.kill(chance.choice(running), signal.SIGKILL)
            time.sleep(chance.uniform(0.5, 1))
        study.send_signal(signal.SIGKILL)
        study.wait(20)
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{p}/maps").exists() and alive(p) for p in running):
            assert time.monotonic() < deadline, "a training outlives its study"
            time.sleep(0.05)
    assert begin(folder).wait(LIMIT) == 0
    assert figures(folder) == whole


def test_a_ray_cluster_of_two_workers_comes_to_the_same(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    folder = files(tmp_path)
    assert begin(folder, "--ray").wait(LIMIT) == 0
    assert figures(folder) == whole


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from entrostat.study.on_ray import OnRay

    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"pip install 'entrostat\[ray\]'"):
        OnRay()
