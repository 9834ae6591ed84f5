"""Logs of other people: the right answer to each, in the form in which its trainer left it.

`wild/README.md` says where they come from. What must come out was written down by reading the logs,
not by running the diagnosis.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import math
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from builders import refused
from entrostat.cli import main
from entrostat.diagnosis import Diagnosis, diagnose
from entrostat.logs.importers import read, read_all
from entrostat.logs.run import Run
from paths import ROOT, TESTS

WILD = TESTS / "wild"
VERL = WILD / "11-verl-train_v6_reward/train.log"
TRL = WILD / "40-trl-iitd/trainer_state.json"


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines()


def steps_of(path: Path) -> list[str]:
    return [line for line in lines_of(path) if "step:" in line]


def write(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts) + "\n")
    return path


def table(path: Path, header: list[str], rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def entropies() -> list[float]:
    return read(VERL).series("entropy/exact")[1]


def scores() -> list[float]:
    return read(VERL).series("reward/mean")[1]


def trl_rows() -> list[dict[str, Any]]:
    return json.loads(TRL.read_text())["log_history"]


def said(diagnosis: Diagnosis) -> str:
    return str(diagnosis)


def pasted(diagnosis: Diagnosis) -> str:
    return "\n".join(remedy.paste for remedy in diagnosis.remedies)


def events(diagnosis: Diagnosis) -> list[str]:
    return [event.name for event in diagnosis.events]


# ------------------------------------------------------------------ verdict, cause, remedy


@pytest.mark.parametrize(
    ("case", "coefficient"),
    [("10-verl-bonus-explosion", "0.1"), ("11-verl-train_v6_reward", "0.05")],
)
def test_verls_printed_entropy_bonus_is_the_cause(case, coefficient):
    """And the ratio, which is 1 under one update per batch, is none."""
    found = diagnose(WILD / case)
    assert found.verdict == "explosion"
    assert [cause.name for cause in found.causes] == ["entropy_bonus"]
    assert f"coefficient of {coefficient} (entropy_coeff)" in found.causes[0].evidence
    assert found.remedies[0].paste == "actor_rollout_ref.actor.entropy_coeff=0"
    assert "entrostat" not in pasted(found)  # our trainer refuses such a configuration
    # .15 to .26 nats under a rising score: no alarm
    assert found.severity == "watch"
    assert found.headline.startswith("Explosion at a low level.")
    assert "the score rose" in found.headline


def test_a_custom_table_is_read_by_the_word_entropy(tmp_path):
    found = diagnose(WILD / "06-custom-csv/grpo_training_metrics.csv")
    assert found.verdict == "held"
    assert "policy_entropy_mean" in found.entropy_is
    rows = [(i, 0.5, 0.4, 0.1) for i in range(20)]
    several = table(tmp_path / "a.csv", ["step", "head_entropy", "tail_entropy", "reward"], rows)
    found = diagnose(several)
    assert "head_entropy, tail_entropy" in found.headline
    assert "--entropy" in found.headline
    assert diagnose(several, columns={"entropy": "tail_entropy"}).verdict == "held"


def test_twelve_steps_are_short_of_a_verdict(tmp_path):
    """Entropy fell by 37%: not "Held. Nothing to change"."""
    found = diagnose(write(tmp_path / "train.log", *steps_of(VERL)[:12]))
    assert found.verdict == "cannot tell"
    assert "(-37%) over 12 iterations" in found.headline
    assert "Nothing to change" not in said(found)


def test_a_warm_up_is_no_rise_of_the_learning_rate(tmp_path):
    found = diagnose(write(tmp_path / "train.log", *steps_of(VERL)[9::10]))
    assert found.verdict == "explosion"
    assert "learning_rate" not in [cause.name for cause in found.causes]


def test_truncation_gets_a_number(tmp_path):
    found = diagnose(TRL)
    assert (found.verdict, found.causes[0].name) == ("drift", "truncation")
    assert "max_completion_length=256" in found.remedies[0].paste  # 128 is logged


def test_an_entropy_of_zero_was_not_computed(tmp_path):
    import re

    lines = [re.sub(r"actor/entropy:\S+", "actor/entropy:0.0", text) for text in steps_of(VERL)]
    found = diagnose(write(tmp_path / "train.log", *lines))
    assert found.verdict == "cannot tell"
    assert found.headline.startswith("Entropy was not computed.")
    assert "actor_rollout_ref.actor.calculate_entropy=true" in pasted(found)
    assert "Resampled" not in found.headline


def test_no_entropy_says_how_to_switch_it_on(tmp_path):
    rows = [(i, 0.001 * i, 0.1, 0.5, 0.3, 0.01, 200) for i in range(80)]
    names = ["step", "loss", "grad_norm", "reward", "reward_std", "kl", "completion_length"]
    found = diagnose(table(tmp_path / "a.csv", names, rows))
    assert (found.source, found.verdict) == ("TRL", "cannot tell")
    assert "TRL logs entropy from 0.20 on" in said(found)


def test_length_and_score_collapse_come_first():
    found = diagnose(WILD / "92-verl-length-collapse")
    assert found.severity == "broken"
    assert set(events(found)[:2]) == {"score_lost", "length_collapse"}
    assert found.headline.startswith("Score lost, length collapse")
    assert found.causes[0].name == "length_collapse"
    assert "17.4" in found.causes[0].evidence  # the gradient norm
    assert "thermostat" not in said(found)


def test_a_rise_and_a_fall_are_both_told():
    found = diagnose(WILD / "94-verl-rise-and-fall")
    assert found.judged.peak is not None
    at, value = found.judged.peak
    assert abs(at - 96) <= 5  # the highest of all, .628
    assert value == pytest.approx(0.6, abs=0.03)
    assert "The fall from there began at iteration 120" in found.headline
    assert f"through a peak of {value:.3g} near iteration {at}" in found.headline


def test_a_lost_score_is_said_and_what_to_log_where_no_cause_is_found():
    found = diagnose(WILD / "95-verl-explosion-no-cause")
    assert found.verdict == "explosion"
    assert "score_lost" in events(found)
    assert "No cause is plain in what was logged. Log next" in said(found)
    assert "log-probs of the sampler" in found.missing[-1]


def held_with(tmp_path: Path, scale: Any) -> Diagnosis:
    """Entropy held, the score lost from step 40 on."""
    rng = random.Random(0)
    path = tmp_path / "train.log"
    rows = []
    for i in range(1, 81):
        score = 0.3 + 0.0025 * i if i <= 40 else 0.02
        score += 0.005 * rng.random()
        rows.append(
            f"step:{i} - actor/entropy:{0.305 + 0.005 * rng.random()} - actor/ppo_kl:0.0002 - "
            f"actor/pg_clipfrac:0.002 - actor/grad_norm:0.3 - actor/lr:1e-06 - "
            f"critic/score/mean:{scale(score)} - response_length/mean:{900 + i}"
        )
    return diagnose(write(path, *rows))


def test_the_same_loss_of_score_has_the_same_words_on_any_scale(tmp_path):
    """Rewards in [0, 1], in [-1, 1] and of 0 to 10."""
    found = [held_with(tmp_path, scale) for scale in (lambda s: s, lambda s: 2 * s - 1,
                                                      lambda s: 10 * s)]  # fmt: skip
    assert {each.verdict for each in found} == {"held"}
    assert {each.severity for each in found} == {"broken"}
    assert {each.headline.split(".")[0] for each in found} == {"Score lost"}
    assert {each.events[0].since for each in found} == {41}
    assert {tuple(c.name for c in each.causes) for each in found} == {("score_lost",)}
    assert {each.remedies[0].paste for each in found} == {"actor_rollout_ref.actor.optim.lr=1e-07"}


def test_no_learning_signal_comes_first():
    found = diagnose(WILD / "ask-trl3452")
    assert found.headline.startswith("No learning signal.")
    assert (found.severity, found.causes[0].name) == ("broken", "no_learning_signal")
    assert "max_completion_length=1024" in found.remedies[0].paste  # every one is cut at 512
    assert "Nothing to change" not in said(found)


@pytest.mark.parametrize("case", ["ask-up_explode", "ask-convsearch_explode"])
def test_an_explosion_that_lost_the_score(case):
    found = diagnose(WILD / case)
    assert (found.verdict, found.severity) == ("explosion", "broken")
    assert found.headline.startswith("Score lost and entropy explosion.")
    assert "score_lost" in [cause.name for cause in found.causes]
    assert found.remedies
    assert "Log next" in said(found)


def test_a_lost_score_under_a_held_entropy():
    found = diagnose(WILD / "ask-convsearch_held")
    assert (found.verdict, found.causes[0].name) == ("held", "score_lost")


def test_a_correction_that_is_on_is_not_advised():
    found = diagnose(WILD / "ask-trl4772")
    assert found.causes[0].name == "sampler_mismatch"
    assert "importance_sampling_ratio/mean went from 0.55" in found.causes[0].evidence
    assert "vllm_importance_sampling_correction=True" not in said(found)
    assert "on already" in said(found)


# ------------------------------------------------------------------ several runs


def names_of(path: Path) -> list[str]:
    return [run.name for run in read_all(path)[0]]


def test_a_second_run_in_one_file_is_another_run(tmp_path):
    second = [f"step:{i} - actor/entropy:{0.9 + 0.001 * (i % 3)} - critic/score/mean:0.1"
              for i in range(1, 61)]  # fmt: skip
    path = write(tmp_path / "train.log", *steps_of(VERL), "Traceback ...", *second)
    runs, skipped = read_all(path)
    assert [run.done for run in runs] == [192, 60]
    assert [run.name for run in runs] == ["train.log, run 1 of 2", "train.log, run 2 of 2"]
    assert runs[1].series("entropy/exact")[1][0] == 0.901
    assert skipped == ()
    assert [diagnose(run).verdict for run in runs] == ["explosion", "held"]


def test_a_resumed_run_is_one_and_its_later_values_win(tmp_path):
    """Steps fall back to what follows the checkpoint at 50."""
    first = [f"step:{i} - actor/entropy:0.5" for i in range(1, 58)]
    again = [f"step:{i} - actor/entropy:0.25" for i in range(51, 101)]
    for path in (write(tmp_path / "a/train.log", *first, *again), tmp_path / "b"):
        if path.name == "b":
            write(path / "job1.log", *first)
            write(path / "job2.log", *again)
            os.utime(path / "job2.log", (1, 1))  # dates say nothing
        (run,), _ = read_all(path)
        assert run.done == 100
        assert run.series("entropy/exact")[1] == [0.5] * 50 + [0.25] * 50


def test_runs_of_two_folders_whatever_their_dates(tmp_path):
    for name, share in (("runA", 1.0), ("runB", 1.5)):
        rows = [f"step:{i} - actor/entropy:{h * share}" for i, h in enumerate(entropies(), 1)]
        write(tmp_path / name / "train.log", *rows)
    os.utime(tmp_path / "runA/train.log", (1, 1))
    runs, _ = read_all(tmp_path)
    assert [run.name for run in runs] == ["runA", "runB"]
    one, other = (run.series("entropy/exact")[1][0] for run in runs)
    assert other == pytest.approx(1.5 * one)


def test_a_copy_of_a_run_is_that_run(tmp_path):
    for name in ("a", "backup of a"):
        write(tmp_path / name / "train.log", *steps_of(VERL))
    (run,), _ = read_all(tmp_path)
    assert run.done == 192


@pytest.mark.parametrize("names", [("grpo-lr1e-6", "grpo-lr1e-5", "dapo"), ("a", "b")])
def test_a_chart_of_several_runs(names, tmp_path, capsys):
    header, rows = ["Step"], [[i] for i in range(len(entropies()))]
    for k, name in enumerate(names, 1):
        column = f"{name} - actor/entropy"
        header += [column, f"{column}__MIN", f"{column}__MAX"]
        for row, h in zip(rows, entropies(), strict=True):
            row += [k * h] * 3
    path = table(tmp_path / "wandb_export.csv", header, rows)
    runs, _ = read_all(path)
    assert sorted(run.name for run in runs) == sorted(names)
    assert main(["diagnose", str(path), "--entropy", f"{names[1]} - actor/entropy", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["entropy"]["first"] == pytest.approx(2 * diagnose(VERL).judged.first)


def test_a_chart_a_file_is_joined_on_the_step(tmp_path):
    for metric, values in (("actor/entropy", entropies()), ("critic/score/mean", scores())):
        column = f"qwen-grpo-1 - {metric}"
        rows = [(i, v, v, v) for i, v in enumerate(values)]
        name = "entropy" if "entropy" in metric else "reward"
        table(tmp_path / f"{name}.csv", ["Step", column, f"{column}__MIN", f"{column}__MAX"], rows)
    (run,), _ = read_all(tmp_path)
    assert len(run.series("reward/mean")[1]) == len(run.series("entropy/exact")[1]) == 192


@pytest.mark.long
def test_a_wandb_folder_with_a_copy_and_a_crash(tmp_path, capsys):
    code = (
        "import math, wandb\n"
        "for n in (30, 0):\n"
        "    one = wandb.init(project='p', dir='.', mode='offline',\n"
        "                     settings=wandb.Settings(silent=True, console='off'))\n"
        "    for i in range(n):\n"
        "        one.log({'actor/entropy': .6 * math.exp(-i / 10), 'critic/score/mean': .01 * i})\n"
        "    one.finish()\n"
    )
    env = {**os.environ, "WANDB_SILENT": "true"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=env)
    folder = tmp_path / "wandb"
    (folder / "latest-run").unlink(missing_ok=True)
    found = folder.glob("offline-run-*")  # of one second their names say no order
    second, first = sorted(found, key=lambda each: next(each.glob("*.wandb")).stat().st_size)
    copy = folder / "latest-run"
    copy.mkdir()
    (log,) = first.glob("*.wandb")
    (copy / log.name).write_bytes(log.read_bytes())
    (first / "files").mkdir(exist_ok=True)
    write(first / "files/output.log", *(f"step:{i} - actor/entropy:9.0" for i in range(1, 9)))
    runs, skipped = read_all(folder)
    assert [(run.done, len(run.metrics)) for run in runs] == [(29, 30)]
    (sentence,) = skipped
    assert second.name in sentence
    assert "no step is logged" in sentence
    assert main(["diagnose", str(folder)]) == 0
    told = capsys.readouterr().out
    assert told.splitlines()[0].startswith(f"{log.stem.removeprefix('run-')} (veRL through W&B)")
    assert f"skipped: {sentence}" in told


# ------------------------------------------------------------------ forms


def trl_console(path: Path, quoted: bool) -> Path:
    rows = []
    for row in trl_rows():
        values = {k: f"{v:.4g}" if quoted else v for k, v in row.items() if k != "step"}
        values["epoch"] = f"{row['step'] / 500:.2f}" if quoted else row["step"] / 500
        rows += [
            f"  {row['step'] // 5}%|█  | {row['step']}/500 [01:29<67:59, 8.22s/it]",
            str(values),
        ]
    rows.insert(2, "Map: 100%|█████| 1000/1000 [00:01<00:00, 812.10 examples/s]")
    rows.append("{'train_runtime': 100.0, 'train_loss': 0.1, 'epoch': 1.0}")
    return write(path, *rows)


def swift(path: Path, finished: bool) -> Path:
    rows = []
    for row in trl_rows():
        values = {("entropy/mean" if k == "entropy" else k): v for k, v in row.items()}
        del values["step"]
        rows.append(values | {"epoch": 0.1, "train_speed(iter/s)": 0.01,
                              "global_step/max_steps": f"{row['step']}/960"})  # fmt: skip
    if finished:
        history = [{**r, "step": t["step"]} for r, t in zip(rows, trl_rows(), strict=True)]
        rows.append({"last_model_checkpoint": "PATH", "global_step": 500, "log_history": history})
    return write(path, *rows)


def as_cells(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    names = ["reward", "reward_std", "completions/mean_length", "entropy"]
    header = ["Step", *(name.replace("/", " / ") for name in names)]
    return header, [[str(row["step"]), *(f"{row[name]:.6f}" for name in names)] for row in rows]


def markdown(path: Path) -> Path:
    header, cells = as_cells(trl_rows())
    rows = [header, ["---"] * len(header), *cells]
    return write(path, "# Training", *(f"| {' | '.join(row)} |" for row in rows))


def html_text() -> str:
    header, cells = as_cells(trl_rows())
    head = "".join(f"<th>{name}</th>" for name in header)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in cells)
    return f"<div><progress value='500'></progress></div><table><tr>{head}</tr>{body}</table>"


def notebook(path: Path) -> Path:
    output = {"output_type": "display_data", "data": {"text/html": [html_text()]}}
    cell = {"cell_type": "code", "metadata": {}, "source": [], "outputs": [output]}
    path.write_text(json.dumps({"cells": [cell], "metadata": {}, "nbformat": 4}, indent=1))
    return path


@pytest.mark.parametrize(
    ("make", "source"),
    [
        (lambda p: trl_console(p / "a.log", quoted=False), "TRL"),
        (lambda p: trl_console(p / "a.log", quoted=True), "TRL"),
        (lambda p: swift(p / "logging.jsonl", finished=False), "ms-swift"),
        (lambda p: swift(p / "logging.jsonl", finished=True), "ms-swift"),
        (lambda p: markdown(p / "table.md"), "TRL"),
        (lambda p: write(p / "train.html", html_text()), "TRL"),
        (lambda p: notebook(p / "train.ipynb"), "TRL"),
    ],
)
def test_trls_figures_in_every_form(make, source, tmp_path):
    run = read(make(tmp_path))
    assert run.source == source
    expected = read(TRL)
    x, y = run.series("entropy/exact")
    assert x == expected.series("entropy/exact")[0] == list(range(10, 501, 10))
    assert y == pytest.approx(expected.series("entropy/exact")[1], rel=1e-3)
    assert run.series("reward/mean")[1] == pytest.approx(
        expected.series("reward/mean")[1], rel=1e-3, abs=1e-3
    )


def test_trls_console_without_a_bar_is_counted(tmp_path):
    rows = [str({"loss": 0.1, "reward": 0.5, "entropy": 0.9 - 0.01 * i, "epoch": 0.01 * i})
            for i in range(1, 31)]  # fmt: skip
    run = read(write(tmp_path / "a.log", "$ python3 train.py", *rows))
    assert run.series("entropy/exact")[0] == list(range(1, 31))
    assert "The console has no steps; its logged lines are counted instead." in run.notes
    twice = [row.replace("'epoch': 0.0", "'epoch': 0.0") for row in rows]
    again = write(tmp_path / "b.log", *rows, *(row.replace("0.9", "0.7") for row in twice))
    assert [run.done for run in read_all(again)[0]] in ([30, 30], [30])


def test_swifts_state(tmp_path):
    rows = [{("entropy/mean" if k == "entropy" else k): v for k, v in row.items()}
            for row in trl_rows()]  # fmt: skip
    state = {"max_steps": 500, "logging_steps": 10, "log_history": rows}
    run = read(write(tmp_path / "checkpoint-500/trainer_state.json", state))
    assert run.source == "ms-swift"
    assert run.series("entropy/exact")[1][:2] == [1.419, 1.536]


def test_the_axis_is_the_trainers_step(tmp_path):
    """W&B's `_step` counts its own calls."""
    rows = [(row["step"], row["entropy"], i) for i, row in enumerate(trl_rows(), 1)]
    path = table(tmp_path / "e.csv", ["train/global_step", "r - train/entropy", "r - _step"], rows)
    found = diagnose(path)
    assert found.judged.onset is not None
    assert found.judged.numbers == (10, 500)
    assert abs(found.judged.onset.iteration - 40) <= 20


def test_tensorboards_csv(tmp_path):
    rows = [(1.7e9 + 60 * i, i, h) for i, h in enumerate(entropies(), 1)]
    header = ["Wall time", "Step", "Value"]
    named = table(tmp_path / "run-grpo-tag-actor_entropy.csv", header, rows)
    assert diagnose(named).verdict == "explosion"
    other = table(tmp_path / "x.csv", header, rows)
    refused(lambda: read(other), "--entropy")
    assert diagnose(other, columns={"entropy": "Value"}).verdict == "explosion"


@pytest.mark.parametrize("colon", [":", ""])
def test_prime_rls_console_of_before_and_of_today(colon, tmp_path):
    """`Loss: 0.1`, and since 2026 `Loss 0.1` (src/prime_rl/trainer/rl/train.py)."""
    rows = []
    for i, h in enumerate(entropies(), 1):
        at = f"Time{colon} 40.00s" if colon else f"{'40.0s':>7}"
        rows += [
            f"12:00:01   DEBUG Micro Step 0/8 | Loss{colon} 0.5000 | Entropy{colon} 9.0000",
            f"12:00:02 SUCCESS Step {i} | {at} | Loss{colon} 0.0012 | Entropy{colon} {h:.4f} | "
            f"Mismatch KL{colon} 0.0007 | Grad. Norm{colon} 0.0512 | LR{colon} 1.00e-06 | "
            f"Throughput{colon} 1200 tokens/s | MFU{colon} 5.0% | Peak Mem.{colon} 29.0 GiB",
        ]
    run = read(write(tmp_path / "trainer.log", *rows))
    assert run.source == "prime-rl"
    assert run.series("entropy/logged")[1] == pytest.approx(entropies(), abs=1e-4)
    assert run.series("grad/norm")[1][0] == 0.0512


def test_openrlhfs_console_after_a_long_preamble(tmp_path):
    """`Global step N: {...}` of its ppo_trainer.py, which is not slime's `step N: {...}`."""
    rows = [f"INFO loading shard {i}" for i in range(1000)]
    rows += [
        f"Global step {i}: {{'policy_loss': 0.1, 'entropy_loss': {h}, 'reward': 0.5, "
        f"'response_length': 100.0, 'ppo_clip_ratio': 0.02}}"
        for i, h in enumerate(entropies(), 1)
    ]
    run = read(write(tmp_path / "train.log", *rows))
    assert run.source == "OpenRLHF"
    assert run.series("entropy/logged")[1] == pytest.approx(entropies())
    assert run.series("rollout/length_mean")[1][0] == 100


def test_swifts_console(tmp_path):
    rows = []
    for i, h in enumerate(entropies(), 1):
        row = {"loss": "0.01", "reward": "0.5", "entropy/mean": f"{h:.4f}", "epoch": "0.1"}
        rows.append(str(row | {"global_step/max_steps": f"{i}/240"}))
    run = read(write(tmp_path / "train.log", "[INFO:swift] begin", *rows))
    assert (run.source, run.planned) == ("ms-swift", 240)
    assert run.series("entropy/exact")[0] == list(range(1, 193))


@pytest.mark.parametrize("between", ["{}\n{}", "{{{}}} {{{}}}"])
def test_swifts_console_without_its_braces_or_line_ends(between, tmp_path):
    row = (
        "'loss': -0.0, 'reward': 0.34375, 'memory(GiB)': 56.74, "
        "'global_step/max_steps': '{}/3766', 'remaining_time': '18h 37m', 'train_speed(s/it)': 9"
    )
    text = between.format(row.format(5), row.format(10))
    run = read(write(tmp_path / "train.log", text))
    assert (run.source, run.planned) == ("ms-swift", 3766)
    assert [(row["iteration"], row["reward/mean"]) for row in run.metrics] == [
        (5, 0.34375), (10, 0.34375),
    ]  # fmt: skip
    assert "37m" not in run.names


def test_parts_of_a_run_in_one_folder_are_one(tmp_path):
    """Two tags of TensorBoard's interface; prime-rl's trainer and orchestrator."""
    header = ["Wall time", "Step", "Value"]
    for tag, values in (("actor_entropy", entropies()), ("critic_score_mean", scores())):
        rows = [(0, i, v) for i, v in enumerate(values, 1)]
        table(tmp_path / "tb" / f"run-grpo-tag-{tag}.csv", header, rows)
    trainer, other = [], []
    for i, h in enumerate(entropies(), 1):
        trainer.append(f"SUCCESS Step {i} | 1.0s | Loss 0.1 | Entropy {h:.4f} | MFU 5.0%")
        other.append(f"SUCCESS Step {i} | 1.0s | Reward 0.5000 | Seq. Length 90")
    write(tmp_path / "prime/trainer.log", *trainer)
    write(tmp_path / "prime/orchestrator.log", *other)
    for folder in ("tb", "prime"):
        (run,), _ = read_all(tmp_path / folder)
        name = "entropy/exact" if folder == "tb" else "entropy/logged"
        assert len(run.series(name)[1]) == len(run.series("reward/mean")[1]) == 192


# names seen in the code of each trainer: step, entropy, score
NAMES = {
    "NeMo-RL": ("train/step", "train/approx_entropy", "train/reward"),
    "SkyRL": ("trainer/global_step", "policy/policy_entropy", "reward/avg_raw_reward"),
    "AReaL": ("step", "ppo_actor/update/entropy/avg", "rollout/reward"),
    "AReaL, its own": ("step", "ppo_actor/update/entropy/avg", "ppo_actor/task_reward/avg"),
    "ms-swift": ("global_step/max_steps", "entropy/mean", "reward"),
    "open-instruct": ("training_step", "policy/entropy_avg", "objective/scores"),
    "OpenRLHF": ("train/global_step", "train/entropy_loss", "train/reward"),
    "prime-rl, older": ("step", "entropy/mean", "reward/mean"),
    "prime-rl": ("step", "entropy/all/mean", "reward/all/mean"),
    "rLLM": ("step", "actor/entropy_loss", "critic/rewards/mean"),
    "ROLL": ("step", "actor/entropy@sum", "critic/score/mean"),
    "slime": ("rollout/step", "rollout/entropy", "rollout/raw_reward"),
    "slime, training": ("train/step", "train/entropy_loss", "rollout/raw_reward"),
    "tinker-cookbook": ("step", "optim/entropy", "env/all/reward/total"),
    "TRL": ("train/global_step", "train/entropy", "train/reward"),
}


@pytest.mark.parametrize("trainer", NAMES)
@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_every_trainers_names(trainer, form, tmp_path):
    names = NAMES[trainer]
    rows = [(i, 0.6 * math.exp(-i / 40) + 0.03, 0.3 + 0.004 * i) for i in range(120)]
    if form == "csv":
        path = table(tmp_path / "log.csv", list(names), rows)
    else:
        path = write(tmp_path / "log.jsonl", *(dict(zip(names, row, strict=True)) for row in rows))
    found = diagnose(path)
    assert found.verdict == "collapse"
    assert found.judged.first == pytest.approx(0.63, abs=0.02)
    assert "the score rose from 0.32" in found.headline


def test_an_entropy_loss_below_zero_is_turned(tmp_path):
    rows = [(i, -0.6 * math.exp(-i / 40), 0.5) for i in range(60)]
    run = read(table(tmp_path / "a.csv", ["step", "train/entropy_loss", "reward"], rows))
    assert run.series("entropy/logged")[1][0] == 0.6
    assert any("negative is taken" in note for note in run.notes)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_compressed_logs_are_read(pack, tmp_path):
    path = tmp_path / "train.log.packed"
    path.write_bytes(pack(VERL.read_bytes()))
    assert read(path).metrics == read(VERL).metrics


@pytest.mark.parametrize("key", ["log", "message", "textPayload"])
def test_lines_that_a_collector_wrapped(key, tmp_path):
    """docker's json-file driver, Kubernetes, a cloud's collector."""
    rows = [{key: text + "\n", "stream": "stdout", "time": "2026-01-01T00:00:00Z"}
            for text in lines_of(VERL)]  # fmt: skip
    run = read(write(tmp_path / "container-json.log", *rows))
    assert run.metrics == read(VERL).metrics
    assert run.settings["entropy_coeff"] == "0.05"


def test_a_summary_is_refused_in_a_plain_sentence(tmp_path, capsys):
    summary = {"actor/entropy": 0.27, "critic/score/mean": 0.1, "_step": 192, "_runtime": 5.0}
    path = write(tmp_path / "wandb-summary.json", json.dumps(summary))
    assert main(["diagnose", str(path)]) == 2
    told = capsys.readouterr().err
    assert "has the last values only, no history; name the run-ID.wandb file" in told
    assert len(told.splitlines()) == 1


def test_what_is_not_recognised_names_what_comes_nearest(tmp_path):
    path = write(tmp_path / "a.log", "hello", "my entropy was large today", "bye")
    refused(lambda: read(path), "'my entropy was large today'")


# ------------------------------------------------------------------ a folder of fifty, and JSON


@pytest.fixture(scope="module")
def fifty(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("fifty")
    rng = random.Random(1)
    for k in range(50):
        rows = []
        for i in range(1, 201):
            h = 0.6 * math.exp(-i / 60) if k == 7 else 0.6
            reward = 0.02 if k == 31 and i > 90 else 0.3 + 0.001 * i
            rows.append({"step": i, "entropy": h * (1 + 0.02 * rng.random()),
                         "reward": reward + 0.01 * rng.random()})  # fmt: skip
        write(folder / f"run-{k:02d}" / "log.jsonl", *rows)
    write(folder / "empty" / "log.jsonl", "nothing")
    return folder


def test_fifty_runs_are_one_table_the_worst_first(fifty, capsys):
    begin = time.process_time()
    assert main(["diagnose", str(fifty)]) == 0
    taken = time.process_time() - begin
    rows = [line.split() for line in capsys.readouterr().out.split("\n\n")[0].splitlines()]
    assert len(rows) == 51
    assert rows[0][:3] == ["how", "bad", "run"]
    assert rows[1][:2] == ["broken", "run-31"]
    assert [row[0] for row in rows[3:]] == ["fine"] * 48
    assert "run-07" in rows[2]
    assert taken < 30  # under 10 s where nothing else runs


def fits(schema: dict[str, Any], value: Any, root: dict[str, Any], at: str = "") -> None:
    """A validator of what the schema uses: type, enum, properties, required, items, $ref."""
    if "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[1]]
    kinds = {"string": str, "number": (int, float), "integer": int, "array": list, "object": dict,
             "null": type(None)}  # fmt: skip
    allowed = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    assert any(isinstance(value, kinds[kind]) for kind in allowed), (at, value)
    if "enum" in schema:
        assert value in schema["enum"], (at, value)
    if isinstance(value, dict):
        assert set(schema.get("required", [])) <= value.keys(), (at, value.keys())
        for key, inner in value.items():
            part = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            assert isinstance(part, dict), f"{at}.{key} is not described"
            fits(part, inner, root, f"{at}.{key}")
    if isinstance(value, list):
        for place, inner in enumerate(value):
            fits(schema["items"], inner, root, f"{at}[{place}]")


def test_json_is_as_the_schema_says(fifty, tmp_path, capsys):
    schema = json.loads((ROOT / "docs/diagnosis.schema.json").read_text())
    assert main(["diagnose", str(fifty), "--json"]) == 0
    many = json.loads(capsys.readouterr().out)
    assert len(many) == 50
    cases = [diagnose(case).to_dict() for case in sorted(WILD.iterdir()) if case.is_dir()]
    short = diagnose(write(tmp_path / "train.log", *steps_of(VERL)[:12])).to_dict()
    for found in [*many, *cases, short]:
        fits(schema, json.loads(json.dumps(found, allow_nan=False)), schema)
    refused(
        lambda: fits(schema, cases[0] | {"more": 1}, schema),
        "is not described",
        error=AssertionError,
    )


@pytest.mark.long
def test_a_name_is_not_the_path_where_a_path_has_several_runs(fifty):
    runs, _ = read_all(fifty)
    assert all(isinstance(run, Run) and run.name.startswith("run-") for run in runs)
    assert names_of(fifty) == sorted(names_of(fifty))


# ------------------------------------------------------------------ the pages


def test_every_setting_that_is_advised_is_on_its_page():
    """And nothing is advised that the page does not have under its trainer."""
    from entrostat.diagnosis.settings import FLAGS

    page = (ROOT / "docs/remedies.md").read_text()
    columns: dict[str, str] = {}
    for block in page.split("| change |")[1:]:
        rows = [[cell.strip() for cell in row.strip("|").split("|")]
                for row in ("| change |" + block).splitlines() if row.startswith("|")]  # fmt: skip
        for row in rows[2:]:
            for trainer, cell in zip(rows[0][1:], row[1:], strict=False):
                columns[trainer] = columns.get(trainer, "") + cell
    for key, flags in FLAGS.items():
        for trainer, line in flags.items():
            if "\n" not in line and not (key == "per_token" and trainer == "veRL"):
                words = line.split("  #")[0].split()
                assert all(word in columns[trainer] for word in words), (key, trainer)
