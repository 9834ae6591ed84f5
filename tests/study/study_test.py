"""Studies: the runs that a file means, their checks, and seeds taken together."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builders import refused
from entrostat.cli import main
from entrostat.config import TrainConfig, from_dict
from entrostat.report import comparison_rows, write_comparison
from entrostat.report.seeds import by_settings
from entrostat.study.confounding import confounded
from entrostat.study.file import check_runs, read_study
from entrostat.study.plan import plan_of
from entrostat.study.results import Group, Interval, interval, results_of
from entrostat.study.runner import run_study
from entrostat.study.tables import print_groups, print_table
from formulas import write_runs
from paths import ROOT

RECIPES = ROOT / "recipes"


def test_interval_by_hand() -> None:
    # mean 2, s = 1, t(.975, 2 degrees of freedom) = 4.302653 (any table): 4.302653 / sqrt(3)
    assert interval([1.0, 2.0, 3.0]).mean == 2
    assert interval([1.0, 2.0, 3.0]).half == pytest.approx(2.484138, abs=1e-6)
    # two values: s = sqrt(2), t(.975, 1) = 12.706205: 12.706205 * sqrt(2) / sqrt(2)
    assert interval([0.0, 2.0]) == Interval(1.0, pytest.approx(12.706205, abs=1e-6), 2)
    assert interval([5.0] * 4).half == 0
    assert interval([1.0, 2.0, 3.0]).cell(2) == "2.00 ± 2.48"
    assert interval([1.0]) == Interval(1.0, 0.0, 1)


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


def groups_of(
    file: Path, curves: dict[str, list[float]], scores: dict[str, float | None]
) -> dict[str, Group]:
    """What a study came to whose runs have these curves of entropy and these scores."""
    study = read_study(file)
    plan = plan_of({file.stem: study}, file.parent / "out")
    (file.parent / "out").mkdir()
    for each in plan.named:
        run(plan.trainings[each.address].path, curves[each.name], scores.get(each.name))
    asked = {file.stem: study.figures}
    (one,) = results_of(plan, set(plan.trainings), {}, None, asked).experiments
    return {group.name: group for group in one.groups}


def test_runs_that_differ_by_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text(
        'seeds = [3, 4]\n[[runs]]\nname = "grpo"\n[[runs]]\nname = "gspo"\nmethod = "gspo"\n'
    )
    curves = {
        "grpo-3": [1.0] * 28 + [0.25, 0.75],  # of thirty a fifteenth are two, the end: .5
        "grpo-4": [2.0] * 28 + [1.0, 2.0],
        "gspo-3": [1.0, 0.5],
        "gspo-4": [1.0, 0.5],
    }
    scores = {"grpo-3": 0.5, "grpo-4": 0.75, "gspo-3": 0.5, "gspo-4": None}
    groups = groups_of(tmp_path / "s.toml", curves, scores)
    grpo, gspo = groups["grpo"], groups["gspo"]
    assert grpo.seeds == gspo.seeds == (3, 4)
    assert grpo.figures["entropy, end"].mean == 1.0  # of .5 and 1.5
    assert grpo.figures["entropy, end"].half == pytest.approx(12.706205 / 2, abs=1e-6)
    assert grpo.figures["kept"].mean == 0.625  # of 1/2 and 3/4
    assert grpo.figures["avg@k"].mean == 0.625
    assert "avg@k" not in gspo.figures  # one run has none: no figure that speaks for fewer seeds
    assert gspo.figures["entropy, end"] == Interval(0.5, 0.0, 2)


def test_figures_that_a_file_names(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "s.toml").write_text(
        'seeds = [0, 1]\n[[runs]]\nname = "a"\n[figures]\n'
        '"least" = { metric = "entropy/exact", at = "min" }\n'
        '"absent" = { metric = "other" }\n'
    )
    curves = {f"a-{seed}": [1.0, 0.25 + seed / 2, 1.0] for seed in (0, 1)}
    group = groups_of(tmp_path / "s.toml", curves, {})["a"]
    # of .25 and .75; t(.975, 1) = 12.706
    assert group.figures["least"] == Interval(0.5, pytest.approx(12.706205 / 4, abs=1e-6), 2)
    print_groups([group], ["least", "absent"])
    shown = capsys.readouterr().out
    assert "0.50 ±3.18" in shown
    assert "absent" not in shown
    assert "kept" not in shown
    # a long name and five figures in 80 columns: nothing is cut off
    pair = (0.5 - 0.25 / 12.706205, 0.5 + 0.25 / 12.706205)
    words = ("entropy, end", "kept", "avg@k", "pass@k", "distinct")
    wide = Group("clip_higher-minibatches16", (0, 1), 2, dict.fromkeys(words, pair))
    print_groups([wide])
    shown = capsys.readouterr().out
    assert wide.name in shown
    assert "…" not in shown
    assert (shown.count("0.50"), shown.count("±0.25")) == (5, 5)
    assert max(map(len, shown.splitlines())) <= 80
    (tmp_path / "s.toml").write_text('seeds = [0]\n[figures]\nx = { metrik = "y" }\n')
    refused(lambda: read_study(tmp_path / "s.toml"), "figures.x", "'metric'")


def test_scores_of_one_column_are_of_one_set_and_of_one_k(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Runs evaluated on ood and test, on test with another k, and on ood alone."""
    sets = {"a": [("ood", 4, 0.125), ("test", 4, 0.25)], "b": [("test", 16, 0.5)],
            "c": [("ood", 4, 0.75)]}  # fmt: skip
    paths = []
    for name, rows in sets.items():
        paths.append(run(tmp_path / name, [1.0, 0.5], None))
        lines = [{"iteration": 2, "split": s, "k": k, "avg@k": avg} for s, k, avg in rows]
        (paths[-1] / "evaluation.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    rows = comparison_rows(paths)
    found = [(row.split, row.avg_after) for row in rows]
    assert found == [("test", 0.25), ("test", 0.5), (None, None)]
    ks = "k, the answers to a held-out prompt, is not the same in all runs: 4 (a); 16 (b)."
    missing = "Not evaluated on test, so without scores here: c."
    print_table(rows)
    shown = capsys.readouterr().out
    assert "avg@k" in shown
    page = write_comparison(paths, tmp_path / "page.html").read_text()
    for told in (" ".join(shown.split()), page):
        assert ks in told
        assert missing in told
    print_table(rows[:1])  # nothing to say of one
    shown = capsys.readouterr().out
    assert "avg@4" in shown
    assert "note:" not in shown


def test_a_run_without_a_finite_entropy_has_no_figure_of_it(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text('seeds = [0, 1]\n[[runs]]\nname = "a"\n')
    names = ("a-0", "a-1")
    curves = dict.fromkeys(names, [float("nan")] * 3)
    group = groups_of(tmp_path / "s.toml", curves, dict.fromkeys(names, 0.5))["a"]
    assert set(group.figures) == {"avg@k", "reward, end"}


@pytest.mark.parametrize("name", ["three_seeds", "positive_negative", "clip_presets"])
def test_the_shipped_studies_have_three_seeds_a_setting(name: str) -> None:
    runs = read_study(RECIPES / f"{name}.toml").runs
    configs = list(runs.values())
    groups = by_settings([dataclasses.asdict(config) for config in configs])
    assert all({configs[place].seed for place in places} == {0, 1, 2} for places in groups)
    assert all(len(places) == 3 for places in groups)


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
    assert capsys.readouterr().out == f"runs: a, b\nreport: {tmp_path / 'report.html'}\n"
    page = (tmp_path / "report.html").read_text()
    assert f"<h1>{tmp_path.name}" in page
    (tmp_path / "empty").mkdir()
    assert main(["report", str(tmp_path / "empty")]) == 2
    assert "holds nothing that can be read" in capsys.readouterr().err


def test_the_page_of_one_study_has_its_failures_figures_and_methods(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """Of one file and without claims, too."""
    file = tmp_path / "one.toml"
    file.write_text(
        'title = "T"\nseeds = [0, 1]\n[base]\niterations = 3\n'
        '[figures]\n"entropy at most" = { metric = "entropy/exact", at = "max" }\n'
        '[[runs]]\nname = "plain"\nmethod = "grpo"\n'
        '[[runs]]\nname = "steered"\nmethod = "steer"\n'
    )
    made = plan_of({"one": read_study(file)}, tmp_path / "out")
    write_runs(made, lambda each: 1.0 + each.seed)
    for each in made.trainings.values():
        (each.path / "recorded.json").write_text('{"iterations": 3}')
    lost = next(each for each in made.named if each.name == "steered-1")
    training = made.trainings[lost.address]
    shutil.rmtree(training.path.resolve())
    training.failure.write_text("NaN in the <loss>\n")
    (tmp_path / "out/claims.html").write_text("of claims that are not given now")
    assert run_study(file, str(tmp_path / "out"), train=False) == 1
    assert f"methods: {tmp_path / 'out/study.html'}" in capsys.readouterr().out
    text = (tmp_path / "out/study.html").read_text()
    for words in ("entropy at most", "NaN in the &lt;loss&gt;", 'href="method_pages/steer.html"'):
        assert words in text
    assert "Claims are to be written" not in text
    assert not (tmp_path / "out/claims.html").exists()
    # three iterations are too few for a verdict, of which nobody is confident then
    verdicts = (tmp_path / "out/report.html").read_text()
    assert verdicts.count('<td class="left">Cannot tell</td><td>—</td>') == 3
    assert (tmp_path / "out/method_pages/steer.html").exists()


def test_how_much_is_done_is_told(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "one.toml"
    file.write_text(
        'seeds = [0, 1]\n[base]\niterations = 3\n[[runs]]\nname = "a"\nmethod = "grpo"\n'
    )
    made = plan_of({"one": read_study(file)}, tmp_path / "out")
    write_runs(made, lambda each: 1.0)
    for each in made.trainings.values():
        (each.path / "recorded.json").write_text('{"iterations": 3}')
    assert run_study(file, str(tmp_path / "out")) == 0
    assert "2 of 2 trainings are done, 0 to go" in capsys.readouterr().err


def test_the_report_of_several_studies(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for study in ("small", "large", "notes"):
        (tmp_path / study).mkdir()
    for study in ("small", "large"):
        run(tmp_path / study / "grpo-0", [0.5, 0.25], None)
        (tmp_path / study / "study.json").write_text("{}")
    run(tmp_path / "notes" / "c", [0.5, 0.25], None)  # in what is no study
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("runs: large/grpo-0, c, small/grpo-0\n")
    assert ">small/grpo-0<" in (tmp_path / "report.html").read_text()


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


def test_of_several_files_it_is_said_in_which(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for name in ("one", "two"):
        (tmp_path / f"{name}.toml").write_text(
            "seeds = [0]\n[base]\niterations = 3\n"
            '[[runs]]\nname = "a"\nmethod = "grpo"\n[[runs]]\nname = "b"\nmethod = "clip_cov"\n'
        )
    files = [tmp_path / "one.toml", tmp_path / "two.toml"]
    refused(lambda: run_study(files[:1], str(tmp_path / "out"), train=False), "no training of")
    assert "note: b-0: clip_cov sits on" in capsys.readouterr().err
    refused(lambda: run_study(files, str(tmp_path / "both"), train=False), "no training of")
    told = capsys.readouterr().err
    assert "note: one: b-0: clip_cov sits on" in told
    assert "note: two: b-0: clip_cov sits on" in told


# --- the file


def study_of(tmp_path: Path, text: str) -> dict[str, TrainConfig]:
    (tmp_path / "s.toml").write_text(text)
    return read_study(tmp_path / "s.toml").runs


def test_seeds_and_a_grid_are_every_combination(tmp_path: Path) -> None:
    runs = study_of(
        tmp_path,
        "seeds = [3, 5]\n[base]\niterations = 7\n[grid]\nmethod = ['grpo', {name = 'repo_r', "
        "zeta = 0.1}]\n[grid.optim]\nlr = [1e-4, 0.5]\n[[runs]]\nname = 'a'\n"
        "[[runs]]\nname = 'b'\nsampling = {prompts = 4}\n",
    )
    assert list(runs)[:4] == ["a-grpo-lr0.0001-3", "a-grpo-lr0.5-3", "a-repo_r-lr0.0001-3",
                              "a-repo_r-lr0.5-3"]  # fmt: skip
    assert list(runs)[8] == "a-grpo-lr0.0001-5"  # seed after seed
    found = {(c.sampling.prompts, str(c.method), c.optim.lr, c.seed) for c in runs.values()}
    assert len(found) == len(runs) == 2 * 2 * 2 * 2
    assert {prompts for prompts, *_ in found} == {4, 32}
    assert {lr for *_, lr, _ in found} == {1e-4, 0.5}
    assert {seed for *_, seed in found} == {3, 5}
    assert all(config.iterations == 7 for config in runs.values())
    assert runs["b-repo_r-lr0.5-5"].method == [{"name": "repo_r", "zeta": 0.1}]


def test_a_grid_or_seeds_alone_are_a_study(tmp_path: Path) -> None:
    assert list(study_of(tmp_path, "seeds = [0, 1]\n")) == ["run-0", "run-1"]
    text = "[grid]\n'optim.betas' = [[0.9, 0.95], [0.9, 0.999]]\nadvantage = ['grpo', 'rloo']\n"
    runs = study_of(tmp_path, text)
    assert [(c.optim.betas, c.advantage) for c in runs.values()] == [
        ((0.9, 0.95), "grpo"), ((0.9, 0.95), "rloo"), ((0.9, 0.999), "grpo"), ((0.9, 0.999), "rloo")
    ]  # fmt: skip
    runs = study_of(tmp_path, "[grid]\nmodel = ['m/a b', 'm/a:b']\n")
    assert list(runs) == ["model1", "model2"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seeds = []", "seeds must be a list of different whole numbers from 0"),
        ("seeds = [1, 1]", "seeds must be a list of different whole numbers from 0"),
        ("seeds = [-1]", "seeds must be a list of different whole numbers from 0"),
        ("seeds = [true]", "seeds must be a list of different whole numbers from 0"),
        ("seeds = 3", "got 3"),
        ("seeds = [0]\n[base]\nseed = 1", "seed is set, and the study has seeds"),
        ("seeds = [0]\n[grid]\nseed = [1]", "seed is set, and the study has seeds"),
        ("[grid]\n", "grid is a table of lists"),
        ("[grid.optim]\n", "grid is a table of lists"),
        ("[grid]\nlr = 3", "grid.lr is a list of the values to try, got 3"),
        ("[grid]\noptim = {lr = []}", "grid.optim.lr is a list of the values to try, got []"),
        ("[grid]\nlr = [1]", "run 'lr1': unknown key 'lr'"),
        ("[grid]\n'optim.lr' = [-1.0]", "run 'lr-1.0': optim.lr must be above 0, got -1.0"),
        ("[grid]\n'optim.lr' = [1.0]\n[[runs]]\nname = 'a'\noptim = {lr = 2.0}",
         "run 'a': optim.lr is set, and the grid varies it"),
        ("[[runs]]\nname = 'a-b'\n[[runs]]\nname = 'a'\n[grid]\nmodel = ['b', 'b-b']",
         "two runs are named 'a-b-b'"),
        ("seeds = [0]\nbase = 3", "base is a table of settings, got 3"),
        ("title = 'x'", "has no [[runs]], no [grid] and no seeds"),
        (f"seeds = {list(range(40))}\n[grid]\niterations = {list(range(1, 40))}",
         "means 1560 runs, more than 1000"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_meant_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ValueError) as error:
        study_of(tmp_path, text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ("method = {name = 'repo_r', zeta_mx = 1}", "Did you mean 'zeta_max'"),
        ("method = {name = 'clip_cov', ratio = -1.0}", "ratio"),
        ("method = 'grpoo'", "unknown method 'grpoo'"),
        ("advantage = 'rlo'", "Did you mean 'rloo'"),
        ("task = {name = 'target_sum', k_max = 9}", "k_max"),
        ("task = 'absent.jsonl'", "absent.jsonl"),
        ("model = './absent'", "no such directory"),
        ("optim = {epochs = 0}", "optim.epochs must be at least 1, got 0"),
        ("sampling = {rollout = 3}", "unknown key 'sampling.rollout'"),
    ],
)
def test_every_run_is_checked_before_the_first_starts(
    tmp_path: Path, second: str, told: str, capsys: pytest.CaptureFixture
) -> None:
    file, output = tmp_path / "s.toml", tmp_path / "out"
    file.write_text(f"[[runs]]\nname = 'good'\n[[runs]]\nname = 'bad'\n{second}\n")
    assert main(["study", str(file), "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"entrostat: error: study {str(file)!r}, run 'bad': ")
    assert told in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_a_check_is_made_once_for_equal_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    monkeypatch.setattr("entrostat.tasks.make_task", lambda **task: made.append(task))
    (tmp_path / "s.toml").write_text("seeds = [0, 1, 2]\n[grid]\n'optim.lr' = [0.1, 0.2]\n")
    check_runs(read_study(tmp_path / "s.toml"), "s.toml")
    assert len(made) == 1


def test_a_file_that_a_study_writes_beside_is_not_a_planted_link_s(tmp_path: Path) -> None:
    from entrostat.study.workers import no_link

    (tmp_path / "victim").write_text("mine")
    (tmp_path / "a.log").symlink_to(tmp_path / "victim")
    with pytest.raises(OSError), open(tmp_path / "a.log", "ab", opener=no_link):
        pass
    with open(tmp_path / "b.log", "ab", opener=no_link) as file:
        file.write(b"text")
    assert (tmp_path / "b.log").read_bytes() == b"text"


def test_reading_a_study_does_not_load_torch() -> None:
    code = (
        "import sys, entrostat.study.runner; from entrostat.study.file import read_study\n"
        f"read_study({str(RECIPES / 'demo.toml')!r})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_figures_of_one_seed_and_of_one_set(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    """Names of figures are text; a group of one has its value; scores are of one set in all."""
    (tmp_path / "s.toml").write_text(
        'seeds = [0]\n[[runs]]\nname = "a"\n[[runs]]\nname = "b"\nmethod = "gspo"\n[figures]\n'
        '"[/x] <b>" = { metric = "entropy/exact" }\n"score" = { evaluation = "*/avg@k" }\n'
    )
    study = read_study(tmp_path / "s.toml")
    plan = plan_of({"s": study}, tmp_path / "out")
    (tmp_path / "out").mkdir()
    for each, split in zip(plan.named, ("test", "ood"), strict=True):
        path = run(plan.trainings[each.address].path, [1.0, 0.25, 1.0], None)
        row = {"iteration": 3, "split": split, "avg@k": 0.5, "name": each.name}
        (path / "evaluation.jsonl").write_text(json.dumps(row) + "\n")
    asked = {"s": study.figures}
    (one,) = results_of(plan, set(plan.trainings), {}, None, asked).experiments
    first, other = sorted(one.groups, key=lambda group: group.name)
    assert first.figures["score"] == Interval(0.5, 0.0, 1)
    assert "score" not in other.figures  # it was not evaluated on test
    print_groups(one.groups, list(study.figures))
    shown = capsys.readouterr().out
    assert "[/x] <b>" in shown
    assert "±" not in shown.split("interval")[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("seeds = [0]\n[grid]\n'optim.lr' = [1e-4]\noptim = { lr = [3e-4] }", "vary optim.lr"),
        ("[[runs]]\nname = 'report.html'", "'report.html', which a study writes itself"),
    ],
)
def test_a_file_that_would_lose_something_is_refused(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        study_of(tmp_path, text)


def test_tasks_of_evaluations_are_checked_before_the_first_run(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('[[runs]]\nname = "a"\n[[runs.eval]]\nsplit = "test"\ntask = "nonexistent"\n')
    refused(lambda: check_runs(read_study(path), path), "'a'", "nonexistent")


@pytest.mark.parametrize("name", ["grpo", "a_name_of_twenty_nine_letters"])
def test_a_table_of_runs_keeps_its_numbers_beside_any_name(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    rows = comparison_rows([run(tmp_path / name, [0.88, 0.31], 0.63)])
    print_table(rows)
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if "→0.31" in line]
    assert row.split()[0] == name[: len(row.split()[0])]
    assert row.split()[1:3] == ["0.88→0.31", "35%"]
    assert not any("…" in line for line in lines)
    assert (max(map(len, lines)) <= 80) == (name == "grpo")
