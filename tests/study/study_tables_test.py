"""benchmarks/study_tables.py: how the page writes numbers, and what its tables are made of."""

from __future__ import annotations

import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from builders import refused
from entrostat.study.claims import read_claims
from entrostat.study.results import Interval
from paths import ROOT
from scripts import load_script

RECIPES = ROOT / "recipes/study"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/study_tables.py")


@pytest.fixture(scope="module")
def cells(script: ModuleType) -> Any:
    from study_page import cells

    return cells


def test_numbers(cells: Any) -> None:
    numbers = [(0.4567, 2), (-0.4, 2), (-0.001, 2), (1.0, 2), (10.25, 1), (0.0, 1)]
    assert [cells.plain(*each) for each in numbers] == [".46", "-.40", ".00", "1.00", "10.2", ".0"]
    assert [cells.signed(*each) for each in numbers] == [
        "+.46", "-.40", ".00", "+1.00", "+10.2", ".0",
    ]  # fmt: skip
    numbers = (0.2284, -0.2, 1e-6, 15.2, 0.0, None)
    assert [cells.short(x) for x in numbers] == [".23", "-.20", "1.0e-06", "15", "0", "—"]
    assert [cells.said(x) for x in ([0], [0, 1, 2], [0, 2])] == [
        "Seed 0.", "Seeds 0 to 2.", "Seeds 0, 2.",
    ]  # fmt: skip
    assert cells.ranged([0.5, -0.25, 0.1]) == "-.25 to .50"
    some = Interval(0.125, 0.0625, 3)
    assert (cells.within(some), cells.within(some, 1, sign=True)) == (".12 ± .06", "+.1 ± .1")
    assert (cells.within(Interval(0.5, 0.0, 1)), cells.within(None)) == (".50", "")


def test_cells_of_a_column(script: ModuleType) -> None:
    from study_page.settings import Column

    column = Column("x", {}, 1, scale=100, unit="%")
    assert column.cell(Interval(0.125, 0.0625, 3)) == "12.5% ± 6.2"
    assert column.cell(Interval(0.125, 0.0, 1)) == "12.5%"
    assert column.cell(None) == ""


def test_places(script: ModuleType) -> None:
    page = "a\n<!-- table t -->\nold\n<!-- end -->\nb\n"
    new = script.with_tables(page, {"t": ["| 1 |"]}.__getitem__)
    assert new == "a\n<!-- table t -->\n\n| 1 |\n\n<!-- end -->\nb\n"
    assert script.with_tables(new, {"t": ["| 1 |"]}.__getitem__) == new
    refused(lambda: script.table_of(None, "t"), "'t'")


def test_entropy_and_a_figure_over_checkpoints(script: ModuleType) -> None:
    from study_page.experiments import over_checkpoints

    # entropy 3, 2, 1; the figure 1, 3, 2: d = 2, 1, 1 -> rho = 1 - 6 * 6 / 24 = -.5
    sets = [
        {"set": "test", "entropy": 3.0, "avg@k": 0.1}, {"set": "other", "entropy": 9, "avg@k": 9},
        {"set": "test", "entropy": 2.0, "avg@k": 0.3}, {"set": "test", "entropy": 1, "avg@k": 0.2},
    ]  # fmt: skip
    # of the iteration's own rollouts: ranks alike
    analyses = [{"iteration": i, "diversity": {"ngram": i / 4}} for i in (1, 3, 4)]
    metrics = [{"iteration": i, "entropy/exact": i * i} for i in (1, 2, 3, 4)]
    run: Any = SimpleNamespace(evaluation=sets, analysis=analyses, metrics=metrics)
    assert over_checkpoints(run, "test", "avg@k") == pytest.approx(-0.5)
    assert over_checkpoints(run, "test", "diversity/ngram") == pytest.approx(1.0)


def test_what_the_clip_holds_back_is_of_the_updates_after_the_first(script: ModuleType) -> None:
    from study_page.experiments import held_back

    def update(high: float, low: float) -> dict[str, Any]:
        return {"clipped": {"high": {"share": high}, "low": {"share": low}}}

    # two iterations of three updates; above (.1 + .2 + .3 + .6) / 4, below (.4 + 0 + 0 + .2) / 4
    analysis = [
        {"updates": [update(9.0, 9.0), update(0.1, 0.4), update(0.2, 0.0)]},
        {"updates": [update(9.0, 9.0), update(0.3, 0.0), update(0.6, 0.2)]},
    ]
    run: Any = SimpleNamespace(analysis=analysis)
    assert held_back(run, "high") == pytest.approx(0.3)
    assert held_back(run, "low") == pytest.approx(0.15)


def test_presets_are_set_beside_grpo_seed_by_seed(script: ModuleType) -> None:
    from study_page.experiments import presets

    def run(experiment: str, group: str, seed: int) -> Any:
        clip = {"clipped": {"high": {"share": 0.01}, "low": {"share": 0.02 * seed}}}
        line = {"updates": [clip, clip]}
        rewards = [{"reward/mean": 0.5}, {"reward/mean": 0.1 * seed}]
        return SimpleNamespace(analysis=[line], metrics=rewards)

    def each(experiment: str, group: str, seeds: list[int], figure: Any) -> list[float]:
        more = {"first": (0.002, 0.002, 0.005), "sum": (0.01, 0.02, 0.03)}[figure.at]
        return [10.0 * s + (more[s] if group.endswith("clip_higher") else 0.0) for s in seeds]

    record: Any = SimpleNamespace(shared=lambda *asked: [0, 1, 2], run=run, each=each)
    lines = presets(record)
    assert lines[2].count("held back above, below") == 2
    # the differences' mean .003, s = .001732, t(.975, 2) = 4.302653: half .0043; .02, .01: .0248
    half = "1.0%, 2.0% | +.0030 ± .0043 | +.020 ± .025 | .50, .10"
    assert lines[5] == f"| clip-higher: (.2, .28) | {half} | {half} |"
    assert lines[6].startswith("| clip-lower: (.28, .2) | 1.0%, 2.0% | .0000 ± .0000 |")
    assert len(lines) == 4 + 7


class Fake:
    """A record of three seeds in which a setting's figures are its place plus the seed's."""

    def __init__(self, groups: list[str]) -> None:
        self.groups = groups

    def shared(self, experiment: str, groups: list[str]) -> list[int]:
        return [0, 1, 2]

    def each(self, experiment: str, group: str, seeds: list[int], figure: Any) -> list[float]:
        more = 0.5 if group == "opefo" else 0.0
        # seeds differ by far more than settings; opefo's own difference is .5, .5, .8
        return [10.0 * seed + more + 0.3 * (more > 0 and seed == 2) for seed in seeds]


def test_beside_grpo_is_seed_by_seed(script: ModuleType) -> None:
    from study_page.experiments import beside_grpo
    from study_page.settings import MODEL_ROWS

    lines = beside_grpo(Fake(list(MODEL_ROWS)), "llm_words")  # type: ignore[arg-type]
    assert lines[:3] == ["Seeds 0 to 2.", "", "|  | entropy, end | avg@16 | different |"]
    # mean .6, s = .3 / sqrt 3 = .1732, t(.975, 2) = 4.302653: half .4303
    assert lines[4] == "| OPEFO, one update | +.60 ± .43 | +.60 ± .43 | +.6 ± .4 |"
    assert lines[5].endswith("| .00 ± .00 | .00 ± .00 | .0 ± .0 |")
    assert len(lines) == 4 + len(MODEL_ROWS) - 1
    lines = beside_grpo(Fake(list(MODEL_ROWS)), "llm_gym")  # type: ignore[arg-type]
    assert lines[2] == "|  | entropy, end | avg@16 | pass@16 |"


def test_a_claim_on_both_policies(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from study_page import verdicts

    # opefo less on_policy, seed by seed: .2, .3, .4 on the tiny policy; 0, -.1, .1 on `words`
    effects = {"balance": (0.2, 0.3, 0.4), "llm_words": (0.0, -0.1, 0.1)}

    def figure(experiment: str, group: str, seed: int, figure: Any) -> float:
        return 10.0 * seed + (effects[experiment][seed] if group == "opefo" else 0.0)

    def seeds(experiment: str, group: str) -> list[int]:
        return [0, 1, 2] if experiment in effects else []

    record: Any = SimpleNamespace(figure=figure, seeds=seeds, planned=seeds)
    monkeypatch.setattr(verdicts, "ON_BOTH", {"opefo-keeps": ("llm_words",)})
    lines = verdicts.on_both(record, script.CLAIMS)
    assert lines[0].startswith("| claim | source | minimum effect | tiny policy | `words` |")
    # s = .1, t(.975, 2) = 4.302653: half .2484; .30 - .25 is below the .1 that counts
    says = "OPEFO keeps a larger share of entropy than strictly on-policy training."
    assert lines[2:] == [f"| {says} | OPEFO | .1 | +.30 ± .25 | .00 ± .25 |  |  |"]
    effects |= {"balance": (0.5, 0.6, 0.7), "llm_words": (-0.5, -0.6, -0.7)}
    line = verdicts.on_both(record, script.CLAIMS)[2]
    assert line.endswith("| **+.60 ± .25** | *-.60 ± .25* |  |  |")


def test_settings_of_claims_on_both_policies_are_the_same(script: ModuleType) -> None:
    from study_page.verdicts import ON_BOTH

    claims = {one.id: one for one in read_claims(script.CLAIMS).claims}
    for name, experiments in ON_BOTH.items():
        claim = claims[name]
        tiny, *others = (
            {
                run["name"]: run["method"]
                for run in tomllib.loads((RECIPES / f"{each}.toml").read_text())["runs"]
            }
            for each in (claim.experiment, *experiments)
        )
        for other in others:
            assert {g: tiny[g] for g in claim.every_group} == {
                g: other[g] for g in claim.every_group
            }


def test_parameters_are_those_of_the_policy_that_ships(script: ModuleType) -> None:
    from safetensors import safe_open

    from study_page.laws import parameters

    (file,) = Path(ROOT / "src/entrostat/assets/tiny").glob("*.safetensors")
    count = 0
    with safe_open(file, framework="np") as tensors:
        for name in tensors.keys():  # noqa: SIM118 - the handle is not a mapping
            if "embed" not in name:
                count += tensors.get_tensor(name).size
    assert parameters(64, 3) == count == 148_288


def test_what_would_balance_a_flow(script: ModuleType) -> None:
    from study_page.experiments import lam_of, opefo_tokens

    def line(decrease: float) -> dict[str, Any]:
        flows = {
            "opefo": {"increase": 1.0, "decrease": decrease},
            "influence": {"increase": 3.0, "decrease": 2.0},
        }
        return {"flow": flows, "correct": {"right": {"share": 0.25}}}

    assert lam_of(line(3.0), "opefo") == pytest.approx(0.5)
    assert lam_of(line(3.0), "influence") == pytest.approx(-0.2)
    # the first analysis does not count; of the others the seeds' means are 1/4 and 1/2
    runs = {0: [line(9.0), line(1.0), line(3.0)], 1: [line(9.0), line(3.0), line(3.0)]}
    record: Any = SimpleNamespace(
        shared=lambda *asked: [0, 1],
        run=lambda experiment, group, seed: SimpleNamespace(analysis=runs[seed]),
    )
    lines = opefo_tokens(record)
    # mean .375, s = .17678, t(.975, 1) = 12.706: half 1.588
    assert lines[4] == "| on-policy | .25 ± .00 | .38 ± 1.59 | -.20 ± .00 |"


def test_claims_under_two_aggregations(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from study_page import verdicts

    def decided(name: str, effects: list[float]) -> Any:
        claim = SimpleNamespace(id=name, says="S.", least=0.05)
        return SimpleNamespace(claim=claim, effects=dict(enumerate(effects)))

    found = {
        "one": [decided("a", [0.1, 0.2, 0.3]), decided("b", [0.0])],
        "two": [decided("own-a", [0.3, 0.1]), decided("own-b", [])],
    }
    monkeypatch.setattr(verdicts, "decided_by", lambda record, file: found[file])
    lines = verdicts.side_by_side(None, "one", "two")
    # s = .1: half of the interval is 4.302653 * .1 / sqrt(3)
    assert lines[2] == "| S. | .05 | +.20 ± .25 | 3 | +.20 | 2 |"
    assert lines[3] == "| S. | .05 | .00 | 1 |  | 0 |"
