"""Reading dumps of rollouts, of which any may be missing, cut or no dump at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .encoding import VALUES

if TYPE_CHECKING:
    from ...logs.rollouts import Rollouts
    from ...logs.run import Run


def read_dump(run: Run, iteration: int, failed: dict[int, str]) -> Rollouts | None:
    """An iteration's rollouts; None, and an entry in `failed`, where they cannot be read."""
    try:
        rollouts = run.dumps[iteration]()
        if not _consistent(rollouts):
            raise ValueError("its parts do not fit together")
        if not len(rollouts):
            raise ValueError("it holds no rollouts")
    except ValueError as error:
        # the page may be passed on: it names files from the run's directory on
        failed[iteration] = str(error).replace(f"{run.path}/", "")
        return None
    return rollouts


def _consistent(r: Rollouts) -> bool:
    B, n = len(r.completions), len(r.tokens)
    values = [v for name in VALUES if (v := getattr(r, name)) is not None]
    return (
        len(r.prompts) == B
        and all(len(t) == B for t in (r.rewards, r.group, r.finished, r.trained))
        and all(len(t) == n for t in values)
        and len(r.start) == B + 1
        and int(r.start[0]) == 0
        and int(r.start[-1]) == n
        and bool((r.start.diff() >= 0).all())
        and (n == 0 or 0 <= int(r.tokens.min()) <= int(r.tokens.max()) < 2**24)
    )


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
