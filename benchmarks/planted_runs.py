"""Simulated logs of RLVR runs whose truth is known: a bench for whatever diagnoses a run.

    python benchmarks/planted_runs.py --output DIR [--seed 0]

Writes `DIR/run_NNN/` in the formats of TRL, veRL (console and file logger), slime, our own and CSV,
and `DIR/truth.json`: of each run its path, format, verdict, onset, cause, family, ... (`Truth`).
Names of runs say nothing of the truth. Nothing of entrostat is imported: the bench is blind to the
tool, and curves, noise, sizes and times are drawn from ranges that runs of language models have.

Verdicts, of the entropy as logged; no run is within a tenth of a limit:

- `collapse`: it lost at least half of what it began with.
- `explosion`: at least one and a half times as high, or a fifth higher while the score lost a
  quarter.
- `drift`: any other steady movement of at least a fifth that has not stopped.
- `held`: neither, or a logged target (`control/target`) held within a tenth. A fall of less than
  half that then stops for most of the run is held.
- `cannot tell`: too few iterations, no entropy, or nothing but noise.

The onset is the first iteration, in the numbers that the log has, from which the expected entropy
moves; null for `held` and `cannot tell`. The cause is what was planted:

- `reward_saturated`: the score reaches its ceiling of 1 at the onset.
- `zero_signal_groups`: groups with equal rewards become most, the score far from 0 and 1.
- `clip_never`: the ratio moves, nothing is ever clipped, all through the run.
- `clip_always`: .15 to .6 of the tokens are clipped, from the onset or all through.
- `ratio_one`: one update per batch of rollouts: KL and clip fractions are 0 (or rounding).
- `sampler_mismatch`: what the trainer logs of it grows 12 to 50 times.
- `truncation`: .3 to .8 of the responses end at the limit.
- `learning_rate`: it jumps 5 to 30 times, or steps are far too large throughout (KL .1 to .9).
- `entropy_definition`: what is logged is a sum over tokens, or counts padding: it follows the
  length, noise and all, while the entropy of a token stays.
- `policy_gradient`: an ordinary collapse beside which nothing stands out.
- null: none was planted. Score no cause there.

A mild second fault (`mild`) has a time of its own and does not drive the entropy; `also` names what
the fault entails by itself and another reader may well list second.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Array = NDArray[np.float64]
Row = dict[str, Any]

# cause -> (formats that log it, verdicts in turn, runs)
CAUSES: dict[str, tuple[str, str, int]] = {
    "reward_saturated": ("trl verl own slime csv verl_jsonl", "collapse collapse drift", 7),
    "zero_signal_groups": ("trl own slime", "collapse drift collapse", 7),
    "clip_never": ("verl own slime verl_jsonl trl", "collapse explosion collapse drift", 7),
    "clip_always": ("trl verl own slime csv", "collapse explosion", 7),
    "ratio_one": ("verl trl own slime verl_jsonl", "collapse collapse drift", 7),
    "sampler_mismatch": ("trl verl slime own verl_jsonl csv", "explosion collapse explosion", 7),
    "truncation": ("trl verl_jsonl own slime verl csv", "explosion collapse drift", 7),
    "learning_rate": ("trl verl own csv slime verl_jsonl", "collapse explosion", 7),
    "entropy_definition": ("verl csv verl_jsonl", "collapse explosion drift collapse", 7),
}
FORMATS = ("trl", "verl", "slime", "own", "csv", "verl_jsonl")
# family -> (verdict, cause, formats, runs)
OTHERS: dict[str, tuple[str, str | None, tuple[str, ...], int]] = {
    "ordinary collapse": ("collapse", "policy_gradient", FORMATS, 10),
    "explosion": ("explosion", None, FORMATS[::-1], 5),
    "small explosion": ("explosion", None, ("verl", "own", "trl"), 3),
    "drift": ("drift", None, FORMATS, 9),
    "held: flat": ("held", None, FORMATS, 6),
    "held: wavy": ("held", None, FORMATS[::-1], 5),
    "held: settled": ("held", None, ("verl", "trl", "csv", "slime", "verl_jsonl"), 5),
    "held: target": ("held", None, ("own",), 6),
    "few iterations": ("cannot tell", None, ("trl", "verl", "own", "csv", "slime"), 5),
    "no entropy": ("cannot tell", None, ("verl", "trl", "csv", "verl_jsonl"), 4),
    "noise": ("cannot tell", None, ("csv", "own", "verl", "trl"), 4),
}
MILD = ("truncation", "zero_signal_groups", "clip_always", "sampler_mismatch")
MILD_LEVEL = 0
THROUGHOUT = ("clip_never", "ratio_one", "entropy_definition")
LATER = ("reward_saturated", "zero_signal_groups", "sampler_mismatch", "truncation")
ALSO = {"reward_saturated": ("zero_signal_groups",), "learning_rate": ("clip_always",)}
SPREAD = {
    8: 2.3,
    16: 1.6,
}  # of prompts' difficulty, so that a fifth of the groups is without signal
TRIES = 500


@dataclass(frozen=True)
class Plan:
    """What a run is to show.

    Attributes:
        level: how strong the fault is, 1 to 3.
        shape: of the entropy's movement: jump, line, decay, slow_fast.
        early: it moves from the first iteration.
        mild: a second fault.
    """

    family: str
    verdict: str
    cause: str | None
    form: str
    level: int
    shape: str
    early: bool
    mild: str | None


@dataclass(frozen=True)
class Truth:
    """A line of truth.json.

    Attributes:
        path: what to read, relative to truth.json.
        iterations: rows in the log.
        first, last: numbers of the first and the last iteration.
    """

    path: str
    format: str
    verdict: str
    onset: int | None
    cause: str | None
    family: str
    level: int
    shape: str | None
    mild: str | None
    also: tuple[str, ...]
    iterations: int
    first: int
    last: int


@dataclass(frozen=True)
class Curves:
    """What a trainer could log, [n] each; NaN where it does not.

    Attributes:
        numbers: of the iterations.
        zero: share of groups whose rewards are equal.
        clip: share of tokens clipped.
        kl: between the policy before and after the updates.
        mismatch: mean |log-prob of trainer - log-prob of sampler|.
        nll: of sampled tokens; the entropy of a token with noise.
        target: of a controller; None without.
        groups, size: prompts an iteration, rollouts a prompt.
        limit: tokens of a response.
        updates: optimizer steps an iteration.
        every: iterations a row (TRL's logging_steps).
        agg: veRL's loss_agg_mode.
    """

    numbers: NDArray[np.int64]
    entropy: Array
    score: Array
    zero: Array
    length: Array
    truncated: Array
    clip: Array
    kl: Array
    lr: Array
    grad: Array
    mismatch: Array
    nll: Array
    target: float | None
    groups: int
    size: int
    limit: int
    updates: int
    every: int
    agg: str


# ---------------------------------------------------------------- the plans


def plans() -> list[Plan]:
    """Every run of the bench, the same for all seeds."""
    found = []
    for cause, (logged_by, shown, count) in CAUSES.items():
        formats, verdicts = logged_by.split(), shown.split()
        for k in range(count):
            form, verdict = formats[k % len(formats)], verdicts[k % len(verdicts)]
            level = 1 + (k + k // 3) % 3
            found.append(_plan(f"cause: {cause}", verdict, cause, form, level, len(found)))
    for family, (verdict, cause, forms, count) in OTHERS.items():
        for k in range(count):
            form = forms[k % len(forms)]
            found.append(_plan(family, verdict, cause, form, 1 + k % 3, len(found)))
    return found


def _plan(family: str, verdict: str, cause: str | None, form: str, level: int, place: int) -> Plan:
    shape = ("line", "decay", "jump", "decay", "slow_fast", "line", "jump")[place % 7]
    if verdict == "drift":
        shape = "line"
    early = place % 4 == 3 and cause not in LATER
    early = early and (cause, form) != ("learning_rate", "trl")  # TRL logs no KL
    if early and shape in ("jump", "slow_fast"):
        shape = "decay"
    return Plan(family, verdict, cause, form, level, shape, early, _mild(cause, form, place))


def _mild(cause: str | None, form: str, place: int) -> str | None:
    """A second fault for every third run, one that the format logs and that fits the first."""
    if place % 3 != 1:
        return None
    fitting = [each for each in MILD if each != cause and form in CAUSES[each][0].split()]
    if cause in ("clip_never", "ratio_one", "learning_rate"):
        fitting = [each for each in fitting if each != "clip_always"]
    if cause in ("reward_saturated", "entropy_definition"):
        fitting = [each for each in fitting if each not in ("zero_signal_groups", "truncation")]
    return fitting[place // 3 % len(fitting)] if fitting else None


# ---------------------------------------------------------------- pieces of curves


def between(rng: Generator, low: float, high: float) -> float:
    """Log-uniform."""
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def wander(rng: Generator, n: int, sd: float, rho: float) -> Array:
    """[n] first-order autoregressive noise with standard deviation sd."""
    fresh = rng.normal(0, sd, n)
    found = fresh.copy()
    for i in range(1, n):
        found[i] = rho * found[i - 1] + math.sqrt(1 - rho**2) * fresh[i]
    return found


def noisy(rng: Generator, values: Array, sd: float, rho: float = 0.4) -> Array:
    """Values with multiplicative noise."""
    return values * np.exp(wander(rng, len(values), sd, rho))


def progress(shape: str, n: int, start: int, span: float) -> Array:
    """[n] from 0 until `start` to 1 after `span` more."""
    if shape == "jump":
        span = min(span, 3)
    u = np.clip((np.arange(n) - start + (start > 0)) / span, 0, 1)
    if shape == "decay":
        return (1 - np.exp(-4 * u)) / (1 - math.exp(-4))
    return u**1.4 if shape == "slow_fast" else u


def share(rng: Generator, count: int, p: Array) -> Array:
    """Of `count` draws, the share that had it."""
    return rng.binomial(count, np.clip(p, 0, 1)) / count


def without_signal(score: Array, spread: float, size: int) -> Array:
    """Share of groups all right or all wrong: chances of success are Beta, the larger the closer.

    The moments of Beta(a, b): E[p^size] is the product of (a + i) / (a + b + i).
    """
    mean = np.clip(score, 0.005, 0.995)[:, None]
    i = np.arange(size)
    right, wrong = (np.prod((spread * m + i) / (spread + i), axis=1) for m in (mean, 1 - mean))
    return right + wrong


# ---------------------------------------------------------------- entropy


@dataclass(frozen=True)
class Movement:
    """The entropy's course, [n], without its noise, and when it begins to move."""

    course: Array
    noise: Array
    start: int | None
    gate: Array


def iterations(plan: Plan, rng: Generator) -> int:
    """Rows of a run."""
    if plan.family == "few iterations":
        return int(rng.integers(2, 6))
    if plan.family == "noise":
        return int(rng.integers(14, 22))
    low = 100 if plan.verdict == "drift" or plan.shape == "slow_fast" else 36
    return int(between(rng, low, 1000 if rng.random() < 0.15 else 360))


def ratio_of(plan: Plan, rng: Generator) -> float:
    """Where the entropy ends, of where it began."""
    if plan.family == "small explosion":
        return rng.uniform(1.36, 1.46)
    if plan.verdict == "collapse":
        return between(rng, 0.05, 0.26 if plan.early or plan.shape == "slow_fast" else 0.4)
    if plan.verdict == "explosion":
        steep = plan.early or plan.shape == "slow_fast" or plan.cause == "truncation"
        return between(rng, 2.6 if steep else 1.75, 5)
    up = rng.random() < 0.4 and plan.cause not in ("truncation", "reward_saturated")
    return rng.uniform(1.28, 1.38) if up else rng.uniform(0.62, 0.74)


def moving(plan: Plan, n: int, rng: Generator) -> Movement:
    """A collapse, an explosion, a drift."""
    start = 0 if plan.early else round(n * rng.uniform(0.22, 0.62))
    left = n - 1 - start
    whole = plan.verdict == "drift" or plan.shape == "slow_fast"
    gate = progress(plan.shape, n, start, left if whole else left * rng.uniform(0.35, 1))
    course = 1 + (ratio_of(plan, rng) - 1) * gate
    if not plan.early and plan.verdict != "drift":
        course *= np.exp(rng.uniform(-0.03, 0.01) * np.arange(n) / n)
    most = {"jump": 0.1, "decay": 0.07, "line": 0.045, "slow_fast": 0.025}[plan.shape]
    sd = between(rng, 0.01, 0.022 if plan.verdict == "drift" else most)
    noise = np.exp(wander(rng, n, sd, rng.uniform(0, 0.5)))
    return Movement(course, noise, start, gate)


def holding(plan: Plan, n: int, rng: Generator) -> Movement:
    """A held entropy."""
    x = np.arange(n) / n
    course, sd = np.ones(n), between(rng, 0.01, 0.08)
    if plan.family == "held: wavy":
        waves = np.sin(2 * np.pi * (x * rng.uniform(2.5, 6) + rng.random()))
        course, sd = 1 + rng.uniform(0.03, 0.07) * waves, between(rng, 0.01, 0.04)
    elif plan.family in ("held: settled", "held: target"):
        level = rng.uniform(0.66, 0.85)
        if plan.family == "held: target":
            level, sd = (0.4, 0.75, 1.0)[plan.level - 1], between(rng, 0.01, 0.03)
        course = level + (1 - level) * np.exp(-x / rng.uniform(0.02, 0.04))
    noise = np.exp(wander(rng, n, sd, rng.uniform(0, 0.6)))
    return Movement(course, noise, None, np.zeros(n))


def unclear(plan: Plan, n: int, rng: Generator) -> Movement:
    """Nothing that carries a verdict."""
    sd = 0.9 if plan.family == "noise" else 0.05
    noise = np.exp(wander(rng, n, sd, 0.3))
    course = np.ones(n) if plan.family != "few iterations" else np.linspace(1, 0.93, n)
    return Movement(course, noise, None, np.zeros(n))


def movement(plan: Plan, n: int, rng: Generator) -> Movement:
    """A course whose noise leaves no doubt about the verdict; drawn again until it does."""
    made = {"held": holding, "cannot tell": unclear}.get(plan.verdict, moving)
    for _ in range(TRIES):
        found = made(plan, n, rng)
        if plain(plan, found.course * found.noise):
            return found
    raise AssertionError(f"{plan} cannot be drawn in {n} iterations")


def plain(plan: Plan, entropy: Array) -> bool:
    """Whether the first and the last tenth show the verdict, a tenth away from every limit."""
    n = len(entropy)
    tenth = max(1, n // 10)
    ratio = entropy[-tenth:].mean() / entropy[:tenth].mean()
    if plan.family == "small explosion":
        return 1.33 < ratio < 1.48
    if plan.verdict == "collapse":
        return ratio < 0.44
    if plan.verdict == "explosion":
        return ratio > 1.67
    if plan.verdict == "drift":
        return 0.58 < ratio < 0.77 or 1.23 < ratio < 1.35
    if plan.verdict == "held":
        later = entropy[n // 5 :].reshape(-1)
        parts = np.array([part.mean() for part in np.array_split(later, 4)])
        return bool(np.ptp(parts) < 0.1 * parts.mean())
    if plan.family == "noise":
        thirds = [part.mean() for part in np.array_split(entropy, 3)]
        return max(thirds) < 1.35 * min(thirds)
    return True


# ---------------------------------------------------------------- a healthy run


def healthy(plan: Plan, n: int, rng: Generator) -> Curves:
    """A run in which nothing is wrong; entropy 1 throughout."""
    x, one = np.arange(n) / max(1, n - 1), np.ones(n)
    size, groups = int(rng.choice([8, 16])), int(rng.choice([32, 64, 128]))
    begin, end = rng.uniform(0.2, 0.4), rng.uniform(0.55, 0.7)
    score = begin + (end - begin) * (1 - np.exp(-rng.uniform(2, 4) * x))
    length = between(rng, 180, 2200)
    trend = rng.uniform(0.85, 1.2) if plan.verdict != "drift" else rng.uniform(0.96, 1.04)
    every = int(rng.choice([5, 10])) if plan.form == "trl" and _sparse(plan, n, rng) else 1
    first = {"slime": 0, "csv": int(rng.integers(0, 2))}.get(plan.form, 1)
    return Curves(
        numbers=every * np.arange(1, n + 1) if every > 1 else np.arange(first, first + n),
        entropy=one,
        score=score,
        zero=without_signal(score, rng.uniform(0.8, 1.2) * SPREAD[size], size),
        length=noisy(rng, length * trend**x, rng.uniform(0.015, 0.05)),
        truncated=noisy(rng, rng.uniform(0.003, 0.03) * one, 0.2),
        clip=noisy(rng, between(rng, 8e-4, 0.015) * one, 0.2),
        kl=noisy(rng, between(rng, 2e-4, 6e-3) * one, 0.25),
        lr=schedule(rng, n, plan.cause == "learning_rate"),
        grad=noisy(rng, between(rng, 0.05, 1) * one, 0.2),
        mismatch=noisy(rng, between(rng, 0.004, 0.018) * one, 0.06),
        nll=one,
        target=None,
        groups=groups,
        size=size,
        limit=2 ** math.ceil(math.log2(1.9 * length)),
        updates=1 if plan.cause == "ratio_one" else 2,
        every=every,
        agg="token-mean",
    )


def _sparse(plan: Plan, n: int, rng: Generator) -> bool:
    return rng.random() < 0.4 and n < 200 and plan.cause not in ("ratio_one", "clip_never")


def schedule(rng: Generator, n: int, constant: bool) -> Array:
    """Learning rates: constant, after a warm-up, or a cosine down to a tenth."""
    x, peak = np.arange(n) / n, between(rng, 1e-6, 3e-5)
    kind = "constant" if constant else rng.choice(["constant", "warmup", "cosine"])
    if kind == "cosine":
        return peak * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * x)))
    warm = max(1, n // 30) if kind == "warmup" else 1
    return peak * np.minimum(1, (np.arange(n) + 1) / warm)


# ---------------------------------------------------------------- faults


def saturated(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """The score reaches the ceiling when `gate` opens."""
    ceiling = (0.88, 0.965, 0.98, 0.995)[level]
    start = max(1, int(np.argmax(gate > 0)))
    rise = np.sin(0.5 * np.pi * np.clip(np.arange(len(gate)) / start, 0, 1))
    score = curves.score[0] + (ceiling - curves.score[0]) * rise
    return replace(
        curves, score=score, zero=without_signal(score, SPREAD[curves.size], curves.size)
    )


def silent_groups(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """Groups without a signal become many; the score stays where it is."""
    reached = (0.38, 0.68, 0.82, 0.94)[level]
    return replace(curves, zero=curves.zero + gate * (reached - curves.zero))


def clip_never(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """Nothing is clipped though the ratio moves."""
    size = (0, 8e-4, 3e-3, 9e-3)[level]
    return replace(curves, clip=0 * gate, kl=noisy(rng, size * np.ones(len(gate)), 0.2))


def clip_always(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """A large share of tokens is clipped; at level 2 from the start, the range being narrow."""
    reached = (0.035, 0.16, 0.32, 0.6)[level]
    gate = np.ones(len(gate)) if level == 2 else gate
    clip = curves.clip + gate * (noisy(rng, reached + 0 * gate, 0.06) - curves.clip)
    return replace(curves, clip=clip, kl=curves.kl * (1 + (level not in (0, 2)) * gate))


def ratio_one(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """Strictly on-policy: the ratio is 1, to rounding."""
    rounding = (0, 0, 1e-12, 1e-10)[level]
    return replace(curves, clip=0 * gate, kl=rounding * rng.normal(0, 1, len(gate)))


def mismatch(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """Sampler and trainer come apart."""
    return replace(curves, mismatch=curves.mismatch * (1.8, 12, 25, 50)[level] ** gate)


def truncation(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """Responses run into the limit."""
    share_of = curves.truncated + gate * ((0.09, 0.3, 0.5, 0.8)[level] - curves.truncated)
    more = np.maximum(0, share_of - curves.truncated)
    length = np.minimum(curves.length * (1 - more) + curves.limit * more, 0.98 * curves.limit)
    score = curves.score * (1 - 0.5 * more)  # what is cut has no answer
    return replace(curves, truncated=share_of, length=length, score=score)


def learning_rate(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """A jump at the onset; where that is the first iteration, steps far too large throughout."""
    if gate[0] > 0:
        one = np.ones(len(gate))
        return replace(
            curves,
            lr=curves.lr / curves.lr[0] * (0, 2e-4, 4e-4, 9e-4)[level],
            kl=noisy(rng, (0, 0.12, 0.35, 0.9)[level] * one, 0.25),
            clip=noisy(rng, (0, 0.08, 0.12, 0.2)[level] * one, 0.1),
            grad=curves.grad * 8,
        )
    factor = np.where(gate > 0, (0, 5.0, 10.0, 30.0)[level], 1)
    return replace(
        curves,
        lr=curves.lr * factor,
        kl=np.minimum(curves.kl * factor, 0.08),
        clip=np.minimum(curves.clip * factor**0.6, 0.09),
        grad=curves.grad * factor**0.4,
    )


def definition(curves: Curves, gate: Array, level: int, rng: Generator) -> Curves:
    """Sums over tokens, or a mean that counts padding; `entropy` is here that of a token."""
    padded = level == 2
    agg = "seq-mean-token-sum-norm" if padded else "seq-mean-token-sum"
    tokens = curves.length / (curves.limit if padded else 1)
    return replace(curves, entropy=curves.entropy * tokens, agg=agg)


Plant = Callable[[Curves, Array, int, Generator], Curves]
PLANTS: dict[str, Plant] = {
    "reward_saturated": saturated, "zero_signal_groups": silent_groups, "clip_never": clip_never,
    "clip_always": clip_always, "ratio_one": ratio_one, "sampler_mismatch": mismatch,
    "truncation": truncation, "learning_rate": learning_rate, "entropy_definition": definition,
}  # fmt: skip


# ---------------------------------------------------------------- a run


def fault_gate(plan: Plan, move: Movement, n: int, rng: Generator) -> Array:
    """[n] how far the fault has come: it opens with the entropy's movement, and faster."""
    if plan.cause in THROUGHOUT or move.start is None:
        return np.ones(n)
    if move.start == 0:
        return np.ones(n)
    span = 2 if plan.shape == "jump" else max(2.0, rng.uniform(0.05, 0.15) * n)
    return progress("line", n, move.start, span)


def with_score(plan: Plan, curves: Curves, move: Movement, rng: Generator) -> Curves:
    """The score falls in an explosion, and where steps are too large or the sampler is off."""
    if plan.verdict != "explosion" and plan.cause not in ("learning_rate", "sampler_mismatch"):
        return curves
    n = len(curves.score)
    begin, top = rng.uniform(0.38, 0.46), rng.uniform(0.5, 0.6)
    score = begin + (top - begin) * (1 - np.exp(-4 * np.arange(n) / n))
    end = begin * rng.uniform(0.45, 0.58)
    score = score + np.minimum(1, 1.6 * move.gate) * (end - score)
    return replace(
        curves, score=score, zero=without_signal(score, SPREAD[curves.size], curves.size)
    )


def with_entropy(plan: Plan, curves: Curves, move: Movement, rng: Generator) -> Curves:
    """The entropy in nats; where its definition is at fault the length has its course."""
    n, level = len(move.course), between(rng, 0.15, 1.8)
    if plan.verdict in ("collapse", "explosion"):
        level = between(rng, 0.4, 1.8) if plan.verdict == "collapse" else between(rng, 0.15, 0.6)
    entropy = level * move.course * move.noise
    token, length, limit, target = entropy, curves.length, curves.limit, None
    if plan.cause == "entropy_definition":
        token = entropy = noisy(rng, between(rng, 0.25, 0.9) * np.ones(n), 0.012)
        length = between(rng, 300, 900) * move.course * noisy(rng, move.noise, 0.04, 0.1)
        limit = 2 ** math.ceil(math.log2(1.6 * length.max()))
    if plan.family == "no entropy":
        seen = (0, n // 2) if plan.form == "verl_jsonl" else ()
        entropy = np.where(np.isin(np.arange(n), seen), entropy, np.nan)
    if plan.family == "held: target":
        target = level * (0.4, 0.75, 1.0)[plan.level - 1]
    nll, grad = noisy(rng, token, 0.02, 0), curves.grad * move.course**0.3
    return replace(
        curves, entropy=entropy, nll=nll, length=length, limit=limit, target=target, grad=grad
    )


def sampled(curves: Curves, rng: Generator) -> Curves:
    """Shares and scores as a finite batch has them."""
    rollouts = curves.groups * curves.size * curves.every
    spread = np.sqrt(2 * curves.score * (1 - curves.score) / rollouts)
    score = curves.score + wander(rng, len(spread), 1, 0.3) * spread
    return replace(
        curves,
        score=np.clip(score, 0, 1),
        zero=share(rng, curves.groups * curves.every, curves.zero),
        truncated=share(rng, rollouts, curves.truncated),
    )


def simulate(plan: Plan, rng: Generator) -> tuple[Curves, int | None]:
    """A run's curves, and where in them the entropy begins to move."""
    n = iterations(plan, rng)
    move = movement(plan, n, rng)
    curves = with_score(plan, healthy(plan, n, rng), move, rng)
    curves = with_entropy(plan, curves, move, rng)
    if (plant := PLANTS.get(plan.cause or "")) is not None:
        curves = plant(curves, fault_gate(plan, move, n, rng), plan.level, rng)
    if plan.mild is not None:
        elsewhere = progress("line", n, round(n * rng.uniform(0.1, 0.8)), max(2, n / 8))
        curves = PLANTS[plan.mild](curves, elsewhere, MILD_LEVEL, rng)
    return sampled(curves, rng), move.start


# ---------------------------------------------------------------- formats


def known(row: Row) -> Row:
    """Without what is NaN, and to seven digits."""
    short = {k: float(f"{v:.7g}") if isinstance(v, float) else v for k, v in row.items()}
    return {k: v for k, v in short.items() if not (isinstance(v, float) and math.isnan(v))}


def write_trl(curves: Curves, folder: Path, rng: Generator) -> Path:
    """An output directory with one checkpoint."""
    updates = 1 if curves.every > 1 else curves.updates
    history: list[Row] = []
    for i, number in enumerate(curves.numbers):
        for update in range(updates):
            step = int(number - 1) * updates + update + 1
            row = trl_update(curves, i, update if updates > 1 else 1, rng)
            row = row | (trl_rollouts(curves, i, rng) if update == 0 else {})
            history.append(known(row | {"epoch": step / 1000, "step": step}))
    last = history[-1]["step"]
    history.append({"step": last, "epoch": last / 1000, "train_loss": 0.01, "train_runtime": 9e3})
    state = {
        "best_global_step": None, "epoch": last / 1000, "eval_steps": 500, "global_step": last,
        "is_world_process_zero": True, "log_history": history, "logging_steps": curves.every,
        "max_steps": last, "num_train_epochs": 1, "save_steps": last, "stateful_callbacks": {},
        "total_flos": 0.0, "train_batch_size": 8, "trial_name": None, "trial_params": None,
    }  # fmt: skip
    path = folder / f"checkpoint-{last}" / "trainer_state.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(state, indent=2), encoding="utf-8")
    return folder


def trl_update(curves: Curves, i: int, update: int, rng: Generator) -> Row:
    """What GRPOTrainer logs of a step; in the first of several the ratio is still 1."""
    clip = curves.clip[i] * (2 if curves.updates > 1 and curves.every == 1 else 1) * (update > 0)
    clip = min(float(clip), 1.0)
    return {
        "clip_ratio/high_max": min(1.0, 6 * clip), "clip_ratio/high_mean": 0.45 * clip,
        "clip_ratio/low_mean": 0.55 * clip, "clip_ratio/low_min": 0.0,
        "clip_ratio/region_mean": clip, "entropy": float(curves.entropy[i]),
        "grad_norm": float(curves.grad[i] * rng.uniform(0.95, 1.05)),
        "learning_rate": float(curves.lr[i]), "loss": float(rng.normal(0, 0.01)),
        "step_time": float(rng.uniform(8, 11)),
    }  # fmt: skip


def trl_rollouts(curves: Curves, i: int, rng: Generator) -> Row:
    """What GRPOTrainer logs of a generation."""
    length, cut = float(curves.length[i]), float(curves.truncated[i])
    whole = (length - cut * curves.limit) / (1 - cut) if cut < 0.9 else 0.5 * length
    score, off = float(curves.score[i]), float(curves.mismatch[i])
    deviation = math.sqrt(score * (1 - score))
    longest = float(curves.limit if cut else min(curves.limit, 2.2 * length))
    return {
        "completions/clipped_ratio": cut, "completions/max_length": longest,
        "completions/max_terminated_length": float(min(longest, 0.98 * curves.limit)),
        "completions/mean_length": length, "completions/mean_terminated_length": max(20.0, whole),
        "completions/min_length": float(round(0.2 * length)),
        "completions/min_terminated_length": float(round(0.2 * length)),
        "frac_reward_zero_std": float(curves.zero[i]),
        "num_tokens": float(round(curves.groups * curves.size * curves.length[: i + 1].sum())),
        "reward": score, "reward_std": deviation, "rewards/accuracy_reward/mean": score,
        "rewards/accuracy_reward/std": deviation,
        "sampling/importance_sampling_ratio/max": 1 + min(1.0, 9 * off),
        "sampling/importance_sampling_ratio/mean": 1 + 0.02 * off * float(rng.normal()),
        "sampling/importance_sampling_ratio/min": math.exp(-20 * off),
        "sampling/sampling_logp_difference/max": off * float(rng.uniform(30, 50)),
        "sampling/sampling_logp_difference/mean": off,
    }  # fmt: skip


def verl_row(curves: Curves, i: int, rng: Generator) -> Row:
    """What veRL's trainer logs of a step."""
    number, length, off = int(curves.numbers[i]), float(curves.length[i]), float(curves.mismatch[i])
    entropy, score, high = (
        float(curves.entropy[i]),
        float(curves.score[i]),
        float(rng.uniform(2, 3)),
    )
    return known({
        "training/rollout_probs_diff_valid": 1,
        "training/rollout_probs_diff_max": min(1.0, 25 * off),
        "training/rollout_probs_diff_mean": 0.25 * off,
        "training/rollout_probs_diff_std": 0.5 * off,
        "training/rollout_actor_probs_pearson_corr": 1 - min(0.6, 4 * off**2),
        "rollout_corr/kl": 0.6 * off**2, "rollout_corr/k3_kl": 0.62 * off**2,
        "actor/entropy": entropy, "actor/pg_loss": float(rng.normal(0, 0.01)),
        "actor/pg_clipfrac": float(curves.clip[i]), "actor/ppo_kl": float(curves.kl[i]),
        "actor/pg_clipfrac_lower": 0.0, "actor/grad_norm": float(curves.grad[i]),
        "actor/lr": float(curves.lr[i]), "training/global_step": number, "training/epoch": 0,
        "critic/score/mean": score, "critic/score/max": 1.0, "critic/score/min": 0.0,
        "critic/rewards/mean": score, "critic/rewards/max": 1.0, "critic/rewards/min": 0.0,
        "critic/advantages/mean": float(rng.normal(0, 0.02)), "critic/advantages/max": high,
        "critic/advantages/min": -high, "response_length/mean": length,
        "response_length/max": float(curves.limit if curves.truncated[i] else 2 * length),
        "response_length/min": float(round(0.2 * length)),
        "response_length/clip_ratio": float(curves.truncated[i]),
        "prompt_length/mean": float(rng.normal(120, 3)), "prompt_length/clip_ratio": 0.0,
        "timing_s/gen": float(rng.uniform(30, 40)), "timing_s/step": float(rng.uniform(70, 90)),
        "perf/throughput": float(rng.uniform(900, 1100)),
    })  # fmt: skip


def write_verl(curves: Curves, folder: Path, rng: Generator) -> Path:
    """A console with Ray's prefixes; sums name their mode in the configuration, or nothing does.

    Of some, the last steps before a restart come twice.
    """
    ray, path = "\x1b[36m(TaskRunner pid=4242)\x1b[0m ", folder / "train.log"
    said = curves.agg == "token-mean" or rng.random() < 0.5
    start = ["2026-03-01 10:00:00,000\tINFO worker.py:1918 -- Started a local Ray instance."]
    if said:
        mode = f"{{'actor_rollout_ref': {{'actor': {{'loss_agg_mode': '{curves.agg}',"
        start.append(f"{ray}{mode}")
    rows = [verl_row(curves, i, rng) for i in range(len(curves.numbers))]
    texts = [ray + verl_line(row) for row in rows]
    lines = start + texts
    if len(rows) > 60 and rng.random() < 0.25:
        stop = len(rows) // 2
        again = [row | {"timing_s/step": 95.5} for row in rows[stop - 4 : stop]]
        lines = [*start, *texts[:stop], *start, *map(verl_line, again), *texts[stop:]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def verl_line(row: Row) -> str:
    """`step:12 - actor/entropy:0.43 - ...`"""
    figures = " - ".join(f"{key}:{value!r}" for key, value in row.items())
    return f"step:{row['training/global_step']} - {figures}"


def write_verl_jsonl(curves: Curves, folder: Path, rng: Generator) -> Path:
    """The file logger."""
    rows = (verl_row(curves, i, rng) for i in range(len(curves.numbers)))
    lines = (json.dumps({"step": row["training/global_step"], "data": row}) for row in rows)
    path = folder / "metrics.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_slime(curves: Curves, folder: Path, rng: Generator) -> Path:
    """A console: what was sampled, the batch, then each update."""
    lines = [
        "------------------------ arguments ------------------------",
        f"  n_samples_per_prompt ............................ {curves.size}",
        f"  rollout_batch_size .............................. {curves.groups}",
        f"  rollout_max_response_len ........................ {curves.limit}",
    ]
    for i, number in enumerate(curves.numbers):
        lines.append(f"[10:00:00] rollout.py:1163 - perf {number}: {slime_samples(curves, i, rng)}")
        lines.append(f"[10:01:00] data.py:311 - rollout {number}: {slime_batch(curves, i)}")
        for update in range(curves.updates):
            step = int(number) * curves.updates + update
            row = slime_update(curves, i, update, rng) | {"train/step": step}
            lines.append(f"[10:02:00] model.py:702 - step {step}: {row}")
    path = folder / "slime.log"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def slime_samples(curves: Curves, i: int, rng: Generator) -> Row:
    """Figures of the sampled responses; a count that is 0 is not logged."""
    silent = round(curves.zero[i] * curves.groups)
    right = int(rng.binomial(silent, curves.score[i]))
    counts = {"rollout/zero_std/count_1.0": right, "rollout/zero_std/count_0.0": silent - right}
    return known({
        "rollout/response_len/mean": float(curves.length[i]),
        "rollout/response_len/max": float(curves.limit if curves.truncated[i] else 1000),
        "rollout/truncated_ratio": float(curves.truncated[i]),
        "rollout/repetition_frac": 0.0,
        **{key: count for key, count in counts.items() if count},
        "perf/rollout_time": float(rng.uniform(30, 40)),
    })  # fmt: skip


def slime_batch(curves: Curves, i: int) -> Row:
    """Figures of the batch that is trained on."""
    nll = float(curves.nll[i])
    return known({
        "rollout/response_lengths": float(curves.length[i]),
        "rollout/rewards": 0.0, "rollout/truncated": float(curves.truncated[i]),
        "rollout/raw_reward": float(curves.score[i]), "rollout/log_probs": -nll,
        "rollout/rollout_log_probs": -nll * (1 + 0.1 * float(curves.mismatch[i])),
    })  # fmt: skip


def slime_update(curves: Curves, i: int, update: int, rng: Generator) -> Row:
    """Figures of an update; in the first of several the ratio is still 1."""
    several = curves.updates > 1
    moved = 2.0 * (update > 0) if several else 1.0
    loss = float(rng.normal(0, 0.01))
    return known({
        "train/loss": loss, "train/pg_loss": loss, "train/entropy_loss": float(curves.entropy[i]),
        "train/pg_clipfrac": min(1.0, moved * float(curves.clip[i])),
        "train/ppo_kl": moved * float(curves.kl[i]),
        "train/train_rollout_logprob_abs_diff": float(curves.mismatch[i]),
        "train/grad_norm": float(curves.grad[i] * rng.uniform(0.95, 1.05)),
        "train/lr-pg_0": float(curves.lr[i]), "train/lr-pg_1": float(curves.lr[i]),
    })  # fmt: skip


CONFIG = """\
host = "lab"
method = [
{methods}]
advantage = "grpo"
model = "runs/base"
iterations = {iterations}
seed = 0
precision = "bf16"

[task]
name = "math"

[sampling]
engine = "transformers"
prompts = {groups}
rollouts = {size}
max_new_tokens = {limit}
temperature = 1.0
top_p = 1.0

[optim]
lr = {lr!r}
schedule = "constant"
warmup = 0
clip = 1.0
epochs = 1
minibatches = {updates}
aggregation = "token_mean"
"""


def write_own(curves: Curves, folder: Path, rng: Generator) -> Path:
    """A run directory of entrostat."""
    methods = '    "grpo",\n'
    if curves.target is not None:
        methods += '    { name = "repo_r", controller = "thermostat", target = "0.75x" },\n'
        methods = methods.replace("0.75x", f"{curves.target:.4g}")
    config = CONFIG.format(
        methods=methods, iterations=len(curves.numbers), groups=curves.groups, size=curves.size,
        limit=curves.limit, lr=float(f"{curves.lr.max():.7g}"), updates=curves.updates,
    )  # fmt: skip
    (folder / "config.toml").write_text(config, encoding="utf-8")
    lines = (json.dumps(own_row(curves, i, rng)) for i in range(len(curves.numbers)))
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def own_row(curves: Curves, i: int, rng: Generator) -> Row:
    """A line of our metrics.jsonl."""
    entropy, score, off = (float(x[i]) for x in (curves.entropy, curves.score, curves.mismatch))
    loss, clip, length = float(rng.normal(0, 0.01)), float(curves.clip[i]), float(curves.length[i])
    row = {
        "iteration": int(curves.numbers[i]), "entropy/exact": entropy,
        "entropy/response_mean": entropy * float(rng.uniform(0.99, 1.01)),
        "entropy/nll": float(curves.nll[i]), "reward/mean": score,
        "reward/std_in_group": math.sqrt(max(0.0, 0.2 * (1 - float(curves.zero[i])))),
        "reward/best_in_group": min(1.0, score + 0.25), "rollout/length_mean": length,
        "rollout/length_max": float(curves.limit if curves.truncated[i] else round(2 * length)),
        "rollout/tokens": float(round(length * curves.groups * curves.size)),
        "rollout/truncated": float(curves.truncated[i]), "mismatch/logp_abs_mean": off,
        "mismatch/logp_abs_max": off * float(rng.uniform(30, 50)), "mismatch/kl": 0.6 * off**2,
        "reward/failed": 0, "rollout/zero_advantage_groups": round(curves.zero[i] * curves.groups),
        "loss/total": loss, "loss/policy": loss, "terms/weight": 1.0, "clip/high": 0.45 * clip,
        "clip/low": 0.55 * clip, "ratio/mean": 1 - 0.2 * float(curves.kl[i]),
        "kl/old_new": float(curves.kl[i]), "grad/norm": float(curves.grad[i]),
        "optim/updates": curves.updates, "optim/lr": float(curves.lr[i]),
        "time/iteration": float(rng.uniform(16, 20)),
    }  # fmt: skip
    if curves.target is not None:
        row |= {"control/zeta": float(rng.normal(0.1, 0.03)), "control/target": curves.target}
    return known(row)


TABLE = (
    "actor/entropy", "critic/score/mean", "response_length/mean", "response_length/clip_ratio",
    "actor/pg_clipfrac", "actor/ppo_kl", "actor/lr", "actor/grad_norm",
    "training/rollout_probs_diff_mean", "rollout_corr/kl",
)  # fmt: skip


def write_csv(curves: Curves, folder: Path, rng: Generator) -> Path:
    """A tracker's history of a veRL run, as a table."""
    rows = [verl_row(curves, i, rng) for i in range(len(curves.numbers))]
    names = [name for name in TABLE if any(name in row for row in rows)]
    delimiter = ";" if rng.random() < 0.3 else ","
    lines = [delimiter.join(["_step", *names])]
    for row in rows:
        cells = [str(row["training/global_step"]), *(repr(row.get(name, "")) for name in names)]
        lines.append(delimiter.join(cell.strip("'") for cell in cells))
    path = folder / "history.csv"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


WRITERS: dict[str, Callable[[Curves, Path, Generator], Path]] = {
    "trl": write_trl, "verl": write_verl, "verl_jsonl": write_verl_jsonl, "slime": write_slime,
    "own": write_own, "csv": write_csv,
}  # fmt: skip


# ---------------------------------------------------------------- the bench


def write(output: Path, seed: int = 0) -> list[Truth]:
    """Write every run and truth.json into a new directory."""
    output.mkdir(parents=True)
    every = plans()
    places = np.random.default_rng([seed, len(every)]).permutation(len(every))
    truths = []
    for name, place in enumerate(places):
        rng = np.random.default_rng([seed, 1000 + int(place)])
        folder = output / f"run_{name:03d}"
        folder.mkdir()
        truths.append(write_run(every[place], output, folder, rng))
    content = {"seed": seed, "runs": [asdict(truth) for truth in truths]}
    (output / "truth.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return truths


def write_run(plan: Plan, output: Path, folder: Path, rng: Generator) -> Truth:
    """One run; what is true of it."""
    curves, start = simulate(plan, rng)
    path = WRITERS[plan.form](curves, folder, rng)
    numbers = curves.numbers
    return Truth(
        path=str(path.relative_to(output)),
        format=plan.form,
        verdict=plan.verdict,
        onset=None if start is None else int(numbers[start]),
        cause=plan.cause,
        family=plan.family,
        level=plan.level,
        shape=None if start is None else plan.shape,
        mild=plan.mild,
        also=ALSO.get(plan.cause or "", ()),
        iterations=len(numbers),
        first=int(numbers[0]),
        last=int(numbers[-1]),
    )


def table(truths: Sequence[Truth]) -> str:
    """How many runs there are of each verdict, cause and format."""
    lines = []
    for attribute in ("verdict", "format", "shape", "mild"):
        count = Counter(str(getattr(truth, attribute)) for truth in truths)
        lines.append(f"{attribute}: " + ", ".join(f"{k} {n}" for k, n in sorted(count.items())))
    cells = Counter((str(truth.cause), truth.format) for truth in truths)
    causes = sorted({cause for cause, _ in cells})
    lines.append(f"{'cause':<20}" + "".join(f"{form:>11}" for form in FORMATS))
    counts = {key: cells[key] for key in product(causes, FORMATS)}
    lines += [
        f"{cause:<20}" + "".join(f"{counts[cause, form]:>11}" for form in FORMATS)
        for cause in causes
    ]
    return "\n".join([f"{len(truths)} runs", *lines])


def main() -> None:
    """Write the bench and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="a directory that is not there")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(table(write(arguments.output, arguments.seed)))


if __name__ == "__main__":
    main()
