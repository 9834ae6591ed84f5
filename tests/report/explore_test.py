"""What the live curves are made of: metrics, thinning, bytes; and which settings runs differ in."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from pathlib import Path

import pytest

from entrostat.logs.importers import read
from entrostat.logs.run import read_run
from entrostat.report import explore, scripts, write_comparison
from entrostat.report.differences import differences_of
from entrostat.report.explore import block_of, grid_of, metrics_of, thinned
from entrostat.report.seeds import entries_of
from entrostat.report.tokens.encoding import every
from pages import Page, make_rollouts, make_run
from paths import TESTS

pytestmark = pytest.mark.usefixtures("unrendered")

FIXTURES = TESTS / "importers"
VENDOR = Path(scripts.__file__).parent / "vendor"


def floats(packed):
    """The upper three bytes of float32s, lowest first."""
    data = base64.b64decode(packed)
    return [struct.unpack("<f", b"\0" + data[i : i + 3])[0] for i in range(0, len(data), 3)]


def made(path, lines, **settings):
    return read_run(make_run(path, lines=lines, evaluation=[], **settings))


def explored(*runs):
    labels = [run.name for run in runs]
    found = explore.explore_of(runs, entries_of(runs, labels), labels)
    return found, json.loads(found.data) if found.data else None


# --- the metrics


def test_a_metric_has_one_name_whatever_the_trainer_calls_it(tmp_path):
    ours = made(tmp_path / "a", [{"iteration": 1, "loss/total": 0.5, "kl/ref": 0.1, "kl": 0.2}])
    theirs = made(tmp_path / "b", [{"iteration": 1, "loss": 0.25, "kl": 0.3, "odd": 1}])
    found = {metric.key: metric for metric in metrics_of([ours, theirs])}
    assert found["loss/total"].values == ({1: 0.5}, {1: 0.25})
    assert found["loss/total"].names == {1: "loss"}
    assert "loss" not in found
    # ours logs both names: neither is lost
    assert found["kl/ref"].values == ({1: 0.1}, {1: 0.3})
    assert found["kl"].values == ({1: 0.2}, {1: 0.3})
    assert (found["odd"].group, found["kl/ref"].group) == ("other", "kl")


def test_of_different_entropies_each_run_s_best_is_one_metric(tmp_path):
    exact = made(tmp_path / "a", [{"iteration": 1, "entropy/exact": 0.5, "entropy/nll": 0.6}])
    nll = made(tmp_path / "b", [{"iteration": 1, "entropy/nll": 0.7}])
    first = metrics_of([exact, nll])[0]
    assert (first.key, first.values) == ("entropy", ({1: 0.5}, {1: 0.7}))
    assert first.names == {1: "entropy/nll"}
    assert metrics_of([exact])[0].key == "entropy/exact"
    assert metrics_of([exact, exact])[0].key == "entropy/exact"


def test_evaluations_are_metrics_too(tmp_path):
    found = {metric.key: metric for metric in metrics_of([read_run(make_run(tmp_path / "a"))])}
    assert found["test/avg@k"].values == ({0: 0.25, 2: 0.375, 3: 0.5},)
    assert found["ood/pass@k"].values == ({0: 0.125, 3: 0.1875},)
    assert {found["test/avg@k"].group, found["ood/pass@k"].group} == {"evaluation"}


def test_what_is_no_number_is_no_value(tmp_path):
    lines = [{"iteration": 1, "a/x": float("nan"), "a/y": True, "a/z": 1e31, "a/w": "1"},
             {"iteration": 2, "a/x": 2.0}]  # fmt: skip
    assert [m.key for m in metrics_of([made(tmp_path / "a", lines)])] == ["a/x"]


# --- what a page carries


def test_the_page_holds_the_numbers_of_the_logs(tmp_path):
    lines = [
        {"iteration": i, "entropy/exact": 1 / i, "reward/mean": 0.5, "optim/updates": 4,
         "optim/lr": 1e-5, "time/iteration": i / 8} | ({"rare/x": 7.0 * i} if i in (2, 5) else {})
        for i in range(1, 6)
    ]  # fmt: skip
    found, data = explored(made(tmp_path / "a", lines))
    keys = [metric["key"] for metric in data["metrics"]]
    assert keys == ["entropy/exact", "reward/mean", "time/iteration", "rare/x"]
    assert data["shown"] == ["entropy/exact", "reward/mean"]
    # a constant says nothing along an axis; entropy and reward stay
    assert found.constants == (("optim/updates", "4"), ("optim/lr", "1e-05"))
    (run,) = data["runs"]
    assert run["x"] == [1, 2, 3, 4, 5]
    assert run["axes"] == {"updates": [4, 8, 12, 16, 20], "time": [0.125, 0.375, 0.75, 1.25, 1.875]}
    assert floats(run["values"][0]) == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4, 1 / 5], rel=2**-16)
    rare = run["values"][3]
    assert rare["at"] == [1, 4]  # places
    assert floats(rare["values"]) == [14.0, 35.0]


def test_a_long_run_is_averaged_in_blocks_that_seeds_share():
    assert block_of([range(1, 1201)]) == 1
    assert block_of([range(1, 101), range(1, 5001)]) == 5  # 5000 / 1200 is more than 4
    assert block_of([range(10, 50_001, 10)]) <= 50
    assert block_of([]) == 1
    # iterations 1-3, 4-6, 7; 0 is before training and no mean of others
    assert grid_of([0, *range(1, 8)], 3) == {-1: 0, 0: 2, 1: 5, 2: 7}
    grid = grid_of([*range(1, 8)], 3)
    assert thinned({1: 1.0, 2: 2.0, 3: 6.0, 7: 4.0}, grid, 3) == [3.0, None, 4.0]


def test_a_page_has_room_for_so_many_curves_and_says_what_it_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(explore, "BYTES", 3000)
    monkeypatch.setattr(explore, "LEAST", 10)
    lines = [{"iteration": i} | {f"m/{k}": i * k for k in range(1, 31)} for i in range(1, 101)]
    found, data = explored(made(tmp_path / "a", lines))
    # 3000 bytes are 25 numbers for each of 30 curves: blocks of 4
    assert found.notes[0] == "Each point is the mean of 4 iterations."
    (run,) = data["runs"]
    assert run["x"][:2] == [2, 6]  # of 2.5 and 6.5
    assert floats(run["values"][0])[:2] == [2.5, 6.5]
    kept = len(data["metrics"])
    assert len(run["values"]) == kept < 30
    assert found.notes[1].startswith(f"To keep this page small, the last {30 - kept} of 30 metrics")
    assert len(json.dumps(run["values"])) <= 3000 + 4 * kept


@pytest.mark.long
def test_a_page_of_ten_runs_of_500_iterations_is_below_five_megabytes(tmp_path):
    keys = [f"group{k // 6}/metric_{k}" for k in range(60)]
    runs = []
    for r in range(10):
        lines = [
            {"iteration": i, "entropy/exact": r + i / 997, "reward/mean": r + i / 991}
            | {key: r + i / (k + 7) for k, key in enumerate(keys)}
            for i in range(1, 501)
        ]
        runs.append(make_run(tmp_path / f"r{r}", lines=lines, evaluation=[]))
    path = write_comparison(runs, tmp_path / "c.html")
    assert path.stat().st_size < 3.5e6  # pictures, which are not drawn here, add less than one
    data = Page(path).data("explore-data")
    assert len(data["metrics"]) == 62
    assert all(len(run["x"]) == 500 for run in data["runs"])


def test_hostile_labels_and_metrics_are_data(tmp_path):
    evil = "</script><script>alert(1)</script>\u202e"
    lines = [{"iteration": i, f"{evil}/x": i, "entropy/exact": i} for i in (1, 2)]
    page = Page(write_comparison([make_run(tmp_path / "a", lines=lines)], tmp_path / "c.html"))
    assert "<script>alert" not in page.source
    assert f"{evil}/x" in [metric["key"] for metric in page.data("explore-data")["metrics"]]


# --- the script


def test_the_plotting_library_is_as_published():
    said = json.loads((VENDOR / "uPlot.json").read_text())
    assert (said["name"], said["version"], said["licence"]) == ("uPlot", "1.6.32", "MIT")
    # of npm's uplot-1.6.32.tgz
    assert said["sha256"]["uPlot.iife.min.js"].startswith("19c8d4c6ad88929a")
    files = {p.name for p in VENDOR.iterdir()} - {"uPlot.json"}
    assert files == set(said["sha256"])
    for name, digest in said["sha256"].items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    text = scripts.script().text
    assert (VENDOR / "uPlot.iife.min.js").read_text() in text
    assert "Copyright (c) 2022 Leon Sorokin" in text
    assert "Permission is hereby granted" in text


def test_every_file_of_the_script_is_in_it_and_small():
    files = {p.stem: p.read_text() for p in (VENDOR.parent / "js").glob("*.js")}
    assert set(files) == set(scripts.FILES)
    for name, text in files.items():
        assert text in scripts.script().text
        assert len(text.splitlines()) <= 300, name
        assert text.startswith("// "), name


# --- the settings


def test_settings_that_differ_beside_the_method(tmp_path):
    def run(name, method, extra=""):
        path = make_run(tmp_path / name, methods=method)
        (path / "config.toml").write_text(
            f'method = {method}\nmodel = "tiny"\nseed = {len(name)}\noutput = "{name}"\n'
            f'threads = {len(name)}\n[task]\nname = "target_sum"\n{extra}'
        )
        return read_run(path)

    a, b = run("a", '["grpo"]'), run("bb", '["par"]', "[optim]\nlr = 0.001\n[save]\nbest = 'x'")
    c = run("ccc", '["grpo"]', "[sampling]\ntemperature = 1.0\n")  # the default
    found = differences_of([a, b, c], ["a", "b", "c"])
    assert found.rows == (("optim.lr", (("not set", ("a", "c")), ("0.001", ("b",)))),)
    assert found.odd == ((), ("optim.lr",), ())
    assert found.sentence == (
        "Not the method alone: 1 of 3 runs has other settings than the rest (optim.lr)."
    )
    equal = differences_of([a, c], ["a", "c"])
    assert (equal.rows, equal.odd) == ((), ((), ()))
    assert "equal in all runs" in equal.sentence


def test_what_a_method_sits_on_is_a_setting(tmp_path):
    def run(name, *methods):
        path = make_run(tmp_path / name)
        (path / "objective.json").write_text(json.dumps({"methods": list(methods)}))
        return read_run(path)

    ppo, wide = ({"name": "ppo", "low": 0.2, "high": h} for h in (0.2, 0.28))
    par = {"name": "par", "beta": 1.0}
    plain, on_ppo, on_wide = run("a", ppo), run("b", ppo, par), run("c", wide, par)
    found = differences_of([plain, on_ppo, on_wide], ["a", "b", "c"])
    ((key, values),) = found.rows
    assert key == "surrogate"
    assert values == (("ppo low 0.2 high 0.2", ("a", "b")), ("ppo low 0.2 high 0.28", ("c",)))
    assert found.odd == ((), (), ("surrogate",))
    # runs that are surrogates and nothing else: it is the method that is compared
    assert differences_of([plain, run("d", wide)], ["a", "d"]).rows == ()


def test_another_host_s_own_settings_are_not_compared_and_foreign_ones_unknown(tmp_path):
    lab, trl = make_run(tmp_path / "a"), make_run(tmp_path / "b")
    with open(trl / "config.toml", "a") as file:
        file.write("[trl]\nbeta = 0.1\n")
    (trl / "config.toml").write_text('host = "trl"\n' + (trl / "config.toml").read_text())
    foreign = read(FIXTURES / "trl/checkpoint-6/trainer_state.json")
    found = differences_of([read_run(lab), read_run(trl), foreign], ["a", "b", "f"])
    assert [key for key, _ in found.rows] == ["host"]
    assert found.odd == ((), ("host",), None)
    assert (found.unknown, found.known) == (("f",), 2)


def test_arms_that_differ_in_more_than_the_method_are_marked_on_the_page(tmp_path):
    one, two = make_run(tmp_path / "a"), make_run(tmp_path / "b", methods='"par"')
    with open(two / "config.toml", "a") as file:
        file.write("[optim]\nlr = 0.5\n")
    foreign = read(FIXTURES / "trl/checkpoint-6/trainer_state.json")
    page = Page(write_comparison([one, two, foreign], tmp_path / "c.html"))
    marks = [a for a in page.all("a") if a.get("class") == "mark"]
    assert [a["href"] for a in marks] == ["#differences"]
    words = page.words()
    assert "differs in optim.lr" in words
    assert "settings unknown" in words
    assert "optim.lrnot set grpo0.5 par" in words  # cells
    assert "Not compared, for the settings are not known: trainer_state.json." in words
    # what is said of several runs is said once
    assert words.count("exact: the mean over tokens of the full next-token entropy") == 1
    assert "grpo, par: Entropy: exact" in words
    assert words.index("Not the method alone") < words.index("Results")


# --- rollouts


def test_of_many_rollouts_whole_groups_are_kept():
    rollouts = make_rollouts(["p"] * 8, ["ab"] * 8, [1.0] * 8, group=[3, 3, 0, 0, 5, 5, 3, 9])
    assert every(rollouts, 1) == list(range(8))
    assert every(rollouts, 2) == [0, 1, 4, 5, 6]  # groups 3 and 5 of 3, 0, 5, 9
    assert every(rollouts, 4) == [0, 1, 6]
    assert every(rollouts, 8) == [0, 6]  # of the first group every second
