"""Who started this process: a user, a study, or a launcher of several ranks."""

from __future__ import annotations

import os

STARTED_BY_A_STUDY = "ENTROSTAT_STUDY"  # its process, set for its trainings


def is_main() -> bool:
    """Whether this process shows and writes: alone, or the first of those launched together."""
    return os.environ.get("RANK", "0") == "0"


def study_of() -> int | None:
    """The study that started this process, which ends with it and takes the threads it was given.

    None where a user did.
    """
    said = os.environ.get(STARTED_BY_A_STUDY, "")
    return int(said) if said.isascii() and said.isdecimal() else None
