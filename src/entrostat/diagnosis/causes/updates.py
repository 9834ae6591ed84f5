"""Causes in the policy update: the ratio, its clip, the step size, a coefficient."""

from __future__ import annotations

import numpy as np

from ...logs.importers.source import number
from ...logs.run import Run, saturated
from ..signals import Signal, signal
from . import LATE, Plain, Seen, cause, decades, plainest, ramp, short

NOTHING = 1e-6  # tolerance for 0: clipped share, divergence, distance of the ratio from 1
ALWAYS = 0.95  # share of the iterations
CLIPPED = (0.07, 0.3)  # share of clipped tokens: the weight goes from 0 to 1 in between
STEP = (0.02, 0.2)  # nats: KL from the policy before an iteration to the one at its last update
BURST = 8  # a single iteration counts if its step is this many times as large
JUMP = 1.5  # smallest growth factor of the learning rate that counts
NORM = 3.0  # smallest growth factor of the gradient norm that counts
LARGE = 3e-4  # smallest learning rate that counts as large
DIGITS = 3  # decimals
_UPDATES = ("train_batch_size", "ppo_mini_batch_size", "ppo_epochs")  # veRL's keys
ENTROPY_COEFF = "entropy_coeff"  # veRL's key
BONUSES = ("entropy_bonus", "h_bonus", "adaptive_entropy")


def ratio_is_one(run: Run) -> str | None:
    """Evidence, as text, that every ratio is 1 up to rounding; None if the log has none.

    Both the cause `ratio_one` and the doctor's check of a run use it.
    """
    batch, small, epochs = (number(run.settings.get(key)) for key in _UPDATES)
    values = [value for row in run.metrics[:20] for value in row.values()]
    # older veRL consoles print three decimals, so small numbers appear as 0
    rounded = run.trainer == "veRL" and all(round(value, DIGITS) == value for value in values)
    if (batch and small and batch > small) or (epochs or 1) > 1 or rounded:
        return None
    said = []
    for what, one in (("ratio", 1.0), ("step_kl", 0.0)):
        found = signal(run, what)
        if found is None:
            continue
        if float(np.max(np.abs(found.y - one))) > NOTHING:
            return None
        said.append(f"{found.name} is {one:g} to {NOTHING:g} in all {len(found)} iterations")
    clip = signal(run, "clip")
    if clip is not None and float(clip.y.max()) > 0:
        return None
    if clip is not None:
        sure = "" if said else " (the log has no ratio: it may just stay in range)"
        said.append(f"{clip.name} is 0 in all {len(clip)}{sure}")
    return "; ".join(said) or None


@cause(
    "ratio identically 1",
    "One update per batch moves no entropy by itself; but at a ratio of 1 clip-higher, "
    "Clip-Cov's surrogate and every other clip are idle, and cannot hold entropy.",
    "OPEFO 3, STEER 3.1",
)
def ratio_one(seen: Seen) -> Plain:
    """A ratio of 1 moves nothing by itself, so it is not a cause of an explosion."""
    said = None if seen.judged.verdict == "explosion" else ratio_is_one(seen.run)
    return None if said is None else (0.4 if "no ratio" in said else 0.5, f"{said}.")


@cause(
    "clip never acting",
    "A clip that no token reaches restrains nothing: widening or tightening it (clip-higher) "
    "changes nothing until updates are larger or more.",
    "STEER 4, PAR 6.1",
    "clip",
)
def clip_never(seen: Seen, clip: Signal) -> Plain:
    step, idle = seen.signal("step_kl"), float(np.mean(clip.y <= NOTHING))
    if idle < ALWAYS or ratio_is_one(seen.run):
        return None
    moved = "" if step is None else f" though {step.name} is {short(float(step.y.mean()))}"
    return 0.45, f"{clip.name} is at most {NOTHING:g} in {idle:.0%} of the iterations{moved}."


@cause(
    "clip always acting",
    "So far off-policy the clip decides which tokens learn at all: it cuts off rare tokens "
    "that rise before common ones, and entropy falls the faster the more updates a batch has.",
    "PAR 6.1 and 6.2, STEER 4",
    "clip",
)
def clip_always(seen: Seen, clip: Signal) -> Plain:
    median = float(np.median(clip.y))
    plain = ramp(max(median, clip.late), *CLIPPED)
    if plain == 0:
        return None
    if clip.late > 2 * clip.early and seen.follows(clip):
        plain *= LATE
    return 0.9 * plain, (
        f"{clip.name}: {median:.0%} of the tokens at the median, {clip.early:.0%} at first and "
        f"{clip.late:.0%} at the end."
    )


@cause(
    "learning rate",
    "The change of entropy in an update is proportional to the step (to first order its rate "
    "times a covariance), and the first-order picture fails for large ones.",
    "COV 3.2, REPO 3",
)
def learning_rate(seen: Seen) -> Plain:
    return plainest(seen, {
        _jump: ("rate",), _step: ("step_kl",), _norm: ("gradient",), _large: ("rate",),
    })  # fmt: skip


def _jump(seen: Seen, rate: Signal) -> Plain:
    x, y = rate.x[1:], np.log(np.maximum(rate.y[1:], 1e-30) / np.maximum(rate.y[:-1], 1e-30))
    rising = np.flatnonzero(y <= 0)  # skip the warm-up, which rises from the first step on
    warm = len(y) if len(rising) == 0 else int(rising[0])
    near = (np.abs(x - seen.onset) <= seen.span) & (np.arange(len(x)) >= warm)
    if rate.y.min() <= 0 or not near.any() or seen.onset - rate.x[0] < seen.span / 2:
        return None
    total = float(np.exp(y[near].sum()))
    if total < JUMP:
        return None
    where = int(x[near][np.argmax(y[near])])
    return 0.95 * decades(total, 1.0, 4.0) + 0.04, (
        f"{rate.name} rose {total:.2g} times about iteration {where}; entropy moved from "
        f"{seen.onset}."
    )


def _large(seen: Seen, rate: Signal) -> Plain:
    if seen.run.trainer == "entrostat" or float(rate.y.max()) < LARGE:
        return None  # entrostat's own policies may be tiny and tolerate more
    usual = "usual are 1e-6 to 1e-5, and up to 1e-4 for adapters alone."
    return 0.96, f"{rate.name} is {float(rate.y.max()):g}; {usual}"


def _step(seen: Seen, step: Signal) -> Plain:
    """Weight by the KL per iteration: its mean at the onset, maximum / `BURST`, or median since."""
    later, most = np.abs(step.y[step.x >= seen.onset]), float(np.abs(step.y).max())
    about = float(np.abs(_about(step, seen)).mean())
    median = float(np.median(later)) if len(later) else 0.0
    plain = decades(max(about, most / BURST, median), *STEP)
    if plain == 0:
        return None
    return 0.9 * plain, (
        f"{step.name} is {short(about)} nats an iteration about the onset (iteration "
        f"{seen.onset}) and {short(most)} at most: no small steps."
    )


def _norm(seen: Seen, norm: Signal) -> Plain:
    if seen.onset - norm.x[0] < seen.span:
        return None
    before, after = norm.before(seen.onset), float(_about(norm, seen).mean())
    if before <= 0 or after < NORM * before:
        return None
    return 0.5, (
        f"{norm.name} rose from {short(before)} to {short(after)} with iteration {seen.onset}, and "
        "a step with it."
    )


def _about(found: Signal, seen: Seen) -> np.ndarray:
    """Values in the tenth of the run after the onset; the last value if there are none."""
    some = found.y[(found.x >= seen.onset) & (found.x <= seen.onset + seen.span)]
    return some if len(some) else found.y[-1:]


@cause(
    "controller at its limit",
    "A coefficient at the end of its range has no more to give: entropy goes where the rest "
    "of the training takes it.",
    "REPO App. B, docs/thermostat.md",
)
def knob_saturated(seen: Seen) -> Plain:
    if sentences := saturated(seen.run.path, seen.run.metrics):
        return 0.8, sentences[0]
    ends = seen.signal("saturated")
    after = ends.y[ends.x >= seen.onset] if ends is not None else np.zeros(0)
    at = float(np.mean(after != 0)) if len(after) else 0.0
    if at < 0.5:
        return None
    return 0.8, (
        f"The thermostat was at an end of its range in {at:.0%} of the iterations since entropy "
        f"moved, {seen.onset}."
    )


@cause(
    "entropy bonus too strong",
    "A fixed coefficient does little or explodes, and which one depends on model and data: "
    "the bonus feeds on the rare tokens that it creates.",
    "COV App. E, PAR 3.1",
)
def entropy_bonus(seen: Seen) -> Plain:
    if seen.falling:
        return None
    coefs = [
        float(table["coef"]) for table in seen.run.method_tables
        if table.get("name") in BONUSES and table.get("controller", "none") == "none"
        and isinstance(table.get("coef"), int | float)
    ]  # fmt: skip
    theirs = number(seen.run.settings.get(ENTROPY_COEFF))
    if theirs is not None:
        coefs.append(theirs)
    if not coefs or max(coefs) <= 0:
        return None
    name = f" ({ENTROPY_COEFF})" if theirs else ""
    return 0.97 if theirs else 0.75, (
        f"The loss has an entropy bonus with a fixed coefficient of {max(coefs):g}{name}, and "
        f"entropy rose from {short(seen.judged.first)} to {short(seen.judged.last)} nats."
    )


@cause(
    "the policy gradient itself",
    "Tokens that were likely and have a positive advantage become likelier still: entropy "
    "falls by the covariance of log-prob and advantage, without any fault in the run.",
    "COV 3.2, REPO 3",
)
def policy_gradient(seen: Seen) -> Plain:
    covariance = seen.signal("covariance")
    if covariance is None:
        return None if not seen.falling else (
            0.2, "The log has no covariance of log-probs and advantages to show it by; no other "
            "cause is needed for entropy to fall.",
        )  # fmt: skip
    positive = float(np.mean(covariance.y > 0))
    agrees = positive if seen.falling else 1 - positive
    if agrees < 0.6:
        return None
    evidence = (
        f"{covariance.name} is {'positive' if seen.falling else 'negative'} in {agrees:.0%} of the "
        f"iterations, {short(float(covariance.y.mean()))} on average."
    )
    rising = "Where rare tokens have the positive advantages entropy rises, by the same covariance."
    return 0.3 * ramp(agrees, 0.5, 0.9), evidence, {} if seen.falling else {"why": rising}
