"""Logs as pandas frames. pandas is an extra: it is imported when a frame is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import extra

if TYPE_CHECKING:
    import pandas as pd


def pandas(what: str) -> Any:
    """The module pandas, which `what` needs."""
    with extra("notebook", what):
        import pandas
    return pandas


def frame(lines: Sequence[dict[str, Any]], index: Sequence[str], what: str) -> pd.DataFrame:
    """Lines of a log, indexed by `index`, a column per key in order of appearance."""
    columns = list(dict.fromkeys([*index, *(key for line in lines for key in line)]))
    return pandas(what).DataFrame(list(lines), columns=columns).set_index(list(index))
