"""Whether a controller's coefficient can do what it is asked: tried at both ends of its range."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any

from ...control import (
    Additive,
    ControlState,
    Multiplicative,
    Multiplier,
    ProportionalIntegral,
    Thermostat,
    parse_target,
)
from ...core.objective import Objective
from ...logs.limits import NEAR
from ...method import Method
from ...method.controlled import Controlled
from ...method.regularizers import AdaptiveEntropy
from ...method.thermostat import HeldEntropy
from ...models.policy import vocabulary
from .finding import Finding, ok, skipped, wrong
from .subject import NO_SIGNAL, Subject

SLOW = 10.0  # times the run's iterations: one iteration's change says no more than the order
STILL = 1e-5  # of the entropy: what rounding leaves of the difference of two ends
HOLDS = 2e-3  # of the entropy, an iteration: less is no drift that a few rollouts can show


def ends_of(method: Method) -> tuple[float, float] | None:
    """The coefficient at both ends of its controller's range; None without a controller."""
    law: Any = method.law() if isinstance(method, Controlled | HeldEntropy) else None
    if isinstance(method, AdaptiveEntropy):
        return method.coef_min, method.coef_max
    if isinstance(law, Multiplier):  # it has none; these are large
        return -1.0, 1.0
    if isinstance(law, Thermostat):
        return law.range.value(0.0), law.range.value(1.0)
    if isinstance(law, Multiplicative):
        return (-law.high if law.bidirectional else law.low), law.high
    if isinstance(law, Additive | ProportionalIntegral):
        return law.low, law.high
    return None


def asked_of(method: Method, state: ControlState, first: float) -> tuple[float, float] | None:
    """Lowest and highest entropy asked of a method's controller; None of another signal."""
    law = method.law() if isinstance(method, Controlled | HeldEntropy) else None
    spec = method.target if isinstance(method, AdaptiveEntropy) else getattr(law, "target", None)
    target = parse_target(spec)
    if target.signal != "entropy" or (state.target is None and target.constant):
        return None
    levels = [level.of(first) for level in target.levels]
    return min(levels), max(levels)


def authority(subject: Subject) -> Finding:
    """Whether the ends of a knob's range move entropy the ways that its target asks for."""
    first, texts = subject.figures["entropy/exact"], []
    objective = subject.objective
    most = math.log(vocabulary(subject.policy.model))
    for k, (method, state) in enumerate(zip(objective.methods, objective.states, strict=True)):
        if method.controls() is None or isinstance(method, AdaptiveEntropy):
            continue  # a gate on entropy is a check of its own
        if isinstance(method, HeldEntropy):
            texts.append(f"`{objective.names[k]}` solves for a bonus of either sign, of any size")
            continue
        ends, asked = ends_of(method), asked_of(method, state, first)
        if ends is None or asked is None:
            continue
        name = objective.names[k]
        if asked[1] > most:
            return wrong(
                f"`{name}`: a target of {asked[1]:.3g} nats, and a vocabulary of "
                f"{round(math.exp(most))} allows {most:.3g} at most",
                "give a target in nats per token, or as a share of the first entropy (0.8x)",
            )
        if not subject.trained:
            return skipped(NO_SIGNAL)
        result = _tried(subject, k, name, ends, asked, first)
        if result.level == "wrong":
            return result
        texts.append(result.evidence)
    return ok("; ".join(texts)) if texts else skipped("no controller holds an entropy")


def _tried(
    subject: Subject, k: int, name: str, ends: tuple[float, float], asked: tuple[float, float],
    first: float,
) -> Finding:  # fmt: skip
    low, high = asked
    mask, moves = subject.batch.mask, []
    for value in ends:
        after = subject.after(_with(subject.objective, k, value))
        moves.append(float(after[mask].double().mean()) - first)
    down, up = sorted(moves)
    knob = f"`{name}` at {ends[0]:.3g} and at {ends[1]:.3g}"
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
            continue  # a schedule leaves the first entropy again
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


def _with(objective: Objective, k: int, value: float) -> Objective:
    found = copy.deepcopy(objective)
    found.states[k] = replace(found.states[k], value=value, applies=True)
    return found
