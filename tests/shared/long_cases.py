"""Which cases of a test run by default."""

from collections.abc import Iterable
from typing import Any

import pytest


def keep(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """All cases, of which `make test` runs the `kept` ones and `make test-long` the others."""
    every = list(cases)
    assert all(case in every for case in kept)
    return [case if case in kept else pytest.param(case, marks=pytest.mark.long) for case in every]
