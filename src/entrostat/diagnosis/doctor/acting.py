"""Checks that configured methods have an effect: ratio, selection, gates, penalties, targets.

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from ...control import ControlState, Multiplier, Thermostat, parse_target
from ...core.batch import TokenBatch
from ...core.objective import Objective
from ...core.probe import probe
from ...logs.limits import NEAR
from ...method import Method
from ...method.controlled import Controlled
from ...method.regularizers import AdaptiveEntropy
from ...method.thermostat import HeldEntropy
from ...models.policy import vocabulary
from ..checks import Finding, ok, skipped, wrong
from .cut import cut_culprit, first
from .subject import NO_SIGNAL, Subject

PIECES = {"fp32": 1e-3, "bf16": 0.1, "fp16": 0.1}  # relative, of a gradient: float32 leaves 1e-6
GATE = 0.5  # share of the first entropy: GRPO ends at .42 of it after the demo's 150 iterations
TRIES = 64  # draws of a random selection: Clip-Cov's share of 2e-4 selects no token in most draws
SLOW = 10.0  # times the run's iterations: one iteration's change gives only the order of magnitude
STILL = 1e-5  # of the entropy: rounding error of the difference between the two ends
HOLDS = 2e-3  # of the entropy, per iteration: a few rollouts cannot show a smaller drift
_TOUCHED = 1e-6  # of the largest token gradient: smaller differences are rounding


def ratio(subject: Subject) -> Finding:
    """Check that an iteration's updates move the ratio away from 1."""
    if probe(subject.objective).ratio == "none":
        return skipped(f"`{subject.objective.names[0]}` uses no ratio")
    if subject.config.updates == 1:
        return skipped("one update per rollout batch, and no clip that would need a ratio")
    moved = subject.moved
    if moved is None:
        return skipped(NO_SIGNAL)
    mask = subject.batch.mask
    r = (moved.stats.logp - subject.batch.old_logp)[mask].exp()
    far = float((r - 1).abs().max())
    lr = subject.config.optim.lr
    updates = int(moved.figures["optim/updates"])
    if updates < 2:
        return wrong(
            f"{subject.trained} rollouts with a signal are one minibatch: every ratio is 1",
            "lower optim.minibatches' size: more prompts an iteration, or more epochs",
        )
    if far == 0:
        return wrong(
            f"after {updates} updates at learning rate {lr:g} the ratio is exactly 1 at each of "
            f"{len(r)} tokens: the updates change nothing, and nothing that acts by the ratio acts",
            "raise optim.lr, and see that the parameters that matter are trained",
        )
    clipped = moved.figures.get("clip/high", 0.0) + moved.figures.get("clip/low", 0.0)
    return ok(
        f"after {updates} updates |ratio - 1| is {float((r - 1).abs().mean()):.2g} on average, "
        f"{far:.2g} at most; {clipped:.2%} of tokens clipped"
    )


def selection(subject: Subject) -> Finding:
    """Check that decisions and gradient do not depend on how the minibatch is split."""
    moved = subject.moved
    if moved is None:
        return skipped(NO_SIGNAL)
    old, new = subject.whole, moved.stats
    name = cut_culprit(subject.objective, old.replace(logp=new.logp, entropy=new.entropy))
    if name is not None:
        return wrong(
            f"`{name}` decides otherwise where two ranks hold half of the {len(old)} rollouts each",
            "ask batch.whole for sums, means and the largest, and draw by its pick: a method sees "
            "one part of the minibatch (CONTRIBUTING.md)",
        )
    large, small, gap = moved.pieces
    text = f"the gradient in micro-batches of {small} is {gap:.1g} off that of {large}"
    if gap > PIECES.get(subject.config.precision, PIECES["fp32"]):
        return wrong(
            text,
            "something sees the micro-batch: a selection of its own, a random choice without the "
            "run's generator, or a layer that mixes sequences (batch norm, full experts)",
        )
    return ok(f"the same decisions on 1 rank and on 2; {text}")


def gate(subject: Subject) -> Finding:
    """Check for entropy gates whose threshold is far below the policy's entropy."""
    objective = subject.objective
    H = {"exact": subject.figures["entropy/exact"], "nll": subject.figures["entropy/nll"]}
    gated = [
        (name, state, H[getattr(method, "signal", "exact")])
        for name, method, state in zip(
            objective.names, objective.methods, objective.states, strict=True
        )
        if isinstance(state, ControlState) and not method.init().applies  # closed at first
    ]  # fmt: skip
    if not gated:
        return skipped("no method waits for an entropy")
    for name, state, entropy in gated:
        if state.target is not None and state.target < GATE * entropy:
            return wrong(
                f"`{name}` acts while entropy is at most {state.target:.3g}; it is {entropy:.3g}, "
                f"{entropy / state.target:.1f} times that, and would have to fall by "
                f"{1 - state.target / entropy:.0%} first",
                f"a target near {entropy:.2g}, the policy's own (PAR 3.2 has both)",
            )
    name, state, entropy = gated[0]
    where = "open" if state.applies else "closed now"
    return ok(f"`{name}` acts at entropy up to {state.target:.3g}; it is {entropy:.3g}: {where}")


def penalties(subject: Subject) -> Finding:
    """Check for interventions that change no token's gradient, whatever their state."""
    objective = subject.objective
    if len(objective.methods) == 1:
        return skipped(f"nothing stands beside `{objective.names[0]}`")
    if not subject.trained:
        return skipped(NO_SIGNAL)
    batches, moved, texts = [subject.whole], subject.moved, list[str]()
    if moved is not None:  # the updated policy, at ratio 1 and away from it
        new = {"logp": moved.stats.logp, "entropy": moved.stats.entropy}
        old = {f"old_{name}": value for name, value in new.items()}
        batches.append(subject.whole.replace(**new, **old))
        batches += [subject.whole.replace(**new)] * (subject.config.updates > 1)
    for k in range(1, len(objective.methods)):
        name, method = objective.names[k], objective.methods[k]
        touched = _touched(objective, k, batches)
        texts.append(f"`{name}` changes the gradient of {touched} of {subject.tokens} tokens")
        if touched:
            continue
        if method.idle_on_policy and subject.config.updates > 1:
            texts[-1] += f" here ({method.idle_on_policy} while ratios are near 1)"
            continue
        listed = [f"{each} {getattr(method, each)}" for each in list(method.parameters())[:4]]
        return wrong(
            texts[-1]
            + f", before and after an iteration's updates, in {TRIES} draws where it draws",
            f"look at its parameters ({', '.join(listed)}), or leave it out",
        )
    return ok("; ".join(texts))


def _touched(objective: Objective, k: int, batches: list[TokenBatch]) -> int:
    """Number of tokens whose gradient method k changes, in the first trial that changes any."""
    method, state = objective.methods[k], objective.states[k]
    with_it, without = first(objective, k + 1), first(objective, k)
    states = [state]
    if isinstance(state, ControlState):
        values = ends_of(method) or (state.value,)
        states += [replace(state, value=value, applies=True) for value in values]
    for batch, each in product(batches, states):
        with_it.states[k] = copy.deepcopy(each)
        theirs, also_random = _gradient(without, batch, 0)
        for draw in range(TRIES):
            if draw and also_random:
                theirs, _ = _gradient(without, batch, draw)
            mine, is_random = _gradient(with_it, batch, draw)
            size = max(float(theirs.abs().max()), float(mine.abs().max()))
            if touched := int(((mine - theirs).abs().amax(0) > _TOUCHED * size).sum()):
                return touched
            if not (is_random or also_random):
                break
    return 0


def _gradient(objective: Objective, batch: TokenBatch, draw: int) -> tuple[Tensor, bool]:
    """Gradient [2, B, T] of the loss by log-prob and entropy; whether it used random numbers."""
    chance = torch.Generator(batch.mask.device).manual_seed(draw)
    before = chance.get_state()
    prepared = objective.rollouts(batch)
    lp = prepared.logp.detach().clone().requires_grad_()
    H = torch.zeros_like(lp) if prepared.entropy is None else prepared.entropy.detach().clone()
    H.requires_grad_()
    out = objective.loss(prepared.replace(logp=lp, entropy=H), generator=chance)
    grads = torch.autograd.grad(out.loss, (lp, H), materialize_grads=True)
    return torch.stack(grads), not torch.equal(before, chance.get_state())


def ends_of(method: Method) -> tuple[float, float] | None:
    """The coefficient at both ends of the controller's range; None without a controller."""
    law: Any = method.law() if isinstance(method, Controlled) else None
    if isinstance(method, AdaptiveEntropy):
        return method.coef_min, method.coef_max
    if isinstance(law, Multiplier):  # a multiplier is unbounded; these values are large
        return -1.0, 1.0
    if isinstance(law, Thermostat):
        return law.range.value(0.0), law.range.value(1.0)
    if law is None:
        return None
    return (-law.high if getattr(law, "bidirectional", False) else law.low), law.high


def authority(subject: Subject) -> Finding:
    """Check that the ends of an actuator's range move entropy in the directions a target needs."""
    first, texts, objective = subject.figures["entropy/exact"], [], subject.objective
    most = math.log(vocabulary(subject.policy.model))
    for k, (method, state) in enumerate(zip(objective.methods, objective.states, strict=True)):
        name, law = objective.names[k], method.law() if isinstance(method, Controlled) else None
        if isinstance(method, HeldEntropy):
            texts.append(f"`{name}` solves for a bonus of either sign, of any size")
            continue
        if law is None:  # an entropy gate has its own check
            continue
        target = parse_target(getattr(law, "target", None))
        if state.target is None and target.constant:
            continue
        levels = [level.of(first) for level in target.levels]
        low, high = min(levels), max(levels)
        if high > most:
            return wrong(
                f"`{name}`: a target of {high:.3g} nats, and a vocabulary of "
                f"{round(math.exp(most))} allows {most:.3g} at most",
                "give a target in nats per token, or as a share of the first entropy (0.8x)",
            )
        if not subject.trained:
            return skipped(NO_SIGNAL)
        result = _tried(subject, k, low, high)
        if result.wrong:
            return result
        texts.append(result.evidence)
    return ok("; ".join(texts)) if texts else skipped("no controller holds an entropy")


def _tried(subject: Subject, k: int, low: float, high: float) -> Finding:
    """Try whether method k can hold entropies from `low` to `high`, in nats."""
    first, ends = subject.figures["entropy/exact"], ends_of(subject.objective.methods[k])
    assert ends is not None
    mask, moves = subject.batch.mask, []
    for value in ends:
        held = copy.deepcopy(subject.objective)
        held.states[k] = replace(held.states[k], value=value, applies=True)
        after = subject.after(held)
        moves.append(float(after[mask].double().mean()) - first)
    down, up = sorted(moves)
    knob = f"`{subject.objective.names[k]}` at {ends[0]:.3g} and at {ends[1]:.3g}"
    text = (
        f"{knob} moves entropy by {moves[0]:+.2g} and {moves[1]:+.2g} nats an iteration, from "
        f"{first:.3g}; asked: {low:.3g}" + ("" if low == high else f" to {high:.3g}")
    )
    fix = "another knob (--method.knob of `thermostat`), a wider range, or a nearer target"
    if up - down <= STILL * first:
        return wrong(f"{text}: it does nothing", fix)
    for target in {low, high}:
        gap, still = target - first, HOLDS * first
        if abs(gap) <= NEAR * target and low != high:
            continue  # a schedule moves away from the first entropy again
        if gap > -NEAR * target and up < -still:
            return wrong(f"{text}: it cannot keep entropy from falling", fix)
        if gap < NEAR * target and down > still:
            return wrong(f"{text}: it cannot keep entropy from rising", fix)
        if abs(gap) > NEAR * target:
            step, planned = up if gap > 0 else -down, subject.config.iterations
            if step <= 0 or abs(gap) / step > SLOW * planned:
                far = "at no number" if step <= 0 else f"some {abs(gap) / step:.0f}"
                return wrong(f"{text}: {far} of iterations away, and the run has {planned}", fix)
    return ok(text)
