"""Studies end to end: killed at random moments, or done by a Ray cluster, they come to the same."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from builders import json_lines, refused
from entrostat.cli import main
from entrostat.logs.run import read_run
from entrostat.study import run_study
from entrostat.study import workers as on_ray
from entrostat.study.execute import execute
from entrostat.study.file import read_study
from entrostat.study.plan import Training, anywhere, make_places, plan_of
from entrostat.study.workers import train
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
name = "repo"
method = "repo_r"
[[runs]]
name = "then"
after = "repo"
start = "best"
iterations = 2
"""
LIMIT = 900  # seconds for a study of some seconds, on a loaded machine
# pages of the trainings take longer than these themselves
PAGELESS = """\
import sys
from entrostat.cli import main
from entrostat.study import runner
carry_out = runner._execute
runner._execute = lambda *given: carry_out(*given[:-1], False)
"""


def begin(folder: Path) -> subprocess.Popen[bytes]:
    words = ["study", "files", "--output", "out"]
    return subprocess.Popen(
        [sys.executable, "-c", f"{PAGELESS}sys.exit(main({words}))"], cwd=folder,
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
        rows = json_lines(log)
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
    assert len(found) == 4 * 3 + 1  # metrics, evaluations, answers; what is made of them
    assert len({log.resolve() for log in folder.glob("out/[!.]*/*/metrics.jsonl")}) == 3
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
@pytest.mark.long
@pytest.mark.parametrize("times", [2, pytest.param(10, marks=pytest.mark.slow)])
def test_a_study_that_is_killed_comes_to_the_same(
    times: int, whole: dict[str, Any], tmp_path: Path
) -> None:
    """The study itself and single trainings, by SIGKILL, in turn."""
    folder, chance = files(tmp_path), random.Random(times)
    for turn in range(times):
        study = begin(folder)
        done = len(list(folder.glob("out/[!.]*/*/metrics.jsonl")))
        end = time.monotonic() + 240
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
        study.wait(80)
        deadline = time.monotonic() + 80
        while any(Path(f"/proc/{p}/maps").exists() and alive(p) for p in running):
            assert time.monotonic() < deadline, "a training outlives its study"
            time.sleep(0.05)
    assert begin(folder).wait(LIMIT) == 0
    assert figures(folder) == whole


SMALL_NODES = f"""\
{PAGELESS}
from ray.cluster_utils import Cluster
from entrostat.study import workers as local

local.processors = lambda: 4  # where the study is started; each node has one
cluster = Cluster()
cluster.add_node(num_cpus=1)
cluster.add_node(num_cpus=1)
code = runner.run_study("files", "out", ray=cluster.address)
cluster.shutdown()
sys.exit(code)
"""


@pytest.mark.long
def test_a_ray_cluster_of_two_workers_comes_to_the_same(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    """Its nodes have fewer processors than a training would take; Ray would wait without end."""
    folder = files(tmp_path)
    subprocess.run([sys.executable, "-c", SMALL_NODES], cwd=folder, timeout=LIMIT, check=True)
    assert figures(folder) == whole


class AnotherNode:
    """A worker that has not the directory that the study was started in."""

    def __init__(self) -> None:
        self.now: list[tuple[str, int]] = []

    def room(self, training: Training) -> bool:
        return not self.now

    def start(self, training: Training, words: list[str]) -> None:
        code = train(words, str(training.log.resolve()), "/no/such/directory", 1)
        self.now.append((training.address, code))

    def ended(self) -> list[tuple[str, int]]:
        ended, self.now = self.now, []
        return ended

    def close(self) -> None:
        pass


def test_a_node_may_lack_the_directory_that_the_study_was_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(command: list[str], cwd: str, **how: Any) -> SimpleNamespace:
        """The training's process is this one."""
        with contextlib.chdir(cwd), contextlib.redirect_stdout(io.StringIO()):
            return SimpleNamespace(returncode=main(command[3:]))

    monkeypatch.setattr(on_ray, "subprocess", SimpleNamespace(run=here, DEVNULL=None))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n' * 4)
    (tmp_path / "s.toml").write_text(
        'seeds = [0]\n[base]\niterations = 1\ntask = {name = "sums.jsonl"}\n'
        "sampling = {prompts = 2, rollouts = 2, max_new_tokens = 4}\neval = {prompts = 0}\n"
    )
    plan = plan_of({"s": read_study(tmp_path / "s.toml")}, Path("out"))
    make_places(plan)
    state = execute(anywhere(plan), AnotherNode(), lambda state: None, pages=False)
    assert state.failed == {}
    assert len(read_run(tmp_path / "out/run-0").metrics) == 1


def test_what_a_cluster_is_told_is_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[list[str]] = []

    class Cluster(AnotherNode):
        def __init__(self, address: str) -> None:
            super().__init__()

        def start(self, training: Training, words: list[str]) -> None:
            told.append(words)
            self.now.append((training.address, 1))

    monkeypatch.setattr(on_ray, "OnRay", Cluster)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.toml").write_text("seeds = [0]\n[base]\niterations = 1\n")
    assert run_study("s.toml", "out", ray="local") == 1  # it trains nothing
    (words,) = told
    assert words[0::2] == ["--config", "--output"]
    assert words[3] == f"{tmp_path}/out/run-0"
    assert Path(words[1]).parent == tmp_path / "out/.store"


def test_without_ray_it_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from entrostat.study.workers import OnRay

    monkeypatch.setitem(sys.modules, "ray", None)
    refused(lambda: OnRay(), "'entrostat[ray]'")
