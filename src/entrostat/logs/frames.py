"""Logs as pandas frames. pandas is an extra: it is imported when a frame is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import extra

if TYPE_CHECKING:
    import pandas as pd


def pandas(what: str) -> Any:
    """The module pandas.

    Raises:
        ValueError: it is not installed; `what` is what needs it.
    """
    with extra("notebook", what):
        import pandas
    return pandas


def frame(lines: Sequence[dict[str, Any]], index: Sequence[str], what: str) -> pd.DataFrame:
    """Lines of a log as a frame, a column per key in order of appearance.

    Args:
        lines: objects, which need not have the same keys.
        index: keys that become the index.
        what: what needs pandas, for the error where there is none.

    Raises:
        ValueError: there is no pandas.
    """
    module = pandas(what)
    columns = list(dict.fromkeys([*index, *(key for line in lines for key in line)]))
    return module.DataFrame(list(lines), columns=columns).set_index(list(index))
