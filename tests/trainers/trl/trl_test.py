"""The TRL host: the objective's loss and gradient inside TRL's own `_compute_loss`.

Where rollouts have to be known, `_generate` is replaced on the instance and gives fixed tokens; all
that follows (rewards, shuffle, split, forward pass, loss) is TRL's.
"""

import dataclasses
import inspect
import json
import math
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

import entrostat as es
from entrostat.core.process_ranks import shared_generator
from entrostat.method import METHODS
from long_cases import keep
from processes import fork_ranks, run_ranks

pytest.importorskip("trl", reason="trl is an extra")

from accelerate import DistributedType

from builders import json_lines, refused
from entrostat.trainers.trl import step
from paths import ROOT
from trl_runs import (
    MARKS,
    MAX,
    PROMPTS,
    REWARDS,
    RUN,
    TEMPERATURE,
    B,
    K,
    by_prompt,
    disturb,
    entropy_trainer,
    feed,
    fixed_rollouts,
    logged,
    logits_of,
    make,
    model_of,
    reward_some,
    scripted,
    together,
    weights,
)

pytestmark = MARKS

# what makes a method act on so few tokens
PARAMETERS = {
    "clip_cov": {"ratio": 0.1, "low": 0.0},
    "kl_cov": {"frac": 0.1, "coef": 1.0},
    "rand_pos_clip": {"ratio": 0.2},
    "quadrant": {"which": "II", "share": 0.5},
    "repo_r": {"zeta": 0.05},
    "repo_d": {"zeta": 5.0},
    "gspo_repo_r": {"zeta": 0.05},
    "entropy_bonus": {"coef": 0.3},
    "adaptive_entropy": {"target": 50.0, "coef": 4e-3},
    "kl_ref": {"coef": 0.1},
}
ON_POLICY = ("reinforce", "rloo", "opefo")
PARTS = {
    "grpo": ["grpo", "ppo"],
    "opefo": ["reinforce", "opefo"],
}


# ---------------------------------------------------------------------------- parity with the lab


class ByHand:
    """The lab's order of events on TRL's rows, over the whole optimizer step at once.

    Groups without a signal are cut out before anything is planned; penalties, which act on these
    too, are added by their definitions.
    """

    def __init__(self, objective, old_model, rows: dict, rewards: Tensor, reference=None):
        mask = (rows["completion_mask"] * rows["tool_mask"]).bool()
        self.rows, targets = rows, rows["completion_ids"]
        with torch.no_grad():
            old = es.token_stats_from_logits(logits_of(old_model, rows), targets, TEMPERATURE)
            ref = None
            if reference is not None:
                logits = logits_of(reference, rows)
                ref = es.token_stats_from_logits(logits, targets, TEMPERATURE).logp
        batch = es.TokenBatch(
            old.logp, old.logp, mask, rewards=rewards, group=rows["group"], entropy=old.entropy,
            old_entropy=old.entropy, ref_logp=ref, rollout=rows.get("rollout"),
        )  # fmt: skip
        N = mask.sum()
        objective.observe(
            entropy=(old.entropy * mask).sum() / N, nll=-(old.logp * mask).sum() / N, progress=0.0
        )
        graded = objective.outcome_advantages(batch)
        live = [g for g in rows["group"].unique() if rewards[rows["group"] == g].std() > 0]
        if {"unlikeliness", "kl_reward"} & {*objective.names}:  # shaped rewards differ
            live = list(rows["group"].unique())
        self.kept = torch.isin(rows["group"], torch.stack(live)).nonzero()[:, 0]
        self.mask, self.ref, self.objective = mask, ref, objective
        chain = zip(objective.names, objective.methods, objective.states, strict=True)
        names, methods, states = zip(*(x for x in chain if not x[1].penalises), strict=True)
        self.policy = es.Objective(
            methods, names, objective.advantage, objective.aggregation, objective.max_length
        )
        self.policy.states = list(states)
        self.batch = self.policy.prepare(graded[self.kept])

    def loss(self, model, generator, fresh: bool) -> tuple[Tensor, es.LossOutput]:
        """The loss with gradient, and what the objective said of its policy term."""
        logits, targets = logits_of(model, self.rows), self.rows["completion_ids"]
        stats = es.token_stats_from_logits(logits, targets, TEMPERATURE)
        batch = self.batch.replace(logp=stats.logp[self.kept], entropy=stats.entropy[self.kept])
        if fresh:
            batch = batch.replace(old_logp=batch.logp.detach())
        out = self.policy.loss(batch, None, generator)
        return out.loss + self.penalties(stats), out

    def penalties(self, stats) -> Tensor:
        """Over all sampled tokens: -coef mean H, and coef KL aggregated as the policy term."""
        total = torch.zeros(())
        for method in (m for m in self.objective.methods if m.penalises):
            if self.ref is None or "ref_logp" not in method.needs:
                names = {"control/entropy_coef", "control/multiplier"}
                (coef,) = (v for k, v in self.objective.metrics().items() if k in names)
                total = total - coef * stats.entropy[self.mask].mean()
                continue
            d = self.ref - stats.logp
            each = [x[m] for x, m in zip(d.exp() - d - 1, self.mask, strict=True)]
            means = {
                "token_mean": torch.cat(each).mean(),
                "seq_mean_token_mean": torch.stack([x.mean() for x in each]).mean(),
                "seq_mean_token_sum_norm": torch.stack([x.sum() for x in each]).mean() / MAX,
            }
            total = total + method.coef * means[self.objective.aggregation]
        return total


def parity(folder, spec, *, parameters=None, aggregation="token_mean", fresh=False, rewards=REWARDS,
           **settings):  # fmt: skip
    """Relative differences of loss and gradient: the sum of TRL's micro-batches and the lab's."""
    build = lambda: es.make_objective(  # noqa: E731
        spec, aggregation=aggregation, max_length=MAX, **(parameters or {})
    )
    policy = model_of(0.05, seed=1)
    iterations = 1 if fresh else 2
    trainer = entropy_trainer(
        folder, model=policy, objective=build(), num_iterations=iterations, **settings
    )
    pieces = feed(trainer, rewards)
    before = model_of(0.05, seed=1)
    if not fresh:  # the policy has moved since
        disturb(policy, 0.02, seed=2)
        trainer.state.global_step = 1
    loss = torch.zeros(())
    for i, piece in enumerate(pieces):
        trainer._step = (0 if fresh else len(pieces)) + i
        part = trainer._compute_loss(policy, piece)
        part.backward()
        loss = loss + part.detach()
    theirs = torch.cat([p.grad.flatten() for p in policy.parameters()])
    policy.zero_grad()

    rows = together(pieces)
    ids, _ = fixed_rollouts()
    where = [
        ids.index(row[m.bool()].tolist())
        for row, m in zip(rows["completion_ids"], rows["completion_mask"], strict=True)
    ]
    assert sorted(where) == list(range(B))
    rows["rollout"] = torch.tensor(where)  # the place before TRL's shuffle
    rows["group"] = rows["rollout"] // K
    plain = model_of(0.05, seed=1)
    plain.load_state_dict(policy.state_dict())
    plain.train()
    hand = ByHand(
        build(), before, rows, torch.tensor(rewards)[where],
        model_of() if "ref_logp" in build().needs else None,
    )  # fmt: skip
    step = trainer.state.global_step
    exact, out = hand.loss(plain, shared_generator(trainer.args.seed, "select", step), fresh)
    exact.backward()
    ours = torch.cat([p.grad.flatten() for p in plain.parameters()])
    assert ours.norm() > 1e-4
    size = (out.per_token * out.terms.scale).detach().abs().sum()  # of its parts, which cancel
    return SimpleNamespace(
        loss=float((loss - exact.detach()).abs() / size),
        gradient=float((theirs - ours).norm() / ours.norm()),
        trainer=trainer, figures=out.metrics,
    )  # fmt: skip


def hosted() -> list[str]:
    return [name for name, info in es.methods().items() if "trl" in info.hosts]


def test_every_method_runs_in_trl():
    # none is refused as such but PRIME, whose second model the lab alone trains
    assert set(hosted()) == set(es.methods()) - {"prime", "aepo", "influence_flow"}


@pytest.mark.parametrize("name", hosted())
def test_loss_and_gradient_are_the_labs(tmp_path, name):
    found = parity(tmp_path, name, parameters=PARAMETERS.get(name), fresh=name in ON_POLICY)
    assert found.loss < 1e-5
    assert found.gradient < 1e-5


@pytest.mark.parametrize("aggregation", ["seq_mean_token_mean", "seq_mean_token_sum_norm"])
@pytest.mark.parametrize(
    "name", keep(["grpo", "gspo_repo_r", "clip_cov", "kl_ref", "entropy_bonus"], "grpo", "kl_ref")
)
def test_aggregations_are_the_labs(tmp_path, name, aggregation):
    found = parity(tmp_path, name, parameters=PARAMETERS.get(name), aggregation=aggregation)
    assert found.trainer.loss_type == {"seq_mean_token_mean": "grpo"}.get(aggregation, "dr_grpo")
    assert found.loss < 1e-5
    assert found.gradient < 1e-5


@pytest.mark.parametrize("steps", [4, 8])
def test_a_step_of_part_of_the_generation_batch(tmp_path, steps):
    """Each optimizer step divides by its own tokens, not by an equal share of the batch's."""
    trainer = entropy_trainer(
        tmp_path, objective=["grpo", "ppo", {"name": "forking_tokens", "top": 0.3}],
        gradient_accumulation_steps=2, steps_per_generation=steps, num_iterations=1,
        per_device_train_batch_size=B // steps,
    )  # fmt: skip
    pieces = feed(trainer)
    size = 2 * B // steps
    for first in range(0, steps, 2):
        trainer._step, trainer.state.global_step = first, first // 2
        for i in range(2):
            trainer._step = first + i
            trainer._compute_loss(trainer.model, pieces[first + i])
        logged = trainer._metrics["train"]["terms/weight"][-1]
        mask = torch.cat([p["completion_mask"] * p["tool_mask"] for p in pieces[first : first + 2]])
        idle = torch.cat([p["entrostat_idle"] for p in pieces[first : first + 2]])
        N = int((mask.bool() & ~idle[:, None]).sum())
        assert len(mask) == size
        assert logged == pytest.approx(max(1, int(0.3 * N + 1e-9)) / N, rel=1e-6)


@pytest.mark.long
def test_an_epochs_last_step_may_be_short(tmp_path):
    trainer = entropy_trainer(
        tmp_path, objective="thermostat", prompts=[*PROMPTS, "11:", "8:"], num_iterations=1,
        steps_per_generation=1, num_train_epochs=2,
    )  # fmt: skip
    ends, inner = [], trainer._end_step
    trainer._end_step = lambda: (ends.append((trainer.state.global_step, trainer._step)), inner())
    trainer.train()
    # six micro-batches an epoch, four a step
    assert ends == [(0, 3), (1, 5), (2, 9), (3, 11)]


def test_controllers_see_the_first_generation_batch_of_every_step(tmp_path):
    trainer = entropy_trainer(
        tmp_path, objective="repo_r", num_iterations=1, steps_per_generation=4,
        gradient_accumulation_steps=3, max_steps=4, prompts=PROMPTS * 3,
    )  # fmt: skip
    seen, inner = [], trainer.objective.observe_figures
    trainer.objective.observe_figures = lambda *given: (
        seen.append(trainer.state.global_step), inner(*given),
    )  # fmt: skip
    trainer.train()
    assert seen == [0, 1, 2]  # of 12 micro-batches, four a generation batch


@pytest.mark.parametrize("dual", [1.03, 1.01])  # above the upper bound, and below it
def test_the_dual_clip(tmp_path, dual):
    found = parity(tmp_path, {"name": "ppo", "low": 0.01, "high": 0.02, "dual": dual})
    assert found.figures["clip/dual"] > 0
    assert found.loss < 1e-5
    assert found.gradient < 1e-5


def test_a_negative_weight_turns_no_clip_around(tmp_path):
    @es.register("against")
    @dataclasses.dataclass(frozen=True)
    class Against(es.Method):
        """Learns from tokens with A > 0 the wrong way round."""

        def plan(self, batch, terms, state, generator):
            return terms.replace(weight=torch.where(terms.advantage > 0, -0.5, terms.weight))

    try:
        found = parity(tmp_path, [{"name": "ppo", "low": 0.01, "high": 0.01}, "against"])
    finally:
        del METHODS["against"]
    assert found.figures["clip/high"] > 0
    assert found.loss < 1e-5
    assert found.gradient < 1e-5


def test_penalties_and_weights_at_once(tmp_path):
    spec = [
        "rloo", "gspo", {"name": "steer", "lambda_min": 0.3}, {"name": "kl_ref", "coef": 0.2},
        {"name": "entropy_bonus", "coef": 0.1}, {"name": "rand_pos_clip", "ratio": 0.2},
        {"name": "kl_cov", "frac": 0.2, "penalty": "k3"}, "entropy_adv",
    ]  # fmt: skip
    found = parity(tmp_path, spec, aggregation="seq_mean_token_mean")
    assert found.loss < 1e-5
    assert found.gradient < 1e-5


@pytest.mark.parametrize("objective", ["grpo", "entropy_bonus"])
def test_no_signal_at_all_leaves_the_penalties(tmp_path, objective):
    trainer = entropy_trainer(tmp_path, objective=objective)
    pieces = feed(trainer, [1.0] * B)
    for i, piece in enumerate(pieces):
        trainer._step = i
        trainer._compute_loss(trainer.model, piece).backward()
    assert trainer._metrics["train"]["rollout/zero_advantage_groups"] == [4]
    got = torch.cat([p.grad.flatten() for p in trainer.model.parameters()])
    if objective == "grpo":
        assert float(got.norm()) == 0
        return
    rows, plain = together(pieces), model_of()
    mask = (rows["completion_mask"] * rows["tool_mask"]).bool()
    stats = es.token_stats_from_logits(logits_of(plain, rows), rows["completion_ids"], TEMPERATURE)
    (-1e-3 * stats.entropy[mask].mean()).backward()  # the default coefficient
    wanted = torch.cat([p.grad.flatten() for p in plain.parameters()])
    assert (got - wanted).norm() < 1e-4 * wanted.norm()


def test_a_rollout_without_a_reward_has_no_part(tmp_path):
    """A group of which one is left cannot be compared; the others are compared without it."""
    rewards = [None, 1.0, 0.0, 0.5, 1.0, None, None, None, *REWARDS[8:]]
    trainer = entropy_trainer(tmp_path, objective="loop")
    pieces = feed(trainer, rewards)
    got = torch.cat([p["entrostat_advantage"] for p in pieces]).abs().amax(1)
    group = torch.cat([p["entrostat_group"] for p in pieces])
    reward = torch.cat([p["entrostat_reward"] for p in pieces])
    # rloo of 1, 0, .5 alone: K/(K-1) (R - mean) = 1.5 (R - .5)
    first = {float(r): float(a) for r, a in zip(reward, got, strict=True) if not r.isnan()}
    assert first[0.5] in (0.0, pytest.approx(0.0, abs=1e-6))
    mine = group == 0
    assert sorted(got[mine].tolist()) == pytest.approx([0.0, 0.0, 0.75, 0.75])
    assert got[group == 1].sum() == 0


# ---------------------------------------------------------------------------- the identity


@pytest.fixture(scope="module")
def trls_own(tmp_path_factory):
    """TRL's own GRPO, 12 optimizer steps, two a generation batch; its weights and losses."""
    from trl import GRPOTrainer

    os.environ["CI"] = "1"
    trainer = make(GRPOTrainer, tmp_path_factory.mktemp("own"), **IDENTITY)
    start = weights(trainer)
    trainer.train()
    return start, weights(trainer), logged(trainer, "loss"), logged(trainer, "grad_norm")


IDENTITY = {
    "scale_rewards": "none", "max_steps": 12, "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2, "max_completion_length": 6, "num_generations": K,
    "prompts": PROMPTS * 3,
}  # fmt: skip


@pytest.mark.parametrize("objective", keep([None, ["dr_grpo", "ppo"]], None))
def test_the_identity_is_trls_grpo(tmp_path, trls_own, objective):
    """Bit for bit without an objective; to rounding with TRL's own as the objective."""
    start, end, losses, norms = trls_own
    assert len(losses) == 12
    assert sum(loss != 0 for loss in losses) > 8
    trainer = entropy_trainer(tmp_path, objective=objective, **IDENTITY)
    for mine, theirs in zip(weights(trainer), start, strict=True):
        assert torch.equal(mine, theirs)
    trainer.train()
    near = {"rel": 1e-3, "abs": 1e-5} if objective else {"rel": 0, "abs": 0}
    assert logged(trainer, "loss") == pytest.approx(losses, **near)
    assert logged(trainer, "grad_norm") == pytest.approx(norms, **near)
    moved = torch.cat([(b - a).flatten() for a, b in zip(start, end, strict=True)])
    ours = torch.cat([(b - a).flatten() for a, b in zip(start, weights(trainer), strict=True)])
    assert moved.norm() > 1e-3
    assert (ours - moved).norm() <= (1e-2 if objective else 0) * moved.norm()


# ---------------------------------------------------------------------------- runs


TWO = {
    "repo_r": {"zeta": 0.05}, "kl_cov": {"frac": 0.1}, "gspo_repo_r": {"zeta": 0.05},
    "entropy_bonus": {"coef": 0.3}, "thermostat": {"target": "0.8x"},
    "thermostat, exact": {"target": "0.8x", "solve": "exact"},
}  # fmt: skip


def scripted_run(folder, name: str, **settings) -> dict:
    held = name.startswith("thermostat")
    if held:
        settings |= {"optim": "adamw_torch", "max_grad_norm": 0.5}
    objective = es.make_objective(name.split(",")[0], **TWO[name])
    trainer = entropy_trainer(folder, objective=objective, **RUN | settings)
    scripted(trainer)
    start = torch.cat([x.flatten() for x in weights(trainer)])
    trainer.train()
    moved = torch.cat([x.flatten() for x in weights(trainer)]) - start
    keys = ["entropy/exact", "reward/mean", "loss/policy", "rollout/tokens"]
    if held:
        keys += ["control/multiplier", "thermostat/foretold", "thermostat/bias"]
        assert any(logged(trainer, "control/multiplier"))
    return {"moved": moved, "log": {key: logged(trainer, key) for key in keys}}


def rank_main(rank: int, folder: Path) -> None:
    import torch.distributed as dist

    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    # before accelerate does: no port of this machine is needed for the rendezvous
    dist.init_process_group(
        "gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=2
    )
    found = {}
    for name in TWO:
        one = scripted_run(folder / "out", name, per_device_train_batch_size=4)
        torch.save(one["moved"], folder / f"{name}.{rank}.pt")
        found[name] = one["log"]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> tuple[Path, list[dict]]:
    folder = tmp_path_factory.mktemp("ranks")
    found = run_ranks(
        1, folder, lambda _: [__file__, "ranks", str(folder)],
        env=lambda _: {
            "CI": "1", "ACCELERATE_USE_CPU": "true", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29555",
        },
        timeout=1100,
    )  # fmt: skip
    return folder, [*found, json.loads((folder / "1.json").read_text())]


@pytest.mark.long
@pytest.mark.parametrize("name", [*TWO])
def test_two_processes_are_one_with_twice_the_batch(tmp_path, two_ranks, name):
    folder, found = two_ranks
    one = scripted_run(tmp_path, name, per_device_train_batch_size=8)
    exact = one["moved"]
    assert exact.norm() > 1e-3
    for rank in range(2):
        moved = torch.load(folder / f"{name}.{rank}.pt", weights_only=True)
        assert (moved - exact).norm() < 1e-4 * exact.norm()
    for key, values in one["log"].items():  # the main process logs, over all ranks
        # AdamW's first steps are signs, of which rounding turns some
        rel = 1e-2 if name.startswith("thermostat") else 1e-3
        assert found[0][name][key] == pytest.approx(values, rel=rel, abs=1e-5), key


# ---------------------------------------------------------------------------- checkpoints


class StopError(Exception):
    pass


def resumable(folder, *, stop: int | None = None, objective=None, **settings):
    from transformers import TrainerCallback

    class Kill(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == stop:
                raise StopError

    objective = objective or es.make_objective("repo_r", target=0.05, zeta=1e-3)
    trainer = entropy_trainer(
        folder, objective=objective, callbacks=[Kill()], save_strategy="steps", save_steps=4,
        max_steps=8, gradient_accumulation_steps=2, prompts=PROMPTS * 4, dump=folder / "dump",
        **settings,
    )  # fmt: skip
    scripted(trainer)
    return trainer


def test_kill_and_resume_continue_the_multiplier(tmp_path):
    spec = {"name": "thermostat", "target": "0.8x"}
    whole = resumable(tmp_path / "whole", objective=es.make_objective(spec))
    whole.train()
    assert len(set(logged(whole, "control/multiplier"))) == 4
    with pytest.raises(StopError):
        resumable(tmp_path / "killed", stop=5, objective=es.make_objective(spec)).train()
    again = resumable(tmp_path / "killed", objective=es.make_objective(spec))
    again.train(resume_from_checkpoint=str(tmp_path / "killed" / "checkpoint-4"))
    for key in ("control/multiplier", "thermostat/foretold", "thermostat/level"):
        assert logged(again, key) == logged(whole, key)
    for mine, theirs in zip(weights(again), weights(whole), strict=True):
        assert_close(mine, theirs, rtol=0, atol=1e-6)


def test_the_multiplier_moves_adapters_alone(tmp_path):
    peft = pytest.importorskip("peft")
    lora = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"])
    trainer = entropy_trainer(
        tmp_path, objective=es.make_objective("thermostat", target="0.8x"), peft=lora, max_steps=6,
        learning_rate=1e-2, prompts=PROMPTS * 6, gradient_accumulation_steps=2, num_iterations=1,
        per_device_train_batch_size=8,
    )  # fmt: skip
    scripted(trainer)
    trainer.train()
    assert any(logged(trainer, "control/multiplier"))
    assert all(map(math.isfinite, logged(trainer, "thermostat/foretold")))


@pytest.mark.parametrize(("solve", "scale"), [("sample", 1.0), ("exact", 1.0), ("exact", 64.0)])
def test_a_step_has_the_bonus_that_was_decided_on_from_its_own_gradient(
    tmp_path, monkeypatch, solve, scale
):
    """Against the gradient of the mean entropy by a pass of its own; with a loss scale, too."""
    objective = es.make_objective("thermostat", target="0.8x", solve=solve)
    trainer = entropy_trainer(
        tmp_path, objective=objective, prompts=PROMPTS * 4, max_steps=4, learning_rate=1e-3,
        optim="adamw_torch", gradient_accumulation_steps=2, per_device_train_batch_size=4,
        gradient_checkpointing=True, max_grad_norm=0.0,
    )  # fmt: skip
    if scale != 1:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    scripted(trainer)
    decide, stepped, multipliers, norms, seen = step.decide, trainer._steps.stepped, [], [], []

    def deciding(hold, optimizer, entropy, *rest):
        old = hold.state.value if solve == "sample" else 0.0
        before = [p.grad.clone() for p in entropy.parameters]
        decide(hold, optimizer, entropy, *rest)
        multipliers.append(hold.state.value)
        made = trainer._buffered_inputs
        pieces = [made[(trainer._step - k) % len(made)] for k in (2, 1)]  # the step's micro-batches
        masks = [piece["completion_mask"].bool() for piece in pieces]
        entropies = [trainer.extra_pass(trainer.model, piece)[1] for piece in pieces]
        total = sum(H[mask].sum() for H, mask in zip(entropies, masks, strict=True))
        mean = total / sum(mask.sum() for mask in masks)
        wanted = torch.autograd.grad(mean, entropy.parameters)
        for p, g, h in zip(entropy.parameters, before, wanted, strict=True):
            assert_close(p.grad, g - (multipliers[-1] - old) * h, rtol=1e-3, atol=1e-6)
        norms.append(
            scale * float(torch.cat([p.grad.flatten() for p in entropy.parameters]).norm())
        )

    monkeypatch.setattr(step, "decide", deciding)
    # the norm of the gradient that clipping is given
    monkeypatch.setattr(trainer._steps, "stepped", lambda norm: seen.append(norm) or stepped(norm))
    trainer.train()
    assert len(multipliers) == (4 if solve == "exact" else 3)  # the first step has no bonus
    assert sum(c != 0 for c in multipliers) >= 2
    assert seen[-len(norms) :] == pytest.approx(norms, rel=1e-4)


def test_what_the_multiplier_cannot_be_solved_for_with_is_refused(tmp_path):
    trainer = entropy_trainer(
        tmp_path, objective=es.make_objective("thermostat"), optim="sgd", max_steps=2,
        prompts=PROMPTS * 4,
    )  # fmt: skip
    trainer._generate = None  # before the first generation
    refused(lambda: trainer.train(), "optimizer must be", "got SGD", "'knob': 'entropy_coef'")
    reentrant = {"gradient_checkpointing": True,
                 "gradient_checkpointing_kwargs": {"use_reentrant": True}}  # fmt: skip
    refused(
        lambda: entropy_trainer(tmp_path, objective=es.make_objective("thermostat"), **reentrant),
        "{'use_reentrant': True}", "set 'use_reentrant': False",
    )  # fmt: skip
    entropy_trainer(tmp_path, objective="grpo", **reentrant)
    refused(lambda: step.check_whole(DistributedType.FSDP), "FSDP shards them")


@pytest.mark.long
@pytest.mark.parametrize("restore", [False, True])
def test_kill_and_resume_continue_the_controller(tmp_path, restore):
    whole = resumable(tmp_path / "whole")
    whole.train()
    zeta = logged(whole, "control/zeta")
    assert len(set(zeta)) == len(zeta) == 4  # two updates per generation batch; it moves at each

    with pytest.raises(StopError):
        resumable(tmp_path / "killed", stop=5).train()
    checkpoint = tmp_path / "killed" / "checkpoint-4"
    state = json.loads((checkpoint / "trainer_state.json").read_text())
    saved = state["stateful_callbacks"]["EntropyControl"]["attributes"]["saved"]
    assert saved["states"][1]["value"] == zeta[1]

    again = resumable(tmp_path / "killed", restore_callback_states_from_checkpoint=restore)
    again.train(resume_from_checkpoint=str(checkpoint))
    assert logged(again, "control/zeta") == zeta
    for mine, theirs in zip(weights(again), weights(whole), strict=True):
        assert_close(mine, theirs, rtol=0, atol=1e-6)
    # and its run directory has each iteration once
    lines = (tmp_path / "killed" / "dump" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["iteration"] for line in lines] == [1, 2, 3, 4]
    last = json.loads((again.args.output_dir and checkpoint.parent / "checkpoint-8"
                       / "trainer_state.json").read_text())  # fmt: skip
    saved = last["stateful_callbacks"]["EntropyControl"]["attributes"]["saved"]
    assert saved["states"][1]["value"] == zeta[3]


def test_another_objectives_state_is_refused(tmp_path):
    with pytest.raises(StopError):
        resumable(tmp_path, stop=5).train()
    other = entropy_trainer(tmp_path, objective="repo_d", max_steps=8)
    refused(lambda: other.begin(_state(tmp_path / "checkpoint-4")), "the state belongs to")
    plain = _state(tmp_path / "checkpoint-4")
    del plain.stateful_callbacks["EntropyControl"]
    with pytest.warns(UserWarning, match="no controllers' state; they start anew"):
        other.begin(plain)


def _state(checkpoint: Path):
    from transformers import TrainerState

    return TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))


# ---------------------------------------------------------------------------- what is written


def test_figures_and_rollouts(tmp_path):
    dump = tmp_path / "dump"
    trainer = entropy_trainer(
        tmp_path / "out", objective=es.make_objective("repo_r", zeta=0.05), dump=dump,
        max_steps=4, gradient_accumulation_steps=2, per_device_train_batch_size=8,
        prompts=PROMPTS * 2, reward=reward_some,
    )  # fmt: skip
    scripted(trainer)
    trainer.train()
    first = trainer.state.log_history[0]
    for key in (
        "entropy/exact", "entropy/nll", "reward/mean", "reward/std_in_group",
        "reward/best_in_group", "rollout/length_mean", "rollout/tokens",
        "rollout/zero_advantage_groups", "control/zeta", "control/target", "loss/policy",
        "loss/total", "terms/weight", "clip/high", "clip/low", "ratio/mean", "kl/old_new",
        "numerics/logp_rounding",
    ):  # fmt: skip
        assert key in first, key
    assert {"entropy", "reward", "clip_ratio/low_mean"} <= set(first)  # TRL's own
    assert first["rollout/zero_advantage_groups"] == 1
    assert first["numerics/logp_rounding"] == 0
    lines = json_lines(dump / "metrics.jsonl")
    assert [line["iteration"] for line in lines] == [1, 2]
    assert lines[0]["entropy/exact"] == first["entropy/exact"]

    rows = by_prompt([p for p in PROMPTS for _ in range(K)], 0)
    r = es.load_rollouts(dump, 1)
    assert len(r) == B
    assert r.iteration == 1
    assert r.tokens.tolist() == [t for row in rows for t in row]
    assert r.prompts == [p for p in PROMPTS for _ in range(K)]
    assert r.group.tolist() == [g for g in range(4) for _ in range(K)]
    expected = reward_some([p for p in PROMPTS for _ in range(K)], rows)
    assert r.rewards.tolist() == pytest.approx(expected)
    assert r.trained.tolist() == [g != 1 for g in range(4) for _ in range(K)]
    assert not r.finished.any()  # no scripted rollout ends
    assert r.sampler_logp.isnan().all()  # TRL's generate does not say
    # the policy's own statistics at the start, by its plain forward pass
    model, tokenizer = model_of(), trainer.processing_class
    for i in (0, 5, 11):
        prompt = tokenizer(r.prompts[i])["input_ids"]
        ids = torch.tensor([prompt + rows[i]])
        logits = model(input_ids=ids).logits[:, len(prompt) - 1 : -1]
        stats = es.token_stats_from_logits(logits, ids[:, len(prompt) :], TEMPERATURE)
        assert_close(r.logp[r.rows(i)], stats.logp[0].detach(), rtol=1e-4, atol=1e-5)
        assert_close(r.entropy[r.rows(i)], stats.entropy[0].detach(), rtol=1e-4, atol=1e-5)
    assert r.advantage[r.rows(5)].abs().sum() == 0
    mean = float(r.entropy.double().mean())
    assert first["entropy/exact"] == pytest.approx(mean, rel=1e-5)
    assert first["entropy/nll"] == pytest.approx(-float(r.logp.double().mean()), rel=1e-5)

    from entrostat.logs.run import read_run

    run = read_run(dump)
    assert list(run.dumps) == [1, 2]
    assert run.series("control/zeta")[0] == [1, 2]


def test_watching_only_writes_the_same_and_edits_nothing(tmp_path):
    trainer = entropy_trainer(
        tmp_path / "out", objective=None, dump=tmp_path / "dump", max_steps=1,
        gradient_accumulation_steps=2, per_device_train_batch_size=8, num_iterations=1,
        reward=reward_some,
    )  # fmt: skip
    scripted(trainer)
    trainer.train()
    assert {"entropy/exact", "reward/mean"} <= set(trainer.state.log_history[0])
    r = es.load_rollouts(tmp_path / "dump")
    assert r.trained.tolist() == [g != 1 for g in range(4) for _ in range(K)]
    expected = es.advantages("dr_grpo", r.rewards, r.group)
    std = torch.stack([g.std() for g in r.rewards.view(-1, K)]).repeat_interleave(K)
    got = torch.stack([r.advantage[r.rows(i)][0] for i in range(B)])
    assert_close(got, expected / (std + 1e-4), rtol=1e-5, atol=1e-6)


def test_lora_with_a_reference_that_is_the_model_without_adapters(tmp_path):
    """The old policy's figures are those of the adapted model, whatever pass TRL makes last."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    objective = es.make_objective(["grpo", "ppo", "repo_r", {"name": "kl_ref", "coef": 0.1}])
    trainer = entropy_trainer(
        tmp_path, objective=objective, peft=config, max_steps=2, gradient_accumulation_steps=4
    )
    scripted(trainer)
    trainer.train()
    gap = logged(trainer, "kl/ref")
    assert gap[0] > 1e-4  # adapters that start at random are not the base model
    assert logged(trainer, "kl/old_new")[0] == pytest.approx(0, abs=1e-6)
    assert logged(trainer, "ratio/mean")[0] == pytest.approx(1, abs=1e-4)
    frozen = [n for n, p in trainer.model.named_parameters() if not p.requires_grad]
    assert frozen


def test_the_schedules_of_pos_adv_end_with_the_training(tmp_path):
    objective = es.make_objective("pos_adv", schedule="stage")
    trainer = entropy_trainer(
        tmp_path, objective=objective, max_steps=10, gradient_accumulation_steps=2,
        prompts=PROMPTS * 4,
    )  # fmt: skip
    scripted(trainer)
    trainer.train()
    # five iterations, progress 0, 1/4, ... 1: 0 in the first half, then linearly to 1
    assert logged(trainer, "control/pos_weight") == pytest.approx([0, 0, 0, 0.5, 1])


def test_eval_is_trls_own(tmp_path):
    trainer = entropy_trainer(tmp_path, objective="repo_r")
    feed(trainer)
    trainer.model.eval()
    before = trainer.objective.state_dict()
    output = trainer._generate_and_score_completions(
        [{"prompt": prompt} for prompt in PROMPTS for _ in range(K)]
    )
    assert not any(key.startswith("entrostat") for key in output)
    with torch.no_grad():
        trainer._compute_loss(trainer.model, output)
    assert trainer.objective.state_dict() == before


# ---------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("reinforce", "`reinforce`: strictly on-policy, so one update per rollout batch, not 2"),
        ("repo", "unknown method"),
    ],
)
def test_an_objective_that_trl_cannot_run_is_refused(tmp_path, objective, words):
    with pytest.raises(ValueError, match=words):
        entropy_trainer(tmp_path, objective=objective)


def test_continuous_batching_in_bf16_is_refused_beside_an_objective(tmp_path):
    settings = {"use_transformers_continuous_batching": True, "bf16": True}
    refused(lambda: entropy_trainer(tmp_path, objective="grpo", **settings), "bf16")
    entropy_trainer(tmp_path, objective=None, **settings)  # as TRL


def test_agreeing_arguments_are_taken_and_the_users_object_is_left_alone(tmp_path):
    from trl import GRPOConfig

    from entrostat.trainers.trl import settings

    args = GRPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to="none", epsilon=0.2, epsilon_high=0.28,
        loss_type="dapo", importance_sampling_level="token",
    )  # fmt: skip
    settled = settings.settle(args, es.make_objective("clip_higher"))
    assert settled is not args
    assert settled.loss_type == "dapo"
    wide = settings.settle(GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none"),
                           es.make_objective("clip_free"))  # fmt: skip
    assert (wide.epsilon, wide.epsilon_high) == (float("inf"), float("inf"))


@pytest.mark.parametrize(
    ("objective", "words"),
    [
        ("clip_higher", "`ppo` .its clip never acts."),
        ("adapo", "`adapo` .its clip never acts."),
        ("kl_cov", "`kl_cov` .its penalty is flat."),
    ],
)
def test_what_cannot_act_is_warned_of(tmp_path, objective, words):
    with pytest.warns(UserWarning, match=f"every ratio is exactly 1 and {words} does nothing"):
        entropy_trainer(tmp_path, objective=objective, num_iterations=1)


@pytest.mark.parametrize("objective", ["grpo", "repo_r", "opefo", "clip_free", "steer"])
def test_what_can_act_is_not(tmp_path, objective):
    entropy_trainer(tmp_path, objective=objective, num_iterations=1)


def test_arguments_of_the_trainer(tmp_path):
    from trl import GRPOConfig

    from entrostat.trainers import trl as host

    refused(lambda: host.EntropyGRPOTrainer(
            model_of(), reward_some,
            GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none"),
            dump_rollouts=str(tmp_path), dump_every=0,
        ), "dump_every", "got 0")  # fmt: skip
    refused(
        lambda: host.EntropyGRPOTrainer(None, rewards=reward_some), "'rewards'", error=TypeError
    )
    refused(lambda: host.Trainer, "'Trainer'", error=AttributeError)


# ---------------------------------------------------------------------------- canaries


def _source(name: str) -> str:
    from trl import GRPOTrainer

    return inspect.getsource(inspect.unwrap(getattr(GRPOTrainer, name)))


def _names(function) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


CANARIES = {
    "_compute_loss": (
        ["self", "model", "inputs"],
        {
            "self._get_per_token_logps_and_entropies(": "the loss no longer asks this method for "
            "log-probs: the objective has none",
            'completion_mask * inputs["tool_mask"]': "other tokens are trained on",
            "loss = loss / normalizer": "the trainer may divide by the accumulation steps itself",
            "loss + self.router_aux_loss_coef * aux_loss / normalizer": "the auxiliary loss",
            'per_token_loss * inputs["importance_sampling_ratio"]': "the correction of the "
            "sampler's log-probs",
        },
    ),
    "_get_per_token_logps_and_entropies": (
        ["self", "model", "input_ids", "attention_mask", "logits_to_keep", "batch_size",
         "compute_entropy", "compute_aux_loss", "pixel_values", "image_grid_thw", "num_images",
         "pixel_attention_mask", "spatial_shapes", "num_tiles", "image_sizes", "token_type_ids",
         "mm_token_type_ids", "image_position_ids"],
        {"outputs.log_probs": "the fused head's output", "return logps, entropies, aux_loss": "it"},
    ),
    "_calculate_rewards": (
        ["self", "inputs", "prompts", "completions", "completion_ids_list"],
        {"gather(rewards_per_func)": "the rewards are no longer those of all processes"},
    ),
    "_generate_and_score_completions": (
        ["self", "inputs"],
        {
            "self._calculate_rewards(": "the raw rewards cannot be kept",
            'output["old_per_token_logps"] = old_per_token_logps': "the old log-probs' name",
            'output["ref_per_token_logps"] = ref_per_token_logps': "the reference's name",
            'output["sampling_per_token_logps"] = sampling_per_token_logps': "the sampler's name",
            "torch.isnan(rewards_per_func).all(dim=1)": "what an unscorable rollout is",
            "rewards.view(-1, num_generations)": "groups are no longer consecutive rows",
        },
    ),
    "_prepare_inputs": (
        ["self", "generation_batch"],
        {
            "self._buffered_inputs[self._step % self.args.steps_per_generation]": "the "
            "micro-batches of an optimizer step cannot be found",
            "shuffle_sequence_dict(generation_batch)": "our tensors may not be shuffled along",
            "split_tensor_dict(generation_batch, self.args.steps_per_generation)": "nor split",
        },
    ),
    "training_step": (None, {"self._step += 1": "the count of micro-batches"}),
    "log": (None, {"self._metrics[mode].items()": "our figures are not in its log"}),
}  # fmt: skip


@pytest.mark.parametrize("name", CANARIES)
def test_canary(name):
    from trl import GRPOTrainer

    parameters, lines = CANARIES[name]
    assert hasattr(GRPOTrainer, name), f"TRL has no GRPOTrainer.{name} any more: the seam is gone"
    if parameters is not None:
        function = getattr(GRPOTrainer, name)
        assert _names(function) == parameters, f"TRL's {name} takes other arguments"
    source = " ".join(_source(name).split())
    for line, broken in lines.items():
        assert " ".join(line.split()) in source, f"TRL's {name} lacks {line!r}: {broken}"


def test_canary_of_what_the_trainer_holds(tmp_path):
    trainer = entropy_trainer(tmp_path, objective="grpo")
    for name in (
        "_step", "_buffered_inputs", "_metrics", "_tokenizer", "eos_token_ids", "reward_weights",
        "num_generations", "num_iterations", "ref_model", "reward_func_names", "accelerator",
        "loss_type", "router_aux_loss_coef",
    ):  # fmt: skip
        assert hasattr(trainer, name), f"TRL's trainer has no {name}: see trainers/trl/trainer.py"
    assert trainer.loss_is_scaled_for_ga is True, "the Trainer would divide the loss once more"
    from trl.models.utils import disable_gradient_checkpointing
    from trl.trainer.utils import shuffle_sequence_dict, split_tensor_dict

    assert _names(disable_gradient_checkpointing) == ["model", "gradient_checkpointing_kwargs"]
    torch.manual_seed(0)
    rows = {"a": torch.arange(6), "entrostat_x": torch.arange(12).view(6, 2), "n": torch.tensor(3)}
    parts = split_tensor_dict(shuffle_sequence_dict(rows), 3)
    assert [len(part["entrostat_x"]) for part in parts] == [2, 2, 2]
    assert torch.equal(
        torch.cat([p["entrostat_x"] for p in parts])[:, 0] // 2, torch.cat([p["a"] for p in parts])
    )


def test_canary_of_the_version():
    from importlib import metadata

    constraints = (ROOT / "constraints.txt").read_text()
    assert f"trl=={metadata.version('trl')}\n" in constraints
    assert metadata.version("trl") == "1.16.0", "run all of this file, then docs/hosts/trl.md"


if __name__ == "__main__" and sys.argv[1:2] == ["ranks"]:
    import warnings

    from trl.trainer import grpo_trainer  # noqa: F401 - once, for both

    import entrostat.trainers.trl.trainer

    warnings.simplefilter("ignore")
    fork_ranks(2, rank_main, Path(sys.argv[2]))
if __name__ == "__main__" and sys.argv[1:2] == ["table"]:
    import tempfile

    for each in hosted():
        with tempfile.TemporaryDirectory() as place:
            f = parity(Path(place), each, parameters=PARAMETERS.get(each), fresh=each in ON_POLICY)
            print(f"| `{each}` | {f.loss:.1e} | {f.gradient:.1e} |", flush=True)
