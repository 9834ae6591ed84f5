"""How many examples a property is tried on."""

import os

DEEP = bool(os.environ.get("ENTROSTAT_DEEP"))  # as `make test-slow` sets it


def examples(n: int) -> int:
    """Hypothesis' examples of a test: `n` by `make test-slow`, a third of them by `make test`."""
    return n if DEEP else n // 3
