"""Entropy and score over checkpoints: against scipy, scikit-learn, enumeration."""

from __future__ import annotations

import itertools
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import permutation_test, spearmanr
from sklearn.feature_selection import mutual_info_regression
from sklearn.metrics import mutual_info_score

from builders import refused
from entrostat.cli import main
from entrostat.evaluation.checkpoint_correlation import (
    LEAST,
    Checkpoint,
    bins_for,
    of_set,
    over,
    shared_information,
    spearman,
)


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def run_of(path: Path, entropies: list[float], evaluations: dict[int, float], **more: Any) -> Path:
    """A run that logged entropies of the iterations 1, 2, ... and avg@4 of one set."""
    rows = [{"iteration": i, "entropy/exact": h} for i, h in enumerate(entropies, 1)]
    write(path / "metrics.jsonl", rows)
    write(path / "evaluation.jsonl", [
        {"iteration": i, "set": "test", "split": "test", "prompts": 8, "k": 4, "avg@k": v, **more}
        for i, v in evaluations.items()
    ])  # fmt: skip
    return path


# ------------------------------------------------------------------------------------ statistics


@pytest.mark.parametrize("n", [9, 12, 40])
@pytest.mark.parametrize("ties", [False, True])
def test_spearman_is_scipys(n: int, ties: bool) -> None:
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=n), rng.normal(size=n)
    if ties:
        x, y = np.round(x), np.round(y)
    found, theirs = spearman(x, y), spearmanr(x, y)
    assert found is not None
    assert (found.rho, found.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert found.n == n


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("n", [3, 5, 6])
def test_p_of_few_points_is_counted_over_all_orders(n: int, ties: bool) -> None:
    rng = np.random.default_rng(10 * n + ties)
    x, y = rng.normal(size=n), rng.normal(size=n)
    if ties:
        x[1] = x[0]
        y[2] = y[0]
    exact = permutation_test(
        (x,), lambda x: spearmanr(x, y).statistic, permutation_type="pairings", n_resamples=np.inf
    )
    every = [abs(spearmanr(order, y).statistic) for order in itertools.permutations(x)]
    by_hand = np.mean(np.array(every) >= abs(spearmanr(x, y).statistic) - 1e-9)
    found = spearman(x, y)
    assert found is not None
    assert found.p == pytest.approx(by_hand)
    if not ties:  # scipy doubles the smaller tail, which is the same where the law is symmetric
        assert found.p == pytest.approx(exact.pvalue)


def test_par_table_4s_smallest_step_is_that_of_six_policies() -> None:
    """PAR's -0.08571 and -0.88571 are multiples of 1/35: 1 - 6 d / (6 * 35), d a sum of squares."""
    found = spearman([1, 2, 3, 4, 5, 6], [5, 6, 4, 3, 2, 1])
    assert found is not None  # d = 16 + 16 + 1 + 1 + 9 + 25 = 68
    assert found.rho == pytest.approx(1 - 68 / 35)
    assert round(1 - 66 / 35, 5) == -0.88571
    assert round(1 - 38 / 35, 5) == -0.08571


@pytest.mark.parametrize(("x", "y"), [([1, 2], [1, 2]), ([1, 1, 1], [1, 2, 3]), ([], [])])
def test_nothing_is_said_of_two_points_or_a_constant(x: list[float], y: list[float]) -> None:
    assert spearman(x, y) is None


def test_mutual_information_is_scikit_learns() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    y = x + rng.normal(size=400)
    found = shared_information(x, y)
    assert found.bins == bins_for(400) == 10
    assert bins_for(60) == 7  # 49 cells of 60 points
    cells = [np.clip(np.digitize(v, np.linspace(v.min(), v.max(), 11)) - 1, 0, 9) for v in (x, y)]
    used = [len(set(c)) for c in cells]
    bias = (len(set(zip(*cells, strict=True))) - sum(used) + 1) / 800
    assert found.histogram == pytest.approx(mutual_info_score(*cells) - bias)
    near = mutual_info_regression(x[:, None], y, n_neighbors=3, random_state=0)
    assert found.neighbours == pytest.approx(near[0])
    assert found.p == 1 / 1000  # no order at random says as much
    assert shared_information(x, rng.permutation(y)).p > 0.05
    truth = -0.5 * math.log(1 - 0.5)  # of two normals with a squared correlation of .5
    assert found.neighbours == pytest.approx(truth, abs=0.1)


# ---------------------------------------------------------------------------------------- reading


def test_entropies_are_those_of_the_policy_that_was_evaluated(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", [0.9, 0.7, 0.4, 0.2], {0: 0.1, 2: 0.3, 4: 0.2}, entropy=0.5)
    (one,) = over([run])
    assert one.name == "test"
    assert [(p.iteration, dict(p.figures)) for p in one.points] == [
        (0, {"avg@4": 0.1}), (2, {"avg@4": 0.3}), (4, {"avg@4": 0.2}),
    ]  # fmt: skip
    # after 2 iterations the policy's rollouts are those of iteration 3; after 4 there are none
    assert [p.entropies.get("rollouts") for p in one.points] == [0.9, 0.4, None]
    assert [p.entropies["responses"] for p in one.points] == [0.5] * 3
    assert [p.cumulative for p in one.points] == [None, pytest.approx(1.6), pytest.approx(2.2)]


def test_an_entropy_that_was_not_logged_ends_the_sum(tmp_path: Path) -> None:
    run = run_of(tmp_path / "a", [0.9, 0.7, 0.4, 0.2], {1: 0.1, 2: 0.3, 4: 0.2})
    lines = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text(lines[0] + lines[2] + lines[3])
    (one,) = over([run])
    assert [p.cumulative for p in one.points] == [0.9, None, None]


def test_rows_of_runs_are_pooled_and_each_has_its_own(tmp_path: Path) -> None:
    score = {i: 0.1 * i for i in range(5)}
    down = run_of(tmp_path / "study/down", [1.0, 0.8, 0.6, 0.4, 0.2, 0.1], score)
    run_of(tmp_path / "study/up", [0.3, 0.35, 0.4, 0.5, 0.6, 0.7], score)
    (one,) = over([tmp_path / "study"])
    own = {name: table["avg@4"]["rollouts"].rho for name, table in one.runs.items()}
    assert own == {"down": pytest.approx(-1), "up": pytest.approx(1)}
    assert one.mean_of_runs("avg@4", "rollouts") == pytest.approx(0)
    x = [1.0, 0.8, 0.6, 0.4, 0.2, 0.3, 0.35, 0.4, 0.5, 0.6]
    theirs = spearmanr(x, [0.0, 0.1, 0.2, 0.3, 0.4] * 2)
    pooled = one.pooled["avg@4"]["rollouts"]
    assert (pooled.rho, pooled.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    (alone,) = over([down])
    assert alone.mean_of_runs("avg@4", "rollouts") is None
    assert any("8 checkpoints after training began" in note for note in one.notes)
    assert any("5 checkpoints are few" in note for note in alone.notes)


def test_runs_of_one_name_in_two_studies_are_two(tmp_path: Path) -> None:
    """One rises, the other falls: each has rho of 1 or -1, and their mean is 0."""
    score = {i: i / 10 for i in range(5)}
    run_of(tmp_path / "one/grpo-0", [0.1, 0.2, 0.3, 0.4, 0.5], score)
    run_of(tmp_path / "two/grpo-0", [0.5, 0.4, 0.3, 0.2, 0.1], score)
    (found,) = over([tmp_path / "one", tmp_path / "two"])
    own = {name: table["avg@4"]["rollouts"].rho for name, table in found.runs.items()}
    assert own == {"one/grpo-0": pytest.approx(1), "two/grpo-0": pytest.approx(-1)}
    assert found.mean_of_runs("avg@4", "rollouts") == pytest.approx(0)


def test_results_of_eval_are_read_with_their_runs_entropies(tmp_path: Path) -> None:
    run = run_of(tmp_path / "run", [0.9, 0.7, 0.4], {})
    for i, score in ((0, 0.2), (1, 0.5), (2, 0.4)):
        metrics = {"avg@8": score, "pass@8": 0.9, "entropy": 1.0 - 0.1 * i, "prompt_entropy": 2.0}
        body = {
            "model": f"run@{i}", "run": str(run), "iteration": i,
            "sets": {"math500/test": {"settings": {}, "n": 9, "k": 8, "metrics": {
                key: {"value": value, "low": 0, "high": 1} for key, value in metrics.items()}}},
        }  # fmt: skip
        path = tmp_path / f"evals/run@{i}/results.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(body))
    other = tmp_path / "evals/base/results.json"  # of no run: not a checkpoint
    other.parent.mkdir()
    other.write_text(json.dumps({"model": "base", "sets": {"math500/test": {"metrics": {}}}}))
    (one,) = over([tmp_path / "evals"])
    assert one.name == "math500/test"
    assert [p.entropies["rollouts"] for p in one.points] == [0.9, 0.7, 0.4]
    assert set(one.pooled) == {"avg@8"}  # pass@8 never changes
    found = one.pooled["avg@8"]
    assert found["rollouts"].rho == found["responses"].rho == pytest.approx(-0.5)
    assert "prompts" not in found


def test_information_tells_cumulative_entropy_from_the_iteration() -> None:
    """Runs of two speeds: the score follows the cumulative entropy alone (REPO's claim)."""
    points, rng = [], random.Random(0)
    for run, speed in (("fast", 2.0), ("slow", 0.5), ("slower", 0.2)):
        for i in range(1, 25):
            total = speed * i
            score = 1 - math.exp(-total / 8) + rng.gauss(0, 0.01)
            points.append(Checkpoint(run, i, {"avg@4": score}, {}, total))
    one = of_set("test", points)
    assert one.shared["cumulative"].histogram > one.shared["iteration"].histogram + 0.3
    assert one.shared["cumulative"].neighbours > one.shared["iteration"].neighbours + 0.3
    assert one.shared["cumulative"].n == 72
    few = of_set("test", points[: LEAST - 1])
    assert not few.shared
    single = of_set("test", points[:24])
    assert any("Of one run, cumulative entropy rises with the iteration" in n for n in single.notes)


# --------------------------------------------------------------------------------------- the verb


def test_the_verb_prints_and_writes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(3)
    for name in ("a", "b[red]"):
        score = {i: float(rng.random()) for i in range(12)}
        run_of(tmp_path / "study" / name, [float(h) for h in rng.random(13)], score, entropy=0.4)
    out = tmp_path / "out"
    assert main(["eval", "--over", str(tmp_path / "study"), "--output", str(out)]) == 0
    said = capsys.readouterr().out
    assert "test: 24 checkpoints of 2 runs" in said
    assert "mutual information of avg@4 and cumulative entropy" in said
    data = json.loads((out / "over.json").read_text())
    found = data["sets"][0]["pooled"]["avg@4"]["rollouts"]
    assert f"{found['rho']:+.3f}" in said
    assert found["n"] == 24
    assert set(data["sets"][0]["runs"]) == {"a", "b[red]"}
    assert (out / "over.svg").read_bytes().startswith(b"<?xml")


@pytest.mark.parametrize("make", [lambda p: None, lambda p: run_of(p, [0.5], {})])
def test_what_holds_no_evaluation_is_refused(
    tmp_path: Path, make: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "run")
    assert main(["eval", "--over", str(tmp_path / "run")]) == 2
    assert "holds no evaluation of a run's checkpoints" in capsys.readouterr().err


def test_damaged_results_are_passed_over(tmp_path: Path) -> None:
    for i, text in enumerate(
        ["{", "[]", '{"run": 3}', '{"run": "x", "iteration": "1"}', "[" * 9999]
    ):
        path = tmp_path / str(i) / "results.json"
        path.parent.mkdir()
        path.write_text(text)
    refused(lambda: over([tmp_path]), "holds no evaluation")


def test_help_and_unknown_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--over", "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out
    assert main(["eval", "--over", "x", "--outptu", "y"]) == 2
    assert "Did you mean '--output'" in capsys.readouterr().err
