"""The token view: which rollouts a page holds, how they are encoded, a sample for no script.

A page holds the rollouts of some iterations as JSON, and `js/tokens.js` makes the view of it.
Both are bounded by bytes, for a run may hold far more tokens than a page can; `TokenView.shown`
says what was left out. Rollouts come from `Run.dumps`, so another trainer's run works as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from . import encoding
from .dumps import choose_iterations, failures, listed, read_dump
from .encoding import Part, encode, encode_within, page_json
from .sample import Samples, samples_of

if TYPE_CHECKING:
    from ...logs.run import Run

BYTES = 8_000_000  # of JSON, all iterations together
MOST = 16  # iterations of a page
LEAST = 3  # however long the completions are
ENOUGH = 64  # rollouts of an iteration that matter more than a further iteration


@dataclass(frozen=True)
class TokenView:
    """What the page needs.

    Attributes:
        data: JSON that is safe inside a script element; empty where there is nothing to show.
        shown: sentences on what is shown and what was left out.
        samples: what a reader without JavaScript sees; None where there is nothing to show.
        notes: sentences on what is missing or cannot be read.
    """

    data: str = ""
    shown: str = ""
    samples: Samples | None = None
    notes: tuple[str, ...] = ()


def token_view(run: Run) -> TokenView:
    """Choose, read and encode a run's rollouts.

    A dump that cannot be read is left out, with a note.
    """
    if not run.dumps:
        return TokenView(notes=("No rollouts were dumped.",))
    failed: dict[int, str] = {}
    newest = None
    last = 0
    for last in sorted(run.dumps, reverse=True):
        newest = read_dump(run, last, failed)
        if newest is not None:
            break
    if newest is None:
        return TokenView(notes=failures(failed))
    whole = len(encode(newest, last, 1).data)
    enough = whole * min(1, ENOUGH / len(newest))
    most = int(min(MOST, max(LEAST, BYTES // enough)))
    analysed = {line["iteration"] for line in run.analysis}
    parts: dict[int, Part] = {}
    while True:  # again where a chosen dump could not be read
        chosen = choose_iterations(run.dumps.keys() - failed.keys(), analysed, most)
        unread = [i for i in chosen if i not in parts]
        if not unread:
            break
        for i in unread:
            rollouts = newest if i == last else read_dump(run, i, failed)
            if rollouts is not None:
                parts[i] = encode_within(rollouts, i, BYTES // min(most, len(run.dumps)))
    kept = [parts[i] for i in chosen]
    return TokenView(
        data=page_json(kept),
        shown=_shown(chosen, kept, len(run.dumps), len(failed)),
        samples=samples_of(newest, last),
        notes=failures(failed),
    )


def _shown(chosen: list[int], parts: list[Part], dumped: int, failed: int) -> str:
    """What a page holds of a run, in words."""
    sentences = []
    if len(chosen) + failed < dumped:
        sentences.append(
            f"Shown are iterations {listed(chosen)}, {len(chosen)} of the {dumped} dumped."
        )
    few = [(i, part) for i, part in zip(chosen, parts, strict=True) if part.kept < part.count]
    if few:
        shares = [f"{part.kept} of {part.count}" for _, part in few]
        if len(few) == len(parts) and len(set(shares)) == 1:
            of = f"{shares[0]} in each iteration"
        else:
            of = ", ".join(f"{s} in iteration {i}" for s, (i, _) in zip(shares, few, strict=True))
        sentences.append(f"To keep this page small, not every rollout is on it: {of}.")
    if cut := sum(part.cut for part in parts):
        rollouts = "rollout is" if cut == 1 else "rollouts are"
        sentences.append(f"{cut} {rollouts} shown up to token {encoding.LONGEST}.")
    return " ".join(sentences)
