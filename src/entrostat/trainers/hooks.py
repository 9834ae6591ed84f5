"""Use an objective as the loss of tinker, slime and prime-rl, through their custom-loss hooks.

    tinker_loss(objective)         TrainingClient.forward_backward_custom(data, loss)
    slime_loss(objective)          --loss-type custom_loss --custom-loss-function-path MODULE.NAME
    slime_advantages(objective)    --custom-advantage-function-path MODULE.NAME
    prime_rl_loss                  [trainer.loss] type = "custom", import_path = "...prime_rl_loss"

Each library is imported only when its hook runs. The hooks receive different inputs, which decides
which methods can run (table in docs/hosts/hooks.md). An unsupported method raises when the hook is
made. Shapes: B rollouts, T tokens at most, n tokens of one rollout.
"""

from __future__ import annotations

import functools
import json
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..core.batch import Terms, TokenBatch
from ..core.objective import Objective, make_objective
from ..method import Method

Loss = Callable[[list[Any], list[Tensor]], tuple[Tensor, dict[str, float]]]


def _check(objective: Objective, who: str, fields: Sequence[str]) -> None:
    """Raise ValueError if a method reads a field that the hook does not receive."""
    for name, method in zip(objective.names, objective.methods, strict=True):
        for need in sorted(set(method.required()) - {"rewards", "group", *fields}):
            hint = " (repo_r and repo_d take center='batch')" if need == "old_entropy" else ""
            raise ValueError(
                f"{who}: `{name}` needs `{need}`, which does not arrive there{hint}; use a method "
                "without it, or the trainers of TRL or veRL"
            )


def _rows(values: Sequence[Tensor]) -> Tensor:
    """Pad rows of [n] to [B, T]."""
    return pad_sequence(list(values), batch_first=True)


def _plan(objective: Objective, batch: TokenBatch, generator: torch.Generator) -> Terms:
    """Plan for a trainer that takes the mean itself: every token has weight 1."""
    ones = batch.mask.to(batch.logp.dtype)
    return objective.plan(batch, generator, scale=ones, mean=ones)


def tinker_loss(objective: Objective, seed: int = 0) -> Loss:
    """The loss function of tinker's `forward_backward_custom`.

    The client gets the whole batch, so plan and loss are exact. Each datum's `loss_fn_inputs` has
    tinker-cookbook's `target_tokens` [n], the sampler's `logprobs` [n] and `mask` [n]. It also has
    `advantages` [n], or else `reward` [1] and `group` [1], from which the objective estimates the
    advantages.

    Args:
        objective: `make_objective(...)`. You update its controllers: call `objective.observe`
            with `sampled_entropy(data)`.
        seed: for random selections.

    Returns:
        A function (data, logprobs) -> (loss, metrics).

    Raises:
        ValueError: a method needs entropies or another model.
    """
    _check(objective, "tinker_loss", ())
    generator = torch.Generator().manual_seed(seed)

    def loss(data: list[Any], logprobs: list[Tensor]) -> tuple[Tensor, dict[str, float]]:
        given = [datum.loss_fn_inputs for datum in data]

        def stacked(name: str) -> Tensor | None:
            rows = [row[name].to_torch() for row in given if name in row]
            return _rows([row.reshape(-1).to(logprobs[0].dtype) for row in rows]) if rows else None

        old, mask, A = stacked("logprobs"), stacked("mask"), stacked("advantages")
        if old is None or mask is None:
            raise ValueError(
                "tinker_loss: loss_fn_inputs must have logprobs and mask, as tinker-cookbook "
                f"makes them; got {', '.join(given[0])}"
            )
        reward, group = stacked("reward"), stacked("group")
        if A is None and (reward is None or group is None):
            raise ValueError("tinker_loss: give each datum advantages, or reward and group")
        batch = TokenBatch(
            _rows(logprobs), old, mask, A,
            rewards=None if reward is None else reward[:, 0],
            group=None if group is None else group[:, 0].long(),
        )  # fmt: skip
        if A is None:
            batch = objective.compute_advantages(batch)
        out = objective.loss(objective.prepare(batch), generator=generator)
        # tinker wants a gradient of every tensor, even of a rollout without trained tokens
        total = out.loss + sum(0 * row.sum() for row in logprobs)
        return total, {key: float(value) for key, value in out.metrics.items()}

    return loss


def sampled_entropy(data: list[Any]) -> float:
    """Mean of -log p of the sampled tokens, nats: an unbiased estimate of their mean entropy.

    Args:
        data: tinker's batch, with `logprobs` and `mask`.
    """
    total, count = 0.0, 0.0
    for datum in data:
        mask = datum.loss_fn_inputs["mask"].to_torch().double()
        total -= float((datum.loss_fn_inputs["logprobs"].to_torch().double() * mask).sum())
        count += float(mask.sum())
    return total / max(1.0, count)


def slime_advantages(objective: Objective) -> Callable[[Namespace, dict[str, Any]], None]:
    """The advantage function of slime: slime's normalized rewards, edited by the methods.

    It is called once per rank and rollout batch. It fills `advantages` and `returns` of
    `rollout_data`, one tensor [n] per rollout.
    """
    editing = [each for each in objective.chain() if type(each[1]).prepare is not Method.prepare]
    edits = Objective(
        tuple(m for _, m, _ in editing), tuple(n for n, _, _ in editing), objective.advantage
    )
    edits.states = [state for _, _, state in editing]
    _check(edits, "slime_advantages", ())

    def advantages(args: Namespace, rollout_data: dict[str, Any]) -> None:
        name = "rollout_log_probs" if args.use_rollout_logprobs else "log_probs"
        old = rollout_data[name]
        A = torch.tensor(rollout_data["rewards"], dtype=torch.float32, device=old[0].device)
        masks = [mask.to(old[0].device) for mask in rollout_data["loss_masks"]]
        batch = TokenBatch(_rows(old), _rows(old), _rows(masks), A, rewards=A)
        ready = edits.prepare(batch).need("advantages")
        rows = [row[: len(lp)] for row, lp in zip(ready, old, strict=True)]
        rollout_data["advantages"] = rollout_data["returns"] = rows

    return advantages


def slime_loss(objective: Objective, seed: int = 0) -> Callable[..., Any]:
    """The loss function of slime's `custom_loss`.

    The hook receives logits, so entropies are exact and have a gradient. Methods select tokens
    within a micro-batch, not within the whole minibatch. The mean is slime's `sum_of_sample_mean`.

    Returns:
        A function (args, batch, logits, sum_of_sample_mean) -> (loss, metrics).

    Raises:
        ValueError: a method needs a field that the hook does not receive.
    """
    _check(objective, "slime_loss", ("entropy", "ref_logp"))
    generator = torch.Generator().manual_seed(seed)

    def loss(
        args: Namespace, batch: dict[str, Any], logits: Tensor, sum_of_sample_mean: Any
    ) -> tuple[Tensor, dict[str, Tensor]]:
        slime = import_module("slime.backends.megatron_utils.loss")

        if getattr(args, "context_parallel_size", 1) > 1:
            raise ValueError("slime_loss: context_parallel_size must be 1: rollouts must be whole")
        # slime computes the entropy's gradient if this is not 0, and does not use it elsewhere here
        own = Namespace(**vars(args) | {"entropy_coef": 1.0})
        _, found = slime.get_log_probs_and_entropy(
            logits, args=own, unconcat_tokens=batch["unconcat_tokens"],
            total_lengths=batch["total_lengths"], response_lengths=batch["response_lengths"],
            with_entropy=True,
        )  # fmt: skip
        lp, H = found["log_probs"], found["entropy"]
        old = batch["rollout_log_probs"] if args.use_rollout_logprobs else batch.get("log_probs")
        old = old or [x.detach() for x in lp]
        ref, masks = batch.get("ref_log_probs"), batch["loss_masks"]
        tokens = TokenBatch(
            _rows(lp), _rows(old), _rows([m.to(lp[0].device) for m in masks]),
            _rows(batch["advantages"]), entropy=_rows(H),
            ref_logp=None if not ref else _rows(ref),
        )  # fmt: skip
        with torch.no_grad():
            terms = _plan(objective, tokens, generator)
        out = objective.loss(tokens, terms)

        def mean(values: Tensor) -> Tensor:
            rows = [row[: len(x)] for row, x in zip(values, lp, strict=True)]
            return sum_of_sample_mean(torch.cat(rows))

        total = mean(out.per_token)
        log = {"loss": total, "entropy_loss": mean(tokens.entropy)}  # type: ignore[bad-argument-type]
        log["ppo_kl"] = mean((tokens.old_logp - tokens.logp).detach())
        return total, {key: value.detach() for key, value in log.items()}

    return loss


@dataclass
class Outputs:
    """prime-rl's return type of a loss: `loss` [] summed over tokens, and `metrics`."""

    loss: Tensor
    metrics: dict[str, Tensor]


def prime_rl_loss(inputs: Any, *, method: Any, **params: Any) -> Outputs:
    """The custom loss of prime-rl for one sequence; prime-rl divides by the tokens of the step.

    Args:
        inputs: prime-rl's `LossInputs`: trainer_logprobs, inference_logprobs, advantages,
            loss_mask [n], ref_logprobs and loss_weights [n] or None.
        method: as for `make_objective`; `method` and `params` are the `kwargs` of [trainer.loss].
        **params: parameters of one named method.

    Raises:
        ValueError: a method needs entropies, or uses more than a rollout's own tokens.
    """
    objective = _local(json.dumps([method, params], sort_keys=True))
    ref, weights = inputs.ref_logprobs, inputs.loss_weights
    batch = TokenBatch(
        inputs.trainer_logprobs[None], inputs.inference_logprobs[None], inputs.loss_mask[None],
        inputs.advantages[None], ref_logp=None if ref is None else ref[None],
    )  # fmt: skip
    batch = objective.prepare(batch)
    terms = _plan(objective, batch, torch.Generator().manual_seed(0))
    out = objective.loss(batch, terms)
    per_token = out.per_token[0] if weights is None else out.per_token[0] * weights
    count = inputs.loss_mask.sum().clamp(min=1)
    names = ("kl/old_new", "ratio/mean", "clip/high", "clip/low")
    figures = {name: out.metrics[name] for name in names if name in out.metrics}
    figures["loss/policy"] = out.metrics["loss/policy"] / count  # a mean, as in prime-rl
    return Outputs(per_token.sum(), figures)


@functools.cache
def _local(spec: str) -> Objective:
    """Return the objective; raise unless it can plan every rollout alone."""
    method, params = json.loads(spec)
    objective = make_objective(method, **params)
    _check(objective, "prime_rl_loss", ("ref_logp",))
    if not per_rollout(objective):
        raise ValueError(
            f"prime_rl_loss: {'+'.join(objective.names)} decides on the tokens of several "
            "rollouts, and there one arrives at a time; use a method that weighs each rollout by "
            "itself (cispo, dppo, ipo, icepop, sapo, gmpo, ppo, ...)"
        )
    return objective


@torch.no_grad()
def per_rollout(objective: Objective) -> bool:
    """Whether an objective plans each rollout from its own tokens; tested on synthetic rollouts."""
    g, B, T = torch.Generator().manual_seed(0), 32, 512  # enough to detect shares of 2e-4
    old, A = -8 * torch.rand(B, T, generator=g).square() - 0.1, torch.randn(B, generator=g)
    now = -(old + 0.3 * torch.randn(B, T, generator=g)).abs()
    batch = TokenBatch(
        now, old, torch.ones(B, T), A, rewards=A, group=torch.arange(B), ref_logp=old - 0.1
    )
    choice = torch.Generator()
    whole = _plan(objective, objective.prepare(batch), choice.manual_seed(0))
    for i in range(B):
        row = batch[i : i + 1]
        alone = _plan(objective, objective.prepare(row), choice.manual_seed(0))
        for name in ("advantage", "weight", "ratio_min", "ratio_max", "frozen", "soft", "abs_kl",
                     "entropy", "ref_kl"):  # fmt: skip
            one, all_of = getattr(alone, name), getattr(whole, name)
            if (one is None) != (all_of is None):
                return False
            if one is not None and not torch.equal(one, all_of[i : i + 1]):
                return False
    return True
