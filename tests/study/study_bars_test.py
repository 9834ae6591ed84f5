"""What a study says while it trains, where no terminal shows bars."""

from __future__ import annotations

from pathlib import Path

import pytest

from entrostat.study import progress as bars
from entrostat.study.execute import State
from entrostat.study.file import read_study
from entrostat.study.plan import Plan, make_places, plan_of
from entrostat.study.progress import Bars

FILE = """
seeds = [{seeds}]
[base]
iterations = 10
[[runs]]
name = "a"
"""


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds since the beginning, to be set; nothing sleeps."""
    now = [0.0]
    monkeypatch.setattr(bars.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(bars.time, "sleep", lambda seconds: None)
    return now


def plan(folder: Path, seeds: str) -> Plan:
    file = folder / "mine.toml"
    file.write_text(FILE.format(seeds=seeds))
    made = plan_of({"mine": read_study(file)}, folder / "out")
    make_places(made)
    return made


def reach(made: Plan, address: str, iteration: int) -> None:
    text = f'{{"iteration": {iteration}, "entropy/exact": 0.5, "reward/mean": 0.25}}\n'
    (made.trainings[address].path / "metrics.jsonl").write_text(text)


def test_how_far_and_how_long(
    tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    """Of 20 iterations 5 in 20 seconds: 15 more are a minute."""
    made = plan(tmp_path, "0, 1")
    first, second = made.trainings
    shown = Bars(made)
    shown(State([second], {first}, {}, set()))
    assert capsys.readouterr().out == ""
    reach(made, first, 5)
    clock[0] = 20.0
    shown(State([second], {first}, {}, set()))
    assert capsys.readouterr().out.splitlines() == [
        "a-0: iteration 5  entropy 0.500  reward 0.250",
        "0 of 2 runs, about 1m00s left",
    ]
    shown.close()


def test_one_training_needs_no_sum(
    tmp_path: Path, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    made = plan(tmp_path, "0")
    shown = Bars(made)
    reach(made, *made.trainings, 5)
    clock[0] = 20.0
    shown(State([], set(made.trainings), {}, set()))
    assert capsys.readouterr().out == "a-0: iteration 5  entropy 0.500  reward 0.250\n"
    shown.close()


def test_a_kill_is_told_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = plan(tmp_path, "0, 1")
    first, second = made.trainings
    shown = Bars(made)
    state = State([second], {first}, {}, set())
    state.killed.append((first, 9, 3))
    shown(state)
    shown(state)
    state.killed.append((second, 15, 0))
    shown(state)
    assert capsys.readouterr().out.splitlines() == [
        "run 'a-0' was killed by signal 9 after iteration 3; it is taken up again",
        "run 'a-1' was killed by signal 15 before its first iteration; it is taken up again",
    ]
    shown.close()
