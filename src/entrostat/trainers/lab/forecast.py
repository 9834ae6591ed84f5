"""Predict the entropy change on fresh prompts before the updates (`train --forecast.every N`).

A batch's own influences predict the effect of its updates at its own states (analysis.py). Does a
batch also predict entropy at other states? Fresh prompts are answered before the updates by
rollouts that are not trained on; the entropy change there is the truth. The predictions use only
the batch, the optimizer and derivatives, all known beforehand. docs/metrics.md has the metrics. In
addition:

    crossed        is unbiased for K <grad H_f, -P g>, H_f the mean of fresh prompts, P given
    step_visited   takes the gradient of E sum_t (H_t + lp_t (G_t - H n_t)), G_t the entropy and n_t
                   the tokens after t, less their mean at t over the half
    change_visited weights tokens by the ratio of their prefix under both policies (self-normalised
                   importance sampling)

Shapes: B rollouts of the iteration, R of them trained on, T completion tokens at most. All values
are nats per iteration, float64 sums over float32 statistics.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from ...analysis.influence import (
    Gradient,
    clip_and_preconditioner,
    dot,
    gradients,
    loss_gradient,
)
from ...core.batch import masked_mean
from ...core.stats import TokenStats
from ...data.prompts import fresh
from ...data.seeds import generator
from ...models.policy_evaluator import PolicyEvaluator
from ...models.rollout import Sequences
from .analysis import evaluator_of, first_learning_rate
from .experience import Sampled, Selection, generate_for
from .state import State


class Forecast:
    """Predictions made before an iteration's updates; `finish` adds the measured change.

    The selection must not be empty.
    """

    def __init__(self, state: State, sampled: Sampled, selection: Selection) -> None:
        began = time.perf_counter()
        config, self.meter = state.config, evaluator_of(state)
        examples = fresh(state.task, config, sampled.iteration, config.forecast.prompts)
        self.sequences = generate_for(
            state, examples, sampled.iteration, "forecast", lambda tokens: None,
            rollouts=config.forecast.rollouts,
        ).sequences  # fmt: skip
        self.figures = _foretold(state, self.meter, sampled, selection)  # nats
        self.before = self.meter.measure(self.sequences)
        self.seconds = time.perf_counter() - began

    def finish(self) -> dict[str, float]:
        """Return all values by metric, after the updates."""
        began = time.perf_counter()
        after = self.meter.measure(self.sequences)
        mask = self.sequences.mask
        here = float(masked_mean(self.before.entropy.double(), mask))
        self.figures |= {
            "change": float(masked_mean(after.entropy.double(), mask)) - here,
            "change_visited": visited(self.before.logp, after, mask) - here,
        }
        seconds = self.seconds + time.perf_counter() - began
        return {f"forecast/{k}": v for k, v in self.figures.items()} | {"time/forecast": seconds}


def visited(before: Tensor, after: TokenStats, mask: Tensor) -> float:
    """Mean entropy per token, nats, of a policy on another's rollouts, importance-weighted.

    `before` [B, T] are log-probs under the sampling policy; `after` belongs to the other policy.
    """
    log_ratio = torch.where(mask, (after.logp - before).double(), 0)
    weight = torch.where(mask, (log_ratio.cumsum(-1) - log_ratio).exp(), 0)
    return float((weight * after.entropy.double()).sum() / weight.sum())


def _foretold(
    state: State, meter: PolicyEvaluator, sampled: Sampled, selection: Selection
) -> dict[str, float]:
    """Predict the effect of `K` updates, nats; one prompt has no halves: in_sample only."""
    config, sequences, kept = state.config, sampled.sequences, selection.kept
    chance = generator(config.seed, sampled.iteration, "forecast", state.policy.device)
    terms = state.objective.plan(selection.batch, chance)
    of_logp, of_entropy = (
        x.new_zeros(sequences.mask.shape).index_copy(0, kept, x)
        for x in loss_gradient(state.objective, selection.batch, terms)
    )
    order = sequences.prompt.unique(return_inverse=True)[1]
    halves = [rows for side in (0, 1) if len(rows := (order % 2 == side).nonzero()[:, 0])]
    parts = [_half(meter, sequences[rows], of_logp[rows], of_entropy[rows]) for rows in halves]
    entropy, visits, losses = zip(*parts, strict=True)
    lr = first_learning_rate(state, sampled.iteration)
    clip, P = clip_and_preconditioner(meter, state.optimizer, _sum(losses), config.optim.clip, lr)
    # -P g of each half, and the motion from momentum and weight decay
    pulls = [{name: -clip * P[name] * g for name, g in half.items()} for half in losses]
    tokens = [int(sequences.mask[rows].sum()) for rows in halves]
    share = [n / sum(tokens) for n in tokens]
    K = config.updates
    own = K * sum(share[i] * dot(half, pull) for i, half in enumerate(entropy) for pull in pulls)
    if len(halves) < 2:
        return {"in_sample": own}
    current, drift = _motion(state, P, lr, K)

    def crossed(halves: Sequence[Gradient]) -> float:
        # each half's g is half of the batch's, so the two products together stand for a whole one
        return dot(halves[0], pulls[1]) + dot(halves[1], pulls[0])

    def moving(halves: Sequence[Gradient]) -> float:
        return share[0] * dot(halves[0], drift) + share[1] * dot(halves[1], drift)

    pulled, momentum = crossed(entropy), moving(entropy)
    return {
        "in_sample": own,
        "crossed": K * pulled,
        "momentum": momentum,
        "step": current * pulled + momentum,
        "step_visited": current * crossed(visits) + moving(visits),
    }


def _half(
    meter: PolicyEvaluator, sequences: Sequences, of_logp: Tensor, of_entropy: Tensor
) -> tuple[Gradient, Gradient, Gradient]:
    """Gradients of one half of the prompts, b rollouts; dL/dlp and dL/dH [b, T] are of the batch.

    Returns the gradients of the mean entropy at the half's states, of the mean entropy over the
    states that the policy visits, and of the half's part of the batch's loss.
    """
    N = sequences.mask.sum()
    worth = _worth(meter.measure(sequences).entropy, sequences.mask)

    def values(rows: Tensor, stats: TokenStats) -> list[Tensor]:
        visits = (worth[rows] * stats.logp).sum() / N
        loss = (of_logp[rows] * stats.logp + of_entropy[rows] * stats.entropy).sum()
        return [stats.entropy.sum() / N, visits, loss]

    at_states, by_visits, of_loss = gradients(meter, sequences, values)
    return at_states, _sum([at_states, by_visits]), of_loss


def _worth(entropy: Tensor, mask: Tensor) -> Tensor:
    """Excess entropy after each token, nats [b, T]; 0 at mask 0.

    This is G_t - H n_t minus its mean over the rollouts that have a token t. Subtracting the mean
    keeps the gradient's expectation, up to a part of 1 / b, and removes most of its noise.
    """
    gap = torch.where(mask, entropy.double() - masked_mean(entropy.double(), mask), 0)
    later = gap.flip(-1).cumsum(-1).flip(-1) - gap
    usual = (later * mask).sum(0) / mask.sum(0).clamp(min=1)
    return torch.where(mask, later - usual, 0).to(entropy.dtype)


def _motion(state: State, P: Gradient, lr: float, K: int) -> tuple[float, Gradient]:
    """AdamW's response to K equal gradients g: a factor of -P g, and a change independent of g.

    The k-th step is -P (b^k m + (1 - b^k) g) / (1 - b^(t + k)) - lr wd theta, with m the momentum
    and b its decay after t steps. P of the first step is used for all.
    """
    group = state.optimizer.param_groups[0]
    beta, decay = float(group["betas"][0]), float(group["weight_decay"])
    drift, current = {}, float(K)
    for name, parameter in state.policy.trained().items():
        known = state.optimizer.state.get(parameter, {})
        t, m = float(known.get("step", 0)), known.get("exp_avg")
        bias = [1 - beta ** (t + k) for k in range(1, K + 1)]
        current = sum((1 - beta ** (k + 1)) / bias[k] for k in range(K))
        drift[name] = -K * lr * decay * parameter.detach()
        if m is not None:
            drift[name] -= sum(beta ** (k + 1) / bias[k] for k in range(K)) * P[name] * m
    return current, drift


def _sum(gradients: Sequence[Gradient]) -> Gradient:
    first, *others = gradients
    return {name: sum((g[name] for g in others), x) for name, x in first.items()}
