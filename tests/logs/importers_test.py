"""Importers: expected values are read off the fixtures by hand; no file may crash them.

`importers/make_trl.py` ran the real GRPOTrainer, `importers/make_verl.py` veRL's own loggers. The
forms of prime-rl and slime are written down here from their sources, named at each.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import random
from pathlib import Path

import pytest
import torch

from builders import refused
from entrostat.diagnosis.signals import signal
from entrostat.logs.importers import FORMATS, detect, read, read_all
from entrostat.logs.run import Problem
from paths import ROOT, TESTS

FIXTURES = TESTS / "importers"
TRL, VERL = FIXTURES / "trl", FIXTURES / "verl"


def write(path: Path, *rows: object) -> Path:
    """Lines: texts as they are, the rest as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("\n".join(texts) + "\n")
    return path


def figures(run, *keys: str) -> list[tuple]:
    return [tuple(row.get(key) for key in ("iteration", *keys)) for row in run.metrics]


# --- TRL: values read off checkpoint-6/trainer_state.json ---


def test_trl_output_directory_reads_the_newest_checkpoint() -> None:
    run = read(TRL)
    # two optimizer steps per generation batch, of which the first logs the rewards
    assert figures(run, "entropy/exact", "reward/mean", "clip/low", "clip/high") == [
        (1, (0.7889103889465332 + 0.7306569218635559) / 2, 0.375,
         0.1111111119389534 / 2, 0.013888888992369175 / 2),
        (2, (0.7654502987861633 + 0.7326860427856445) / 2, 0.5, 0.078125 / 2, 0.015625 / 2),
        (3, (0.8848277926445007 + 0.8843185305595398) / 2, 0.125, 0.0, 0.012500000186264515 / 2),
    ]  # fmt: skip
    second = run.metrics[1]  # with the line of the evaluation in it
    assert second["rollout/length_mean"] == 8.0
    assert second["eval_entropy"] == 0.9254405498504639
    assert {"entropy", "reward", "grad_norm"}.isdisjoint(second)
    assert {"learning_rate", "frac_reward_zero_std", "reward_std", "grad/norm"} <= second.keys()
    note = (
        "An iteration is a generation batch, of 2 optimizer steps, and its figures are their means."
    )
    assert (run.source, run.planned, run.notes, run.problems) == ("TRL", 3, (note,), ())
    assert run.entropy_is.startswith("the mean over completion tokens")


def test_trl_checkpoint_and_file_are_the_same_run() -> None:
    half = read(TRL / "checkpoint-3")
    assert half.metrics[:1] == read(TRL).metrics[:1]
    # cut inside an iteration: of its first step alone
    assert figures(half, "entropy/exact", "grad/norm")[1:] == [
        (2, 0.7654502987861633, 3.6017284393310547)
    ]
    assert half.notes[0] == "Unfinished: 2 of 3 iterations are logged."
    assert read(TRL / "checkpoint-3" / "trainer_state.json").metrics == half.metrics


def test_trl_under_any_name_and_the_older_checkpoint_where_the_newest_is_broken(tmp_path) -> None:
    state = (TRL / "checkpoint-6/trainer_state.json").read_text()
    (tmp_path / "a.txt").write_text("\ufeff" + state.replace("\n", "\r\n"))
    assert read(tmp_path / "a.txt").metrics == read(TRL).metrics
    write(tmp_path / "out/checkpoint-9/trainer_state.json", "{")
    write(tmp_path / "out/checkpoint-6/trainer_state.json", state)
    run = read(tmp_path / "out")
    assert run.done == 3
    assert run.problems[0].file == "checkpoint-9/trainer_state.json"


def test_trl_cut_state_keeps_the_whole_entries(tmp_path) -> None:
    state = (TRL / "checkpoint-6/trainer_state.json").read_text()
    # the fourth entry of the log is the evaluation of step 3; cut inside the one of step 4
    cut = state[: state.index('"step": 4')]
    run = read(write(tmp_path / "trainer_state.json", cut))
    assert run.metrics == read(TRL / "checkpoint-3").metrics
    assert "the entries before the fault are read" in run.problems[0].reason


def test_trl_logging_steps_and_parquet_are_said(tmp_path) -> None:
    state = json.loads((TRL / "checkpoint-6/trainer_state.json").read_text())
    write(tmp_path / "checkpoint-6/trainer_state.json", state | {"logging_steps": 10})
    write(tmp_path / "completions/completions_00001.parquet", "PAR1")
    run = read(tmp_path)
    assert run.notes == (
        "A line is logged every 10 steps and is their mean.",
        "completions/*.parquet is not read (that needs pyarrow): there are no rollouts.",
    )
    assert "of each 10 steps" in run.entropy_is


def test_supervised_log_has_an_entropy_that_is_not_known(tmp_path) -> None:
    state = {"log_history": [{"step": 1, "loss": 2.0, "entropy": 1.5}]}
    run = read(write(tmp_path / "trainer_state.json", state))
    assert figures(run, "entropy/logged", "entropy/exact") == [(1, 1.5, None)]
    assert run.entropy_is.startswith("it cannot be known")


def test_trls_ppo_has_an_entropy_under_another_name(tmp_path) -> None:
    """In its state, and in its console, which counts episodes and has the sum over tokens, too."""
    row = {"objective/entropy": 114.4, "objective/scores": 2.25, "policy/entropy_avg": 1.5,
           "val/num_eos_tokens": 0, "lr": 1e-05, "episode": 96, "epoch": 0.11}  # fmt: skip
    state = write(tmp_path / "trainer_state.json", {"log_history": [row | {"step": 3}]})
    for path, step in ((state, 3), (write(tmp_path / "log", str(row)), 96)):
        run = read(path)
        assert run.source == "TRL's PPOTrainer"
        assert figures(run, "entropy/logged", "reward/mean") == [(step, 1.5, 2.25)]
        assert run.entropy_is.startswith("it cannot be known")


# --- veRL: values of STEPS in make_verl.py ---

VERL_VALUES = [
    (0, None, None, None, None, 0.1875),
    (1, 0.5, 0.25, 100.0, 1.5, None),
    (2, 0.4375, 0.375, 110.5, None, None),  # its gradient norm is NaN
    (3, 0.25, 0.5, 121.0, 0.75, 0.625),
]


@pytest.mark.parametrize("name", ["console.log", "file.jsonl", "."])
def test_verl(name) -> None:
    run = read(VERL / name)
    keys = ("entropy/exact", "reward/mean", "rollout/length_mean", "grad/norm")
    validation = "val-core/openai/gsm8k/reward/mean@1"
    assert figures(run, *keys, validation) == VERL_VALUES
    # the scores are the reward; the rewards with a KL penalty and both-sided clips keep their names
    assert run.metrics[1]["critic/rewards/mean"] == 0.2
    assert run.metrics[1]["actor/pg_clipfrac"] == 0.125
    assert "clip/high" not in run.metrics[1]
    assert (run.source, run.problems) == ("veRL", ())
    said = "is: the mean over response tokens" if name != "file.jsonl" else "does not say which"
    assert said in run.entropy_is


def test_verl_rollouts_are_texts() -> None:
    run = read(VERL / "rollouts")
    assert figures(run, "reward/mean") == [(1, 0.5), (2, 0.75)]
    rollouts = run.dumps[2]()
    assert rollouts.prompts == ["1+1?", "1+1?", "2+2?", "2+2?"]
    assert rollouts.completions == ["2", "3", "4", "4"]
    assert rollouts.rewards.tolist() == [1, 0, 1, 1]
    assert rollouts.group.tolist() == [0, 0, 1, 1]
    assert rollouts.start.tolist() == [0] * 5
    assert len(rollouts.tokens) == len(rollouts.entropy) == 0
    assert list(read(VERL).dumps) == [1, 2]


@pytest.mark.parametrize(
    ("mode", "value", "name", "words"),
    [
        ("token-mean", 0.5, "entropy/exact", "the mean over response tokens"),
        ("seq-mean-token-mean", 0.5, "entropy/exact", "mean over responses of the mean"),
        ("seq-mean-token-sum", 0.5, "entropy/logged", "not an entropy per token"),
        ("seq-mean-token-sum-norm", 0.5, "entropy/logged", "over a constant"),
        (None, 0.5, "entropy/exact", "does not say which loss_agg_mode"),
        (None, 250.0, "entropy/logged", "too large for a token"),  # ln of a vocabulary is 12
    ],
)
def test_verl_aggregation(tmp_path, mode, value, name, words) -> None:
    config = [f"'loss_agg_mode': '{mode}'"] if mode else ["no configuration"]
    run = read(write(tmp_path / "log", *config, f"step:1 - actor/entropy:{value} - a:1"))
    assert figures(run, name) == [(1, value)]
    assert words in run.entropy_is


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("actor/entropy", "before the iteration's updates, aggregated"),
        ("actor/entropy_loss", "before the iteration's updates or during them, aggregated"),
    ],
)
def test_verl_says_of_which_policy_its_entropy_is(tmp_path, name, when) -> None:
    run = read(write(tmp_path / "log", f"step:1 - {name}:0.5 - actor/ppo_kl:0.1"))
    assert when in run.entropy_is


def test_verl_line_that_was_cut_after_a_figure(tmp_path) -> None:
    run = read(write(tmp_path / "log", "step:1 - actor/entropy:0.5 - perf/cpu_gb:43.031 -"))
    assert figures(run, "entropy/exact", "perf/cpu_gb") == [(1, 0.5, 43.031)]
    assert run.problems == ()


def test_verl_restart_repeats_steps_and_cuts_its_last_line(tmp_path) -> None:
    path = write(
        tmp_path / "log",
        "step:1 - actor/entropy:0.5 - actor/lr:1", "step:2 - actor/entropy:0.25",
        "Traceback (most recent call last):",
        "step:2 - actor/entropy:0.375 - broken - actor/lr:x",
    )  # fmt: skip
    path.write_text(path.read_text() + "step:3 - actor/entropy:0.125 - critic/score/mean:0.1")
    run = read(path)
    assert figures(run, "entropy/exact", "reward/mean") == [
        (1, 0.5, None), (2, 0.375, None), (3, 0.125, None),
    ]  # fmt: skip
    assert run.notes == ("Step 2 is logged more than once (a restart?); the later values count.",)
    reasons = [(p.file, p.line, p.reason) for p in run.problems]
    assert reasons == [
        ("log", 4, "'broken' is not name:number"),
        ("log", 4, "'actor/lr:x' is not name:number"),
        (
            "log", 5,
            "the line has no end; its last figure 'critic/score/mean:0.1' is left out",
        ),
    ]  # fmt: skip


# --- prime-rl ---

# PrimeIntellect-ai/prime-rl, src/prime_rl/trainer/rl/token_export.py at d2f82fa (first form)
FIRST = {
    "schema_version": 1, "step": 4, "rank": 0, "micro_step": 0, "micro_sequence_idx": 0,
    "export_sequence_idx": 0, "env_name": "math", "training_mode": "rl",
    "token_ids": [5, 6, 7, 8], "position_ids": [0, 1, 2, 3],
    "loss_mask": [False, False, True, True], "advantages": [0.5] * 4, "rewards": [1.0] * 4,
    "inference_logprobs": [0.0, 0.0, -0.5, -1.0], "trainer_logprobs": [-9.0, -9.0, -0.25, -0.75],
    "entropy": [9.0, 9.0, 0.5, 1.0], "mismatch_kl": [0.0, 0.0, 0.25, 0.5],
    "log_importance_ratio": [0.0, 0.0, 0.25, 0.25], "importance_ratio": [1.0, 1.0, 1.25, 1.25],
    "prob_delta": [0.0] * 4, "is_masked": [False, False, True, False],
    "is_masked_high": [False] * 4, "is_masked_low": [False, False, True, False],
}  # fmt: skip
# the same at 004274e (later form): run_id, export_step, losses; null where unknown
LATER = {
    **{k: v for k, v in FIRST.items() if k != "training_mode"},
    "step": 40, "export_step": 4, "run_id": None,
    "token_ids": [5, 6, 9], "position_ids": [0, 1, 2], "loss_mask": [False, False, True],
    "advantages": [None, None, -0.5], "losses": [{}, {}, {"rl": {"advantage": -0.5, "mask": True}}],
    "rewards": [None, None, 0.0], "inference_logprobs": [0.0, 0.0, -1.5],
    "trainer_logprobs": [-9.0, -9.0, -2.0], "entropy": [9.0, 9.0, None],
    "mismatch_kl": [0.0, 0.0, 0.75], "importance_ratio": [None] * 3,
    "is_masked": [None, None, False],
}  # fmt: skip
# src/prime_rl/trainer/rl/trace_annotations.py at 0b77f23 with utils/trace_updates.py (older),
# annotations.py at 65a1858 (newer: nulls outside the loss mask)
OLDER_NOTE = {
    "version": 1, "trace_id": "t", "info": {"train": {"trained_at_step": 7}},
    "branches": [{"index": 0, "trainer_logprobs": [None, -9.0, -1.0],
                  "entropies": [None, 3.0, 1.0]}],
}  # fmt: skip
NEWER_NOTE = {
    "version": 1, "trace_id": "t", "info": {},
    "branches": [{"index": 0, "trainer_logprobs": [None, None, -1.0, -0.5],
                  "entropies": [None, None, 1.0, 0.5], "is_masked": [None] * 4}],
}  # fmt: skip


def test_prime_rl_token_export_in_both_forms(tmp_path) -> None:
    write(tmp_path / "token_exports/step_4/rank_0.jsonl", FIRST)
    write(tmp_path / "token_exports/step_4/rank_1.jsonl", LATER)
    run = read(tmp_path)
    assert (run.source, run.problems) == ("prime-rl", ())
    (row,) = run.metrics
    assert row["iteration"] == 4
    assert row["entropy/exact"] == 0.75  # (0.5 + 1) / 2, the later form's is unknown
    assert row["entropy/nll"] == 1.0  # (0.25 + 0.75 + 2) / 3
    assert row["reward/mean"] == 0.5
    assert row["rollout/length_mean"] == 1.5
    assert row["mismatch_kl"] == 0.5  # (0.25 + 0.5 + 0.75) / 3
    assert math.isclose(row["is_masked"], 1 / 3)
    assert row["importance_ratio"] == 1.25
    rollouts = run.dumps[4]()
    assert rollouts.tokens.tolist() == [7, 8, 9]
    assert rollouts.start.tolist() == [0, 2, 3]
    assert rollouts.group.tolist() == [0, 0]  # both have the prompt 5 6
    assert rollouts.rewards.tolist() == [1, 0]
    assert rollouts.logp.tolist() == [-0.25, -0.75, -2.0]
    assert rollouts.sampler_logp.tolist() == [-0.5, -1.0, -1.5]
    assert rollouts.advantage.tolist() == [0.5, 0.5, -0.5]
    assert rollouts.entropy[:2].tolist() == [0.5, 1.0]
    assert rollouts.entropy[2].isnan()
    assert rollouts.tokens.dtype == torch.int32


def test_prime_rl_tells_runs_apart(tmp_path) -> None:
    other = LATER | {"run_id": "run_b", "export_step": 9}
    path = write(tmp_path / "x", LATER | {"run_id": "run_a"}, other, {"a": 1}, "{")
    run = read(path)
    assert figures(run, "entropy/nll") == [(4, 2.0)]
    assert "Read run_a; other runs beside it are not, name their directories: run_b." in run.notes
    assert [p.line for p in run.problems] == [3, 4]


def test_prime_rl_annotations(tmp_path) -> None:
    newer = write(tmp_path / "traces/step_7/train/annotations/trainer.jsonl", NEWER_NOTE)
    run = read(newer)
    assert figures(run, "entropy/exact", "entropy/nll") == [(7, 0.75, 0.75)]
    older = read(write(tmp_path / "old.jsonl", OLDER_NOTE))
    assert figures(older, "entropy/logged") == [(7, 2.0)]  # the prompt's 3 is in it
    assert "includes the prompts'" in older.entropy_is
    assert not older.dumps


# --- slime ---

# THUDM/slime: utils/logging_utils.py (prefix), backends/megatron_utils/data.py ("rollout N:"),
# model.py ("step N:"); at 3906ba1, 03b11f4, 00b5ed0
SLIME = [
    "[2026-01-01 00:00:00] data.py:99 - rollout 0: {'rollout/log_probs': -0.5, "
    "'rollout/raw_reward': 0.25, 'rollout/response_lengths': 100.0}",
    "[2026-01-01 00:00:01] model.py:9 - step 0: {'train/loss': 0.0, 'train/entropy_loss': 0.5, "
    "'train/pg_clipfrac': 0.0, 'train/grad_norm': np.float64(1.0), 'train/step': 0}",
    "[2026-01-01 00:00:02] model.py:9 - critic-step 0: {'train/critic-value_loss': 4.0}",
    "[2026-01-01 00:00:02] model.py:9 - step 1: {'train/loss': 0.0, 'train/entropy_loss': 0.25, "
    "'train/pg_clipfrac': 0.125, 'train/grad_norm': 2.0, 'train/step': 1}",
    "[2026-01-01 00:00:03] data.py:99 - rollout 1: {'rollout/raw_reward': 0.75}",
    "[2026-01-01 00:00:04] model.py:9 - step 2: {'train/entropy_loss': 0.125, 'train/grad_no",
]
# train_dump_utils.py at 1706a09, a sample of `samples` with its tensors as lists
SAMPLE = {
    "rollout_id": 2, "tokens": [1, 2, 3, 4, 5], "response_lengths": 3, "rewards": 0.5,
    "loss_masks": [1, 0, 1], "log_probs": [-1.0, -9.0, -2.0], "entropy": [0.5, 9.0, 1.0],
    "rollout_log_probs": [-1.5, -9.0, -2.5], "advantages": [1.0, 1.0, 1.0],
}  # fmt: skip


def test_slime_console_averages_the_updates_of_a_rollout(tmp_path) -> None:
    run = read(write(tmp_path / "log", *SLIME))
    keys = ("entropy/exact", "entropy/nll", "reward/mean", "grad/norm", "rollout/length_mean")
    assert figures(run, *keys) == [
        (0, 0.375, 0.5, 0.25, 1.5, 100.0), (1, 0.125, None, 0.75, None, None),
    ]  # fmt: skip
    assert run.metrics[0]["train/pg_clipfrac"] == 0.0625
    assert run.notes[0].startswith("An iteration is a rollout of up to 2 updates")
    assert [p.line for p in run.problems] == [6]


def test_slime_counts_groups_without_a_signal(tmp_path) -> None:
    """A count of none is left out of a line; the number of groups is an argument of the run."""
    lines = [
        "  rollout_batch_size .............................. 32",
        "perf 0: {'rollout/response_len/mean': 9.0, 'rollout/zero_std/count_1.0': 3, "
        "'rollout/zero_std/count_0.0': 5}",
        "rollout 0: {'rollout/raw_reward': 0.25}",
        "step 0: {'train/entropy_loss': 0.5}",
        "perf 1: {'rollout/response_len/mean': 9.0}",
        "rollout 1: {'rollout/raw_reward': 0.5}",
        "step 1: {'train/entropy_loss': 0.5}",
    ]
    idle = ("rollout/zero_advantage_groups", "rollout/groups")
    run = read(write(tmp_path / "log", *lines))
    assert figures(run, *idle) == [(0, 8.0, 32), (1, 0.0, 32)]
    share = signal(run, "no_signal")
    assert share is not None
    assert share.y.tolist() == [0.25, 0.0]
    (tmp_path / "b").mkdir()
    assert figures(read(write(tmp_path / "b" / "log", *lines[1:])), *idle) == [
        (0, 8.0, None), (1, 0.0, None),
    ]  # fmt: skip
    (tmp_path / "c").mkdir()
    assert figures(read(write(tmp_path / "c" / "log", *SLIME)), *idle) == [
        (0, None, None), (1, None, None),
    ]  # fmt: skip


def test_slime_samples(tmp_path) -> None:
    run = read(write(tmp_path / "2.jsonl", SAMPLE, SAMPLE | {"tokens": [1, 2]}))
    assert figures(run, "entropy/exact", "entropy/nll", "reward/mean") == [(2, 0.75, 1.5, 0.5)]
    rollouts = run.dumps[2]()
    assert rollouts.tokens.tolist() == [3, 5]
    assert rollouts.entropy.tolist() == [0.5, 1.0]
    assert [p.line for p in run.problems] == [2]


def test_slime_export_of_the_docs(tmp_path, monkeypatch) -> None:
    """A dump with the fields of `_build_dump_payload`, through the code of docs/analyze.md."""
    tensors = {k: torch.tensor(v) for k, v in SAMPLE.items() if isinstance(v, list)}
    sample = {**SAMPLE, **tensors, "rollout_position": 1, "rewards": -0.7, "data_parallel_rank": 0}
    del sample["rollout_id"]
    dump = {"format_version": 2, "rollout_id": 12, "rank": 0, "samples": [sample], "dp_shards": []}
    monkeypatch.chdir(tmp_path)
    torch.save({**dump, "raw_reward": [0.0, 0.5]}, "data_12.pt")
    page = ROOT / "docs" / "analyze.md"
    exec(page.read_text().split("```python\n")[1].split("```")[0], {})
    run = read(tmp_path / "12.jsonl")
    assert figures(run, "entropy/exact", "entropy/nll", "reward/mean") == [(12, 0.75, 1.5, 0.5)]
    assert run.dumps[12]().tokens.tolist() == [3, 5]


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.write_text, (self.path, "opened"))


@pytest.mark.parametrize(
    "save", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))]
)
def test_pickles_are_not_opened(tmp_path, save) -> None:
    folder = tmp_path / "dump"
    folder.mkdir()
    save(Trap(tmp_path / "sprung"), folder / "0_0.pt")
    refused(lambda: read(folder), "0_0.pt", "not opened here", "export it")
    refused(lambda: read(folder / "0_0.pt", format="slime"), "a pickle")
    write(folder / "log", *SLIME)
    run = read(folder)
    assert [p.file for p in run.problems if "pickle" in p.reason] == ["0_0.pt"]
    assert not (tmp_path / "sprung").exists()


# --- tables ---


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", "Step,Entropy,Accuracy,lr\n1,0.5,0.25,3\n2,0.25,0.5,3\n"),
        ("b.csv", "hello\nglobal_step;policy_entropy;reward;lr\r\n1;0.5;0.25;3\r\n2;0.25;0.5;3"),
        ("c", '{"step": 1, "entropy": 0.5, "reward": 0.25, "lr": 3}\n'
              '{"step": 2, "entropy": 0.25, "reward": 0.5, "lr": 3}'),
        ("d.json", '[{"step": 1, "actor": {"entropy": 0.5}, "score": 0.25, "lr": 3},\n'
                   '{"step": 2.0, "actor": {"entropy": 0.25}, "score": "0.5", "lr": 3}]'),
        ("e.json", '{"step": [1, 2], "entropy": [0.5, 0.25], "reward": [0.25, 0.5], "lr": [3, 3]}'),
        ("f.csv", '"Step","run - actor/entropy","run - actor/entropy__MIN","run - reward","lr"\n'
                  '"1","0.5","0.5","0.25","3"\n"2","0.25","0.25","0.5","3"\n'),
    ],
)  # fmt: skip
def test_tables(tmp_path, name, text) -> None:
    (tmp_path / name).write_bytes(text.encode())
    run = read(tmp_path / name)
    assert figures(run, "entropy/logged", "reward/mean", "lr") == [
        (1, 0.5, 0.25, 3.0), (2, 0.25, 0.5, 3.0),
    ]  # fmt: skip
    assert run.entropy_is.startswith("it cannot be known")
    assert run.problems == ()


def test_table_in_utf_16_as_a_shell_writes_it(tmp_path) -> None:
    (tmp_path / "t").write_bytes("step,entropy\r\n1,0.5\r\n".encode("utf-16"))
    assert figures(read(tmp_path / "t"), "entropy/logged") == [(1, 0.5)]


def test_table_columns_by_choice(tmp_path) -> None:
    path = write(tmp_path / "t.csv", "Wall time,n,H,entropy", "9,1,0.5,7", "9,2,0.25,7")
    run = read(path, columns={"step": "n", "entropy": "h"})
    assert figures(run, "entropy/logged", "entropy") == [(1, 0.5, 7.0), (2, 0.25, 7.0)]
    refused(
        lambda: read(
            write(tmp_path / "u.jsonl", {"n": 1, "H": 2}), columns={"step": "n", "entropy": "zz"}
        ),
        "'zz'",
        "'H'",
    )
    refused(lambda: read(path, columns={"stop": "n"}), "'stop'")
    refused(lambda: read(path, format="trl", columns={"step": "n"}), "columns", "'trl'")


@pytest.mark.parametrize(("name", "start"), [("exact", "exact"), ("nll", "sampled")])
def test_table_with_our_names_says_which_entropy(tmp_path, name, start) -> None:
    run = read(write(tmp_path / "t", {"step": 1, f"entropy/{name}": 0.5}))
    assert figures(run, f"entropy/{name}") == [(1, 0.5)]
    assert run.entropy_is.startswith(start)


def test_names_of_ours_are_not_taken_by_others(tmp_path) -> None:
    row = {"step": 1, "entropy": 0.5, "reward": 0.25, "entropy/logged": "x", "iteration": 9}
    run = read(write(tmp_path / "t", row), columns={"step": "step", "entropy": "entropy"})
    assert run.metrics == [{"iteration": 1, "entropy/logged": 0.5, "reward/mean": 0.25}]


# --- what is broken is said ---


def test_faults_are_listed_with_file_line_and_reason(tmp_path) -> None:
    path = write(
        tmp_path / "t.jsonl",
        {"step": 3, "entropy": 0.25}, {"step": 1, "entropy": 0.5}, {"step": "one", "entropy": 1},
        {"step": -1, "entropy": 1}, {"step": 2.5, "entropy": 1}, {"entropy": 1}, "[1]", "nonsense",
        "[" * 100_000, {"step": 4, "entropy": "high"}, '{"step": 5, "entropy": NaN, "a": 1}',
        '{"step": 6, "entropy": Infinity}', {"step": True, "entropy": 1},
        '{"step": ' + "9" * 5000 + ', "entropy": 1}', '\0\0{"step": 7, "entropy": 2}',
        '{"step": 3, "entropy": 0.125}', '{"step": 8, "entro',
    )  # fmt: skip
    run = read(path)
    assert figures(run, "entropy/logged") == [(1, 0.5), (3, 0.125), (5, None), (7, 2.0)]
    assert [p.line for p in run.problems] == [3, 4, 5, 6, 7, 8, 9, 10, 10, 12, 13, 14, 17]
    assert {p.file for p in run.problems} == {"t.jsonl"}
    reasons = {p.line: p.reason for p in run.problems}
    assert reasons[3] == "step 'one' is not a whole number from 0"
    assert reasons[6] == "no step"
    assert reasons[7] == "not a JSON object"
    assert reasons[9] == "JSON nested too deeply"
    assert reasons[12] == "step 6 has no finite number"
    assert run.problems[7].reason == "entropy 'high' is not a number"
    assert run.notes == (
        "Step 3 is logged more than once (a restart?); the later values count.",
        "Steps were not in order in the log; they are sorted here.",
        "Values that were not finite are left out: 2.",
    )


def test_two_hundred_problems_and_a_count(tmp_path) -> None:
    rows = [{"step": 1, "entropy": 1}, *["{"] * 250]
    problems = read(write(tmp_path / "t.jsonl", *rows)).problems
    assert len(problems) == 201
    assert problems[199] == Problem("t.jsonl", 201, problems[0].reason)
    assert problems[200] == Problem("t.jsonl", None, "50 more problems, not listed")


def test_a_line_too_long_is_passed_over(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("entrostat.logs.importers.source.LINE", 100)
    rows = [{"step": 1, "entropy": 1}, "x" * 1000, {"step": 2, "entropy": 1}]
    run = read(write(tmp_path / "t.jsonl", *rows))
    assert figures(run) == [(1,), (2,)]
    assert run.problems == (Problem("t.jsonl", 2, "longer than 100 characters"),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\x1f\x8b\x08\x00", "a compressed file that cannot be unpacked"),
        (b"\xfd7zXZ\0damaged", "a compressed file that cannot be unpacked"),
        (b"PAR1\x15\x04", "Parquet, which is not supported"),
        (b"PK\x03\x04....", "a zip file"),
        (bytes(range(32)) * 9, "not text"),
        (b"", "not recognised"),
        (b"\0" * 99, "not recognised"),
        (b"hello\nworld", "not recognised"),
        (b"[" * 99999, "not recognised"),
        (b'{"step": 1}', "not recognised"),
    ],
)
def test_nothing_readable_is_one_line_that_names_path_and_formats(tmp_path, content, words) -> None:
    path = tmp_path / "thing\n.log"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as caught:
        read(path)
    message = str(caught.value)
    assert "\n" not in message
    assert "thing\\n.log" in message
    assert all(f"{name}: {words}" in message for name, words in FORMATS.items())


def test_a_run_that_has_only_begun(tmp_path):
    for name in ("config.toml", "objective.json", "metrics.jsonl"):
        (tmp_path / name).touch()
    refused(lambda: read(tmp_path), "has no iteration yet", "--resume")
    (tmp_path / "objective.json").unlink()
    refused(lambda: read(tmp_path), "holds nothing that can be read")


def test_wrong_arguments(tmp_path) -> None:
    refused(lambda: read(tmp_path / "absent"), "neither a file nor a directory")
    refused(lambda: read(tmp_path, format="vertl"), "'vertl'")
    os.mkfifo(tmp_path / "pipe")  # opening it would wait for ever
    refused(lambda: read(tmp_path / "pipe"), "neither a file nor a directory")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(lambda: read(tmp_path / "loop"), "neither a file nor a directory")


def test_a_directory_full_of_other_things(tmp_path) -> None:
    write(tmp_path / "logs/verl.log", "step:1 - actor/entropy:0.5 - critic/score/mean:1")
    write(tmp_path / "notes.md", "hello")
    (tmp_path / "model.safetensors").write_bytes(bytes(999))
    (tmp_path / "up").symlink_to(tmp_path)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "old.jsonl.gz").write_bytes(b"\x1f\x8b\x08\x00")
    os.mkfifo(tmp_path / "pipe")
    write(tmp_path / "table.csv", "step,entropy", "1,9")
    run = read(tmp_path)
    assert figures(run, "entropy/exact") == [(1, 0.5)]
    assert run.notes == (
        "Not read, of another format (table): table.csv.",
        "2 other files are no logs, and were not read.",
    )
    assert [(p.file, p.line) for p in run.problems] == [("old.jsonl.gz", None)]
    assert figures(read(tmp_path, format="table"), "entropy/logged") == [(1, 9.0)]


def test_our_own_runs(tmp_path) -> None:
    write(tmp_path / "metrics.jsonl", {"iteration": 1, "entropy/exact": 0.5})
    for path in (tmp_path, tmp_path / "metrics.jsonl"):
        run = read(path)
        assert (run.source, run.metrics) == ("entrostat", [{"iteration": 1, "entropy/exact": 0.5}])
    write(tmp_path / "metrics.jsonl", '{"iteration": 1, "a": ' + "[" * 100_000)
    with pytest.raises(ValueError):  # which one is read_run's affair
        read(tmp_path)


def test_detection_needs_no_names(tmp_path) -> None:
    samples = {
        "trl": json.dumps(json.loads((TRL / "checkpoint-6/trainer_state.json").read_text())),
        "verl": (VERL / "console.log").read_text(),
        "prime_rl": json.dumps(FIRST),
        "slime": "\n".join(SLIME),
        "table": "step,entropy\n1,2",
    }
    for name, text in samples.items():
        assert detect(write(tmp_path / "file", text)) == name


# --- whatever a file holds ---

DEEP = ["[" * 3000, '{"a":' * 3000, '{"step":1,"data":' * 500, "[" * 900 + "]" * 900]
VALUES = [
    "null", "true", "-1", "1e999", "NaN", "-Infinity", '"\\ud800"', "9" * 400, "{}", "[]", '""',
    '"1_0"', "0.5", "[[[]]]", '{"step": {}}', '"step:3 - a:1"', "1e308", "-0.0", '"\\u0000"',
]  # fmt: skip


def seeds() -> list[bytes]:
    state = json.loads((TRL / "checkpoint-3/trainer_state.json").read_text())
    state["log_history"] = [
        {k: v for k, v in row.items() if "clip" not in k and "/m" not in k}
        for row in state["log_history"][:3]
    ]
    texts = [
        json.dumps(state, indent=1), json.dumps(state), (VERL / "console.log").read_text(),
        (VERL / "file.jsonl").read_text(), (VERL / "rollouts/1.jsonl").read_text(),
        *("\n".join(map(json.dumps, rows)) + "\n" for rows in (
            [FIRST, LATER], [OLDER_NOTE, NEWER_NOTE], [SAMPLE, SAMPLE],
            [{"step": i, "entropy": 0.5, "reward": 1, "x": {"y": i}} for i in range(4)],
        )),
        "\n".join(SLIME), "step,entropy,reward\n1,0.5,1\n2,0.4,0\n3,0.3,1\n",
        json.dumps([{"step": i, "entropy": 0.5, "reward": 1} for i in range(4)], indent=1),
        json.dumps({"step": [1, 2], "entropy": [0.5, 0.25]}),
    ]  # fmt: skip
    return [text.encode() for text in texts]


def mutated(rng: random.Random, corpus: list[bytes]) -> bytes:
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        kind = rng.randrange(9)
        if kind == 0:
            for _ in range(rng.randint(1, 20)):
                if data:
                    data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == 1:
            del data[at:]
        elif kind == 2:
            rows = data.split(b"\n")
            rng.shuffle(rows)
            data = bytearray(b"\n".join(rows))
        elif kind == 3:
            rows = data.split(b"\n")
            row = rng.randrange(len(rows))
            rows[row:row] = [rows[rng.randrange(len(rows))]] * rng.randint(1, 5)
            data = bytearray(b"\n".join(rows))
        elif kind == 4:
            other = rng.choice(corpus)
            data[at:] = other[rng.randrange(len(other)) :]
        elif kind == 5:  # another value behind a colon or a comma
            marks = [i for i, byte in enumerate(data) if byte in b":,"]
            if marks:
                place = rng.choice(marks) + 1
                end = place
                while end < len(data) and data[end] not in b",}]\n":
                    end += 1
                data[place:end] = rng.choice(VALUES).encode()
        elif kind == 6:
            data[at:at] = rng.choice(DEEP).encode()
        elif kind == 7:
            data = bytearray(bytes(data).replace(b"\n", rng.choice([b"\r\n", b"\r", b"\n\n", b""])))
        else:
            data[at:at] = rng.choice([b"\0" * 9, b"\xef\xbb\xbf", b"\xff\xfe", b"\x1b[31m", b'"'])
    return bytes(data)


@pytest.mark.parametrize("number", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_broken_files(tmp_path, number: int) -> None:
    rng, corpus = random.Random(20261121), seeds()
    path = tmp_path / "run"
    formats = [None] * 12 + list(FORMATS)
    count = {"read": 0, "refused": 0, "dumps": 0}
    with open(path, "wb") as file:
        for i in range(number):
            # in place: a file that is opened to be replaced costs some disks milliseconds
            file.seek(0)
            file.truncate(file.write(data := mutated(rng, corpus)))
            file.flush()
            try:
                check(path, rng.choice(formats), count)
            except Exception as error:
                raise AssertionError(f"file {i}: {data[:2000]!r}") from error
    # the test would say nothing if most files were refused at once
    assert count["read"] > 0.4 * number
    assert count["dumps"] > 0.05 * number
    assert count["refused"] > 0.02 * number


def check(path: Path, format: str | None, count: dict[str, int]) -> None:
    """Read a file; what comes of it must be whole."""
    try:
        run = read(path, format=format)
    except ValueError as error:
        count["refused"] += 1
        if "\n" in str(error) or str(path) not in str(error):
            raise AssertionError(f"not one line with the path: {error}") from error
        return
    count["read"] += 1
    assert [row["iteration"] for row in run.metrics] == sorted(
        {r["iteration"] for r in run.metrics}
    )
    json.dumps(run.metrics, allow_nan=False, ensure_ascii=False).encode()
    " ".join([run.entropy_is, *run.notes, *(p.reason for p in run.problems)]).encode()
    for step, load in run.dumps.items():
        rollouts = load()
        count["dumps"] += 1
        assert rollouts.iteration == step
        assert len(rollouts) == len(rollouts.rewards) == len(rollouts.start) - 1
        names = ("tokens", "logp", "sampler_logp", "entropy", "advantage")
        assert {len(getattr(rollouts, name)) for name in names} == {int(rollouts.start[-1])}
        "".join(rollouts.prompts + rollouts.completions).encode()


def test_a_study_is_its_runs(tmp_path) -> None:
    """Its runs are links into .store; its tables and pages are about them."""
    for name, store in (("grpo", "a1"), ("held", "b2")):
        run = tmp_path / ".store" / store
        run.mkdir(parents=True)
        rows = [{"iteration": i, "entropy/exact": 0.9, "reward/mean": 0.5} for i in (1, 2)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        (tmp_path / name).symlink_to(Path(".store") / store)
    (tmp_path / "study.json").write_text("{}")
    table = "<table><tr><th>step</th><th>entropy</th></tr><tr><td>1</td><td>9</td></tr></table>"
    (tmp_path / "study.html").write_text(table)
    runs, skipped = read_all(tmp_path)
    assert [(run.name, run.done, run.source) for run in runs] == [
        ("grpo", 2, "entrostat"), ("held", 2, "entrostat"),
    ]  # fmt: skip
    assert skipped == ()
