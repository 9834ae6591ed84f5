"""`analyze_every` in TRL: what it says is true and the lab's, and training does not notice it."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import entrostat as es
from entrostat.config import from_dict
from entrostat.data.seeds import generator
from entrostat.logs.rollouts import Rollouts
from entrostat.logs.run import read_run
from entrostat.tasks import Example
from entrostat.trainers.dump import without_padding
from entrostat.trainers.trl.dump import RunLog, joined
from long_cases import keep

trl = pytest.importorskip("trl", reason="trl is an extra")
from builders import json_lines, refused  # noqa: E402
from trl_runs import (  # noqa: E402
    MARKS,
    MAX,
    PROMPTS,
    TEMPERATURE,
    B,
    K,
    by_prompt,
    logits_of,
    make,
    model_of,
    reward_some,
    scripted,
    together,
    weights,
)

pytestmark = MARKS
SEED, LR = 3, 2e-5


def trainer_of(folder: Path, every: int, **settings: Any) -> Any:
    """On rollouts that no random stream decides, `folder`/dump its run directory."""
    from entrostat.trainers.trl import EntropyGRPOTrainer

    build = functools.partial(EntropyGRPOTrainer, analyze_every=every)
    usual = {
        "objective": "grpo", "dump": folder / "dump", "seed": SEED, "prompts": PROMPTS * 4,
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "learning_rate": LR,
    }  # fmt: skip
    trainer = make(build, folder / "out", **usual | settings)
    scripted(trainer)
    return trainer


def lines(folder: Path, name: str = "analysis.jsonl") -> list[dict[str, Any]]:
    return json_lines(folder / name)


# --- beside the lab


@dataclasses.dataclass
class Scored:
    """The prompts of the TRL tests; a rollout is paid by its place, and no two of a group alike."""

    alike: str | None = None  # the prompt whose rollouts are all paid the same
    name: str = "scored"
    splits: tuple[str, ...] = ("train",)

    def max_new_tokens(self, split: str) -> int:
        return MAX

    def size(self, split: str) -> None:
        return None

    def example(self, index: int, split: str) -> Example:
        return Example(PROMPTS[index % 4])

    def score_batch(self, completions: list[str], examples: list[Example]) -> list[float]:
        return [float(e.prompt == self.alike) or 3 * i % 7 / 8 for i, e in enumerate(examples)]


def in_the_lab(folder: Path, method: Any, alike: str | None, **optim: Any) -> Path:
    settings = {
        "output": str(folder), "iterations": 1, "seed": SEED, "method": method,
        "analyze": {"every": 1}, "eval": {"prompts": 0},
        "sampling": {"prompts": 4, "rollouts": K, "temperature": TEMPERATURE},
        "optim": {"lr": LR, "clip": 0.5, "micro_batch": 8} | optim,
    }  # fmt: skip
    return es.train(from_dict(settings), task=Scored(alike))


def in_trl(folder: Path, found: Rollouts, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Path:
    """One generation batch of the lab's rollouts, in the order of the lab's minibatches."""
    ids = [found.tokens[found.rows(i)].tolist() for i in range(B)]
    order = torch.randperm(B, generator=generator(SEED, 1, "shuffle", torch.device("cpu")))
    monkeypatch.setattr(
        "trl.trainer.grpo_trainer.shuffle_sequence_dict",
        lambda rows: {k: x[order] if getattr(x, "ndim", 0) else x for k, x in rows.items()},
    )
    trainer = trainer_of(
        folder, 1, reward=lambda **_: found.rewards.tolist(), adam_beta1=0.9, adam_beta2=0.95,
        weight_decay=0.0, max_grad_norm=0.5, optim="adamw_torch_fused", **settings,
    )  # fmt: skip
    tokenizer = trainer.processing_class
    encoded = [tokenizer(prompt)["input_ids"] for prompt in found.prompts]
    trainer._generate = lambda prompts: (
        encoded, ids, None, tokenizer.batch_decode(ids), None, {}, None, None,
    )  # fmt: skip
    trainer.train()
    return folder / "dump"


def off(got: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    """Root mean square of the difference, over that of what is wanted."""
    assert got is not None
    assert wanted is not None
    return float((got.double() - wanted.double()).norm() / wanted.double().norm())


CASES = {
    # two updates on all, a group without a signal left out
    "grpo": ("grpo", PROMPTS[1], {"epochs": 2, "minibatches": 1}, {"num_iterations": 2}),
    # the same with a penalty that acts on this group as well
    "bonus": (["ppo", {"name": "entropy_bonus", "coef": 0.05}, "steer"], PROMPTS[1],
              {"epochs": 2, "minibatches": 1}, {"num_iterations": 2}),
    # two updates on a half each
    "halves": ("gspo", None, {"epochs": 1, "minibatches": 2},
               {"num_iterations": 1, "gradient_accumulation_steps": 1, "steps_per_generation": 2}),
}  # fmt: skip


@pytest.mark.parametrize("case", keep(CASES, "halves"))
def test_the_same_rollouts_and_minibatches_give_what_the_lab_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Influences to the bit or nearly: on the same rows, in the same pieces, by the same passes.

    True changes are of weights that TRL's own passes made, whose rounding AdamW's first step
    enlarges: 5e-5 at most here. The lab itself, in micro-batches of 5 rollouts in place of 8, is
    off by up to 3e-5 in its changes, and (the preconditioner of a first step is 1 / |g|) by up to
    .04 in its influences.
    """
    method, alike, optim, settings = CASES[case]
    lab = in_the_lab(tmp_path / "lab", method, alike, **optim)
    wanted = es.load_rollouts(lab, 1)
    path = in_trl(tmp_path, wanted, monkeypatch, objective=method, max_steps=2, **settings)
    got = es.load_rollouts(path, 1)
    assert got.tokens.equal(wanted.tokens)
    assert got.trained.equal(wanted.trained)
    assert off(got.influence, wanted.influence) < 1e-6
    assert off(got.change, wanted.change) < 5e-4
    (mine,), (labs,) = lines(path), lines(lab)
    assert mine.keys() == labs.keys()
    for key in ("influence/predicted", "change/mean", "change/first_order", "change/simpson"):
        assert mine[key] == pytest.approx(labs[key], rel=1e-3)
    for name, found in labs["estimators"].items():
        for against, figures in found.items():
            pcc = mine["estimators"][name][against]["pcc"]
            assert pcc == pytest.approx(figures["pcc"], abs=1e-4)
    assert len(mine["updates"]) == len(labs["updates"]) == 2
    for one, other in zip(mine["updates"], labs["updates"], strict=True):
        assert one["tokens"] == other["tokens"]
        assert one["ratio"] == pytest.approx(other["ratio"], rel=1e-3)
        for side in ("high", "low"):
            assert one["clipped"][side]["share"] == other["clipped"][side]["share"]


# --- what it says


def test_influences_add_up_and_changes_are_true(tmp_path: Path) -> None:
    """With adapters, and places where a tool wrote."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    trainer = trainer_of(
        tmp_path, 1, peft=config, max_steps=4, learning_rate=3e-3, reward=reward_some
    )
    tokenizer = trainer.processing_class

    def generate(prompts: list[str]) -> tuple[Any, ...]:
        ids = by_prompt(prompts, trainer.state.global_step)
        tools = [
            [int((i + t) % 5 != 4 or t == 0) for t in range(len(x))] for i, x in enumerate(ids)
        ]
        encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        return encoded, ids, tools, tokenizer.batch_decode(ids), None, {}, None, None

    trainer._generate = generate
    trainer.train()
    for line in lines(tmp_path / "dump"):
        flow = line["flow"]["influence"]
        size = flow["increase"] + flow["decrease"]
        assert line["influence/sum"] == pytest.approx(line["influence/predicted"], abs=1e-4 * size)
        assert flow["net"] == pytest.approx(line["influence/sum"], rel=1e-6)
        found = es.load_rollouts(tmp_path / "dump", line["iteration"])
        assert found.influence is not None
        assert found.sampled is not None
        own = found.sampled  # figures of what a tool wrote are NaN
        assert torch.equal(found.influence.isnan(), ~own)
        idle = own & ~found.trained.repeat_interleave(found.start.diff())
        assert float(found.influence[own].double().sum()) == pytest.approx(line["influence/sum"])
        assert float(found.influence[idle].abs().sum()) == 0 < int(idle.sum())
        assert line["estimators"]["simpson"]["where"]["pcc"] > 0.999
    # the end of the last one, by the model's own logits in float64
    rows = together(trainer._buffered_inputs)
    order = torch.cat([piece["entrostat_rollout"] for piece in trainer._buffered_inputs])
    trainer.model.eval()
    with torch.no_grad():
        p = (logits_of(trainer.model, rows).double() / TEMPERATURE).log_softmax(-1)
    after = -(p.exp() * p).sum(-1)[order.argsort()]
    mask = (rows["completion_mask"] * rows["tool_mask"]).bool()[order.argsort()]
    assert found.change is not None
    assert torch.allclose(after[mask].float(), (found.entropy + found.change)[own], atol=1e-5)
    assert float(found.change[own].abs().max()) > 1e-3


def test_the_samplers_correction_is_in_the_loss_of_an_influence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = trl.GRPOTrainer._generate_and_score_completions

    def corrected(self: Any, inputs: Any) -> dict[str, Any]:
        output = generate(self, inputs)
        return output | {"importance_sampling_ratio": (torch.arange(B) % 2.0)[:, None]}

    monkeypatch.setattr(trl.GRPOTrainer, "_generate_and_score_completions", corrected)
    trainer_of(tmp_path, 1, max_steps=2).train()
    found = es.load_rollouts(tmp_path / "dump", 1)
    assert found.influence is not None
    each = torch.stack([found.influence[found.rows(i)].abs().sum() for i in range(B)])
    assert float(each[::2].max()) == 0 < float(each[1::2].min())


# --- what training sees of it


@pytest.mark.long
@pytest.mark.parametrize("kind", ["lora", "bf16", "checkpointing"])
def test_training_is_the_same_with_and_without(tmp_path: Path, kind: str) -> None:
    settings: dict[str, Any] = {"max_steps": 4, "reward": reward_some}
    if kind == "lora":
        peft = pytest.importorskip("peft")
        lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.3)
        settings |= {"peft": lora, "learning_rate": 3e-3, "objective": "clip_cov"}
    else:
        settings[{"checkpointing": "gradient_checkpointing"}.get(kind, kind)] = True
    ends = []
    for every in (3, 0):  # the first of two batches is analysed
        folder = tmp_path / str(every)
        trainer = trainer_of(folder, every, **settings)
        trainer.train()
        ends.append([*weights(trainer), torch.get_rng_state()])
        assert trainer.model.training
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))
    on, without = (lines(tmp_path / name / "dump", "metrics.jsonl") for name in "30")
    assert [line["iteration"] for line in on] == [1, 2]
    assert [{key: with_[key] for key in line} for with_, line in zip(on, without, strict=True)] == (
        without
    )
    assert {"change/mean", "influence/sum", "time/analysis"} <= {*on[0]} - {*on[1]}
    assert not (tmp_path / "0" / "dump" / "analysis.jsonl").exists()
    assert es.load_rollouts(tmp_path / "0" / "dump").change is None
    # in float32 whatever the precision of training
    (line,) = lines(tmp_path / "3" / "dump")
    flow = line["flow"]["change"]
    size = (flow["increase"] + flow["decrease"]) / sum(row["tokens"] for row in line["position"])
    assert abs(line["change/simpson"] - line["change/mean"]) < 0.01 * size


@pytest.mark.long
def test_which_batches_are_analysed_and_where_it_is_read(tmp_path: Path) -> None:
    trainer = trainer_of(tmp_path, 2, max_steps=4, num_iterations=1)
    trainer.train()
    run = read_run(tmp_path / "dump")
    assert [line["iteration"] for line in run.analysis] == [1, 2, 4]
    assert run.series("change/mean")[0] == [1, 2, 4]
    columns = [es.load_rollouts(tmp_path / "dump", i).influence is not None for i in range(1, 5)]
    assert columns == [True, True, False, True]
    logged = ["change/mean" in entry for entry in trainer.state.log_history if "loss" in entry]
    assert logged == [True, True, False, True]
    RunLog(tmp_path / "dump", 1).begin(trainer, 1, 4)  # resumed after the first
    assert [line["iteration"] for line in lines(tmp_path / "dump")] == [1]
    assert [p.name for p in (tmp_path / "dump/rollouts").iterdir()] == ["000001.safetensors"]


def test_no_signal_no_analysis(tmp_path: Path) -> None:
    trainer_of(tmp_path, 1, max_steps=2, reward=lambda prompts, **_: [1.0] * len(prompts)).train()
    assert not (tmp_path / "dump" / "analysis.jsonl").exists()
    assert [line["iteration"] for line in lines(tmp_path / "dump", "metrics.jsonl")] == [1]


@pytest.mark.parametrize(
    ("every", "settings", "words"),
    [
        (-1, {}, "analyze_every=-1: must be at least 1"),
        (1, {"objective": None}, "needs an objective"),
        (1, {"dump": None}, "set dump_rollouts"),
        (1, {"steps_per_generation": 1, "gradient_accumulation_steps": 4}, "whole optimizer steps"),
        (1, {"model": "half"}, r"needs weights in float32, and .*embed_tokens.* is torch.bfloat16"),
    ],
)
def test_what_cannot_be_analysed_is_refused(
    tmp_path: Path, every: int, settings: dict[str, Any], words: str
) -> None:
    if settings.get("model") == "half":
        settings = {"model": model_of().bfloat16()}
    with pytest.raises(ValueError, match=words):
        trainer_of(tmp_path, every, **settings)


def test_another_optimizer_is_refused_before_training(tmp_path: Path) -> None:
    refused(lambda: trainer_of(tmp_path, 1, max_steps=2, optim="sgd").train(), "a step of AdamW")


def test_several_processes_are_refused() -> None:
    from accelerate import DistributedType

    from entrostat.trainers.trl.analysis import check

    def trainer(kind: str, processes: int) -> Any:
        accelerator = SimpleNamespace(
            distributed_type=DistributedType(kind), num_processes=processes
        )
        model = torch.nn.Linear(1, 1)
        args = SimpleNamespace(
            steps_per_generation=1, gradient_accumulation_steps=1, num_iterations=1
        )
        return SimpleNamespace(
            model=model, objective="grpo", _run_log="dump", accelerator=accelerator, args=args
        )

    for kind, processes in (("MULTI_GPU", 8), ("FSDP", 1)):
        told = rf"one process, and this run has {processes} \({kind}\); start"
        with pytest.raises(ValueError, match=told):
            check(trainer(kind, processes), 10)
    for kind in ("NO", "MULTI_CPU"):  # what accelerate calls one process of a launcher's
        check(trainer(kind, 1), 10)


@pytest.mark.long
def test_a_large_vocabulary_and_one_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without logits: the same influences."""
    found = []
    for smallest in (4096, 4):
        monkeypatch.setattr("entrostat.models.capabilities.SMALLEST_VOCABULARY", smallest)
        folder = tmp_path / str(smallest)
        trainer = trainer_of(folder, 1, max_steps=2)
        trainer.train()
        assert (trainer._analyst._meter.policy.head is None) == (smallest == 4096)
        found.append(es.load_rollouts(folder / "dump", 1).influence)
    assert off(*found) < 1e-3


@pytest.mark.long
def test_a_recipe_is_analysed(tmp_path: Path) -> None:
    from entrostat.trainers import trains

    data = {
        "host": "trl", "iterations": 1, "output": str(tmp_path / "run"), "analyze": {"every": 4},
        "eval": {"prompts": 0}, "sampling": {"prompts": 4, "rollouts": K}, "seed": SEED,
        "optim": {"lr": LR, "micro_batch": 8, "epochs": 1},
    }  # fmt: skip
    run = read_run(trains("trl")(from_dict(data)))
    (line,) = run.analysis
    (logged,) = run.metrics
    assert logged["change/mean"] == line["change/mean"] != 0
    assert logged["time/update"] < line["time/analysis"]  # which is no part of it
    assert es.load_rollouts(tmp_path / "run").influence is not None


@pytest.mark.parametrize("heard", [False, True])
def test_the_rollouts_of_two_ranks_are_written_as_those_of_one(heard: bool) -> None:
    ids = torch.arange(12).view(4, 3)
    there = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]]).bool()
    own = there.clone()
    own[3, 1] = not heard  # where an environment spoke
    tokenizer = SimpleNamespace(batch_decode=lambda rows: [str(row) for row in rows])
    figures = ("logp", "sampler_logp", "entropy", "advantage")

    def rollouts(rows: slice) -> Rollouts:
        return without_padding(
            7, tokenizer, ids[rows], there[rows], own[rows],
            {name: ids[rows] / (2 + i) for i, name in enumerate(figures)},
            prompts=[*"abcd"][rows], completions=[*"wxyz"][rows], rewards=torch.arange(4.0)[rows],
            group=torch.tensor([0, 0, 1, 1])[rows], finished=ids[rows, 0] > 4,
            trained=ids[rows, 0] < 4,
        )  # fmt: skip

    one, two = rollouts(slice(4)), joined([rollouts(slice(2)), rollouts(slice(2, 4))])
    assert (one.sampled is not None) == heard
    for name, value in vars(one).items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(getattr(two, name), value, rtol=0, atol=0, equal_nan=True)
        else:
            assert getattr(two, name) == value, name
