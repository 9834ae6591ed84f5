"""Figures of a run, each by hand from a small log."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from entrostat.logs.run import Run, read_run
from entrostat.study.figures import Figure, _column, read_figure, value


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Thirty iterations of x = 1 to 30, evaluated at 0, 10, 20 and 30."""
    path = tmp_path_factory.mktemp("run")

    def write(name: str, rows: list[dict[str, Any]]) -> None:
        (path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))

    write(
        "metrics.jsonl",
        [{"iteration": i, "x": float(i), "entropy/exact": 2 - i / 20} for i in range(1, 31)],
    )
    scores = {0: 0.25, 10: 0.5, 20: 0.75, 30: 0.5}
    write(
        "evaluation.jsonl",
        [
            {"iteration": i, "set": name, "split": "test", "k": 4, "avg@k": score + shift}
            for i, score in scores.items()
            for name, shift in (("test", 0.0), ("wide", 1.0))
        ],
    )
    write(
        "analysis.jsonl",
        [
            {
                "iteration": i,
                "change/mean": -float(i),
                "estimators": {"omega": {"which": {"pcc": i}}},
            }
            for i in (1, 10)
        ],
    )
    return read_run(path)


@pytest.mark.parametrize(
    ("kind", "key", "at", "expected"),
    [
        ("metric", "x", "first", 1),
        ("metric", "x", "early", 5),  # of a tenth, three: the 4th to 6th
        ("metric", "x", "last", 29.5),  # a fifteenth, two
        ("metric", "x", "mean", 15.5),
        ("metric", "x", "sum", 465),
        ("metric", "x", "max", 30),
        ("metric", "x", "min", 1),
        ("metric", "x", "change", 28.5),
        ("metric", "x", "kept", 29.5),
        ("metric", "x", 0.5, 15.5),  # the 15th and 16th
        ("metric", "absent", "last", None),
        ("evaluation", "test/avg@k", "first", 0.25),
        ("evaluation", "test/avg@k", "last", 0.5),
        ("evaluation", "test/avg@k", "max", 0.75),
        ("evaluation", "test/avg@k", "change", 0.25),
        ("evaluation", "wide/avg@k", "last", 1.5),
        ("evaluation", "ood/avg@k", "last", None),
        ("analysis", "change/mean", "mean", -5.5),
        ("analysis", "estimators/omega/which/pcc", "last", 10),
        ("analysis", "estimators/omega/absent", "last", None),
        # policies after 0, 10 and 20 iterations only: the last has no rollouts
        ("checkpoints", "test/avg@k", "last", None),
    ],
)
def test_figures_by_hand(run: Run, kind: str, key: str, at: Any, expected: float | None) -> None:
    found = value(run, Figure(kind, key, at))
    assert found == (None if expected is None else pytest.approx(expected))


def test_checkpoints_relate_entropy_and_score(tmp_path: Path) -> None:
    rows = [{"iteration": i, "entropy/exact": 2 - i / 10} for i in range(1, 7)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    scores = [0.1, 0.2, 0.4, 0.3]  # entropy falls: ranks 4 3 2 1 against 1 2 4 3
    rows = [{"iteration": i, "split": "test", "avg@k": s} for i, s in enumerate(scores)]
    (tmp_path / "evaluation.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    # d = 3 1 -2 -2: 1 - 6 * 18 / 60
    found = value(read_run(tmp_path), Figure("checkpoints", "test/avg@k"))
    assert found == pytest.approx(-0.8)


def of_columns(tmp_path: Path, **columns: list[float]) -> Run:
    """A run of iterations 1, 2, ..., without the values that are NaN."""
    rows = [
        {"iteration": i} | {k: v for k, v in zip(columns, values, strict=True) if v == v}
        for i, values in enumerate(zip(*columns.values(), strict=True), 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    return read_run(tmp_path)


def test_two_columns_together(tmp_path: Path) -> None:
    """Of ten iterations the first is left out; NaN stands for an iteration that lacks a figure."""
    nan = float("nan")
    x = [99.0, 1, 2, 3, 4, nan, 5, 6, 7, 8]
    y = [-99.0, 2, 4, 5, 9, 7, nan, 12, 15, 16]
    run = of_columns(tmp_path, x=x, y=y, flat=[1.0] * 10)
    pairs = [(1, 2), (2, 4), (3, 5), (4, 9), (6, 12), (7, 15), (8, 16)]
    slope, r = by_hand(pairs)
    assert value(run, Figure("slope", "x", other="y")) == pytest.approx(slope)
    assert value(run, Figure("correlation", "x", other="y")) == pytest.approx(r)
    # x of iteration i beside y of i + 1
    later = [(1, 4), (2, 5), (3, 9), (4, 7), (5, 12), (6, 15), (7, 16)]
    found = value(run, Figure("slope", "x", other="y", lag=1))
    assert found == pytest.approx(by_hand(later)[0])
    for other in ("flat", "absent"):
        assert value(run, Figure("correlation", "x", other=other)) is None


def test_the_distance_of_two_columns(tmp_path: Path) -> None:
    """By hand; the first of ten iterations is left out, and one column may be flat."""
    nan = float("nan")
    entropy = [0.8, 0.7, 0.9, nan, 0.8, 0.6, 0.8, 0.8, 0.8, 0.8]
    target = [9.0, 0.8, 0.8, 0.8, 0.8, 0.8, nan, 0.8, 0.8, 0.8]
    run = of_columns(tmp_path, **{"entropy/exact": entropy, "control/target": target})
    found = value(run, Figure("distance", "entropy/exact", other="control/target"))
    assert found == pytest.approx((0.06 / 7) ** 0.5)  # .1, .1 and .2 off, of seven that have both
    first = value(run, Figure("distance", "entropy/exact", other="entropy/first"))
    assert first == pytest.approx((0.06 / 8) ** 0.5)
    assert value(run, Figure("distance", "entropy/exact", other="absent")) is None


def by_hand(pairs: list[tuple[float, float]]) -> tuple[float, float]:
    """Slope and Pearson's r."""
    n = len(pairs)
    x, y = (sum(side) / n for side in zip(*pairs, strict=True))
    xx = sum((a - x) ** 2 for a, _ in pairs)
    yy = sum((b - y) ** 2 for _, b in pairs)
    xy = sum((a - x) * (b - y) for a, b in pairs)
    return xy / xx, xy / (xx * yy) ** 0.5


def test_the_law_as_a_column(tmp_path: Path) -> None:
    """On the curve R = 1 - .2 e^H the law says: no change; off it, how far."""
    entropy = [1.0 - i / 40 for i in range(30)]
    reward = [1 - 0.2 * math.exp(h) for h in entropy]
    entropy[-1] += 0.1
    run = of_columns(tmp_path, **{"entropy/exact": entropy, "reward/mean": reward})
    found = _column(run, "law/change")
    assert list(found) == list(range(9, 31))
    assert list(found.values())[:-1] == pytest.approx([0] * 21, abs=1e-9)
    assert found[30] == pytest.approx(-0.1)
    short = of_columns(tmp_path, **{"entropy/exact": [1.0], "reward/mean": [0.5]})
    assert _column(short, "law/change") == {}


@pytest.mark.parametrize(
    ("table", "told"),
    [
        ("entropy/exact", "where is a table"),
        ({}, "names one of metric, evaluation, analysis, checkpoints"),
        ({"metric": "x", "evaluation": "y"}, "names one of"),
        ({"metric": 3}, "names one of"),
        ({"metrik": "x"}, "Did you mean 'metric'"),
        ({"metric": "x", "at": "frist"}, "Did you mean 'first'"),
        ({"metric": "x", "at": ["first"]}, "between 0 and 1"),
        ({"metric": "x", "at": 1.5}, "between 0 and 1"),
        ({"slope": "x"}, "name the second one, `with`"),
        ({"slope": "x", "with": "y", "lag": -1}, "0 or more, got -1"),
        ({"slope": "x", "with": "y", "at": "last"}, "at"),
        ({"metric": "x", "lag": 1}, "lag"),
    ],
)
def test_a_table_that_is_no_figure(table: Any, told: str) -> None:
    with pytest.raises(ValueError) as error:
        read_figure("where", table)
    assert told in str(error.value)


def test_figures_in_words() -> None:
    assert str(Figure("metric", "entropy/exact")) == "entropy/exact at the end"
    assert str(Figure("metric", "entropy/exact", "kept")) == "share kept of entropy/exact"
    assert str(Figure("metric", "x", 0.25)) == "x at 25% of the run"
    assert str(Figure("slope", "x", other="y", lag=2)) == "slope of x and y, 2 later"
    assert "rank correlation" in str(Figure("checkpoints", "test/avg@k"))
