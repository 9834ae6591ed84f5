"""What a run shows of itself: lines in a pipe, a live panel on a terminal."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from entrostat.config import TrainConfig
from entrostat.runs.progress import (
    Lines,
    Live,
    Progress,
    duration,
    for_stream,
    outcome,
    sparkline,
)

METRICS = {
    "entropy/exact": 0.4567, "reward/mean": 0.25, "control/zeta": 0.002, "rollout/length_mean": 9.5,
    "time/tokens_per_second": 1234.4,
}  # fmt: skip


def shown(progress: type[Progress], stream: io.StringIO) -> str:
    display = progress(stream)  # type: ignore[call-arg]
    display.begin(TrainConfig(method=["repo_r"], iterations=4, output="runs/x"), start=2)
    display.tokens(10)
    display.note("evaluating")
    for i, line in ((3, METRICS), (4, METRICS | {"entropy/exact": 0.5})):
        display.trained(i, line)
        display.iteration(i, line)
    display.end(Path("runs/x"))
    display.close()
    return stream.getvalue()


def test_lines_say_entropy_reward_coefficient_speed_and_time_left() -> None:
    lines = shown(Lines, io.StringIO()).splitlines()
    assert lines[0] == "repo_r on target_sum -> runs/x, from iteration 3"
    assert lines[1] == "evaluating"
    assert lines[2].startswith("[3/4] entropy 0.457  reward 0.250  zeta 0.002  length 9.5")
    assert "tokens/s 1234" in lines[2]
    assert lines[3].endswith("left 0s")
    assert lines[4] == "done: runs/x"


def evaluated(iteration: int, split: str, avg: float, distinct: float) -> dict:
    return {
        "iteration": iteration, "split": split, "prompts": 2, "k": 4, "avg@k": avg, "pass@k": 1.0,
        "distinct": distinct, "entropy": avg / 2,
    }  # fmt: skip


ROWS = [
    evaluated(0, "test", 0.25, 1.5), evaluated(0, "ood", 0.5, 1), evaluated(5, "test", 0.4, 3),
    evaluated(10, "test", 0.75, 2.25), evaluated(10, "ood", 0.125, 0.5),
]  # fmt: skip


def test_evaluations_are_shown_before_and_after() -> None:
    assert outcome(ROWS) == [
        "test, iteration 0 → 10: avg@4 0.25 → 0.75  pass@4 1.00 → 1.00  distinct 1.5 → 2.2  "
        "entropy 0.12 → 0.38",
        "ood, iteration 0 → 10: avg@4 0.50 → 0.12  pass@4 1.00 → 1.00  distinct 1.0 → 0.5  "
        "entropy 0.25 → 0.06",
    ]
    (only,) = outcome(ROWS[:1])
    assert only == "test, iteration 0: avg@4 0.25  pass@4 1.00  distinct 1.5  entropy 0.12"
    assert outcome([]) == []
    blind = [{key: value for key, value in ROWS[0].items() if key != "entropy"}, ROWS[3]]
    assert outcome(blind) == [
        "test, iteration 0 → 10: avg@4 0.25 → 0.75  pass@4 1.00 → 1.00  distinct 1.5 → 2.2"
    ]


def test_the_end_shows_what_the_evaluations_found(tmp_path: Path) -> None:
    """Read from the run, so that a resumed one has its first evaluation too."""
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (tmp_path / "evaluation.jsonl").write_text(text)
    stream = io.StringIO()
    Lines(stream).end(tmp_path)
    assert stream.getvalue().splitlines() == [*outcome(ROWS), f"done: {tmp_path}"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_the_live_panel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    assert isinstance(for_stream(Terminal()), Live)
    assert type(for_stream(io.StringIO())) is Lines
    text = shown(Live, Terminal())
    for word in ("4/4", "entropy", "0.500", "zeta", "0.002", "tokens/s", "0.46 → 0.50", "done"):
        assert word in text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.4, "59s"), (60, "1m00s"), (3599, "59m59s"), (8400, "2h20m")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_sparkline_by_hand() -> None:
    assert sparkline([]) == ""
    assert sparkline([1.0, 2.0]) == "▁█  1.00 → 2.00"
    # 4 values in 2 places: means 1.5 and 3.5
    assert sparkline([1.0, 2.0, 3.0, 4.0], width=2) == "▁█  1.00 → 4.00"
    assert sparkline([1.0] * 3) == "▁▁▁  1.00 → 1.00"
