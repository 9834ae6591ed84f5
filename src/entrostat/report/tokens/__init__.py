"""The token view: select and encode a page's rollouts, plus a sample for readers without scripts.

A page holds the rollouts of some iterations as JSON, which `js/tokens.js` displays. Both are
bounded in bytes, since a run may hold far more tokens than a page can; `TokenView.shown` lists what
was left out. Rollouts come from `Run.dumps`, so other trainers' runs work as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..._text import counted
from . import encoding
from .encoding import Part, encode, encode_within, page_json, samples_of

if TYPE_CHECKING:
    from ...logs.rollouts import Rollouts
    from ...logs.run import Run

DUMPS = 16  # dumps read for metrics that a run did not log
MOST_ID = 2**24  # a page stores a token id in three bytes
BYTES = 8_000_000  # JSON of all iterations together
MOST = 16  # maximum number of iterations on a page
LEAST = 3  # minimum, even for long completions
ENOUGH = 64  # rollouts per iteration that take priority over more iterations


def choose_iterations(dumped: Collection[int], analysed: Collection[int], most: int) -> list[int]:
    """Choose at most `most` dumped iterations, evenly spaced, preferring analysed ones nearby."""
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
    """Read an iteration's rollouts; if unreadable, return None and add an entry to `failed`."""
    try:
        rollouts = run.dumps[iteration]()
        if not len(rollouts):
            raise ValueError("it holds no rollouts")
        if len(rollouts.tokens) and int(rollouts.tokens.max()) >= MOST_ID:
            raise ValueError(f"it holds a token id above {MOST_ID - 1}")
    except ValueError as error:
        # a page may be shared, so it names files relative to the run's directory
        why = str(error).replace(f"{run.path}/", "")
        failed[iteration] = why.removeprefix("load_rollouts: ")
        return None
    return rollouts


def failures(failed: dict[int, str]) -> tuple[str, ...]:
    """A sentence about unreadable dumps; empty if all are readable."""
    if not failed:
        return ()
    first, why = min(failed.items())
    if len(failed) == 1:
        return (f"The rollouts of iteration {first} cannot be read: {why}",)
    which = f"{len(failed)} iterations ({listed(sorted(failed))})"
    return (f"The rollouts of {which} cannot be read; of iteration {first}: {why}",)


def listed(numbers: Iterable[int]) -> str:
    words = [str(i) for i in numbers]
    return ", ".join(words if len(words) <= 20 else [*words[:10], "...", *words[-3:]])


def with_dumps(run: Run) -> Run:
    """Add entropy dynamics of dumped rollouts to another trainer's run that logged none."""
    if run.source == "entrostat" or run.keys("flow") or run.keys("quadrant"):
        return run
    lines = {line["iteration"]: line for line in run.metrics}
    found = {}
    for iteration in choose_iterations(run.dumps.keys() & lines.keys(), (), DUMPS):
        if (rollouts := read_dump(run, iteration, {})) is not None:
            from ..dumped import of_dump  # imports torch, which a log of numbers does not need

            if figures := of_dump(rollouts):
                found[iteration] = figures | lines[iteration]
    if not found:
        return run
    note = (
        "Entropy flow, covariances and quadrants are not logged: they were computed for this page "
        f"from the rollouts of {counted(len(found), 'iteration')}, under the policy whose "
        "log-probs the dump has, over the groups with a signal."
    )
    metrics = [found.get(line["iteration"], line) for line in run.metrics]
    return replace(run, metrics=metrics, notes=(*run.notes, note))


@dataclass(frozen=True)
class TokenView:
    # JSON that is safe inside a script element; empty without rollouts
    data: str = ""
    shown: str = ""  # sentences about what is shown and what was left out
    # shown without JavaScript; None without rollouts
    samples: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()  # sentences about missing and unreadable parts


def token_view(run: Run) -> TokenView:
    if not run.dumps:
        return TokenView(notes=("No rollouts were dumped.",))
    failed: dict[int, str] = {}
    for last in sorted(run.dumps, reverse=True):
        if (newest := read_dump(run, last, failed)) is not None:
            break
    else:
        return TokenView(notes=failures(failed))
    enough = len(encode(newest, last, 1).data) * min(1, ENOUGH / len(newest))
    most = int(min(MOST, max(LEAST, BYTES // enough)))
    analysed = {line["iteration"] for line in run.analysis}
    parts: dict[int, Part] = {}
    while True:  # repeat if a chosen dump could not be read
        chosen = choose_iterations(run.dumps.keys() - failed.keys(), analysed, most)
        unread = [i for i in chosen if i not in parts]
        if not unread:
            break
        for i in unread:
            rollouts = newest if i == last else read_dump(run, i, failed)
            if rollouts is not None:
                parts[i] = encode_within(rollouts, i, BYTES // min(most, len(run.dumps)))
    kept = {i: parts[i] for i in chosen}
    return TokenView(
        data=page_json(list(kept.values())),
        shown=_shown(kept, len(run.dumps), len(failed)),
        samples=samples_of(newest, last),
        notes=failures(failed),
    )


def _shown(parts: dict[int, Part], dumped: int, failed: int) -> str:
    sentences = []
    if len(parts) + failed < dumped:
        sentences.append(
            f"Shown are iterations {listed(parts)}, {len(parts)} of the {dumped} dumped."
        )
    few = {i: f"{p.kept} of {p.count}" for i, p in parts.items() if p.kept < p.count}
    if few:
        of = ", ".join(f"{share} in iteration {i}" for i, share in few.items())
        if len(few) == len(parts) and len(set(few.values())) == 1:
            of = f"{few.popitem()[1]} in each iteration"
        sentences.append(f"To keep this page small, not every rollout is on it: {of}.")
    if cut := sum(part.cut for part in parts.values()):
        rollouts = "rollout is" if cut == 1 else "rollouts are"
        sentences.append(f"{cut} {rollouts} shown up to token {encoding.LONGEST}.")
    return " ".join(sentences)
