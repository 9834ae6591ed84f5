"""The whole of veRL by `entrostat train --host verl`: `main_ppo`, Ray, TransferQueue, FSDP2.

Two things are not what a user has: the CPU (`ray_cpu`), and transformers as the rollout engine
(`rollout_engine`). The policy is the tiny one, its task `target_sum`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from cluster import cluster
from cpu_recipe import CPU, TRANSFORMERS, ranks
from harness import plain_model
from read_run import correlation, metrics
from rollout_engine import LAST_UPDATE
from transformers import AutoModelForCausalLM, AutoTokenizer

from entrostat.logs.lines import JsonLines
from entrostat.logs.rollouts import Rollouts, load_rollouts
from entrostat.logs.run import best_of
from entrostat.model_files import tiny_directory
from entrostat.trainers.verl.checkpoints import parts
from entrostat.trainers.verl.run import Merge
from entrostat.trainers.verl.trainer import FILE

ROOT = Path(__file__).parents[2]
# the command line needs packages that veRL's environment has not
ENTROSTAT = [os.environ.get("ENTROSTAT_PYTHON", str(ROOT / ".venv/bin/python")), "-m", "entrostat"]
LIMIT = 600.0  # seconds of what takes one minute on a quiet machine
PROMPTS, ROLLOUTS, ITERATIONS, ZETA = 16, 8, 4, 1e-3
EVAL = """
        [eval]
        prompts = 2
        samples = 2
        every = 2
"""
# greedily, and another task with a stop of its own, at another temperature and length
SETS = """
        [[eval]]
        prompts = 2
        samples = 2
        every = 2
        [[eval]]
        name = "greedy"
        split = "train"
        prompts = 6
        temperature = 0
        every = 2
        [[eval]]
        name = "their/own"
        task = "own_task:First"
        prompts = 3
        samples = 4
        temperature = 0.7
        max_new_tokens = 20
        every = 2
"""
OF_SETS = {"test": (2, 2), "greedy": (6, 1), "their/own": (3, 4)}  # prompts, samples


def write_recipe(
    path: Path, verl: Mapping[str, Any], iterations: int = ITERATIONS, model: str = "tiny",
    evaluation: str = EVAL,
) -> Path:  # fmt: skip
    """`repo_r` with a step so large that old weights would be seen."""
    path.write_text(
        f"""
        host = "verl"
        task = {{ name = "target_sum", k_max = 4 }}
        model = {json.dumps(model)}
        iterations = {iterations}
        device = "cpu"
        # no policy over 15 tokens has so much entropy, so that zeta doubles every iteration
        method = ["dapo", {{ name = "repo_r", zeta = {ZETA}, target = 9.0 }}]
        [sampling]
        prompts = {PROMPTS}
        rollouts = {ROLLOUTS}
        [optim]
        lr = 3e-3
        epochs = 1
        {evaluation}
        [save]
        checkpoint_every = 2
        best = "test/avg@k"
        [verl]
        """
        + "".join(f"{json.dumps(key)} = {json.dumps(value)}\n" for key, value in verl.items())
    )
    return path


def train(*arguments: str | Path) -> list[str]:
    return [*ENTROSTAT, "train", *map(str, arguments), "--verl-python", sys.executable]


@dataclass
class Runs:
    """A run whose driver was killed in its fourth iteration, and went on from its second.

    Attributes:
        run: its directory.
        killed: the metrics of iterations 1 to 3 as they were then, and what `train` had said.
        said: what `train` said of that.
        third: the rollouts of iteration 3 as they were then.
        whole: the logs of the whole run, by name.
        evaluated: what `train` said when the end of these was lost and it went on once more.
    """

    run: Path
    killed: list[dict[str, Any]]
    said: str
    third: Rollouts
    whole: dict[str, list[dict[str, Any]]]
    evaluated: str


def logs(run: Path) -> dict[str, list[dict[str, Any]]]:
    names = ("metrics", "evaluation", "answers")
    return {name: JsonLines(run / f"{name}.jsonl").read() for name in names}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("main_ppo")
    recipe = write_recipe(folder / "recipe.toml", CPU | ranks(1) | TRANSFORMERS, evaluation=SETS)
    run = folder / "run"
    first = train("--config", recipe, "--output", run, "--trust-code")
    again = train("--resume", run, "--trust-code")
    with cluster(first, folder / "killed.txt") as started:
        started.wait_until(lambda: len(metrics(run)) == 3, LIMIT)
        started.kill("verl.trainer.main_ppo")
        assert started.wait(60) == 1, started.tail()
        said = started.tail()
    killed, third = metrics(run), load_rollouts(run, 3)
    # the weights of iteration 3 will not reach the rollout engine
    with cluster(again, folder / "resumed.txt", {LAST_UPDATE: "2"}) as started:
        assert started.wait(LIMIT) == 0, started.tail()
    whole = logs(run)
    # as if it had been killed between its last checkpoint and what it logs of that iteration
    shutil.rmtree(run / "final")
    for name in whole:
        JsonLines(run / f"{name}.jsonl").keep_until(ITERATIONS - 1)
    for path in [*(run / "verl").glob("from-*.jsonl"), run / f"verl/validation/{ITERATIONS}.jsonl"]:
        path.unlink()
    with cluster(again, folder / "evaluated.txt") as started:
        assert started.wait(LIMIT) == 0, started.tail()
        evaluated = started.tail()
    return Runs(run, killed, said, third, whole, evaluated)


@pytest.mark.timeout(2 * LIMIT)
def test_a_killed_driver_is_said_in_one_line(runs: Runs) -> None:
    assert [row["iteration"] for row in runs.killed] == [1, 2, 3]
    last = runs.said.strip().splitlines()[-1]
    assert "after iteration 2: " in last
    assert f"entrostat train --resume {runs.run}" in last


def test_rollouts_come_from_the_weights_that_are_trained(runs: Runs) -> None:
    made = [load_rollouts(runs.run, i) for i in (1, 2, 3)]
    for r in (*made, runs.third):
        assert correlation(r) > 0.999
        assert (r.logp - r.sampler_logp).abs().max() < 1e-3
    # the weights of iteration 1 would not have done in iteration 2: see the next test


def test_without_weight_updates_they_do_not(runs: Runs) -> None:
    r = load_rollouts(runs.run, 4)
    assert correlation(r) < 0.999
    assert (r.logp - r.sampler_logp).abs().max() > 0.1


def test_the_controllers_go_on_from_the_checkpoint(runs: Runs) -> None:
    rows = [*runs.killed, *metrics(runs.run)]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 1, 2, 3, 4]
    for row in rows:
        assert row["control/zeta"] == pytest.approx(ZETA * 2 ** row["iteration"])
    for step in (2, 4):
        path = runs.run / "checkpoints" / f"global_step_{step}" / FILE
        assert json.loads(path.read_text())["states"][1]["value"] == pytest.approx(ZETA * 2**step)


def test_the_end_of_an_iteration_is_not_lost(runs: Runs) -> None:
    """What the last one logged is in its checkpoint, and the policy is evaluated again."""
    found = logs(runs.run)
    assert [row["iteration"] for row in found["metrics"]] == [1, 2, 3, 4]
    was, now = runs.whole["metrics"][-1], found["metrics"][-1]
    same = [key for key in was if not key.startswith(("time/", "verl/"))]
    assert {key: now[key] for key in same} == {key: was[key] for key in same}
    assert was["time/sample"] == now["time/sample"]
    assert 0 < now["time/iteration"] <= was["time/iteration"]  # up to the checkpoint
    for name in ("evaluation", "answers"):
        where = [[(row["iteration"], row["set"]) for row in rows[name]]
                 for rows in (runs.whole, found)]  # fmt: skip
        assert where[0] == where[1], name
    assert "[4/4]" not in runs.evaluated  # nothing was trained
    assert (runs.run / "final" / "model.safetensors").is_file()


def test_figures_are_those_of_the_rollouts(runs: Runs) -> None:
    for row in runs.whole["metrics"]:
        r = load_rollouts(runs.run, row["iteration"])
        right = [is_right(p, c) for p, c in zip(r.prompts, r.completions, strict=True)]
        assert r.rewards.tolist() == right
        assert row["reward/mean"] == pytest.approx(sum(right) / (PROMPTS * ROLLOUTS))
        assert row["entropy/exact"] == pytest.approx(r.entropy.mean().item(), rel=1e-5)
        assert row["entropy/nll"] == pytest.approx(-r.logp.mean().item(), rel=1e-5)
        assert row["verl/training/global_step"] == row["iteration"]
    assert any(row["reward/mean"] > 0 for row in runs.whole["metrics"])


def is_right(prompt: str, completion: str) -> float:
    target, k = map(int, prompt.rstrip(":").split("/"))
    digits = completion.split("+")
    known = all(len(d) == 1 and d in "123456789" for d in digits)
    return float(known and len(digits) == k and sum(map(int, digits)) == target)


def test_what_is_left_is_a_run(runs: Runs) -> None:
    assert (runs.run / "report.html").stat().st_size > 10_000
    lines = (runs.run / "evaluation.jsonl").read_text().splitlines()
    found = [(row["iteration"], row["set"]) for row in map(json.loads, lines)]
    assert found == [(i, name) for i in (0, 2, 4) for name in OF_SETS]
    final = AutoModelForCausalLM.from_pretrained(runs.run / "final", dtype=torch.float32)
    before = dict(plain_model().named_parameters())
    moved = max((p - before[name]).abs().max().item() for name, p in final.named_parameters())
    assert 1e-3 < moved < math.inf  # more than one step of Adam


def answers(run: Path, iteration: int) -> dict[str, dict[int, list[dict[str, Any]]]]:
    """What was said in an evaluation, by set and prompt."""
    found: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for answer in JsonLines(run / f"verl/validation/{iteration}.jsonl").read():
        name, _, index = answer["where"].rpartition("/")
        found.setdefault(name, {}).setdefault(int(index), []).append(answer)
    return found


def test_each_set_is_sampled_and_judged_as_it_asks(runs: Runs) -> None:
    rows = {(row["iteration"], row["set"]): row for row in logs(runs.run)["evaluation"]}
    for iteration in (0, 2, 4):
        found = answers(runs.run, iteration)
        assert {
            name: (len(prompts), {len(said) for said in prompts.values()})
            for name, prompts in found.items()
        } == {name: (prompts, {k}) for name, (prompts, k) in OF_SETS.items()}
        for name, prompts in found.items():
            said = [answer for each in prompts.values() for answer in each]
            if name == "their/own":  # cut before its stop, and judged by its own task
                right = [float(one["completion"] in list("23456789")) for one in said]
                assert not any("+" in one["completion"] for one in said)
            else:
                right = [is_right(one["input"], one["completion"]) for one in said]
            assert [one["score"] for one in said] == right
            row = rows[iteration, name]
            assert row["avg@k"] == pytest.approx(sum(right) / len(right))
            assert (row["prompts"], row["k"]) == OF_SETS[name]
    assert rows[0, "their/own"]["avg@k"] > 0.5  # by the run's task none of it were right


def test_temperature_zero_is_greedy_decoding(runs: Runs) -> None:
    """By transformers' own, of the policy before training and after it."""
    for iteration, model in ((0, tiny_directory()), (4, runs.run / "final")):
        policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(model)
        for (said,) in answers(runs.run, iteration)["greedy"].values():
            ids = tokenizer(said["input"], return_tensors="pt")["input_ids"]
            found = policy.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=13,
                pad_token_id=tokenizer.eos_token_id, output_logits=True,
                return_dict_in_generate=True,
            )  # fmt: skip
            chosen = tokenizer(said["completion"])["input_ids"]
            special = tokenizer.all_special_ids  # the answer's text leaves them out
            shown = [logits for (logits,) in found.logits if logits.argmax() not in special]
            for logits, token in zip(shown, chosen, strict=False):
                assert logits.max() - logits[token] < 1e-3
                if token != logits.argmax():  # a tie, which rounding decides
                    break
            else:
                assert len(shown) == len(chosen)


def test_the_best_policy_is_kept(runs: Runs, tmp_path: Path) -> None:
    scores = {
        row["iteration"]: row["avg@k"] for row in runs.whole["evaluation"] if row["set"] == "test"
    }
    found = best_of(runs.run / "best")
    assert found is not None
    assert found["value"] == max(scores.values())
    assert found["iteration"] == min(i for i, score in scores.items() if score == found["value"])
    best = weights(runs.run / "best")
    wanted = {0: tiny_directory(), 4: runs.run / "final"}.get(found["iteration"])
    if wanted is not None:
        assert all(torch.equal(value, best[name]) for name, value in weights(wanted).items())
    # the parts of a checkpoint, without the optimizer's, are enough to merge
    parts(runs.run / "checkpoints", 4)(tmp_path)
    assert not list(tmp_path.rglob("optim_*"))
    Merge(sys.executable, tmp_path / "log", "")(tmp_path / "actor", tmp_path / "model")
    final, merged = weights(runs.run / "final"), weights(tmp_path / "model")
    assert all(torch.equal(value, merged[name]) for name, value in final.items())


def weights(model: Path) -> dict[str, torch.Tensor]:
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    return dict(loaded.named_parameters())


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_two_ranks_and_two_replicas(tmp_path: Path) -> None:
    verl = CPU | ranks(2) | TRANSFORMERS
    recipe, run = write_recipe(tmp_path / "recipe.toml", verl, iterations=2), tmp_path / "run"
    with cluster(train("--config", recipe, "--output", run), tmp_path / "log.txt") as started:
        assert started.wait(2 * LIMIT) == 0, started.tail()
    for row in metrics(run):
        r = load_rollouts(run, row["iteration"])
        assert correlation(r) > 0.999
        assert len(r) == PROMPTS * ROLLOUTS
        assert row["entropy/exact"] == pytest.approx(r.entropy.mean().item(), rel=1e-5)
        # over both ranks: a minibatch is half of what is trained on, and this their mean
        trained = r.start.diff()[r.trained].sum().item()
        assert row["plan/tokens"] == pytest.approx(trained / 2)
    actor = run / "checkpoints" / "global_step_2" / "actor"
    assert {path.name for path in actor.glob("model_world_size_*")} == {
        "model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(2 * LIMIT)
def test_rollout_correction_under_ray(tmp_path: Path) -> None:
    """veRL's weights of tokens and its rejection beside the objective; their figures are logged."""
    correction = {
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "algorithm.rollout_correction.rollout_is": "token",
        "algorithm.rollout_correction.rollout_is_threshold": 1.5,
        "algorithm.rollout_correction.rollout_rs": "token_k1",
        "algorithm.rollout_correction.rollout_rs_threshold": "0.5_2.0",
    }
    recipe = write_recipe(tmp_path / "recipe.toml", CPU | ranks(1) | TRANSFORMERS | correction, 2)
    run = tmp_path / "run"
    with cluster(train("--config", recipe, "--output", run), tmp_path / "said.txt") as started:
        assert started.wait(LIMIT) == 0, started.tail()
    rows = metrics(run)
    assert [row["iteration"] for row in rows] == [1, 2]
    for row in rows:
        # engine and trainer differ by rounding: every weight is near 1, nothing is rejected
        assert row["verl/rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=1e-3)
        assert row["verl/rollout_corr/rollout_rs_masked_fraction"] == 0
        assert row["mismatch/ratio_max"] == pytest.approx(1, abs=1e-2)
