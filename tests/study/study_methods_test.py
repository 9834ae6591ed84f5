"""A page a method: who takes part in what, beside what, and by how much; from runs of formulas."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from entrostat.method.registry import METHODS
from entrostat.study import page as method_pages
from entrostat.study.claims import read_claims
from entrostat.study.file import Study, read_study
from entrostat.study.page import names_of, uses_of, write_method_pages, write_study
from entrostat.study.plan import Plan, plan_of
from entrostat.study.results import Results, results_of
from formulas import write_runs

STUDY = """\
title = "One <b>study</b>"
seeds = [0, 1, 2]
[base]
iterations = 3
[base.optim]
aggregation = "token_mean"
[[runs]]
name = "plain"
method = "grpo"
[[runs]]
name = "wide"
method = "clip_higher"
[[runs]]
name = "steered"
method = "steer"
[[runs]]
name = "steered_slowly"
method = "steer"
optim.lr = 1e-5
[[runs]]
name = "tokens"
method = "loop"
[[runs]]
name = "sequences"
method = "gspo"
[[runs]]
name = "both"
method = ["clip_higher", "steer", { name = "entropy_bonus", coef = 0.01 }]
[[runs]]
name = "held"
method = ["loop", { name = "thermostat", knob = "entropy_coef" }]
"""
AFTER = """\
[[runs]]
name = "wide_after"
method = "clip_higher"
after = "plain"
[[runs]]
name = "steered_after"
method = "steer"
after = "plain"
"""
CLAIMS = """\
[[claims]]
id = "steered-above"
paper = "OURS"
where = "<script>x</script>"
says = "Steered is above wide."
experiment = "one"
figure = { metric = "entropy/exact", at = "last" }
statistic = "difference"
a = "steered"
b = "wide"
direction = "above"
least = 0.5
"""
END = {"mine": 2.0, "plain": 1.0, "wide": 1.2, "steered": 2.0, "steered_slowly": 3.0, "both": 2.5,
       "tokens": 0.7, "sequences": 0.8, "held": 1.0}  # fmt: skip


@pytest.fixture
def study(tmp_path: Path) -> Study:
    (tmp_path / "one.toml").write_text(STUDY)
    (tmp_path / "claims.toml").write_text(CLAIMS)
    return read_study(tmp_path / "one.toml")


@pytest.fixture
def plan(study: Study, tmp_path: Path) -> Plan:
    made = plan_of({"one": study}, tmp_path / "out")
    doubled = {"steered": 0.2}
    write_runs(made, lambda each: END[each.group] + each.seed * doubled.get(each.group, 0.1))
    return made


@pytest.fixture
def results(plan: Plan, tmp_path: Path) -> Results:
    return results_of(plan, set(plan.trainings), {}, read_claims(tmp_path / "claims.toml"))


def test_the_first_of_several_is_what_the_others_sit_on() -> None:
    assert names_of([{"name": "steer", "lambda_min": 0.5}]) == ("steer",)
    assert names_of(["dapo", {"name": "repo_r"}, "kl_ref"]) == ("repo_r", "kl_ref")
    assert names_of(["steer"]) == ("steer",)
    assert names_of(["grpo", {"name": "of_mine:halved", "factor": 0.5}]) == ("halved",)


def test_a_method_is_put_beside_what_differs_in_it_alone(study: Study, results: Results) -> None:
    uses = uses_of({"one": study}, results)
    assert list(uses) == [
        "clip_higher", "entropy_bonus", "grpo", "gspo", "loop", "steer", "thermostat",
    ]  # fmt: skip
    beside = {
        method: {use.group.name: use.baseline.name if use.baseline else "" for use in some}
        for method, some in uses.items()
    }
    # STEER sits on clip-higher; another learning rate is another difference
    assert beside["steer"] == {"steered": "wide", "steered_slowly": "", "both": ""}
    # without the bonus, ["clip_higher", "steer"] is what `steer` is
    assert beside["entropy_bonus"] == {"both": "steered"}
    # a surrogate whose paper sets it beside another one
    assert beside["gspo"] == {"sequences": "tokens"}
    assert beside["loop"] == {"tokens": ""}
    # the thermostat makes an entropy bonus of its own, so that LOOP without it is LOOP
    assert beside["thermostat"] == {"held": "tokens"}


OF_MINE = """\
from dataclasses import dataclass
import entrostat as es

@es.register("halved_here")
@dataclass(frozen=True)
class Halved(es.Method):
    '''Advantages <b>times</b> `factor`.'''
    factor: float = 0.5

    def prepare(self, batch, state):
        return batch.replace(advantages=self.factor * batch.advantages)
"""


def test_a_method_of_the_user_s_own_has_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "of_mine.py").write_text(OF_MINE)
    (tmp_path / "one.toml").write_text(
        "seeds = [0]\n[base]\niterations = 3\n"
        '[[runs]]\nname = "plain"\nmethod = "grpo"\n'
        '[[runs]]\nname = "mine"\nmethod = ["grpo", "of_mine:halved_here"]\n'
    )
    study = read_study(tmp_path / "one.toml")
    made = plan_of({"one": study}, tmp_path / "out")
    write_runs(made, lambda each: END[each.group])
    try:
        results = results_of(made, set(made.trainings), {})
        uses = uses_of({"one": study}, results)
        beside = {use.group.name: use.baseline and use.baseline.name for use in uses["halved_here"]}
        assert beside == {"mine": "plain"}
        pages = write_method_pages(made, {"one": study}, results, tmp_path / "out/report.html")
        text = pages["halved_here"].read_text()
        assert "Advantages &lt;b&gt;times&lt;/b&gt; `factor`." in text
        assert "mine - plain" in text
    finally:
        METHODS.pop("halved_here", None)
        sys.modules.pop("of_mine", None)


def test_runs_that_begin_with_other_policies_are_no_baseline(tmp_path: Path) -> None:
    """`steered` afresh is beside `wide` afresh, not beside one that goes on from another."""
    (tmp_path / "one.toml").write_text(STUDY + AFTER)
    study = read_study(tmp_path / "one.toml")
    made = plan_of({"one": study}, tmp_path / "out")
    write_runs(made, lambda each: 1.0)
    uses = uses_of({"one": study}, results_of(made, set(made.trainings), {}))
    beside = {use.group.name: use.baseline.name for use in uses["steer"] if use.baseline}
    assert beside == {"steered": "wide", "steered_after": "wide_after"}


def test_a_baseline_has_the_estimator_of_what_is_beside_it(tmp_path: Path) -> None:
    """Of two runs of the surrogate that a paper compares with, the one under the same advantage."""
    (tmp_path / "one.toml").write_text(
        "seeds = [0]\n[base]\niterations = 3\n"
        '[[runs]]\nname = "grpo"\nmethod = "grpo"\n'
        '[[runs]]\nname = "loo"\nmethod = "grpo"\nadvantage = "rloo"\n'
        '[[runs]]\nname = "dcpo_loo"\nmethod = "dcpo"\nadvantage = "rloo"\n'
        '[[runs]]\nname = "dcpo"\nmethod = "dcpo"\nadvantage = "dr_grpo"\n'
    )
    study = read_study(tmp_path / "one.toml")
    made = plan_of({"one": study}, tmp_path / "out")
    write_runs(made, lambda each: 1.0)
    uses = uses_of({"one": study}, results_of(made, set(made.trainings), {}))
    beside = {use.group.name: use.baseline and use.baseline.name for use in uses["dcpo"]}
    assert beside == {"dcpo_loo": "loo", "dcpo": None}


def test_differences_are_taken_seed_by_seed(results: Results) -> None:
    groups = {group.name: group for group in results.experiments[0].groups}
    found = groups["steered"].minus(groups["wide"], "entropy, end")
    assert found is not None
    # .8, .9, 1.0: s = .1, t(.975, 2) = 4.302653
    assert (found.mean, found.n) == (pytest.approx(0.9), 3)
    assert found.half == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-5)
    assert groups["steered"].minus(groups["wide"], "pass@k") is None


def test_differences_need_common_seeds(plan: Plan) -> None:
    without = {e.address for e in plan.named if e.name in ("steered-0", "wide-1", "wide-2")}
    left = results_of(plan, set(plan.trainings) - without, {})
    groups = {group.name: group for group in left.experiments[0].groups}
    assert groups["steered"].seeds == (1, 2)
    assert groups["steered"].minus(groups["wide"], "entropy, end") is None
    plain = groups["steered"].minus(groups["plain"], "entropy, end")
    assert plain is not None
    assert (plain.mean, plain.n) == (pytest.approx(1.15), 2)


def test_pages(plan: Plan, study: Study, results: Results, tmp_path: Path) -> None:
    report = tmp_path / "out/report.html"
    pages = write_method_pages(plan, {"one": study}, results, report)
    assert {page.parent for page in pages.values()} == {tmp_path / "out/method_pages"}
    text = pages["steer"].read_text()
    assert "A weight w multiplies the clipped PPO loss (STEER 5, App. E.3)" in text  # what it is
    assert "steered - wide" in text
    assert "+0.900 ± 0.248" in text
    assert 'href="../report.html#claim-steered-above"' in text
    assert text.count("<img ") == 2  # entropy and reward
    for hostile in ("<b>study", "<script>x"):
        assert hostile not in text
    assert "claim-steered-above" not in pages["entropy_bonus"].read_text()
    whole = write_study(results, report, "T", {}, [], pages).read_text()
    assert '<a href="method_pages/steer.html">steer</a>' in whole
    # a page says where it came from, and the study where to find it
    assert 'id="experiment-one"' in whole
    assert "../report.html#experiment-one" in text


def test_curves_are_of_the_runs_that_the_table_counts(
    plan: Plan, study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that goes on, or failed, has metrics too."""
    drawn = []
    monkeypatch.setattr(
        method_pages, "comparison_panels", lambda runs, entries: drawn.extend(runs) or []
    )
    left = {each.address for each in plan.named if each.seed == 2}
    results = results_of(plan, set(plan.trainings) - left, {})
    write_method_pages(plan, {"one": study}, results, tmp_path / "out/report.html")
    assert {run.path.name[-1] for run in drawn} == {"0", "1"}


def test_a_page_says_which_set_its_scores_are_of(study: Study, plan: Plan, tmp_path: Path) -> None:
    """STEER's own runs have a set before the one that its baseline has, too."""
    for each in plan.named:
        own = {"hard": 0.1} if each.group == "steered" else {}
        scores = own | {"easy": 0.75 if own else 0.5}
        rows = [{"iteration": 3, "set": name, "split": "test", "k": 4, "avg@k": score}
                for name, score in scores.items()]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (plan.trainings[each.address].path / "evaluation.jsonl").write_text(text)
    results = results_of(plan, set(plan.trainings), {})
    pages = write_method_pages(plan, {"one": study}, results, tmp_path / "report.html")
    text = pages["steer"].read_text()
    assert "Scores: of the set easy at the last evaluation." in text
    row = text[text.index(">steered - wide<") :]
    assert "<td>+0.250 ± 0.000</td>" in row[: row.index("</tr>")]
