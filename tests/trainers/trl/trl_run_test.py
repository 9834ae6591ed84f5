"""`--host trl`: a recipe in TRL is the lab's recipe, leaves the lab's directory, and survives."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import math
import os
import re
import signal
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from safetensors.torch import load_file

import entrostat as es
from builders import refused
from entrostat.cli import main
from entrostat.config import TrainConfig, from_dict, load
from entrostat.errors import RunStopped
from entrostat.model_files import tiny_directory
from entrostat.runs.progress import Lines, Progress
from entrostat.tasks import Example
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers import lab, trains
from paths import ROOT, TESTS
from processes import killed, run_ranks
from trl_recipes import (
    ITERATIONS,
    PROMPTS,
    ROLLOUTS,
    final,
    recipe,
    rows,
    same_weights,
    timeless,
    train,
)

trl = pytest.importorskip("trl", reason="trl is an extra")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own, of TRL's arguments
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    yield
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same recipe in the lab and in TRL, what each was given to generate from, TRL's rates."""
    from transformers import TrainerCallback

    from entrostat.trainers.lab import experience
    from entrostat.trainers.trl.recipe import RecipeTrainer

    folder = tmp_path_factory.mktemp("runs")
    found: dict[str, Any] = {"lab ids": [], "trl ids": [], "rates": [], "decay": set(), "cuts": []}

    class Rates(TrainerCallback):
        def on_pre_optimizer_step(self, args, state, control, optimizer=None, **_):
            found["rates"].append(optimizer.param_groups[0]["lr"])
            found["decay"] |= {
                g["weight_decay"] for g in optimizer.param_groups if len(g["params"])
            }

    answer, generate = experience.answer, trl.GRPOTrainer._generate_single_turn
    create, compute = RecipeTrainer.__init__, RecipeTrainer._compute_loss

    def noted_answer(*args, **how):
        found["lab ids"].append(args[-1])
        return answer(*args, **how)

    def noted_generate(self, prompt_ids, *args):
        found["trl ids"].append(prompt_ids)
        return generate(self, prompt_ids, *args)

    def noted_compute(self, model, inputs):
        found["cuts"].append(inputs["entrostat_rollout"].tolist())
        return compute(self, model, inputs)

    def noted_create(self, *args):
        create(self, *args)
        self.add_callback(Rates())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experience, "answer", noted_answer)
        patch.setattr(trl.GRPOTrainer, "_generate_single_turn", noted_generate)
        patch.setattr(RecipeTrainer, "__init__", noted_create)
        patch.setattr(RecipeTrainer, "_compute_loss", noted_compute)
        config = recipe(folder / "trl", optim={"weight_decay": 0.1}, sampling={"batch": 8})
        found["trl"] = train(config)
        config = dataclasses.replace(config, host="lab", output=str(folder / "lab"))
        found["lab"] = lab.train(config)
    return found


# ---------------------------------------------------------------------------- the same recipe


@pytest.mark.long
def test_trl_generates_from_the_labs_token_ids_in_its_order(runs: dict[str, Any]) -> None:
    expected = [ids for one in runs["lab ids"] for ids in one for _ in range(ROLLOUTS)]
    assert len(expected) == ITERATIONS * PROMPTS * ROLLOUTS
    assert [ids for part in runs["trl ids"] for ids in part] == expected
    assert {len(part) for part in runs["trl ids"]} == {8}  # sampling.batch
    for i in range(1, ITERATIONS + 1):
        a, b = (es.load_rollouts(runs[host], i) for host in ("lab", "trl"))
        assert a.prompts == b.prompts
        assert a.group.tolist() == b.group.tolist()


def test_rewards_are_the_tasks(runs: dict[str, Any]) -> None:
    task = TargetSum()
    seen = set()
    for i in range(1, ITERATIONS + 1):
        r = es.load_rollouts(runs["trl"], i)
        for k, (text, reward) in enumerate(zip(r.completions, r.rewards.tolist(), strict=True)):
            example = task.example((i - 1) * PROMPTS + k // ROLLOUTS, "train")
            assert r.prompts[k] == example.prompt
            assert reward == task.score(text, example)
            seen.add(reward)
        assert rows(runs["trl"])[i - 1]["reward/mean"] == pytest.approx(r.rewards.mean().item())
    assert seen == {0.0, 1.0}


def test_the_first_entropy_is_the_shipped_policys(runs: dict[str, Any]) -> None:
    """Both hosts' first iteration, by the model's plain forward pass; they differ by sampling."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(tiny_directory())
    means = {}
    for host in ("lab", "trl"):
        r, entropies = es.load_rollouts(runs[host], 1), []
        for k in range(len(r)):
            prompt, ids = tokenizer(r.prompts[k])["input_ids"], r.tokens[r.rows(k)].tolist()
            logits = model(input_ids=torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
            p = logits.double().softmax(-1)
            entropies += (-(p * p.log()).sum(-1)).tolist()
        means[host] = sum(entropies) / len(entropies)
        assert rows(runs[host])[0]["entropy/exact"] == pytest.approx(means[host], abs=1e-5)
        # eos is the shipped tokenizer's last word
        ended = [r.tokens[r.rows(k)][-1] == tokenizer.eos_token_id for k in range(len(r))]
        assert r.finished.tolist() == ended
        truncated = 1 - sum(map(float, ended)) / len(ended)
        assert rows(runs[host])[0]["rollout/truncated"] == pytest.approx(truncated)
    assert abs(means["lab"] - means["trl"]) < 0.3


def test_the_first_evaluation_is_the_labs(runs: dict[str, Any]) -> None:
    """The same model, prompts and chance: TRL's patches of the model change nothing."""
    ours, theirs = (rows(runs[host], "evaluation.jsonl") for host in ("lab", "trl"))
    assert len(ours) == len(theirs) == 4  # two splits, before and after
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        names = {key for key, value in a.items() if isinstance(value, str)}
        assert {key: a.pop(key) for key in names} == {key: b.pop(key) for key in names}
        assert a == pytest.approx(b, rel=1e-5)
    first = [rows(runs[host], "answers.jsonl")[:4] for host in ("lab", "trl")]  # 2 prompts each
    for a, b in zip(*first, strict=True):
        assert a["iteration"] == b["iteration"] == 0
        assert (a["right"], a["wrong"]) == (b["right"], b["wrong"])


def test_learning_rates_are_the_schedules(runs: dict[str, Any]) -> None:
    """By hand: 16 updates, 3 of warm-up, then linearly to half the rate over 13."""
    peak = 3e-4  # of a small model
    fall = [1 - 0.5 * min(1, max(0, u - 3) / 13) for u in range(16)]
    rates = [peak * min(1, (u + 1) / 3) * f for u, f in enumerate(fall)]
    assert runs["rates"] == pytest.approx(rates)
    for host in ("lab", "trl"):
        logged = [row["optim/lr"] for row in rows(runs[host])]
        assert logged == pytest.approx(rates[3::4])
    assert runs["decay"] == {0.1}  # of every parameter, norms too


def test_every_epoch_has_minibatches_of_its_own(runs: dict[str, Any]) -> None:
    """As the lab: 2 epochs of 2 halves of 16 rollouts, each half 2 micro-batches of 4."""
    halves = [{*a, *b} for a, b in zip(runs["cuts"][::2], runs["cuts"][1::2], strict=True)]
    assert len(halves) == ITERATIONS * 4
    kept = 0
    for first, second, third, fourth in zip(*[iter(halves)] * 4, strict=True):
        assert first | second == third | fourth == set(range(16))
        kept += first in (third, fourth)
    assert kept == 0  # 1 in 6,435 by chance


@pytest.mark.long
def test_minibatches_of_whole_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """2 epochs of 2 halves, each of the 4 rollouts of 2 prompts, drawn anew."""
    from entrostat.trainers.trl.recipe import RecipeTrainer

    cuts, compute = [], RecipeTrainer._compute_loss

    def watched(self, model, inputs):
        cuts.append(inputs["entrostat_group"].tolist())
        return compute(self, model, inputs)

    monkeypatch.setattr(RecipeTrainer, "_compute_loss", watched)
    train(recipe(tmp_path / "run", eval={"prompts": 0}, optim={"whole_groups": True}))
    halves = [a + b for a, b in zip(cuts[::2], cuts[1::2], strict=True)]
    assert len(halves) == ITERATIONS * 4
    for half in halves:
        assert sorted(map(half.count, set(half))) == [ROLLOUTS, ROLLOUTS]
    for one, other in zip(halves[::2], halves[1::2], strict=True):
        assert len({*one, *other}) == PROMPTS
    assert len({tuple(sorted(set(half))) for half in halves}) > 2


def test_the_directory_is_the_labs(runs: dict[str, Any]) -> None:
    a, b = runs["lab"], runs["trl"]
    assert {path.name for path in a.iterdir()} == {path.name for path in b.iterdir()}
    assert {path.name for path in (a / "final").iterdir()} <= {
        p.name for p in (b / "final").iterdir()
    }
    assert (a / "objective.json").read_text() == (b / "objective.json").read_text()
    assert json.loads((b / "environment.json").read_text())["trl"] == trl.__version__
    ours, theirs = (load(run / "config.toml") for run in (a, b))
    assert theirs.pop("host") == "trl"
    assert ours.pop("output") != theirs.pop("output")
    assert {**ours, "host": "lab"} == {**theirs, "host": "lab"}
    # every figure of the lab's, but for its sampler's
    ours, theirs = (set().union(*rows(run)) for run in (a, b))
    assert {key for key in ours - theirs if not key.startswith("mismatch/")} == set()
    assert all(math.isfinite(x) for row in rows(b) for x in row.values())
    assert not same_weights(a, b)  # other samples


def test_with_the_labs_samples_and_minibatches_it_makes_the_labs_updates(
    tmp_path: Path, runs: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chance is all that sets the hosts apart: sixteen updates in a closed loop.

    Each iteration's samples are of the policy that the ones before have trained, so a difference
    anywhere (order, masks, advantages, controllers, scale, rates, AdamW) would grow.
    """
    from entrostat.data.generation import answer
    from entrostat.data.prompts import draw
    from entrostat.data.seeds import generator, stream_seed
    from entrostat.trainers.trl import iteration
    from entrostat.trainers.trl.recipe import RecipeTrainer

    config = recipe(tmp_path / "run", optim={"weight_decay": 0.1}, sampling={"batch": 8})
    chance: dict[str, torch.Generator] = {}
    cut: dict[str, Any] = {}  # the rollouts as they were cut last

    def the_labs_samples(self, prompt_ids, *_args, **_how):
        policy, task = self.recipe.policy, self.recipe.task
        i = self.state.global_step // 4 + 1
        draws, cuts = (
            generator(config.seed, i, purpose, policy.device) for purpose in ("sample", "shuffle")
        )
        chance["cuts"] = cuts
        torch.manual_seed(stream_seed(config.seed, i, "sample"))
        found = answer(
            policy, self.recipe.config, task, "train", draw(task, config, i),
            prompt_ids[::ROLLOUTS], training=True, rollouts=ROLLOUTS, generator=draws,
            on_progress=lambda _tokens: None, where="here",
        ).sequences  # fmt: skip
        pairs = zip(found.completions, found.mask, strict=True)
        return [row[kept].tolist() for row, kept in pairs], None

    def the_labs_order(rows):
        """Those that the lab trains on, cut as it cuts them; TRL's halves are filled with idle."""
        back, B = rows["entrostat_rollout"].argsort(), PROMPTS * ROLLOUTS
        idle = rows["entrostat_idle"][back].bool()
        live, rest = (~idle).nonzero()[:, 0], idle.nonzero()[:, 0]
        first, second = live[torch.randperm(len(live), generator=chance["cuts"])].tensor_split(2)
        filled = B // 2 - len(first)
        return back[torch.cat([first, rest[:filled], second, rest[filled:]])]

    def the_labs_halves(rows):
        order = the_labs_order(rows)

        def ordered(value):
            if isinstance(value, torch.Tensor):
                return value[order] if value.ndim else value
            return None if value is None else [value[k] for k in order]

        cut.update({key: ordered(value) for key, value in rows.items()})
        return dict(cut)

    monkeypatch.setattr(RecipeTrainer, "_generate_single_turn", the_labs_samples)
    monkeypatch.setattr("trl.trainer.grpo_trainer.shuffle_sequence_dict", the_labs_halves)
    monkeypatch.setattr(iteration, "shuffled", lambda *_: the_labs_order(cut))
    run = train(config)
    same = (
        "entropy/exact", "entropy/nll", "reward/mean", "rollout/tokens", "control/zeta", "optim/lr",
        "rollout/zero_advantage_groups", "cov/mean", "flow/net", "kl/old_new", "clip/high",
    )  # fmt: skip
    for mine, labs in zip(rows(run), rows(runs["lab"]), strict=True):
        for key in same:
            assert mine[key] == pytest.approx(labs[key], rel=1e-3, abs=1e-6), key
    assert sum(row["rollout/zero_advantage_groups"] for row in rows(run)) > 0
    ours, theirs = final(run), final(runs["lab"])
    start = load_file(tiny_directory() / "model.safetensors")
    moved = sum(float((theirs[k] - start[k]).square().sum()) for k in theirs) ** 0.5
    apart = sum(float((theirs[k] - ours[k]).square().sum()) for k in theirs) ** 0.5
    assert apart < 0.01 * moved, (apart, moved)


# ---------------------------------------------------------------------------- resuming


class KillAt(Progress):
    """Kills this process as power does, after an iteration's updates and before its checkpoint."""

    def __init__(self, iteration: int) -> None:
        self.at = iteration

    def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
        if iteration == self.at:
            os.kill(os.getpid(), signal.SIGKILL)


def die_after_updates(config: TrainConfig) -> None:
    """Kill -9 after the third iteration's updates, before its checkpoint."""
    train(config, progress=KillAt(3))


def die_while_saving(config: TrainConfig) -> None:
    """Kill -9 in the middle of TRL's third checkpoint: weights are there, AdamW is not."""
    from transformers import Trainer

    save = Trainer._save_optimizer_and_scheduler

    def dies(self, folder):
        if self.state.global_step == 3 * 4:
            os.kill(os.getpid(), signal.SIGKILL)
        save(self, folder)

    Trainer._save_optimizer_and_scheduler = dies
    train(config)


@pytest.mark.long
def test_redraws_are_exact_under_kill_and_resume(tmp_path: Path) -> None:
    configs = [
        recipe(tmp_path / name, sampling={"redraws": 3}, eval={"prompts": 0}) for name in "ab"
    ]
    whole = train(configs[0])
    killed(partial(trains, "trl"), partial(die_after_updates, configs[1]))
    part = train(configs[1], resume=True)
    assert timeless(whole) == timeless(part)
    assert same_weights(whole, part)
    lines = rows(whole)
    assert sum(row["rollout/redrawn"] for row in lines) > 0
    task = TargetSum()
    for row in lines:  # each rollout beside the prompt that it answers
        r = es.load_rollouts(whole, row["iteration"])
        answers = [tuple(map(int, p.rstrip(":").split("/"))) for p in r.prompts]
        scores = [
            task.score(text, Example(prompt, answer))
            for text, prompt, answer in zip(r.completions, r.prompts, answers, strict=True)
        ]
        assert r.rewards.tolist() == scores
        assert len(set(zip(r.group.tolist(), r.prompts, strict=True))) == PROMPTS


def die_before_the_seal(config: TrainConfig) -> None:
    """As `die_while_saving`, when transformers has removed what it would not keep."""
    from entrostat.trainers.trl import record

    def seal(path: Path, iteration: int, *rest: Any) -> None:
        if iteration == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        checkpoints.seal(path, iteration, *rest)

    from entrostat.trainers.trl import checkpoints

    record.seal = seal
    train(config)


KILLS = {"an iteration": die_after_updates, "a checkpoint": die_while_saving}


@pytest.mark.long
@pytest.mark.parametrize("where", KILLS)
def test_kill_and_resume_end_with_the_same_weights(
    where: str, tmp_path: Path, runs: dict[str, Any]
) -> None:
    config = recipe(tmp_path / "run", optim={"weight_decay": 0.1}, sampling={"batch": 8})
    killed(partial(trains, "trl"), partial(KILLS[where], config))
    path = Path(config.output)
    assert (path / "checkpoints/checkpoint-12").is_dir() == (where == "a checkpoint")
    assert len(rows(path)) == 3  # the third has no whole checkpoint
    run = train(config, resume=True)
    assert timeless(run) == timeless(runs["trl"])
    assert rows(run, "evaluation.jsonl") == rows(runs["trl"], "evaluation.jsonl")
    assert same_weights(run, runs["trl"])


@pytest.mark.long
@pytest.mark.parametrize("count", [0, 1])
def test_the_one_checkpoint_that_is_kept_is_a_whole_one(tmp_path: Path, count: int) -> None:
    config = recipe(tmp_path / "run", eval={"prompts": 0}, save={"checkpoints": count})
    killed(partial(trains, "trl"), partial(die_before_the_seal, config))
    told: list[str] = []
    progress = Progress()
    progress.fact = told.append  # type: ignore[method-assign]
    run = train(config, resume=True, progress=progress)
    assert any(text.startswith("going on after iteration 2") for text in told)
    assert [row["iteration"] for row in rows(run)] == [1, 2, 3, 4]
    left = [path.name for path in (run / "checkpoints").glob("checkpoint-*")]
    assert left == ["checkpoint-16"][:count]


@pytest.mark.parametrize(("after", "left"), [(2, [4, 8]), (1, [4]), (0, [])])
def test_what_is_newer_than_the_checkpoint_resumed_from_is_removed(
    after: int, left: list[int], tmp_path: Path
) -> None:
    from entrostat.trainers.trl import checkpoints

    for step, iteration in ((4, 1), (8, 2), (12, None), (16, 4)):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(b"weights")
        if iteration is not None:  # else the process was killed while it wrote
            checkpoints.seal(folder, iteration, TrainConfig(), {})
    if after == 2:  # damaged, yet older
        (tmp_path / "checkpoint-4" / "model.safetensors").write_bytes(b"")
    checkpoints.remove(tmp_path, after)
    assert sorted(int(p.name.split("-")[1]) for p in tmp_path.iterdir()) == left


def test_the_first_evaluation_is_of_what_accelerate_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under FSDP the policy has no place before that."""
    from entrostat.trainers.trl.record import EachIteration

    seen: list[tuple[int, int]] = []
    begins = EachIteration.on_train_begin

    def on_train_begin(self: Any, *args: Any, **kwargs: Any) -> None:
        evaluate = self.record.evaluate

        def watched(iteration: int) -> None:
            seen.append((iteration, len(self.trainer.accelerator._models)))
            evaluate(iteration)

        monkeypatch.setattr(self.record, "evaluate", watched)
        begins(self, *args, **kwargs)

    monkeypatch.setattr(EachIteration, "on_train_begin", on_train_begin)
    run = train(recipe(tmp_path / "run", iterations=1))
    assert seen == [(0, 1), (1, 1)]
    assert [row["iteration"] for row in rows(run, "evaluation.jsonl")] == [0, 0, 1, 1]


@pytest.mark.long
def test_a_run_goes_on_for_longer_and_refuses_what_it_must(tmp_path: Path) -> None:
    config = recipe(
        tmp_path / "run", iterations=2, eval={"prompts": 0}, analyze={"every": 5},
        # an analysis takes fewest passes where the step is small and the micro-batch one
        optim={"schedule": "constant", "lr": 1e-5, "micro_batch": 16},
    )  # fmt: skip
    run = train(config)
    assert [row["iteration"] for row in rows(run)] == [1, 2]
    assert [row["iteration"] for row in rows(run, "analysis.jsonl")] == [1]
    assert es.load_rollouts(run, 1).influence is not None
    refused(lambda: train(config), "is not empty")
    other = dataclasses.replace(config, seed=1)
    refused(lambda: train(other, resume=True), "seed")
    newest = run / "checkpoints" / "checkpoint-8"
    (newest / "optimizer.pt").write_bytes(b"cut short")
    told: list[str] = []
    progress = Progress()
    progress.fact = told.append  # type: ignore[method-assign]
    train(dataclasses.replace(config, iterations=3), resume=True, progress=progress)
    assert [row["iteration"] for row in rows(run)] == [1, 2, 3]
    assert any("checkpoint-8: optimizer.pt is not what was written" in text for text in told)
    assert json.loads((run / "final" / "entrostat.json").read_text()) == {"iterations": 3}
    refused(lambda: train(config, resume=True), "it may only be raised")
    for path in (run / "checkpoints").glob("*/entrostat.json"):
        path.write_text("{")
    refused(
        lambda: train(dataclasses.replace(config, iterations=4), resume=True),
        "no checkpoint in",
        "can be gone on from",
        error=RunStopped,
    )


# ---------------------------------------------------------------------------- the command line


def test_the_command_line_shows_the_labs_lines_and_makes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [
        "train", "--host", "trl", "--iterations", "2", "--sampling.prompts", "2",
        "--sampling.rollouts", "4", "--eval.prompts", "0", "--output", str(tmp_path / "run"),
        "--save.checkpoints", "0", "--trl.top_k", "5",
    ]  # fmt: skip

    class Interrupted(Lines):
        def trained(self, iteration: int, metrics: dict[str, Any]) -> None:
            super().trained(iteration, metrics)
            raise KeyboardInterrupt

    from transformers import logging

    logging.disable_progress_bar()  # as a process of its own has them
    monkeypatch.setattr("entrostat.runs.progress.for_stream", Interrupted)
    assert main(words) == 130
    assert f"go on with: entrostat train --resume {tmp_path}/run" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["train", "--resume", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert re.search(r"^\[2/2\] entropy \d\.\d+  reward \d\.\d+", shown.out, re.M)
    assert f"done: {tmp_path}/run" in shown.out
    page = (tmp_path / "run" / "report.html").read_text()
    assert "TRL" in page or "trl" in page
    assert not (tmp_path / "run" / "checkpoints").exists()  # save.checkpoints 0


def test_without_trl_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trl", None)
    monkeypatch.delitem(sys.modules, "entrostat.trainers.trl.run", raising=False)
    refused(lambda: trains("trl"), "1.16", "'entrostat[trl]'")


def test_the_package_can_be_launched() -> None:
    """`accelerate launch -m entrostat` is `python -m entrostat`."""
    words = [sys.executable, "-m", "entrostat", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=True)
    assert done.stdout.strip() == es.__version__


# ---------------------------------------------------------------------------- stops


class Sums(TargetSum):
    """`target_sum` that ends early: two characters, which are two tokens, end an answer."""

    stop = ("+1", "+2", "3+")

    def score(self, completion: str, example: Example) -> float:
        if any(s in completion for s in self.stop) or completion.startswith("5"):
            raise RuntimeError("no answer of mine")  # costs the rollout, not the run
        return float(len(completion) > 2)


def test_a_stop_ends_a_completion_with_the_token_that_completes_it(tmp_path: Path) -> None:
    config = recipe(
        tmp_path / "run", iterations=1, sampling={"prompts": 8, "rollouts": 8, "max_new_tokens": 9},
        optim={"micro_batch": 64}, eval={"prompts": 0},
    )  # fmt: skip
    run = train(config, task=Sums())
    r = es.load_rollouts(run)
    kinds = set()
    for k in range(len(r)):
        ids = r.tokens[r.rows(k)].tolist()
        text = "".join(r.pieces[t] for t in ids)
        first = min((text.find(s) + len(s) for s in Sums.stop if s in text), default=None)
        if first is not None:  # one character a token
            assert (len(text), r.finished[k]) == (first, True)
            assert r.completions[k] == text[: min(text.find(s) for s in Sums.stop if s in text)]
            kinds.add("stop")
        elif text.endswith("<eos>"):
            assert r.finished[k]
            kinds.add("eos")
        else:
            assert (len(ids), bool(r.finished[k])) == (9, False)
            kinds.add("cut off")
        assert "<pad>" not in text
    assert kinds >= {"stop", "eos"}
    (row,) = rows(run)
    fives = [text.startswith("5") for text in r.completions]
    assert row["reward/failed"] == sum(fives) > 0
    for text, reward, failed in zip(r.completions, r.rewards.tolist(), fives, strict=True):
        assert reward == (0.0 if failed else float(len(text) > 2))
    assert row["rollout/truncated"] == pytest.approx(1 - r.finished.float().mean().item())
    assert row["rollout/tokens"] == len(r.tokens)


def test_padding_that_is_an_eos_is_not_trained_on() -> None:
    """TRL takes the first eos for the end; after a stop that is padding's."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from entrostat.trainers.trl.stops import Ending

    tokenizer = AutoTokenizer.from_pretrained(tiny_directory())
    tokenizer.pad_token = tokenizer.eos_token
    model: Any = AutoModelForCausalLM.from_pretrained(tiny_directory(), dtype=torch.float32)
    eos = tokenizer.eos_token_id
    prompt = torch.tensor([tokenizer("12/3:")["input_ids"]] * 16)
    torch.manual_seed(0)
    ending = Ending(["1+"], tokenizer, [eos])
    with ending.watched(model) as ends:
        out = model.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=True, top_k=0,
            max_new_tokens=8, pad_token_id=eos, eos_token_id=eos,
        )  # fmt: skip
    assert "generate" not in vars(model)
    whole = [row[: row.index(eos) + 1] if eos in row else row
             for row in out[:, prompt.shape[1]:].tolist()]  # fmt: skip
    cut = ends.cut(whole)
    assert sum(a != b for a, b in zip(whole, cut, strict=True)) > 2
    for row, flag in zip(cut, ending.finished(cut), strict=True):
        text = tokenizer.decode(row)
        assert "1+" not in text[:-1] if not text.endswith("<eos>") else "1+" not in text
        assert flag == (text.endswith(("1+", "<eos>")))


def test_vllm_is_given_the_stops(tmp_path: Path) -> None:
    from entrostat.trainers.trl.stops import with_stops

    args = trl.GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, use_vllm=True,
                          generation_kwargs={"seed": 1})  # fmt: skip
    given = with_stops(args, ("\n",)).generation_kwargs
    assert given == {"seed": 1, "stop": ["\n"], "include_stop_str_in_output": True}
    assert args.generation_kwargs == {"seed": 1}
    args.mask_truncated_completions = True
    refused(lambda: with_stops(args, ("\n",)), "mask_truncated_completions=True")


# ---------------------------------------------------------------------------- arguments


REFUSED = [
    ({"trl": {"num_generation": 4}}, r"unknown key 'trl\.num_generation'\. Did you mean 'trl\.num"),
    ({"trl": {"learning_rate": 1e-5}}, r"trl\.learning_rate is set by optim\.lr"),
    ({"trl": {"fsdp": True}}, r"l\.fsdp is set by `accelerate launch --use_fsdp --fsdp_version 2`"),
    ({"trl": {"deepspeed": "z3.json"}}, r"accelerate launch --use_deepspeed"),
    ({"trl": {"epsilon_high": 0.3}}, r"trl\.epsilon_high is set by method"),
    ({"trl": {"generation_batch_size": 8}}, r"is set by sampling\.prompts"),
    ({"trl": {"shuffle_dataset": True}}, r"trl\.shuffle_dataset cannot be set: prompts come in"),
    ({"trl": {"generation_kwargs": {"stop": "x"}}}, r"kwargs\.stop is set by sampling\.st"),
    ({"trl": {"top_k": 5, "scale_rewards": "none"}}, r"trl\.scale_rewards is set by advantage"),
    ({"trl": {"log_completions_hub_repo": "a/b"}}, r"\[trl\] \(log_completions_hub_repo = 'a/b'\)"),
    ({"numerics": {"round_logp": "bf16"}}, r"numerics\.round_logp is 'bf16': .* --host lab"),
    ({"sampling": {"measure": False}}, r"sampling\.measure is False: .* leave it true"),
    ({"sampling": {"rollouts": 1}}, r"sampling\.rollouts is 1: .* at least 2"),
    ({"sampling": {"engine": "vllm"}}, r"vLLM is not installed; pip install 'trl\[vllm\]'"),
    ({"optim": {"minibatches": 3}}, r"= 16 is no multiple of optim\.minibatches x proc.* = 3 x 1"),
    ({"precision": "fp16"}, r"precision is 'fp16': .* use fp32 or bf16"),
    ({"device": "cuda:1"}, r"device is 'cuda:1': .* CUDA_VISIBLE_DEVICES"),
    ({"method": ["prime"]}, r"prime.*trl|trl.*prime"),
]  # fmt: skip


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda x: str(x)[:40])
def test_what_trl_cannot_do_is_refused_before_anything_is_written(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    if "vLLM" in words and importlib.util.find_spec("vllm") is not None:
        pytest.skip("vllm is installed")
    with pytest.raises(ValueError, match=words) as error:
        train(recipe(tmp_path / "run", **changes))
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


def test_the_first_fsdp_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")  # accelerate's default is version 1
    refused(lambda: train(recipe(tmp_path / "run")), "with FSDP 1, where", "--fsdp_version")
    assert not (tmp_path / "run").exists()


def test_a_policy_that_was_loaded_on_the_cpu_runs_as_the_gpu_wants_it() -> None:
    """As under FSDP, where accelerate moves the model."""
    from entrostat.models.loading import load_policy

    policy = dataclasses.replace(
        load_policy(from_dict({"precision": "bf16", "device": "cpu"})), prepacks=True, rows=True
    )
    stays, gpu = policy.moved(torch.device("cpu", 0)), policy.moved(torch.device("cuda", 1))
    assert (stays.prepacks, stays.rows, stays.autocast) == (True, True, policy.autocast)
    assert (gpu.prepacks, gpu.rows, gpu.device) == (False, False, torch.device("cuda", 1))
    autocast: Any = gpu.autocast
    assert (autocast.args, autocast.keywords) == (("cuda",), {"dtype": torch.bfloat16})


def test_precision_is_the_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    refused(lambda: train(recipe(tmp_path / "run")), "'fp32'", "--mixed_precision", "bf16")


def test_characters_that_the_tokenizer_leaves_out_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from entrostat.runs.progress import RunNotes
    from entrostat.trainers import assemble
    from entrostat.trainers.trl import run

    class Words(TargetSum):
        def example(self, index: int, split: str) -> Example:
            return Example("Sum: 9/3:", (9, 3))

    words = "tokenizer of tiny leaves out S, m, u: of 'Sum: 9/3:' the policy reads ':9/3:'"
    with pytest.warns(UserWarning, match=words):
        run.build(recipe(tmp_path), Words(), 1, RunNotes(Progress()))
    monkeypatch.setattr(assemble, "is_main", lambda: False)  # of several processes one says so
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run.build(recipe(tmp_path), Words(), 1, RunNotes(Progress()))


def test_prompts_go_through_the_chat_template_once(tmp_path: Path) -> None:
    from entrostat.runs.progress import RunNotes
    from entrostat.trainers.trl.run import build

    built = build(recipe(tmp_path), None, 1, RunNotes(Progress()))
    tokenizer, built.config.prompt.chat = built.policy.tokenizer, True
    tokenizer.chat_template = "{% for m in messages %}1{{ m['content'] }}{% endfor %}9:"
    example = TargetSum().example(PROMPTS + 1, "train")  # the second of the second iteration
    turns = [{"role": "user", "content": example.prompt}]
    ids = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    assert built.token_ids([str(PROMPTS + 1)] * 2) == [ids, ids]
    assert tokenizer.decode(ids) == f"1{example.prompt}9:"


@pytest.mark.parametrize("world", [1, 2, 4])
@pytest.mark.parametrize(("micro", "minibatches"), [(1, 1), (3, 2), (5, 4), (128, 2)])
def test_the_global_batch_stays_the_recipes(world: int, micro: int, minibatches: int) -> None:
    from entrostat.trainers.trl.arguments import arguments

    config = recipe(
        Path("run"), sampling={"prompts": 6, "rollouts": 8},
        optim={"micro_batch": micro, "minibatches": minibatches, "epochs": 3, "lr": 1e-4},
    )  # fmt: skip
    a = arguments(config, 13, world)
    update = a["per_device_train_batch_size"] * a["gradient_accumulation_steps"] * world
    assert update * minibatches == 48
    assert a["per_device_train_batch_size"] * world * a["steps_per_generation"] == 48
    assert a["per_device_train_batch_size"] <= micro
    assert a["max_steps"] == ITERATIONS * 3 * minibatches


# ---------------------------------------------------------------------------- the papers' recipes

GOLDEN = json.loads((TESTS / "golden" / "papers_trl.json").read_text())
# What the one file says otherwise than the papers' files for TRL did, by argument, and why.
OTHERWISE = {
    "seed": "the recipe's 0; TRL's default is 42",
    "output_dir": "the run directory's",
    "shuffle_dataset": "the lab shuffles when it draws",
    "disable_tqdm": "the run's own display",
    "dataloader_pin_memory": "the rows are a few digits",
    "report_to": "metrics.jsonl; [trl] may say otherwise",
    # 4 sequences at once, said for TRL's several GPUs; the file's micro_batch is one GPU's. The
    # product with gradient_accumulation_steps is the same, so the gradient is
    "per_device_train_batch_size": "optim.micro_batch",
    "gradient_accumulation_steps": "optim.micro_batch",
    "steps_per_generation": "optim.micro_batch",
}
# the same problems, with a prompt and a grader of their own
NAMED = {"dapo_math_17k.jsonl": "dapo_math", "numina_amc_aime.jsonl": "numina_amc_aime"}
PAR = {"max_completion_length": (4096, 3072)}  # the model has 4096 positions, prompt included


@pytest.mark.parametrize("name", GOLDEN["recipes"])
def test_the_papers_recipes_mean_what_their_files_for_trl_did(name: str, tmp_path: Path) -> None:
    from entrostat.trainers.trl.arguments import arguments

    old = GOLDEN["recipes"][name]
    given = GOLDEN["common"] | old["args"]
    config = from_dict(load(ROOT / "recipes" / "papers" / f"{name}.toml"))
    config = dataclasses.replace(
        config, host="trl", output=str(tmp_path),
        sampling=dataclasses.replace(config.sampling, engine="vllm"),
    )  # fmt: skip
    made = arguments(config.validate(), config.sampling.max_new_tokens or 0)
    assert bool(given.get("bf16")) == made["bf16"]
    assert bool(given.get("fp16")) == made["fp16"]
    here = {"use_cpu": True, "bf16": False, "fp16": False}
    before = trl.GRPOConfig(**{"output_dir": "old", **given, **here}).to_dict()
    now = trl.GRPOConfig(**made | here).to_dict()
    differing = {key for key in now if before[key] != now[key]} - {"logging_dir", "run_name"}
    if name.startswith("par_"):
        assert {key: (before[key], now[key]) for key in PAR} == PAR
        differing -= PAR.keys()
    assert {k: (before[k], now[k]) for k in differing - OTHERWISE.keys()} == {}
    for each in (before, now):  # an update, and a generation batch
        each["update"] = each["per_device_train_batch_size"] * each["gradient_accumulation_steps"]
    assert before["update"] == now["update"]
    assert before["generation_batch_size"] == now["generation_batch_size"]
    assert config.model == old["model"]["name"]
    assert config.task["name"] == NAMED[old["data"]["file"]]
    lora = old["model"].get("lora", {"rank": 0})
    assert lora.items() <= dataclasses.asdict(config.lora).items()
    ours = es.make_objective(
        config.method, advantage=config.advantage, aggregation=config.optim.aggregation
    )
    assert ours.describe() == es.make_objective(**old["objective"]).describe()


# ---------------------------------------------------------------------------- adapters, processes


@pytest.mark.long
def test_adapters_are_merged_into_the_final_model(tmp_path: Path) -> None:
    pytest.importorskip("peft")
    config = recipe(
        tmp_path / "run", iterations=1, lora={"rank": 2}, gradient_checkpointing=True,
        optim={"lr": 1e-2, "schedule": "constant"}, eval={"prompts": 0},
    )  # fmt: skip
    run = train(config)

    before, after = load_file(tiny_directory() / "model.safetensors"), final(run)
    assert before.keys() == after.keys()
    moved = {name.split(".")[-2] for name in before if not torch.equal(before[name], after[name])}
    assert {"q_proj", "down_proj"} <= moved  # all-linear
    assert not moved & {"embed_tokens", "norm"}


TWO = """
import json, os, sys, time
os.environ["CI"] = "1"
sys.path.insert(0, {tests!r})
from pathlib import Path
import torch.distributed as dist
rank = os.environ["RANK"]
# before accelerate does: no port of this machine is needed for the rendezvous
dist.init_process_group("gloo", init_method={meet!r}, rank=int(rank), world_size=2)
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from transformers import Trainer
from trl_recipes import recipe, train
from entrostat.runs.progress import Progress
from entrostat.tasks.target_sum import TargetSum

prepare, save = AcceleratorState.__init__, Trainer._save_rng_state

def sharded(self, *args, **kwargs):  # of accelerate's own accord only on GPUs
    prepare(self, *args, **kwargs)
    if os.environ.get("ACCELERATE_USE_FSDP") and self.distributed_type == DistributedType.MULTI_CPU:
        plugin = kwargs.get("fsdp_plugin") or FullyShardedDataParallelPlugin()
        self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, plugin

def late(self, folder):  # the other process has its part of a checkpoint long before
    time.sleep(int(rank))
    save(self, folder)

AcceleratorState.__init__, Trainer._save_rng_state = sharded, late

class Fails(TargetSum):  # on one process
    def score(self, completion, example):
        return super().score(completion, example) if rank == "0" else 1 / 0

class Told(Progress):
    lines = 0
    def trained(self, iteration, metrics):
        self.lines += 1

told = Told()
config = recipe(Path({output!r}), iterations=2)
run = train(config, progress=told, task={task})
(Path({folder!r}) / (rank + ".json")).write_text(json.dumps({{"lines": told.lines}}))
"""


def two_processes(folder: Path, task: str, **env: str) -> list[dict[str, Any]]:
    """`TWO` on two of them; `task` as Python has it."""
    folder.mkdir(exist_ok=True)
    script = TWO.format(
        tests=str(TESTS / "shared"), output=str(folder / "run"), folder=str(folder),
        meet=f"file://{folder / 'rendezvous'}", task=task,
    )  # fmt: skip
    return run_ranks(
        2, folder, lambda rank: ["-W", "ignore", "-c", script],
        env=lambda rank: {
            "ACCELERATE_USE_CPU": "true", "RANK": str(rank), "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": "29557", **env,
        },
        timeout=1100,
    )  # fmt: skip


@pytest.mark.slow
def test_a_scorer_that_fails_on_one_process_costs_its_rollouts(tmp_path: Path) -> None:
    two_processes(tmp_path, "Fails()")
    assert [row["reward/failed"] for row in rows(tmp_path / "run")] == [8, 8]


@pytest.mark.slow
def test_two_processes_share_the_recipes_batch(tmp_path: Path, runs: dict[str, Any]) -> None:
    found = two_processes(tmp_path, "None")
    assert [one["lines"] for one in found] == [2, 0]  # the main process alone shows
    run = tmp_path / "run"
    for i in (1, 2):
        r, alone = es.load_rollouts(run, i), es.load_rollouts(runs["trl"], i)
        assert r.prompts == alone.prompts
        assert rows(run)[i - 1]["rollout/tokens"] == len(r.tokens)
        assert rows(run)[i - 1]["optim/updates"] == 4
    first, second = r.tokens[: r.start[8]].tolist(), r.tokens[r.start[8] :].tolist()
    assert first != second
    assert [row["iteration"] for row in rows(run)] == [1, 2]
    assert (run / "final" / "model.safetensors").is_file()
    for step in (4, 8):
        seal = json.loads((run / f"checkpoints/checkpoint-{step}/entrostat.json").read_text())
        assert {"rng_state_0.pth", "rng_state_1.pth"} <= seal["files"].keys()


@pytest.mark.slow
def test_fsdp2_trains_as_whole_copies_do(tmp_path: Path) -> None:
    """Evaluations, checkpoints and the final model, too; weights move by 2e-3."""
    two_processes(tmp_path / "whole", "None")
    two_processes(
        tmp_path / "sharded", "None", ACCELERATE_USE_FSDP="true", FSDP_VERSION="2",
        FSDP_AUTO_WRAP_POLICY="TRANSFORMER_BASED_WRAP", FSDP_STATE_DICT_TYPE="SHARDED_STATE_DICT",
    )  # fmt: skip
    whole, sharded = (tmp_path / name / "run" for name in ("whole", "sharded"))
    assert (sharded / "checkpoints/checkpoint-8/pytorch_model_fsdp_0").is_dir()
    assert (sharded / "checkpoints/checkpoint-8/entrostat.json").is_file()
    for a, b in zip(*(rows(run, "evaluation.jsonl") for run in (whole, sharded)), strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    got = final(sharded)
    for name, weight in final(whole).items():
        torch.testing.assert_close(got[name], weight, rtol=0, atol=1e-5)
