"""From a run to its remedy: what became of entropy, since when, what went with it, what to try."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..logs.run import Run
from .causes import Cause
from .diagnosis import Diagnosis, diagnose_run, table
from .events import Event
from .remedies import Remedy
from .verdict import Judged, Movement, judge

__all__ = [
    "Cause", "Diagnosis", "Event", "Judged", "Movement", "Remedy", "diagnose", "diagnose_run",
    "judge", "table",
]  # fmt: skip


def diagnose(
    run: str | Path | Run, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Diagnosis:
    """What became of a run's entropy, what went with it, and what to try.

    Args:
        run: a run directory, another trainer's log or output directory, or a run already read.
        format: how to read it; None tells it by the contents (`entrostat report --help`).
        columns: a table's own names of "step", "entropy" and "score".

    Raises:
        ValueError: nothing in it can be read.

    Example:
        >>> import entrostat as es
        >>> print(es.diagnose("outputs/checkpoint-500"))  # doctest: +SKIP
    """
    if not isinstance(run, Run):
        from ..logs.importers import read

        run = read(run, format, columns)
    return diagnose_run(run)
