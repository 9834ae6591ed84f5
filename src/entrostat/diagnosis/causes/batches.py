"""Causes in what is trained on: rewards, groups, lengths."""

from __future__ import annotations

import numpy as np

from ..course import moving_mean
from ..verdict import floor_of
from .seen import LATE, Plain, Seen, cause, ramp, short

SATURATED = (0.85, 0.97)  # mean of rewards in [0, 1]: from noticeable to plain
IDLE = (0.3, 0.8)  # share of groups without a signal
TRUNCATED = (0.05, 0.4)  # share of rollouts cut at the longest length
GROWN = 0.1  # of a share: a smaller change is none


@cause(
    "reward saturated",
    "A score is bought with entropy and the price rises: near the ceiling a little score costs "
    "all that is left (R = -a exp(H) + b).",
    "COV 2.4",
)
def reward_saturated(seen: Seen) -> Plain:
    score = seen.signal("score")
    if score is None or not seen.falling or score.y.min() < -1 or score.y.max() > 1 + 1e-9:
        return None  # of rewards on another scale the ceiling is not known
    floor = floor_of(score.y)
    plain = ramp((score.late - floor) / (1 - floor), *SATURATED)
    if plain == 0:
        return None
    means = moving_mean(score.y, max(1, len(score) // 20))
    level = floor + SATURATED[0] * (1 - floor)
    when = int(score.x[np.argmax(means >= level)])
    # entropy that fell long before cannot have fallen for this
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
    """The score went; where entropy held, holding it was no help, else the one went with the other.

    Of an entropy that moved it is no cause, so that it comes last.
    """
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
)
def zero_signal_groups(seen: Seen) -> Plain:
    share = seen.signal("no_signal")
    if share is None:
        return None
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
)
def truncation(seen: Seen) -> Plain:
    share, length = seen.signal("truncated"), seen.signal("length")
    if share is None:
        return None
    before, late = share.before(seen.onset), share.late
    after = share.y[share.x >= seen.onset]  # what was cut before it and no more is no cause of it
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
