"""benchmarks/study_picture.py: which seeds the picture shows, and where they lie."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from entrostat.study.results import Interval
from scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/study_picture.py")


class Fake:
    """Seed s of OPEFO has s + 2, s + 1, s nats and others a tenth; gym's KL-Cov lacks seed 2."""

    def __init__(self) -> None:
        self.asked: set[tuple[str, str]] = set()

    def seeds(self, experiment: str, group: str) -> list[int]:
        self.asked.add((experiment, group))
        return [0, 1] if (experiment, group) == ("llm_gym", "kl_cov") else [0, 1, 2]

    def run(self, experiment: str, group: str, seed: int) -> SimpleNamespace:
        scale = 1.0 if group == "opefo" else 0.1
        values = [scale * (seed + back) for back in (2, 1, 0)]
        return SimpleNamespace(series=lambda key: ([1, 2, 3], values))

    def mean(self, experiment: str, group: str, seeds: list[int], figure: Any) -> Interval:
        return Interval(0.5 if figure.kind == "evaluation" else 1.5, 0.25, len(seeds))


def test_curves_are_means_and_points_have_their_intervals(script: ModuleType) -> None:
    record = Fake()
    axes = script.draw(record).axes
    words, gym, below = axes[1], axes[3], axes[5]
    assert words.get_title() == "SmolLM2, words\nSeeds 0 to 2."
    assert gym.get_title() == "SmolLM2, gym\nSeeds 0 to 1."  # those that every method has
    curves = [list(line.get_ydata()) for line in words.get_lines()]
    assert len(curves) == 10
    assert [3.0, 2.0, 1.0] in curves
    assert [2.5, 1.5, 0.5] in [list(line.get_ydata()) for line in gym.get_lines()]
    (across,), (up,) = (lines.get_segments() for lines in below.containers[0].lines[2])
    assert across.tolist() == [[1.25, 0.5], [1.75, 0.5]]
    assert up.tolist() == [
        [1.5, 0.25],
        [1.5, 0.75],
    ]
    # the tiny policy's REPO-R holds from both sides, as the language model's does
    assert ("control", "repo_r_both_ways") in record.asked
    assert ("llm_gym", "repo_r") in record.asked


@pytest.mark.long
def test_every_setting_it_draws_is_planned(script: ModuleType) -> None:
    """From the recipes: a run that is renamed there must be renamed here."""
    from entrostat.study.file import read_study
    from study_page.record import RECIPES

    record = Fake()
    script.draw(record)
    for experiment, group in record.asked:
        study = read_study(RECIPES / f"{experiment}.toml")
        assert f"{group}-0" in study.runs, (experiment, group)
