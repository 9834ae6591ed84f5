"""What studies came to: groups, claims, the page and the data, from runs made of formulas."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from builders import json_lines, refused
from entrostat.study.claims import read_claims
from entrostat.study.execute import State
from entrostat.study.figures import Figure
from entrostat.study.file import read_study
from entrostat.study.page import reach_of, score_panel, write_study
from entrostat.study.plan import Plan, plan_of
from entrostat.study.results import misspelt_figures, results_of, write_results
from entrostat.study.runner import _claims, _facts, _files
from entrostat.study.tables import print_claims
from formulas import write_runs

STUDY = """\
title = "One <b>study</b>"
seeds = [0, 1, 2, 3, 4]
[base]
iterations = 3
[[runs]]
name = "high"
[[runs]]
name = "low"
method = "repo_r"
[[runs]]
name = "half"
method = "gspo"
"""
CLAIMS = """\
[[claims]]
id = "high-above-low"
paper = "OURS"
where = "<script>x</script>"
says = "High is above low."
experiment = "one"
figure = { metric = "entropy/exact", at = "last" }
statistic = "difference"
a = "high"
b = "low"
direction = "above"
least = 0.5

[[claims]]
id = "not"
paper = "PAR"
where = "-"
says = "High is below low."
experiment = "one"
figure = { metric = "entropy/exact", at = "last" }
statistic = "difference"
a = "high"
b = "low"
direction = "below"
least = 0.5

[[claims]]
id = "absent"
paper = "PAR"
where = "-"
says = "Of an experiment that is not at hand."
experiment = "another"
figure = { metric = "entropy/exact", at = "last" }
statistic = "level"
a = "x"
than = 0.25
direction = "above"
least = 0.5
"""


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    (tmp_path / "one.toml").write_text(STUDY)
    (tmp_path / "claims.toml").write_text(CLAIMS)
    made = plan_of({"one": read_study(tmp_path / "one.toml")}, tmp_path / "out")
    ends = {"high": 2.0, "low": 1.0, "half": 1.5}
    shares = {"low": 200}
    write_runs(made, lambda each: ends[each.group] + each.seed / shares.get(each.group, 100))
    return made


def test_groups_claims_and_the_data(plan: Plan, tmp_path: Path) -> None:
    bad = next(e.address for e in plan.named if e.name == "half-4")
    done = set(plan.trainings) - {bad}
    claims = read_claims(tmp_path / "claims.toml")
    results = results_of(plan, done, {bad: "it broke"}, claims)
    (one,) = results.experiments
    assert [group.name for group in one.groups] == ["high", "half", "low"]  # by score
    high, half, _ = one.groups
    assert (len(high.seeds), high.planned, half.seeds) == (5, 5, (0, 1, 2, 3))
    assert high.figures["entropy, end"].mean == pytest.approx(2.02)
    assert high.figures["kept"].mean == pytest.approx(2.02 / 4)
    assert high.figures["cumulative"].mean == pytest.approx(9.02)
    # s of 0 to 4 hundredths is sqrt(2.5) / 100, t(.975, 4) = 2.776445
    assert high.figures["entropy, end"].half == pytest.approx(2.776445 * 0.0158113883 / 5**0.5)
    assert "pass@k" not in high.figures
    assert one.failed == (("half-4", "it broke"),)
    assert [each.verdict for each in results.decided] == [
        "holds", "does not hold", "cannot be told",
    ]  # fmt: skip
    assert results.decided[0].estimate == pytest.approx(1.01)
    write_results(results, tmp_path / "results.json")
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["claims"]["sha256"] == claims.sha256
    assert data["claims"]["decided"][1]["verdict"] == "does not hold"
    assert data["experiments"]["one"]["groups"]["half"]["seeds"] == [0, 1, 2, 3]


def test_figures_that_a_file_names_are_columns(plan: Plan, tmp_path: Path) -> None:
    asked = {"one": {"at its least": Figure("metric", "entropy/exact", "min")}}
    results = results_of(plan, set(plan.trainings), {}, None, asked)
    high = next(group for group in results.experiments[0].groups if group.name == "high")
    assert high.figures["at its least"].mean == pytest.approx(2.02)
    page = write_study(results, tmp_path / "named.html", "T", {}, []).read_text()
    assert '<th scope="col">at its least</th>' in page


def test_an_interval_without_an_end_is_null_and_shown(plan: Plan, tmp_path: Path) -> None:
    """Effects 0 1 1 0 1: of a resample in eleven, (3^5 + 2^5) / 5^5, the spread is 0."""
    for each in plan.named:
        row = {"iteration": 1, "entropy/exact": float(each.name in ("high-1", "high-2", "high-4"))}
        (each.path / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    claims = read_claims(tmp_path / "claims.toml")
    results = results_of(plan, set(plan.trainings), {}, claims)
    first = results.decided[0]
    assert first.low == -math.inf
    assert first.verdict == "cannot be told"
    write_results(results, tmp_path / "results.json")
    data = json.loads((tmp_path / "results.json").read_text())
    assert data["claims"]["decided"][0]["low"] is None
    page = write_study(results, tmp_path / "p.html", "T", {}, []).read_text()
    assert f"(at most {first.high:.3g})" in page
    assert replace(first, low=0.25, high=1.0).interval() == "0.25 to 1"
    assert replace(first, low=0.25, high=math.inf).interval("{:.1f}".format) == "at least 0.2"
    assert replace(first, high=math.inf).interval() == "open to both sides"
    assert replace(first, low=None, high=None).interval() == ""


def test_the_page_says_claims_first_and_escapes(plan: Plan, tmp_path: Path) -> None:
    claims = read_claims(tmp_path / "claims.toml")
    results = results_of(plan, set(plan.trainings), {}, claims)
    page = write_study(results, tmp_path / "p.html", "A <i>title", {}, [("runs", "15 of 15")])
    text = page.read_text()
    says = "Of 3 claims 1 holds, 1 does not, 0 cannot be told; the trainings of 1 are not here."
    assert says in text
    assert text.index("<summary>1 claim whose") < text.index('id="claim-absent"')
    assert text.index('id="claim-not"') < text.index("<summary>1 claim whose")
    assert text.index('id="claims"') < text.index('id="experiment-one"')
    assert claims.sha256 in text
    for hostile in ("<script>x", "<b>study", "<i>title"):
        assert hostile not in text
    assert "0.505 ± " in text  # kept
    panel = score_panel(results.experiments[0])
    assert panel is not None
    first = panel.points[0]
    assert (first.name, first.x[0]) == ("high", pytest.approx(50.5))
    # without claims there is no section of them
    plain = write_study(results_of(plan, set(plan.trainings), {}), page, "T", {}, []).read_text()
    assert 'id="claims"' not in plain


def test_points_have_the_numbers_of_the_table_where_they_are_many(
    plan: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = results_of(plan, set(plan.trainings), {})
    names = [group.name for group in results.experiments[0].groups]
    panel = score_panel(results.experiments[0])
    assert panel is not None
    assert [(p.label, p.tag) for p in panel.points] == [(name, "") for name in names]
    monkeypatch.setattr("entrostat.study.page.NAMED", len(names) - 1)
    panel = score_panel(results.experiments[0])
    assert panel is not None
    tags = [str(i) for i in range(1, len(names) + 1)]
    assert [(p.name, p.tag, p.label) for p in panel.points] == [
        (name, tag, "") for name, tag in zip(names, tags, strict=True)
    ]
    text = write_study(results, tmp_path / "p.html", "T", {}, []).read_text()
    rows = re.findall(r'<th scope="row"><small class="soft">(\d+)</small> (\w+)</th>', text)
    assert rows == list(zip(tags, names, strict=True))


def test_what_a_claim_measures_is_said(plan: Plan, tmp_path: Path) -> None:
    claims = read_claims(tmp_path / "claims.toml")
    results = results_of(plan, set(plan.trainings), {}, claims)
    text = write_study(results, tmp_path / "p.html", "T", {}, []).read_text()
    assert "entropy/exact at the end; of a: high; b: low<" in text
    assert "entropy/exact at the end against 0.25; of a: x<" in text  # of a level


def test_that_few_seeds_decide_nothing_is_told(plan: Plan, tmp_path: Path, capsys) -> None:
    two = {each.address for each in plan.named if each.seed < 2}
    print_claims(results_of(plan, two, {}, read_claims(tmp_path / "claims.toml")))
    assert "2 claims with fewer than 3 seeds, which decide nothing" in capsys.readouterr().out
    print_claims(results_of(plan, set(plan.trainings), {}, read_claims(tmp_path / "claims.toml")))
    assert "fewer than" not in capsys.readouterr().out


def test_claims_without_trainings_are_counted(plan: Plan, tmp_path: Path, capsys) -> None:
    claims = read_claims(tmp_path / "claims.toml")
    all_of_them = results_of(plan, set(plan.trainings), {}, claims)
    assert [one.claim.id for one in all_of_them.waiting] == ["absent"]
    print_claims(all_of_them)
    out = capsys.readouterr().out
    assert "2 claims;" in out
    assert "1 claim whose trainings are not here" in out
    none = results_of(plan, set(), {}, claims)
    assert (none.told, len(none.waiting)) == ((), 3)
    print_claims(none)
    assert capsys.readouterr().out.startswith("3 claims whose trainings are not here")
    print_claims(results_of(plan, set(), {}))
    assert capsys.readouterr().out == ""


def test_files_and_claims_of_a_directory(plan: Plan, tmp_path: Path) -> None:
    assert _files([tmp_path]) == [tmp_path / "one.toml"]
    found = _claims([tmp_path], None)
    assert found is not None
    assert len(found.claims) == 3
    assert _claims([tmp_path / "one.toml"], None) is None
    assert _claims([tmp_path / "one.toml"], tmp_path / "claims.toml") == found
    # as a shell expands recipes/study/*.toml
    assert _files([tmp_path / "claims.toml", tmp_path / "one.toml"]) == [tmp_path / "one.toml"]
    assert _claims([tmp_path / "claims.toml", tmp_path / "one.toml"], None) == found
    assert _claims([tmp_path, tmp_path / "claims.toml"], None) == found  # the same file twice
    (tmp_path / "two").mkdir()
    (tmp_path / "two/claims.toml").write_text(CLAIMS)
    refused(lambda: _claims([tmp_path, tmp_path / "two/claims.toml"], None), "two files of claims")
    with pytest.raises(ValueError, match=r"nowhere/claims\.toml"):  # a name that is none
        _claims([tmp_path / "one.toml", tmp_path / "nowhere/claims.toml"], None)
    refused(lambda: _files([tmp_path / "claims.toml"]), "claims alone")
    (tmp_path / "more").mkdir()
    refused(lambda: _files([tmp_path / "more"]), "holds no study file")
    (tmp_path / "more/one.toml").write_text(STUDY)
    refused(lambda: _files([tmp_path, tmp_path / "more"]), "'one'")


def test_scores_of_runs_that_are_not_evaluated_on_test(plan: Plan, tmp_path: Path) -> None:
    """Their first set; of `[[eval]]` its name, and not the split that it is of."""
    for training in plan.trainings.values():
        log = training.path / "evaluation.jsonl"
        rows = json_lines(log)
        named = [row | {"set": name, "split": "test", "avg@k": row["avg@k"] * share}
                 for row in rows for name, share in (("hard", 1.0), ("easy", 0.5))]  # fmt: skip
        log.write_text("".join(json.dumps(row) + "\n" for row in named))
    (one,) = results_of(plan, set(plan.trainings), {}).experiments
    assert one.held_out == "hard"
    assert one.groups[-1].values["avg@k"] == pytest.approx([(1 + s / 200) / 4 for s in range(5)])
    page = write_study(results_of(plan, set(plan.trainings), {}), tmp_path / "s.html", "x", {}, ())
    assert "Scores: of the set hard at the last evaluation." in page.read_text()
    panel = score_panel(one)
    assert panel is not None
    assert panel.unit == "avg@k of hard at the end"


def evaluated_on(plan: Plan, sets: dict[str, dict[str, float]]) -> None:
    """Give the runs of each group a score of each set."""
    for each in plan.named:
        rows = [{"iteration": 3, "set": name, "split": "test", "k": 4, "avg@k": score}
                for name, score in sets[each.group].items()]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (plan.trainings[each.address].path / "evaluation.jsonl").write_text(text)


@pytest.mark.parametrize(
    ("high", "scored", "scores"),
    [
        ({"own": 0.1, "easy": 0.9}, "easy", [0.9, 0.8, 0.7]),  # all have it
        ({"hard": 0.1, "test": 0.4, "easy": 0.9}, "test", [0.4, None, None]),
        ({"other": 0.1}, "other", [0.1, None, None]),  # none is shared
        ({}, "hard", [0.3, 0.2, None]),
    ],
)
def test_scores_of_one_table_are_of_one_set(
    plan: Plan, tmp_path: Path, high: dict[str, float], scored: str, scores: list[float | None]
) -> None:
    sets = {"high": high, "low": {"hard": 0.2, "easy": 0.8}, "half": {"hard": 0.3, "easy": 0.7}}
    evaluated_on(plan, sets)
    results = results_of(plan, set(plan.trainings), {})
    (one,) = results.experiments
    found = [group.figures["avg@k"].mean if "avg@k" in group.figures else None
             for group in one.groups]  # fmt: skip
    assert one.held_out == scored
    assert found == pytest.approx(scores)
    page = write_study(results, tmp_path / "s.html", "x", {}, ()).read_text()
    assert f"Scores: of the set {scored} at the last evaluation." in page


def test_a_claim_about_the_set_of_the_table(plan: Plan, tmp_path: Path) -> None:
    sets = {"hard": 0.5, "easy": 0.9}
    evaluated_on(plan, {"high": sets, "half": sets, "low": {"easy": 0.3}})
    text = CLAIMS.replace('metric = "entropy/exact"', 'evaluation = "*/avg@k"')
    (tmp_path / "claims.toml").write_text(text)
    claims = read_claims(tmp_path / "claims.toml")
    results = results_of(plan, set(plan.trainings), {}, claims)
    assert results.decided[0].estimate == pytest.approx(0.6)  # .9 - .3, of easy


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('metric = "entropy/exact"', 'metric = "entropy/exakt"',
         "There is no 'entropy/exakt'; did you mean 'entropy/exact'?"),
        ('metric = "entropy/exact"', 'evaluation = "test/avgk"',
         "There is no 'test/avgk'; did you mean 'test/avg@k'?"),
        ('metric = "entropy/exact", at = "last"', 'slope = "entropy/exact", with = "entropy/fist"',
         "There is no 'entropy/fist'; did you mean 'entropy/first'?"),
    ],
)  # fmt: skip
def test_a_misspelt_figure_does_not_wait_for_trainings(
    plan: Plan, tmp_path: Path, capsys, old: str, new: str, told: str
) -> None:
    (tmp_path / "claims.toml").write_text(CLAIMS.replace(old, new, 1))
    claims = read_claims(tmp_path / "claims.toml")
    some = {next(e.address for e in plan.named if e.name == "low-2")}  # of a group, one seed
    for done in (set(plan.trainings), some):
        results = results_of(plan, done, {}, claims)
        assert "high-above-low" not in [one.claim.id for one in results.waiting]
        print_claims(results)
        out = " ".join(capsys.readouterr().out.split())
        assert told in out
        # before any training more is started
        assert misspelt_figures(plan, done, claims) == [f"claim 'high-above-low', figure: {told}"]
    assert misspelt_figures(plan, set(), claims) == []  # nobody knows yet
    (tmp_path / "claims.toml").write_text(CLAIMS)
    assert misspelt_figures(plan, some, read_claims(tmp_path / "claims.toml")) == []


def test_the_second_figure_of_a_claim_may_be_misspelt(plan: Plan, tmp_path: Path) -> None:
    text = CLAIMS.replace('statistic = "difference"\na = "high"\nb = "low"', """statistic = "margin"
a = "high"
with = { metric = "reward/maen" }""", 1)  # fmt: skip
    (tmp_path / "claims.toml").write_text(text)
    claims = read_claims(tmp_path / "claims.toml")
    first = results_of(plan, set(plan.trainings), {}, claims).decided[0]
    assert (first.waits, first.verdict) == (False, "cannot be told")
    assert first.why.endswith("There is no 'reward/maen'; did you mean 'reward/mean'?")


def test_experiments_that_no_given_file_makes_are_named(plan: Plan, tmp_path: Path, capsys) -> None:
    print_claims(results_of(plan, set(), {}, read_claims(tmp_path / "claims.toml")))
    assert capsys.readouterr().out.splitlines() == [
        "3 claims whose trainings are not here: nothing is said",
        "no study file among those given: another",
    ]


def test_a_group_without_a_score_comes_last(plan: Plan) -> None:
    for each in plan.named:
        log = each.path / "evaluation.jsonl"
        rows = json_lines(log)
        log.write_text("".join(
            json.dumps(row | {"avg@k": -row["avg@k"]}) + "\n" for row in rows
        ) if each.group != "half" else "")  # fmt: skip
    (one,) = results_of(plan, set(plan.trainings), {}).experiments
    assert [group.name for group in one.groups] == ["low", "high", "half"]


def test_a_claim_s_interval_on_a_scale_of_its_own(plan: Plan, tmp_path: Path) -> None:
    """High less low: 1, 1.005, ... 1.02, of which .5 count; the scale goes from 0 to the end."""
    results = results_of(plan, set(plan.trainings), {}, read_claims(tmp_path / "claims.toml"))
    first, second, absent = results.decided
    found = reach_of(first)
    assert found is not None
    assert first.high is not None
    whole = first.high * (1 + 2 * 0.06)
    assert found["zero"] == pytest.approx(100 * 0.06 * first.high / whole, abs=0.01)
    assert found["least"] == pytest.approx(100 * (0.5 + 0.06 * first.high) / whole, abs=0.01)
    first_mean = found["mean"]
    assert 0 < found["zero"] < found["least"] < found["low"] < found["mean"] < found["high"] < 100
    other = reach_of(second)  # the other way round: all of it lies left of 0
    assert other is not None
    assert 0 < other["low"] < other["mean"] < other["high"] < other["zero"] < other["least"] < 100
    assert reach_of(absent) is None
    page = write_study(results, tmp_path / "p.html", "T", {}, []).read_text()
    assert page.count('<svg class="reach') == 2
    assert f'cx="{first_mean}"' in page
    endless = reach_of(replace(first, low=-math.inf))
    assert endless is not None
    assert endless["low"] == 0


def test_a_misspelt_figure_of_a_file_is_told(plan: Plan) -> None:
    asked = {"one": {"r": Figure("evaluation", "*/avk@k"), "s": Figure("evaluation", "*/avg@k")}}
    (told,) = misspelt_figures(plan, set(plan.trainings), None, asked)
    assert told.startswith(
        "study 'one', figures.r: There is no 'test/avk@k'; did you mean 'test/av"
    )


def test_the_machines_of_a_study_are_told_and_not_too_many(plan: Plan) -> None:
    letters = "abcdefghijklmnopqrstuvwxyz"[: len(plan.trainings)]
    assert 4 < len(letters) == len(plan.trainings)
    for letter, each in zip(letters, plan.trainings.values(), strict=True):
        about = {"processor": "AMD", "gpus": ["H100"], "git": letter * 40, "platform": None}
        about["versions"] = None  # a damaged one
        (each.path / "environment.json").write_text(json.dumps(about))
    told = dict(_facts(plan, State([], set(), {}, set(plan.trainings))))
    assert (told["processor"], told["gpus"]) == ("AMD", "H100")
    shown = ", ".join(letter * 12 for letter in "abcd")
    assert told["commit"] == f"{shown} and {len(letters) - 4} more"
    assert "platform" not in told
