"""What a page says first: how a run, or each of several, ended, and what to know of its logs."""

from __future__ import annotations

from collections.abc import Sequence

from ..logs.run import Run
from .runs import Row, end_words

STEADY = 0.02  # of the first value: a smaller change is none
SOME = 6  # labels that a note names


def summary_of(row: Row) -> tuple[str, ...]:
    """One run in sentences; a figure that it does not log is not spoken of."""
    found = []
    if row.entropy_before is not None and row.entropy_after is not None:
        moved = _moved(row.entropy_before, row.entropy_after)
        text = f"Entropy {moved} {row.entropy_before:.3f} to {row.entropy_after:.3f} nats per token"
        if row.target is not None:
            gap = row.entropy_after - row.target
            side = "above" if gap > 0 else "below"
            text += f", {abs(gap):.3f} {side} the target of {row.target:.3f}"
        found.append(f"{text}.")
    if row.reward_first is not None and row.reward_last is not None:
        moved = _moved(row.reward_first, row.reward_last)
        found.append(f"The mean reward {moved} {row.reward_first:.3f} to {row.reward_last:.3f}.")
    scores = [
        f"{name} {'' if before is None else f'{before:.{digits}f} → '}{after:.{digits}f}"
        for name, before, after, digits in (
            (f"avg@{_k(row)}", row.avg_before, row.avg_after, 3),
            (f"pass@{_k(row)}", row.pass_before, row.pass_after, 3),
            ("distinct right answers per prompt", row.distinct_before, row.distinct_after, 1),
        )
        if after is not None
    ]
    if scores:
        found.append(f"Held-out prompts ({row.split}): {', '.join(scores)}.")
    return tuple(found)


def summary_of_all(rows: Sequence[Row]) -> tuple[str, ...]:
    """Several runs in sentences: where each figure ended lowest and highest."""
    found = []
    ks = {_k(row) for row in rows if row.avg_after is not None}
    k = ks.pop() if len(ks) == 1 else "k"
    for name, unit, values, digits in (
        ("Entropy", " nats per token", [row.entropy_after for row in rows], 3),
        ("The mean reward", "", [row.reward_last for row in rows], 3),
        (f"avg@{k} on held-out prompts", "", [row.avg_after for row in rows], 3),
        ("The number of distinct right answers per prompt", "",
         [row.distinct_after for row in rows], 1),
    ):  # fmt: skip
        known = [(v, row.label) for v, row in zip(values, rows, strict=True) if v is not None]
        if len(known) < 2:
            continue
        (low, lowest), (high, highest) = min(known), max(known)
        if f"{low:.{digits}f}" == f"{high:.{digits}f}":
            found.append(f"{name} ends at {low:.{digits}f}{unit} in all runs.")
        else:
            found.append(
                f"{name} ends between {low:.{digits}f} ({lowest}) and {high:.{digits}f}{unit} "
                f"({highest})."
            )
    return tuple(found)


def ends_note(rows: Sequence[Row]) -> str:
    """What "start" and "end" mean on this page, as it was computed."""
    return (
        "Start and end of entropy and mean reward: the first iteration and "
        f"{end_words(rows)}; of held-out figures, the evaluation before training and the last one."
    )


def notes_of_all(
    runs: Sequence[Run], labels: Sequence[str], entropies: bool
) -> list[tuple[str, str]]:
    """Which runs, and what is said of them; what is said of several is said once.

    `entropies` says which entropy each has as well.
    """
    found: dict[str, list[str]] = {}
    for run, label in zip(runs, labels, strict=True):
        for note in (*run.notes, *(entropies * [f"Entropy: {run.entropy_is}"])):
            found.setdefault(note, []).append(label)
    return [(_some(of, len(runs)), note) for note, of in found.items()]


def _some(labels: Sequence[str], count: int) -> str:
    if 2 < count == len(labels):
        return "All runs"
    more = f" and {len(labels) - SOME} more" if len(labels) > SOME + 1 else ""
    return ", ".join(labels[:SOME] if more else labels) + more


def _k(row: Row) -> str:
    return "k" if row.k is None else str(row.k)


def _moved(before: float, after: float) -> str:
    if abs(after - before) <= STEADY * abs(before):
        return "stayed as it was,"
    return "rose from" if after > before else "fell from"
