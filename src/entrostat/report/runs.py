"""Results of runs: the rows of a comparison, and the summary of a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..logs.lines import number
from ..logs.run import Run, held_out, last_ones, run_of, sets_of
from .curves import series

STEADY = 0.02  # relative to the first value: a smaller change counts as none
SOME = 6  # labels named in a note


@dataclass(frozen=True)
class Row:
    """One run in a comparison; None means not logged."""

    label: str  # method names joined by "+", or the directory's name if methods repeat
    run: Path  # the run directory
    iterations: int  # last iteration logged
    planned: int | None  # configured iterations
    # entropy of the first iteration's rollouts, nats per token: exact if logged, else by
    # `entropy_key`
    entropy_before: float | None
    # that of the last `ends` iterations, before their updates
    entropy_after: float | None
    entropy_kept: float | None  # after / before, percent
    target: float | None  # a controller's target, nats per token
    # evaluation set of the fields from `k` to `evaluated` (`held_out`); None if the run was not
    # evaluated on it
    split: str | None
    others: tuple[str, ...]  # other sets that it was evaluated on
    k: int | None  # samples per prompt
    avg_before: float | None  # avg@k before training (iteration 0), 0 to 1
    avg_after: float | None  # avg@k at the last evaluation of a later iteration
    pass_before: float | None  # pass@k before training, 0 to 1
    pass_after: float | None  # pass@k at the last evaluation
    # distinct correct answers per prompt among k samples, before training
    distinct_before: float | None
    distinct_after: float | None  # the same at the last evaluation
    evaluated: int | None  # iteration of the last evaluation
    reward_first: float | None  # mean reward of the first iteration
    reward_last: float | None  # mean reward of the last `ends` iterations
    # number of iterations that count as the run's end (`last_ones` of those that log an entropy or,
    # without one, a reward)
    ends: int
    seconds: float | None  # total time of the logged iterations, without evaluations


def entropy_key(run: Run) -> str | None:
    """The most exact entropy metric of the run; None if it logged none."""
    keys = ("entropy/exact", "entropy/nll", "entropy/logged")
    return next((key for key in keys if series(run.metrics, key)[0]), None)


def labels(runs: Sequence[Run]) -> list[str]:
    """Unique labels: method names, or the directory where names repeat or are longer."""
    names = []
    for run in runs:
        methods = run.methods or run.name
        chain = "+" in methods and len(run.name) < len(methods)
        names.append(run.name if chain else methods)
    return told_apart(runs, names)


def told_apart(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """Make names unique by more of the path where names repeat."""
    paths = [run.path for run in runs]
    within = ["/".join(path.parts[-2:]) for path in paths]  # equal names in two studies
    for other in ([run.name for run in runs], within, [str(path) for path in paths]):
        times = Counter(names)
        names = [o if times[n] > 1 else n for n, o in zip(names, other, strict=True)]
    return numbered(names)


def numbered(names: Sequence[str]) -> list[str]:
    """Append its index to each name that occurs more than once."""
    times = Counter(names)
    return [f"{n} ({i})" if times[n] > 1 else n for i, n in enumerate(names, 1)]


def comparison_rows(runs: Sequence[Path | Run]) -> list[Row]:
    """A row of results per run, in the given order; all scores are of one set."""
    return rows_of([run_of(run) for run in runs])


def rows_of(runs: Sequence[Run]) -> list[Row]:
    split = held_out(sets_of(run) for run in runs)
    return [_row(run, label, split) for run, label in zip(runs, labels(runs), strict=True)]


def by_k(rows: Sequence[Row]) -> dict[int, list[str]]:
    """Labels of the runs by k, the answers per held-out prompt; pass@k needs equal k."""
    found: dict[int, list[str]] = {}
    for row in rows:
        if row.k is not None:
            found.setdefault(row.k, []).append(row.label)
    return {k: found[k] for k in sorted(found)}


def apart(rows: Sequence[Row]) -> list[str]:
    """Sentences about scores in one column that are not comparable."""
    found = []
    if len(ks := by_k(rows)) > 1:
        said = "; ".join(f"{k} ({', '.join(labels)})" for k, labels in ks.items())
        found.append(
            f"k, the answers to a held-out prompt, is not the same in all runs: {said}. pass@k and "
            "distinct right answers grow with k and are not to be compared."
        )
    split = next((row.split for row in rows if row.split is not None), None)
    if others := [row.label for row in rows if row.split is None and row.others]:
        found.append(f"Not evaluated on {split}, so without scores here: {', '.join(others)}.")
    return found


def k_words(rows: Sequence[Row]) -> str:
    """Text for k above a column: the number, or "k" if runs differ."""
    ks = list(by_k(rows))
    return str(ks[0]) if len(ks) == 1 else "k"


def _row(run: Run, label: str, split: str) -> Row:
    entropy, reward = run.series(entropy_key(run) or "")[1], run.series("reward/mean")[1]
    ends = last_ones(len(entropy) or len(reward))
    before, after = _ends(entropy, ends)
    kept = 100 * after / before if before and after is not None else None
    target = run.series("control/target")[1]
    seconds = run.series("time/iteration")[1]
    first, last = _ends(reward, ends)
    of_split = [e for e in run.evaluation if e.get("split") == split]
    start = next((e for e in of_split if e["iteration"] == 0), {})
    end = next((e for e in reversed(of_split) if e["iteration"] > 0), {})
    k = number((end or start).get("k"))
    return Row(
        label=label,
        run=run.path,
        iterations=run.done,
        planned=run.planned,
        entropy_before=before,
        entropy_after=after,
        entropy_kept=kept,
        target=target[-1] if target else None,
        split=split if of_split else None,
        others=tuple(name for name in sets_of(run) if name != split),
        k=None if k is None else int(k),
        avg_before=number(start.get("avg@k")),
        avg_after=number(end.get("avg@k")),
        pass_before=number(start.get("pass@k")),
        pass_after=number(end.get("pass@k")),
        distinct_before=number(start.get("distinct")),
        distinct_after=number(end.get("distinct")),
        evaluated=end.get("iteration"),
        reward_first=first,
        reward_last=last,
        ends=ends,
        seconds=sum(seconds) if seconds else None,
    )


def _ends(values: Sequence[float], ends: int) -> tuple[float | None, float | None]:
    """The first value, and the mean of the last `ends`, since one batch's value is noisy."""
    if not values:
        return None, None
    end = values[-ends:]
    return values[0], sum(end) / len(end)


def summary_of(row: Row) -> tuple[str, ...]:
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
            (f"avg@{k_words([row])}", row.avg_before, row.avg_after, 3),
            (f"pass@{k_words([row])}", row.pass_before, row.pass_after, 3),
            ("distinct right answers per prompt", row.distinct_before, row.distinct_after, 1),
        )
        if after is not None
    ]
    if scores:
        found.append(f"Held-out prompts ({row.split}): {', '.join(scores)}.")
    return tuple(found)


def summary_of_all(rows: Sequence[Row]) -> tuple[str, ...]:
    found = []
    k = k_words([row for row in rows if row.avg_after is not None])
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
    counts = sorted({row.ends for row in rows})
    if counts == [1]:
        end = "the last iteration"
    elif len(counts) == 1:
        end = f"the mean of the last {counts[0]} iterations"
    else:
        end = f"the mean of each run's last iterations, {counts[0]} to {counts[-1]} of them"
    return (
        f"Start and end of entropy and mean reward: the first iteration and {end}; of held-out "
        "figures, the evaluation before training and the last one."
    )


def notes_of_all(
    runs: Sequence[Run], labels: Sequence[str], entropies: bool
) -> list[tuple[str, str]]:
    """Notes and the labels of their runs; with `entropies`, also each run's kind of entropy."""
    found: dict[str, list[str]] = {}
    for run, label in zip(runs, labels, strict=True):
        for note in (*run.notes, *(entropies * [f"Entropy: {run.entropy_is}"])):
            found.setdefault(note, []).append(label)
    return [(_some(of, len(runs)), note) for note, of in found.items()]


def _some(labels: Sequence[str], count: int) -> str:
    if 2 < count == len(labels):
        return "All runs"
    if len(labels) > SOME + 1:
        return f"{', '.join(labels[:SOME])} and {len(labels) - SOME} more"
    return ", ".join(labels)


def _moved(before: float, after: float) -> str:
    if abs(after - before) <= STEADY * abs(before):
        return "stayed as it was,"
    return "rose from" if after > before else "fell from"
