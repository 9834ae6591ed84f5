"""Where an objective runs: our own loop (`lab`), TRL, veRL; what they share is in `rollouts`."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

BUSY = "another process is training in this directory"  # how the refusal of a locked run ends
STARTED_BY_A_STUDY = "ENTROSTAT_STUDY"  # its process, set for its trainings
_TRAIN = {"lab": ".lab", "trl": ".trl.run", "verl": ".verl.run"}


def trains(host: str) -> Callable[..., Path]:
    """The `train` of a host, which makes a run directory of a configuration.

    All take (config, *, task, progress, resume) and return the directory (`lab.train`).

    Raises:
        ValueError: the host's library is not installed; says what to install.
    """
    return import_module(_TRAIN[host], __name__).train


def is_main() -> bool:
    """Whether this process shows and writes: alone, or the first of those launched together."""
    return os.environ.get("RANK", "0") == "0"


def study_of() -> int | None:
    """The study that started this process, which ends with it and takes the threads it was given.

    None where a user did.
    """
    said = os.environ.get(STARTED_BY_A_STUDY, "")
    return int(said) if said.isascii() and said.isdecimal() else None
