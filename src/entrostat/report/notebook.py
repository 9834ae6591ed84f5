"""Functions for notebooks: load, plot and compare runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..logs.importers import read as load_run  # noqa: F401 (`entrostat.load_run`)
from ..logs.importers import read_all
from ..logs.run import Run, pandas
from .runs import rows_of

if TYPE_CHECKING:
    import pandas as pd

    from .picture import Picture

PathLike = str | Path


def load_runs(
    paths: PathLike | Iterable[PathLike],
    format: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Run]:
    """Read several runs.

    Args:
        paths: a directory or a file, which stands for all runs in it, or several of these.
        format: as for `load_run`, for all runs.
        columns: as for `load_run`, for all runs.

    Raises:
        ValueError: there is no path, or one cannot be read.
    """
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    if not given:
        raise ValueError("load_runs: paths is empty; name at least one run or study")
    return [run for path in given for run in read_all(path, format, columns)[0]]


def plot(
    runs: Run | PathLike | Iterable[Run | PathLike],
    figure: str = "entropy",
    size: tuple[float, float] | None = None,
) -> Picture:
    """Draw a figure of a run's page, or of the page that compares several runs.

    Args:
        runs: a run, or several, loaded or as paths. Several are overlaid, the seeds of equal
            settings as a band.
        figure: its name (`entrostat report RUN --list` prints them), or a metric's: "grad/norm".
        size: width and height in inches; None takes the page's.

    Returns:
        a matplotlib figure, which a notebook shows; it is not registered with pyplot.
        `.savefig(PATH)` writes it, `.axes[0]` can be modified.

    Raises:
        ValueError: no such figure, nothing to draw, or a run cannot be read.
    """
    from .export import figure_named, parts_of, picture
    from .figures import styled

    drawn = figure_named(parts_of(_read(runs)), figure)
    with styled():
        result = picture(drawn, size)
        result.draw_without_rendering()  # so that late objects, such as ticks, also get our style
    return result


def compare(runs: Iterable[Run | PathLike] | PathLike) -> pd.DataFrame:
    """Compare runs in a data frame: a row per run, the columns of `report.Row`.

    Args:
        runs: runs, loaded or as paths; or a study's directory.

    Returns:
        entropies (nats per token), scores and rewards at start and end, indexed by label. Missing
        values are NaN.

    Raises:
        ValueError: no runs, one that cannot be read, or no pandas.
    """
    frames = pandas("compare")
    found = _read(runs)
    if not found:
        raise ValueError("compare: runs is empty; name at least one run")
    rows = rows_of([found] if isinstance(found, Run) else found)
    lines = [asdict(row) | {"run": str(row.run)} for row in rows]
    return frames.DataFrame(lines).set_index("label")


def _read(runs: Any) -> Run | Sequence[Run]:
    """Load runs given as paths; the path of a study stands for its runs."""
    if isinstance(runs, Run):
        return runs
    if isinstance(runs, str | Path):
        found = load_runs(runs)
        return found[0] if len(found) == 1 else found
    return [each for run in runs for each in ([run] if isinstance(run, Run) else load_runs(run))]
