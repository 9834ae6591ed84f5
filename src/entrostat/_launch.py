"""How this process was started: by a user, a study, or a launcher of several ranks."""

from __future__ import annotations

import os

STARTED_BY_A_STUDY = "ENTROSTAT_STUDY"  # the study's process id, set for its trainings


def is_main() -> bool:
    """Whether this process prints and writes: a single process, or rank 0 of a launch."""
    return os.environ.get("RANK", "0") == "0"


def study_of() -> int | None:
    """The process id of the study that started this process; None without a study.

    A study's training ends with the study and uses the threads that it was given.
    """
    said = os.environ.get(STARTED_BY_A_STUDY, "")
    return int(said) if said.isascii() and said.isdecimal() else None
