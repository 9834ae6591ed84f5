"""An iteration's updates: epochs of minibatches, each cut into micro-batches that add up.

Shapes: R rollouts that are trained on, n of them in a minibatch; T completion tokens at most.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ...analysis.analysis import Analysis, watched
from ...config import TrainConfig
from ...core.batch import TokenBatch
from ...core.objective import Plan
from ...core.rollouts import MetricAccumulator
from ...core.stats import TokenStats
from ...data.seeds import generator, shuffled
from ...dynamics import online
from ...errors import RunStopped
from ...models.rollout import Sequences
from ...models.rounding import exact_figures, rounds, with_rounded_ratio
from ...runs.schedule import learning_rate_at
from ..hold import Gradient, Hold, Moved, decide
from .experience import Selection
from .state import State

_KEPT = (
    "The step was not made; the last checkpoint is good. Look at the rollouts, lower optim.lr or "
    "use --precision fp32, then start again or resume"
)


def update_policy(
    state: State, selection: Selection, analysis: Analysis | None, iteration: int
) -> dict[str, float]:
    """Make all updates of an iteration; return their metrics, over all their tokens."""
    config, before = state.config, state.updates
    place = (iteration - 1) * config.updates  # index of an update among the planned ones
    # on the CPU, so that the same tokens are selected on any device
    select = generator(config.seed, iteration, "select", torch.device("cpu"))
    tally = MetricAccumulator()
    parts = _parts(config, len(selection))
    for place, rows in _minibatches(state, iteration, selection, parts):
        lr = learning_rate_at(config, place, state.updates)
        state.optimizer.param_groups[0]["lr"] = lr
        made = state.updates - before
        # on analysed iterations, measures the minibatch before and after
        with watched(analysis, rows, lr):
            figures = update(
                state, selection.batch[rows], selection.sequences[rows], select,
                made=made, unseen=0 < made < parts,
                where=f"iteration {iteration}, update {made + 1}",
            )  # fmt: skip
        state.updates += not figures.get("optim/skipped")
        tally.add(figures)
    return tally.figures() | {
        "optim/updates": state.updates - before,
        "optim/lr": learning_rate_at(config, place, max(0, state.updates - 1)),
    }


def _parts(config: TrainConfig, count: int) -> int:
    """Number of minibatches in a pass over `count` rollouts."""
    parts = config.optim.minibatches
    if config.optim.keep_size:
        size = math.ceil(config.sampling.prompts * config.sampling.rollouts / parts)
        parts = min(parts, math.ceil(count / size))
    return min(parts, count)


def _minibatches(
    state: State, iteration: int, selection: Selection, parts: int
) -> Iterator[tuple[int, Tensor]]:
    """Yield the index of each planned update, and the rows [n] of its minibatch."""
    optim, group = state.config.optim, selection.batch.need("group")
    shuffle = generator(state.config.seed, iteration, "shuffle", torch.device("cpu"))
    for epoch in range(optim.epochs if len(group) else 0):
        order = shuffled(group, bool(optim.whole_groups), shuffle).to(state.policy.device)
        first = (iteration - 1) * state.config.updates + epoch * optim.minibatches
        yield from enumerate(order.tensor_split(parts), first)


def update(
    state: State,
    batch: TokenBatch,
    sequences: Sequences,
    generator: torch.Generator,
    *,
    made: int,
    where: str,
    unseen: bool = False,
) -> dict[str, float]:
    """Make one optimizer step on a minibatch; micro-batches do not change the gradient.

    `batch` [n, T] is prepared; its `logp` and `entropy` are the old policy's. `made` counts the
    iteration's updates so far. At 0 the weights are still the old policy's, so the plan needs no
    pass of its own and every ratio is exactly 1. `unseen`: updates were made, but none on this
    minibatch; only then is its entropy change an unbiased measurement.

    `where` names the update in an error message. The caller counts updates.
    """
    optimizer, scaler, clip = state.optimizer, state.scaler, state.config.optim.clip
    parameters = optimizer.param_groups[0]["params"]
    hold = Hold.of(state.objective)
    entropy = None
    if hold is not None:
        if hold.exact or hold.due(optimizer, made, state.config.updates):
            entropy = Gradient(parameters, scaler.get_scale())
        else:
            hold.decide(optimizer, state.config.updates)
    pieces = torch.arange(len(batch), device=batch.mask.device).split(
        state.config.optim.micro_batch
    )
    plan = None  # with one micro-batch, its own pass supplies the methods' inputs
    if len(pieces) > 1:
        measure = partial(_measured, state, sequences, pieces)
        plan = state.objective.step(batch, generator, fresh=not made, measure=measure)
    optimizer.zero_grad(set_to_none=True)
    figures: dict[str, Tensor] = {}
    now: list[Tensor] = []
    for rows in pieces:
        stats = state.policy.token_stats(sequences[rows], state.config.sampling.temperature)
        if plan is None:
            current = batch.replace(logp=stats.logp, entropy=stats.entropy)
            plan = state.objective.step(current, generator, fresh=not made)
        part = _backward(state, plan[rows], stats, entropy, batch.mask.sum())
        now.append(stats.entropy.detach())
        for key, value in part.items():
            figures[key] = figures[key] + value if key in figures else value
    scaler.unscale_(optimizer)
    if hold is not None and entropy is not None:
        decide(hold, optimizer, entropy, state.config.updates, clip)
    norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip))
    numbers = {key: float(value) for key, value in figures.items()}
    _check_step(state, online.figures(numbers)["loss/total"], norm, where)
    if hold is not None:
        moved = Moved.of(torch.cat(now), batch) if unseen else None
        hold.stepped(norm, clip, optimizer, state.config.updates, moved)
    scaler.step(optimizer)
    scaler.update()
    if scaler.is_enabled():
        numbers["optim/skipped"] = float(not math.isfinite(norm))
        numbers["optim/loss_scale"] = scaler.get_scale()
    return numbers | ({"grad/norm": norm} if math.isfinite(norm) else {})


def _measured(
    state: State, sequences: Sequences, pieces: tuple[Tensor, ...]
) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of a minibatch under the current policy, [n, T] each."""
    temperature = state.config.sampling.temperature
    with torch.no_grad():
        stats = [state.policy.token_stats(sequences[rows], temperature) for rows in pieces]
    return torch.cat([s.logp for s in stats]), torch.cat([s.entropy for s in stats])


def _backward(
    state: State, plan: Plan, stats: TokenStats, entropy: Gradient | None, tokens: Tensor
) -> dict[str, Tensor]:
    """Add a micro-batch's gradient; return sums that add up over micro-batches.

    If `entropy` is given, the gradient of the mean entropy is added to it; the minibatch has
    `tokens` [] tokens.
    """
    exact, numerics = plan.at(stats.logp, stats.entropy), state.config.numerics
    # methods use exact values; only the ratio is rounded
    out = plan.loss(with_rounded_ratio(exact, numerics) if rounds(numerics) else exact)
    if entropy is not None:
        entropy.add(stats.entropy, exact.mask, tokens)
    state.scaler.scale(out.loss).backward()
    if rounds(numerics):
        out.metrics |= exact_figures(exact, out)
    return online.of_update(out.batch, out)


def _check_step(state: State, loss: float, norm: float, where: str) -> None:
    if not math.isfinite(loss):
        raise RunStopped(f"{where}: the loss is {loss}. {_KEPT}")
    # under fp16 a step that overflows is skipped and the scale halved, to find a usable scale
    if not math.isfinite(norm) and (
        not state.scaler.is_enabled() or state.scaler.get_scale() < 1e-3
    ):
        found = {name: p.grad for name, p in state.policy.trained().items()}
        bad = [n for n, g in found.items() if g is not None and not torch.isfinite(g).all()]
        raise RunStopped(f"{where}: the gradient is not finite in {', '.join(bad[:3])}. {_KEPT}")
