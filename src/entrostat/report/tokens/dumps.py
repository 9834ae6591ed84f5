"""Which iterations a page holds, and reading their dumps, of which any may be no dump at all."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...logs.rollouts import Rollouts
    from ...logs.run import Run

DUMPS = 16  # dumps that are read for what a run did not log
MOST_ID = 2**24  # a page holds a token's id in three bytes


def choose_iterations(dumped: Collection[int], analysed: Collection[int], most: int) -> list[int]:
    """At most `most` of the dumped iterations: the first, the last, and evenly between.

    Between, the analysed iteration nearest to each place is taken where one is near enough.
    """
    there = sorted(dumped)
    if len(there) <= most:
        return there
    gap = (there[-1] - there[0]) / (most - 1)
    chosen = {there[0], there[-1]}
    for k in range(1, most - 1):
        place = there[0] + k * gap
        near = [i for i in there if i in analysed and abs(i - place) <= gap / 2]
        chosen.add(min(near or there, key=lambda i: (abs(i - place), i)))
    return sorted(chosen)


def read_dump(run: Run, iteration: int, failed: dict[int, str]) -> Rollouts | None:
    """An iteration's rollouts; None, and an entry in `failed`, where they cannot be read."""
    try:
        rollouts = run.dumps[iteration]()
        if not len(rollouts):
            raise ValueError("it holds no rollouts")
        if len(rollouts.tokens) and int(rollouts.tokens.max()) >= MOST_ID:
            raise ValueError(f"it holds a token id above {MOST_ID - 1}")
    except ValueError as error:
        # the page may be passed on: it names files from the run's directory on
        why = str(error).replace(f"{run.path}/", "")
        failed[iteration] = why.removeprefix("load_rollouts: ")
        return None
    return rollouts


def failures(failed: dict[int, str]) -> tuple[str, ...]:
    """A sentence on the dumps that cannot be read; none where all can."""
    if not failed:
        return ()
    first = min(failed)
    if len(failed) == 1:
        return (f"The rollouts of iteration {first} cannot be read: {failed[first]}",)
    return (
        f"The rollouts of {len(failed)} iterations ({listed(sorted(failed))}) cannot be read; "
        f"of iteration {first}: {failed[first]}",
    )


def listed(numbers: Iterable[int]) -> str:
    """Numbers in words; of many the first and the last."""
    words = [str(i) for i in numbers]
    return ", ".join(words if len(words) <= 20 else [*words[:10], "...", *words[-3:]])


def with_dumps(run: Run) -> Run:
    """Another trainer's run with the entropy dynamics of its dumped rollouts, if it logged none.

    At most `DUMPS` are read, of iterations that have a line of metrics; what a line has stays. A
    note says so.
    """
    if run.source == "entrostat" or run.keys("flow") or run.keys("quadrant"):
        return run
    lines = {line["iteration"]: line for line in run.metrics}
    found = {}
    for iteration in choose_iterations(run.dumps.keys() & lines.keys(), (), DUMPS):
        if (rollouts := read_dump(run, iteration, {})) is not None:
            from ..dumped import of_dump  # torch, which a log of numbers does not need

            if figures := of_dump(rollouts):
                found[iteration] = figures | lines[iteration]
    if not found:
        return run
    which = f"{len(found)} iteration" + "s" * (len(found) > 1)
    note = (
        "Entropy flow, covariances and quadrants are not logged: they were computed for this page "
        f"from the rollouts of {which}, under the policy whose log-probs the dump has, over the "
        "groups with a signal."
    )
    metrics = [found.get(line["iteration"], line) for line in run.metrics]
    return replace(run, metrics=metrics, notes=(*run.notes, note))
