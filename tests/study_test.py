"""Seeds taken together: which runs belong to one group, and their intervals by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from entrostat.cli import main
from entrostat.config import TrainConfig, from_dict
from entrostat.study.fairness import confounded
from entrostat.study.runner import read_study
from entrostat.study.seeds import Interval, group_by_seed, interval

RECIPES = Path(__file__).parents[1] / "recipes"


def test_interval_by_hand() -> None:
    # mean 2, s = 1, t(.975, 2 degrees of freedom) = 4.302653 (any table): 4.302653 / sqrt(3)
    assert interval([1.0, 2.0, 3.0]).mean == 2
    assert interval([1.0, 2.0, 3.0]).half == pytest.approx(2.484138, abs=1e-6)
    # two values: s = sqrt(2), t(.975, 1) = 12.706205: 12.706205 * sqrt(2) / sqrt(2)
    assert interval([0.0, 2.0]) == Interval(1.0, pytest.approx(12.706205, abs=1e-6), 2)
    assert interval([5.0] * 4).half == 0
    assert str(interval([1.0, 2.0, 3.0])) == "2.00 ± 2.48"
    with pytest.raises(ValueError, match="two values or more, got 1"):
        interval([1.0])


def run(path: Path, entropy: list[float], avg: float | None) -> Path:
    path.mkdir()
    lines = [
        {"iteration": i, "entropy/exact": h, "reward/mean": 0} for i, h in enumerate(entropy, 1)
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    if avg is not None:
        line = {"iteration": len(entropy), "split": "test", "k": 4, "avg@k": avg}
        (path / "evaluation.jsonl").write_text(json.dumps(line) + "\n")
    return path


def config(method: str, seed: int, **more: object) -> TrainConfig:
    return from_dict({"method": method, "seed": seed, "output": f"{method}{seed}", **more})


def test_runs_that_differ_by_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    configs = {
        "grpo-0": config("grpo", 0),
        "grpo-1": config("grpo", 1),
        "grpo-long-0": config("grpo", 0, iterations=7),
        "gspo-s3": config("gspo", 3),
        "gspo-s4": config("gspo", 4),
        "gspo-s5": config("gspo", 5),
    }
    curves = {
        # a tenth of twenty are two: early .5, last .5
        "grpo-0": [1.0] * 2 + [0.25, 0.75] + [1.0] * 14 + [0.25, 0.75],
        "grpo-1": [2.0] * 18 + [1.0, 2.0],
        "grpo-long-0": [1.0],
        "gspo-s3": [1.0, 0.5],
        "gspo-s4": [1.0, 0.5],
        "gspo-s5": [1.0, 0.5],
    }
    scores = {"grpo-0": 0.5, "grpo-1": 0.75, "gspo-s3": 0.5, "gspo-s4": None, "gspo-s5": 0.5}
    paths = {n: run(tmp_path / n, curve, scores.get(n)) for n, curve in curves.items()}
    grpo, gspo = group_by_seed(configs, paths)
    assert (grpo.name, grpo.runs) == ("grpo", ("grpo-0", "grpo-1"))
    assert (gspo.name, gspo.runs) == ("gspo", ("gspo-s3", "gspo-s4", "gspo-s5"))
    assert grpo.figures["first"].mean == 1.5
    assert grpo.figures["last"].mean == 1.0  # of .5 and 1.5
    assert grpo.figures["early"].mean == 1.25  # of .5 and 2
    assert gspo.figures["early"].mean == 0.5
    assert grpo.figures["last"].half == pytest.approx(12.706205 / 2, abs=1e-6)
    assert grpo.figures["avg@k"].mean == 0.625
    assert "avg@k" not in gspo.figures  # one run has none: no figure that speaks for fewer seeds
    assert gspo.figures["last"] == Interval(0.5, 0.0, 3)


@pytest.mark.parametrize("name", ["three_seeds", "positive_negative", "clip_presets"])
def test_the_shipped_studies_have_three_seeds_a_setting(name: str, tmp_path: Path) -> None:
    study = read_study(RECIPES / f"{name}.toml")
    paths = {n: run(tmp_path / n, [1.0], None) for n in study.runs}
    groups = group_by_seed(study.runs, paths)
    assert sum(len(group.runs) for group in groups) == len(study.runs)
    assert all(len(group.runs) == 3 for group in groups)
    assert all({study.runs[r].seed for r in g.runs} == {0, 1, 2} for g in groups)


def test_a_study_and_the_settings_of_one_run_are_told_apart(
    capsys: pytest.CaptureFixture,
) -> None:
    study, one = str(RECIPES / "demo.toml"), str(RECIPES / "grpo.toml")
    assert main(["train", "--config", study]) == 2
    assert f"use: entrostat study {study}" in capsys.readouterr().err
    assert main(["study", one]) == 2
    assert f"use: entrostat train --config {one}" in capsys.readouterr().err


def test_the_report_of_a_study_s_directory_compares_its_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for name, entropy in (("a", [0.5, 0.25]), ("b", [1.0, 0.75])):
        run(tmp_path / name, entropy, None)
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"report: {tmp_path / 'report.html'}\n"
    page = (tmp_path / "report.html").read_text()
    assert f"<h1>{tmp_path.name}" in page
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "holds no metrics.jsonl" in capsys.readouterr().err


def arms(*methods: object) -> dict[str, TrainConfig]:
    return {f"run-{i}": from_dict({"method": method}) for i, method in enumerate(methods)}


def test_runs_that_differ_in_more_than_the_method_are_named() -> None:
    """Findings D6: grpo beside clip_cov changes the clip as well."""
    (line,) = confounded(arms("grpo_token", "clip_cov"))
    assert line.startswith("run-1: clip_cov sits on grpo | Ppo(low=1.0, high=1.0")
    assert "fair baseline (clip_wide)" in line
    # the same clip, another aggregation
    (line,) = confounded(arms("clip_wide", ["grpo", "ppo", "repo_r"]))
    assert "seq_mean_token_mean" in line


@pytest.mark.parametrize(
    "methods",
    [
        ("clip_wide", "clip_cov"),
        ("dapo", "repo_r", "repo_d"),
        ("grpo", "clip_higher", "gspo"),  # surrogates are what is compared
        ("repo_r",),
        (["grpo", "ppo", "repo_r"], ["grpo", "ppo", "repo_d"]),
    ],
)
def test_fair_studies_get_no_note(methods: tuple[object, ...]) -> None:
    assert confounded(arms(*methods)) == []
