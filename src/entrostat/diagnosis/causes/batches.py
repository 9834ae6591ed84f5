"""Causes in what is trained on: rewards, groups, lengths."""

from __future__ import annotations

import numpy as np

from ..verdict import floor_of
from .seen import LATE, Cause, Seen, ramp, short

SATURATED = (0.85, 0.97)  # mean of rewards in [0, 1]: from noticeable to plain
IDLE = (0.3, 0.8)  # share of groups without a signal
TRUNCATED = (0.05, 0.4)  # share of rollouts cut at the longest length
GROWN = 0.1  # of a share: a smaller change is none


def reward_saturated(seen: Seen) -> Cause | None:
    """The score is near its ceiling: what is left of the gradient sharpens right answers."""
    score = seen.signal("score")
    if score is None or not seen.falling or score.y.min() < -1 or score.y.max() > 1 + 1e-9:
        return None  # of rewards on another scale the ceiling is not known
    floor = floor_of(score.y)
    plain = ramp((score.late - floor) / (1 - floor), *SATURATED)
    if plain == 0:
        return None
    means = np.convolve(score.y, np.ones(k := max(1, len(score) // 20)) / k, "valid")
    level = floor + SATURATED[0] * (1 - floor)
    when = int(score.x[np.argmax(means >= level)])
    # entropy that fell long before cannot have fallen for this
    in_time = when <= seen.onset + 2 * seen.span
    return Cause(
        "reward_saturated", "reward saturated", plain * (0.9 if in_time else 0.5),
        f"The mean reward went from {short(score.early)} to {short(score.late)} of at most 1, and "
        f"was first above {short(level)} in iteration {when}; entropy moved from {seen.onset}.",
        "A score is bought with entropy and the price rises: near the ceiling a little score costs "
        "all that is left (R = -a exp(H) + b).",
        "COV 2.4",
    )  # fmt: skip


def score_lost(seen: Seen) -> Cause | None:
    """The score went; where entropy held, holding it was no help, else the one went with the other.

    Of an entropy that moved it is no cause, so that it comes last.
    """
    event = next((e for e in seen.events if e.name == "score_lost"), None)
    if event is None:
        return None
    step = seen.signal("step_kl")
    moved = ""
    if step is not None:
        place = int(np.argmax(np.abs(step.y)))
        moved = (
            f"; {step.name} was at most {short(abs(float(step.y[place])))} nats, in iteration "
            f"{int(step.x[place])}"
        )
    what = f"{event.what[0].upper()}{event.what[1:]}"
    held = seen.judged.verdict == "held"
    title = f"the score was lost{' while entropy held' if held else ''}"
    return Cause(
        "score_lost", title, 0.9 if held else 0.15, f"{what}{moved}.",
        "A policy can die at any entropy: steps far beyond the policy that was sampled from "
        "unlearn what it could do, and nothing that holds entropy gives it back.",
        "STEER Fig. 8; our study",
    )  # fmt: skip


def no_learning_signal(seen: Seen) -> Cause | None:
    """No group teaches anything, so that nothing changes."""
    event = next((e for e in seen.events if e.name == "no_learning_signal"), None)
    if event is None:
        return None
    return Cause(
        "no_learning_signal", "no learning signal", 0.95,
        f"{event.what[0].upper()}{event.what[1:]}.",
        "Groups whose rewards are all equal have advantages of 0: the policy is not trained at "
        "all, and its entropy is that of the start.",
        "DAPO (arXiv 2503.14476) 3.2",
    )  # fmt: skip


def length_collapse(seen: Seen) -> Cause | None:
    """The policy learnt to say next to nothing."""
    event = next((e for e in seen.events if e.name == "length_collapse"), None)
    if event is None:
        return None
    norm = seen.signal("gradient")
    peak = ""
    if norm is not None and float(norm.y.max()) > 5 * norm.early:
        at = int(norm.x[int(np.argmax(norm.y))])
        peak = (
            f"; {norm.name} went from {short(norm.early)} to {short(float(norm.y.max()))} in {at}"
        )
    return Cause(
        "length_collapse", "responses collapsed to a few tokens", 0.92,
        f"{event.what[0].upper()}{event.what[1:]}{peak}.",
        "A policy that answers with next to nothing has little entropy left to lose and nothing "
        "left to be right with: entropy follows the length, not the other way round.",
        "STEER Fig. 8; DAPO 3.4",
    )  # fmt: skip


def no_signal(seen: Seen) -> Cause | None:
    """Groups whose rewards are all equal give no gradient: fewer prompts decide."""
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
    return Cause(
        "zero_signal_groups", "groups without a signal rising",
        plain * (0.9 if grown >= GROWN else 0.6) * (0.8 if right else 1.0)
        * (LATE if seen.follows(share) else 1.0),
        f"Groups of equal rewards ({side}) went from {before:.0%} before iteration {seen.onset} to "
        f"{late:.0%}: the batch that decides is {(1 - late) / max(1 - before, 1e-9):.2g} times as "
        "large.",
        "Only groups with both right and wrong answers have an advantage; the fewer they are, the "
        "noisier a step, and on prompts nearly always solved it only sharpens.",
        "REPO 4 and 5.3",
    )  # fmt: skip


def truncation(seen: Seen) -> Cause | None:
    """Rollouts cut at the longest length are scored as wrong, whatever they were about to say."""
    share = seen.signal("truncated")
    if share is None:
        return None
    before, late = share.before(seen.onset), share.late
    after = share.y[share.x >= seen.onset]  # what was cut before it and no more is no cause of it
    plain = ramp(max(late, float(after.mean()) if len(after) else 0.0), *TRUNCATED)
    if plain == 0:
        return None
    length = seen.signal("length")
    lengths = (
        ""
        if length is None
        else f", of mean length {short(length.early)} to {short(length.late)} tokens"
    )
    return Cause(
        "truncation", "length truncation",
        plain * (1.0 if late - before >= GROWN else 0.7)
        * (LATE if seen.follows(share) else 1.0),
        f"Rollouts cut at the longest length{lengths} were {before:.0%} before iteration "
        f"{seen.onset} and {late:.0%} at the end.",
        "A cut answer counts as wrong for its length: its tokens are pushed down, which moves "
        "entropy without a reason in the task, and its end was never sampled.",
        "DAPO (arXiv 2503.14476) 3.4",
    )  # fmt: skip
