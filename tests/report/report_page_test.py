"""The pages: what they say first, what they draw, what they survive, where they are written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from entrostat.cli import main
from entrostat.logs.files import atomic, atomic_directory, replacing
from entrostat.logs.rollouts import load_rollouts, save_rollouts
from entrostat.logs.run import read_run
from entrostat.report import write_comparison, write_run_report
from entrostat.report.panels import run_panels
from pages import Page, make_rollouts, make_run
from paths import TESTS

pytestmark = pytest.mark.usefixtures("unrendered")

FIXTURES = TESTS / "importers"

# --- what a page says first


def test_a_page_begins_with_how_the_run_ended(tmp_path):
    page = Page(write_run_report(make_run(tmp_path / "a")))
    words = page.words()
    first = words.index("What") if "What the policy says" in words else words.index("Curves by")
    for sentence in (
        "Entropy fell from 0.800 to 0.500 nats per token, 0.200 below the target of 0.700.",
        "The mean reward rose from 0.250 to 0.750.",
        "Held-out prompts (test): avg@8 0.250 → 0.500, pass@8 0.500 → 0.750, distinct right "
        "answers per prompt 1.5 → 1.2.",
        "the first iteration and the last iteration;",
    ):
        assert sentence in words
        assert words.index(sentence) < first
    links = [a["href"] for a in page.all("a")]
    assert links
    assert all(f'id="{link.removeprefix("#")}"' in page.source for link in links)


def test_a_comparison_begins_with_the_ends_of_its_runs(tmp_path):
    lines = [{"iteration": i, "entropy/exact": 1.0 - i / 10, "reward/mean": 0.5} for i in (1, 2, 3)]
    one, two = make_run(tmp_path / "one"), make_run(tmp_path / "two", methods='"par"', lines=lines)
    words = Page(write_comparison([one, two], tmp_path / "c.html")).words()
    assert "Entropy ends between 0.500 (grpo) and 0.700 nats per token (par)." in words
    assert "The mean reward ends between 0.500 (par) and 0.750 (grpo)." in words
    assert "avg@8 on held-out prompts ends at 0.500 in all runs." in words


# --- what is drawn


@pytest.mark.parametrize(
    ("metrics", "title", "labels"),
    [
        ({"terms/weight": 0.9}, "Weight of the tokens", [""]),
        ({"terms/frozen": 0.1, "terms/penalised": 0.2}, "Tokens that terms hold",
         ["frozen", "penalised"]),
        ({"ratio/mean": 1.01}, "Ratio to the old policy", [""]),
        ({"kl/old_new": 0.1}, "KL divergence from the old policy", [""]),
        ({"actor/ppo_kl": 0.1}, "KL divergence from the old policy", [""]),
        ({"kl/ref": 0.1}, "KL divergence from the reference", [""]),
        ({"kl": 0.1}, "KL divergence from the reference", [""]),
        ({"loss/total": 0.1, "loss/policy": 0.2}, "Loss", ["total", "policy"]),
        ({"loss/total": 0.1, "loss/policy": 0.1}, "Loss", ["total"]),
        ({"loss": 0.1}, "Loss", ["total"]),
        ({"frac_reward_zero_std": 0.1}, "Share of groups without a signal", [""]),
        ({"completions/clipped_ratio": 0.1}, "Cut-off completions", [""]),
        ({"rollout/truncated": 0.1}, "Cut-off completions", [""]),
        ({"reward/failed": 3}, "Answers that could not be scored", [""]),
        ({"actor/pg_clipfrac": 0.1}, "Clipped tokens", ["both"]),
        ({"prime/loss": 0.6}, "PRIME: loss of the second model", [""]),
        ({"prime/accuracy": 0.6, "prime/pair_accuracy": 0.7},
         "PRIME: accuracy of the second model", ["pairs", "rollouts"]),
        ({"prime/reward_mean": 0.01}, "PRIME: mean token reward", [""]),
        ({"eval_reward": 0.4, "eval_entropy": 0.3}, "Evaluation scores", ["eval_reward"]),
        ({"val-core/gsm8k/reward/mean@1": 0.4}, "Evaluation scores",
         ["val-core/gsm8k/reward/mean@1"]),
        ({"eval/aime": 0.4, "eval/aime-truncated_ratio": 0.1}, "Evaluation scores", ["eval/aime"]),
    ],
)  # fmt: skip
def test_what_is_logged_is_drawn(tmp_path, metrics, title, labels):
    lines = [{"iteration": i} | {k: v * i for k, v in metrics.items()} for i in (1, 2)]
    run = read_run(make_run(tmp_path / "a", lines=lines, evaluation=[]))
    (panel,) = [panel for panel in run_panels(run) if panel.title == title]
    assert [curve.label for curve in panel.curves] == labels
    for curve in panel.curves:
        assert list(curve.x) == [1, 2]
        assert list(curve.y) in [[v, 2 * v] for v in metrics.values()]
    theirs = {"actor/ppo_kl", "kl", "loss", "frac_reward_zero_std", "completions/clipped_ratio",
              "actor/pg_clipfrac"} & metrics.keys()  # fmt: skip
    said = [f"Logged as {name}." in panel.caption for name in theirs]
    assert all(said)
    assert bool(said) == ("Logged as" in panel.caption)


def test_what_people_look_at_is_drawn(tmp_path):
    line = {
        "groups/mixed": 0.5, "groups/all_right": 0.25, "groups/all_wrong": 0.25,
        "advantage/min": -2.0, "advantage/p10": -1.0, "advantage/p50": 0.0, "advantage/p90": 1.5,
        "advantage/max": 3.0, "rewards/files/mean": 0.5, "train/rewards/length/mean": 0.75,
        "reward/gsm8k/mean": 0.25, "reward/all/mean": 0.1, "off_policy_level/all/mean": 1.5,
        "fully_async/staleness/max": 4.0, "async/version_offset_mean": 2.0,
    }  # fmt: skip
    lines = [{"iteration": i, **line} for i in (1, 2)]
    panels = {p.title: p for p in run_panels(read_run(make_run(tmp_path / "a", lines=lines)))}
    drawn = {
        title: {curve.label: curve.y[0] for curve in panel.curves}
        for title, panel in panels.items()
    }
    assert drawn["Group outcomes"] == {"mixed": 0.5, "all right": 0.25, "all wrong": 0.25}
    assert drawn["Reward by part"] == {"files": 0.5, "length": 0.75, "gsm8k": 0.25}
    assert sorted(curve.y[0] for curve in panels["Staleness"].curves) == [1.5, 2.0, 4.0]
    bands = [(band.low[0], band.high[0]) for band in panels["Advantages"].bands]
    assert bands == [(-2.0, 3.0), (-1.0, 1.5)]


def test_answers_that_could_not_be_scored_are_drawn_only_if_there_were_any(tmp_path):
    for name, failed, shown in (("a", (0, 0), False), ("b", (0, 1), True)):
        lines = [{"iteration": i, "reward/failed": n} for i, n in enumerate(failed, 1)]
        words = Page(write_run_report(make_run(tmp_path / name, lines=lines))).words()
        assert ("Answers that could not be scored" in words) == shown


@pytest.mark.parametrize(
    ("path", "titles"),
    [
        ("trl", {"Loss", "Cut-off completions", "Share of groups without a signal",
                 "Evaluation scores", "Clipped tokens"}),
        ("verl/console.log", {"Clipped tokens", "Evaluation scores"}),
    ],
)  # fmt: skip
def test_other_trainers_figures_are_drawn(path, titles):
    from entrostat.logs.importers import read

    assert titles <= {panel.title for panel in run_panels(read(FIXTURES / path))}


def test_an_axis_that_is_not_linear_says_so(tmp_path):
    lines = [{"iteration": i, "control/zeta": z, "control/alpha": a, "control/beta": 0.5}
             for i, z, a in ((1, 1e-4, -0.1), (2, 0.1, 0.1))]  # fmt: skip
    words = Page(write_run_report(make_run(tmp_path / "a", lines=lines))).words()
    assert words.count("Logarithmic axis.") == 1
    assert words.count("Axis: logarithmic on both sides of 0.") == 1


def test_the_flow_s_signs_are_defined_where_they_are_first_used(tmp_path):
    lines = [{"iteration": i, "flow/increase": 0.1, "flow/decrease": 0.2, "flow/balance": 0.3}
             for i in (1, 2)]  # fmt: skip
    words = Page(write_run_report(make_run(tmp_path / "a", lines=lines))).words()
    assert words.index("S+, the sum over those that raise entropy") < words.index("(S- - S+)")


# --- what it survives

HUGE = "9" * 400
CUT = "The last line of metrics.jsonl is cut short"


@pytest.mark.parametrize(
    ("text", "note"),
    [
        ('{"iteration": ' + HUGE + "}\n", CUT),
        ('{"iteration": -1}\n', CUT),
        ('{"iteration": true}\n', CUT),
        ('{"iteration": 4.0}\n{"iteration": "5"}\n', "Line 4 of metrics.jsonl is not a whole"),
        ("[" * 100_000 + "\n", CUT),
    ],
    ids=range(5),
)
def test_a_line_of_another_shape_is_left_out_and_said(tmp_path, text, note):
    run = make_run(tmp_path / "a")
    with open(run / "metrics.jsonl", "a") as file:
        file.write(text)
    found = read_run(run)
    assert [line["iteration"] for line in found.metrics] == [1, 2, 3]
    assert any(note in sentence for sentence in found.notes)


@pytest.mark.rendered
@pytest.mark.parametrize(
    "damage",
    [
        {
            "metrics.jsonl": '{"iteration": 4, "reward/mean": {"a": [1]}, "control/\\ud800": 1}\n',
            "analysis.jsonl": '{"iteration": 1, "tokens": [{"text": "\\ud800", "influence": 1}]}\n'
            '{"iteration": ' + HUGE + ', "change/mean": 1}\n',
            "evaluation.jsonl": '{"iteration": 3, "split": "\\ud800", "k": 1e308, "avg@k": 1}\n'
            '{"iteration": 4, "split": {"a": []}, "k": [], "avg@k": "x"}\n',
            "answers.jsonl": '{"iteration": 3, "split": "t", "prompt": 0, "label": "\\ud800", '
            '"k": 2, "right": {"\\ud800": 1}, "more": 0, "wrong": 1}\n',
            "environment.json": "[" * 100_000,
            "config.toml": "\na = " + "9" * 5000,
            "objective.json": '{"methods": [{"name": 3}, 4, null]}',
        },
        {"environment.json": '{"n": ' + "9" * 5000 + "}", "config.toml": "\na = " + "[" * 5000},
    ],
    ids=range(2),
)
def test_a_damaged_log_has_a_page(tmp_path, damage):
    run = make_run(tmp_path / "a")
    for name, text in damage.items():
        with open(run / name, "a") as file:
            file.write(text)
    words = Page(write_run_report(run)).words()
    assert "Entropy fell from 0.800 to 0.500" in words
    assert "config.toml is not TOML" in words
    assert "config.toml is not TOML" in Page(write_comparison([run], tmp_path / "c.html")).words()


def damaged(path: Path, texts=None, **tensors) -> None:
    """Write a rollout file with parts replaced; a `texts` function edits its JSON."""
    with safe_open(path, framework="pt") as file:
        there = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if texts is not None:
        value = json.loads(there["texts"].numpy().tobytes())
        data = json.dumps(texts(value)).encode()
        there["texts"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    save_file(there | tensors, path)


@pytest.mark.parametrize(
    "change",
    [
        {"texts": lambda t: []},
        {"texts": lambda t: t | {"iteration": "3"}},
        {"texts": lambda t: t | {"prompts": ["p", "q"]}},
        {"texts": lambda t: t | {"prompts": {"0": 1, "1": []}}},
        {"texts": lambda t: t | {"completions": [1, None]}},
        {"texts": lambda t: t | {"completions": "ab"}},
        {"texts": lambda t: t | {"pieces": []}},
        {"texts": lambda t: t | {"pieces": {"x": "a"}}},
        {"texts": lambda t: t | {"pieces": {"1": 3}}},
        {"start": torch.tensor([0, 3, 99])},
        {"start": torch.tensor([0, 9, 6])},
        {"start": torch.tensor([0.0, 3.0, 6.0])},
        {"start": torch.zeros(0, dtype=torch.int64)},
        {"tokens": torch.tensor([-1] * 6, dtype=torch.int32)},
        {"tokens": torch.ones(6)},
        {"tokens": torch.ones(6, dtype=torch.uint64)},
        {"tokens": torch.ones(2, 3, dtype=torch.int32)},
        {"logp": torch.zeros(5)},
        {"entropy": torch.ones(6, dtype=torch.int32)},
        {"advantage": torch.zeros(6, dtype=torch.complex64)},
        {"rewards": torch.zeros(2, 2)},
        {"group": torch.zeros(2)},
        {"finished": torch.zeros(2)},
        {"change": torch.zeros(3)},
        {"influence": torch.zeros((), dtype=torch.float32)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_rollout_file_that_someone_made_is_refused(tmp_path, change):
    save_rollouts(make_rollouts(["p", "q"], ["ab", "ab"], [1.0, 0.0]), tmp_path)
    path = tmp_path / "000003.safetensors"
    load_rollouts(path)
    damaged(path, **change)
    with pytest.raises(ValueError, match=r"000003\.safetensors is not a rollout file: ") as error:
        load_rollouts(path)
    assert "\n" not in str(error.value)


def test_rollouts_that_no_page_can_hold_are_said(tmp_path):
    run = make_run(tmp_path / "a", lines=[{"iteration": 3}], evaluation=[])
    save_rollouts(make_rollouts(["p"], ["ab"], [1.0]), run / "rollouts")
    path = run / "rollouts/000003.safetensors"
    damaged(path, tokens=torch.tensor([1, 2**24, 0], dtype=torch.int32))
    words = Page(write_run_report(run)).words()
    assert "The rollouts of iteration 3 cannot be read: it holds a token id above" in words
    damaged(path, texts=lambda texts: [])
    words = Page(write_run_report(run)).words()
    assert "of iteration 3 cannot be read: rollouts/000003.safetensors is not a rollout" in words


# --- where it is written


def test_a_planted_link_is_not_written_through(tmp_path):
    run, victim = make_run(tmp_path / "a"), tmp_path / "victim"
    victim.write_text("mine")
    for name in (".report.html.part", "report.html", ".part"):
        (run / name).symlink_to(victim)
    write_run_report(run)
    assert victim.read_text() == "mine"
    assert not (run / "report.html").is_symlink()
    assert (run / "report.html").read_text().startswith("<!DOCTYPE html>")


@pytest.mark.parametrize("write", [atomic, replacing])
def test_a_temporary_file_has_a_name_that_nobody_knows(tmp_path, write):
    path, names = tmp_path / "file", set()
    os.umask(before := os.umask(0))
    for content in ("a", "b"):
        with write(path) as part:
            assert part.parent == tmp_path
            assert part.name.endswith(".part")
            assert part.stat().st_size == 0  # made already, and not by whoever writes to it
            names.add(part.name)
            part.write_text(content)
        assert path.read_text() == content
        assert path.stat().st_mode & 0o777 == 0o666 & ~before
    assert len(names) == 2
    with pytest.raises(TypeError), write(path) as part:
        part.write_text(3)  # never half of it
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "b"


def test_a_directory_is_written_whole_or_not_at_all(tmp_path):
    path, names = tmp_path / "runs" / "model", set()
    for content in ("a", "b"):
        with atomic_directory(path) as part:
            assert [p.name for p in path.parent.iterdir() if p != path] == [part.name]
            assert not (path / "f").exists()
            names.add(part.name)
            (part / "f").write_text(content)
        assert (path / "f").read_text() == content
        (path / "f").unlink()  # an empty one is replaced
    assert len(names) == 2
    (path / "f").write_text("c")
    with pytest.raises(OSError, match="not empty"), atomic_directory(path) as part:
        (part / "f").write_text("d")
    with pytest.raises(TypeError), atomic_directory(tmp_path / "x") as part:
        (part / "f").write_text(3)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*")) == [
        "runs", "runs/model", "runs/model/f",
    ]  # fmt: skip
    assert (path / "f").read_text() == "c"


def test_a_page_is_no_picture(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    assert main(["report", str(run), "--output", str(tmp_path / "x.svg")]) == 2
    assert "the page is HTML" in capsys.readouterr().err
    assert not (tmp_path / "x.svg").exists()


# --- the verb


def test_the_report_of_a_study_names_its_runs(tmp_path, capsys):
    for name in ("b", "a"):
        make_run(tmp_path / "study" / name)
    assert main(["report", str(tmp_path / "study")]) == 0
    assert capsys.readouterr().out == f"runs: a, b\nreport: {tmp_path / 'study' / 'report.html'}\n"
    assert "Comparison of 2 runs" in Page(tmp_path / "study/report.html").words()


def test_another_trainer_s_run_lies_beside_ours(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, state = make_run(tmp_path / "a"), FIXTURES / "trl/checkpoint-6/trainer_state.json"
    assert main(["report", str(run), str(state)]) == 0
    out = capsys.readouterr().out
    assert "trainer_state.json: source: TRL, iterations 1 to 3" in out
    assert "runs: a, trainer_state.json\nreport: report.html\n" in out
    words = Page(Path("report.html")).words()
    assert "Comparison of 2 runs" in words
    assert "as each run has it (see the notes)" in words


def test_the_report_of_ours_says_no_more_than_where_it_is(tmp_path, capsys):
    run = make_run(tmp_path / "a")
    assert main(["report", str(run / "metrics.jsonl")]) == 0
    assert capsys.readouterr().out == f"report: {run / 'report.html'}\n"
    assert main(["report"]) == 2
    assert main(["report", "--output", "x.html"]) == 2
    assert "report needs the path of a run" in capsys.readouterr().err
