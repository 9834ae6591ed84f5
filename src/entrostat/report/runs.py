"""What runs came to: the rows of a comparison."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..logs.lines import number
from ..logs.run import Run, held_out, last_ones, run_of, sets_of


@dataclass(frozen=True)
class Row:
    """One run in a comparison; None where the run does not say.

    Attributes:
        label: method names joined by "+", or the directory's name where methods repeat.
        run: the run directory.
        iterations: last iteration logged.
        planned: iterations asked for.
        entropy_before: entropy of the first iteration's rollouts, nats per token: exact where that
            is logged, else what `entropy_key` finds.
        entropy_after: that of the last iterations' (before their updates), `ends` of them.
        entropy_kept: after / before, percent.
        target: the entropy that a controller holds, nats per token.
        split: the evaluation set that the next seven fields are of (`held_out`); None of a run
            that was not evaluated on it.
        others: the sets besides that it was evaluated on.
        k: samples per prompt.
        avg_before: avg@k before training (iteration 0), 0 to 1.
        avg_after: avg@k at the last evaluation of a later iteration.
        pass_before: pass@k before training, 0 to 1.
        pass_after: pass@k at the last evaluation.
        distinct_before: distinct right answers per prompt among k samples, before training.
        distinct_after: the same at the last evaluation.
        evaluated: iteration of the last evaluation.
        reward_first: mean reward of the first iteration.
        reward_last: mean reward of the last iterations, `ends` of them.
        ends: how many iterations are the run's end (`last_ones` of those that log an entropy or,
            without one, a reward).
        seconds: time of the logged iterations, without evaluations.
    """

    label: str
    run: Path
    iterations: int
    planned: int | None
    entropy_before: float | None
    entropy_after: float | None
    entropy_kept: float | None
    target: float | None
    split: str | None
    others: tuple[str, ...]
    k: int | None
    avg_before: float | None
    avg_after: float | None
    pass_before: float | None
    pass_after: float | None
    distinct_before: float | None
    distinct_after: float | None
    evaluated: int | None
    reward_first: float | None
    reward_last: float | None
    ends: int
    seconds: float | None


HUGE = 1e30  # nothing logged is as large: a broken log must not break an axis or a fit


def drawable(run: Run, key: str) -> tuple[list[int], list[float]]:
    """Iterations and values of one metric, where a line has it as a number that can be drawn."""
    kept = [(x, y) for x, y in zip(*run.series(key), strict=True) if abs(y) < HUGE]
    return [x for x, _ in kept], [y for _, y in kept]


def entropy_key(run: Run) -> str | None:
    """The metric that tells the run's entropy best: exact, else estimated, else as it was logged.

    None where it logged none.
    """
    keys = ("entropy/exact", "entropy/nll", "entropy/logged")
    return next((key for key in keys if drawable(run, key)[0]), None)


def labels(runs: Sequence[Run]) -> list[str]:
    """A label each, all different: method names, where these repeat the directory's name.

    A chain of methods gives way to a directory's shorter name, the one that a study gave it.
    """
    return told_apart(runs, [_shorter(run) for run in runs])


def told_apart(runs: Sequence[Run], names: Sequence[str]) -> list[str]:
    """These names, with more of its path for each run whose name others have, too."""
    paths = [run.path for run in runs]
    within = ["/".join(path.parts[-2:]) for path in paths]  # of one name in two studies
    for other in ([run.name for run in runs], within, [str(path) for path in paths]):
        times = Counter(names)
        names = [o if times[n] > 1 else n for n, o in zip(names, other, strict=True)]
    times = Counter(names)
    return [f"{n} ({i})" if times[n] > 1 else n for i, n in enumerate(names, 1)]


def _shorter(run: Run) -> str:
    methods = run.methods or run.name
    return run.name if "+" in methods and len(run.name) < len(methods) else methods


def rows_of(runs: Sequence[Run]) -> list[Row]:
    """The rows of a comparison of runs already read; their scores are of one set."""
    split = held_out(sets_of(run) for run in runs)
    return [_row(run, label, split) for run, label in zip(runs, labels(runs), strict=True)]


def by_k(rows: Sequence[Row]) -> dict[int, list[str]]:
    """Labels of the runs by their answers to a held-out prompt, k; of two k pass@k says nothing."""
    found: dict[int, list[str]] = {}
    for row in rows:
        if row.k is not None:
            found.setdefault(row.k, []).append(row.label)
    return {k: found[k] for k in sorted(found)}


def apart(rows: Sequence[Row]) -> list[str]:
    """Sentences on scores that stand in one column and are not to be compared."""
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
    """What stands for k above a column: the number, or "k" where runs have several."""
    ks = list(by_k(rows))
    return str(ks[0]) if len(ks) == 1 else "k"


def comparison_rows(runs: Sequence[Path | Run]) -> list[Row]:
    """What each run came to, in the order given."""
    return rows_of([run_of(run) for run in runs])


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
    """The first value, and the mean of the last `ends`: one batch's figure is noisy."""
    if not values:
        return None, None
    end = values[-ends:]
    return values[0], sum(end) / len(end)


def end_words(rows: Sequence[Row]) -> str:
    """What "end" means in a table of these rows: the iterations that were averaged."""
    counts = sorted({row.ends for row in rows})
    if counts == [1]:
        return "the last iteration"
    if len(counts) == 1:
        return f"the mean of the last {counts[0]} iterations"
    return f"the mean of each run's last iterations, {counts[0]} to {counts[-1]} of them"


def pretty_environment(text: str) -> str:
    """environment.json indented by two; as it is where it is not JSON."""
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
