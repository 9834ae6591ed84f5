"""Causes in the training data (rewards, groups, lengths) and in the logged metrics themselves."""

from __future__ import annotations

import numpy as np

from ...logs.run import Run
from ..course import moving_mean
from ..signals import Signal, of, shared, signal
from ..verdict import floor_of
from . import LATE, Plain, Seen, cause, decades, plainest, ramp, short

SATURATED = (0.85, 0.97)  # mean reward in [0, 1]: the weight goes from 0 to 1 in between
IDLE = (0.3, 0.8)  # share of zero-advantage groups
TRUNCATED = (0.05, 0.4)  # share of rollouts cut at the longest length
GROWN = 0.1  # smallest increase of a share that counts
# mean |log p - log q| of a token, mean |p - q|, KL: the weight goes from 0 to 1 in between; REPO
# App. A.2 reports .01 and less for probabilities in bf16
MISMATCH = {
    "mismatch_logp": (0.02, 0.2), "mismatch_prob": (0.01, 0.05), "mismatch_kl": (1e-3, 0.05),
}  # fmt: skip
GREW = 1.5
OFF_ONE = 0.1  # tolerated distance from 1 of the mean importance ratio of sampler and trainer
APART = 0.15  # relative error of the entropy estimate, against the exact entropy
ALIKE, EXPONENT = 0.95, 0.15  # correlation with the length; distance of the exponent from 1
LONGER = 1.25


@cause(
    "reward saturated",
    "A score is bought with entropy and the price rises: near the ceiling a little score costs "
    "all that is left (R = -a exp(H) + b).",
    "COV 2.4",
    "score",
)
def reward_saturated(seen: Seen, score: Signal) -> Plain:
    if not seen.falling or score.y.min() < -1 or score.y.max() > 1 + 1e-9:
        return None  # on any other reward scale the ceiling is unknown
    floor = floor_of(score.y)
    plain = ramp((score.late - floor) / (1 - floor), *SATURATED)
    if plain == 0:
        return None
    means = moving_mean(score.y, max(1, len(score) // 20))
    level = floor + SATURATED[0] * (1 - floor)
    when = int(score.x[np.argmax(means >= level)])
    # saturation cannot explain a fall that began long before it
    in_time = when <= seen.onset + 2 * seen.span
    return plain * (0.9 if in_time else 0.5), (
        f"The mean reward went from {short(score.early)} to {short(score.late)} of at most 1, and "
        f"was first above {short(level)} in iteration {when}; entropy moved from {seen.onset}."
    )


@cause(
    "the score was lost",
    "A policy can die at any entropy: steps far beyond the policy that was sampled from "
    "unlearn what it could do, and nothing that holds entropy gives it back.",
    "STEER Fig. 8; our study",
)
def score_lost(seen: Seen) -> Plain:
    """A lost score does not cause an entropy movement, so the weight is low if entropy moved."""
    what, step = seen.event("score_lost"), seen.signal("step_kl")
    if what is None:
        return None
    if step is not None:
        place = int(np.argmax(np.abs(step.y)))
        what += (
            f"; {step.name} was at most {short(abs(float(step.y[place])))} nats, in iteration "
            f"{int(step.x[place])}"
        )
    if seen.judged.verdict == "held":
        return 0.9, f"{what}.", {"title": "the score was lost while entropy held"}
    return 0.15, f"{what}."


@cause(
    "no learning signal",
    "Groups whose rewards are all equal have advantages of 0: the policy is not trained at "
    "all, and its entropy is that of the start.",
    "DAPO (arXiv 2503.14476) 3.2",
)
def no_learning_signal(seen: Seen) -> Plain:
    what = seen.event("no_learning_signal")
    return None if what is None else (0.95, f"{what}.")


@cause(
    "responses collapsed to a few tokens",
    "A policy that answers with next to nothing has little entropy left to lose and nothing "
    "left to be right with: entropy follows the length, not the other way round.",
    "STEER Fig. 8; DAPO 3.4",
)
def length_collapse(seen: Seen) -> Plain:
    what, norm = seen.event("length_collapse"), seen.signal("gradient")
    if what is None:
        return None
    peak = 0.0 if norm is None else float(norm.y.max())
    if norm is not None and peak > 5 * norm.early:
        at = int(norm.x[int(np.argmax(norm.y))])
        what += f"; {norm.name} went from {short(norm.early)} to {short(peak)} in {at}"
    return 0.92, f"{what}."


@cause(
    "groups without a signal rising",
    "Only groups with both right and wrong answers have an advantage; the fewer they are, the "
    "noisier a step, and on prompts nearly always solved it only sharpens.",
    "REPO 4 and 5.3",
    "no_signal",
)
def zero_signal_groups(seen: Seen, share: Signal) -> Plain:
    before, late = share.before(seen.onset), share.late
    grown = late - before
    plain = ramp(late, *IDLE)
    if plain == 0 or (grown < GROWN and late < 0.5):
        return None
    score = seen.signal("score")
    right = score is not None and score.y.max() <= 1 + 1e-9 and score.late > SATURATED[0]
    wrong = score is not None and score.late < 1 - SATURATED[0]
    side = "mostly all right" if right else f"{'mostly all' if wrong else 'all right or all'} wrong"
    plain *= (0.9 if grown >= GROWN else 0.6) * (0.8 if right else 1.0)
    return plain * (LATE if seen.follows(share) else 1.0), (
        f"Groups of equal rewards ({side}) went from {before:.0%} before iteration {seen.onset} to "
        f"{late:.0%}: the batch that decides is {(1 - late) / max(1 - before, 1e-9):.2g} times as "
        "large."
    )


@cause(
    "length truncation",
    "A cut answer counts as wrong for its length: its tokens are pushed down, which moves "
    "entropy without a reason in the task, and its end was never sampled.",
    "DAPO (arXiv 2503.14476) 3.4",
    "truncated",
)
def truncation(seen: Seen, share: Signal) -> Plain:
    length = seen.signal("length")
    before, late = share.before(seen.onset), share.late
    after = share.y[share.x >= seen.onset]  # truncation that ended before the onset is no cause
    plain = ramp(max(late, float(after.mean()) if len(after) else 0.0), *TRUNCATED)
    if plain == 0:
        return None
    lengths = ""
    if length is not None:
        lengths = f", of mean length {short(length.early)} to {short(length.late)} tokens"
    plain *= 1.0 if late - before >= GROWN else 0.7
    return plain * (LATE if seen.follows(share) else 1.0), (
        f"Rollouts cut at the longest length{lengths} were {before:.0%} before iteration "
        f"{seen.onset} and {late:.0%} at the end."
    )


def mismatches(run: Run) -> list[tuple[str, Signal, float]]:
    """Mismatch signals, each with its weight at the run's end, 0 to 1 by `MISMATCH`."""
    known = [(name, found) for name in MISMATCH if (found := signal(run, name)) is not None]
    return [(name, found, decades(found.late, *MISMATCH[name])) for name, found in known]


@cause(
    "sampler mismatch growing",
    "Rollouts of another policy than the one that is trained make every ratio wrong, most for "
    "rare tokens: clipping and advantages then push entropy by themselves.",
    "REPO App. A.1 and A.2",
)
def sampler_mismatch(seen: Seen) -> Plain:
    weights: list[tuple[float, str]] = []
    for name, found, plain in mismatches(seen.run):
        if len(found) < 5:
            continue
        grew = found.late / max(found.early, 1e-12)
        weights.append((
            plain * (0.95 if grew >= GREW else 0.6),
            f"{found.name} went from {short(found.early)} to {short(found.late)} ({grew:.2g} "
            f"times); above {MISMATCH[name][0]:g} it is noticeable.",
        ))  # fmt: skip
    weight, evidence = max(weights, default=(0.0, ""))
    ratio = seen.signal("correction")
    if ratio is not None and abs(ratio.late - 1) > OFF_ONE:
        weight = max(weight, 0.9 * ramp(abs(ratio.late - 1), OFF_ONE, 0.5))
        evidence = (
            f"{ratio.name} went from {short(ratio.early)} to {short(ratio.late)}: the correction "
            f"is on, and scales the gradient by that. {evidence}"
        ).strip()
    return None if weight == 0 else (weight, evidence)


@cause(
    "entropy definition",
    "A sum over tokens, a mean over padding or an estimate at another temperature moves with "
    "lengths and settings; controllers and verdicts that read it follow the wrong figure.",
    "docs/analyze.md (Which entropy)",
)
def entropy_definition(seen: Seen) -> Plain:
    return plainest(seen, {_length: ("entropy", "length"), _apart: (), _logged: ("entropy",)})


def _length(seen: Seen, entropy: Signal, length: Signal) -> Plain:
    """Whether the entropy scales with the response length."""
    H, L = shared(entropy, length)
    if len(H) < 10 or H.min() <= 0 or L.min() <= 0:
        return None
    k = max(1, len(H) // 20)
    h, n = (moving_mean(np.log(v), k) for v in (H, L))
    if n.max() - n.min() < np.log(LONGER) or h.std() == 0:
        return None
    correlation = float(np.corrcoef(h, n)[0, 1])
    power = correlation * float(h.std() / n.std())
    if correlation < ALIKE or abs(power - 1) > EXPONENT:
        return None
    per = H / L
    return 0.9, (
        f"Entropy goes as the mean length to the power {power:.2f} (correlation "
        f"{correlation:.2f}): divided by the length it stays between {short(per.min())} and "
        f"{short(per.max())}. It is a sum over tokens, or a mean that counts padding."
    )


def _apart(seen: Seen) -> Plain:
    """Whether the estimate from sampled tokens differs from the exact entropy."""
    exact, estimate = of(seen.run, "entropy/exact"), of(seen.run, "entropy/nll")
    if exact is None or estimate is None:
        return None
    H, nll = shared(exact, estimate)
    if len(H) < 10 or H.mean() <= 0:
        return None
    gap = float(nll.mean() / H.mean() - 1)
    same_side = float(np.mean(np.sign(nll - H) == np.sign(gap)))
    if abs(gap) < APART or same_side < 0.9:
        return None
    return ramp(abs(gap), 0.1, 0.4), (
        f"The mean of -log p of the sampled tokens is {gap:+.0%} off the exact entropy, on the "
        f"same side in {same_side:.0%} of the iterations: tokens are not drawn from the "
        "distribution that is measured (top-p, another temperature, another policy)."
    )


def _logged(seen: Seen, entropy: Signal) -> Plain:
    """Whether the trainer logs a summed entropy instead of a mean."""
    if entropy.name != "entropy/logged" or "sum" not in seen.run.entropy_is:
        return None
    return 0.7, f"The trainer logs another figure: {seen.run.entropy_is}."
