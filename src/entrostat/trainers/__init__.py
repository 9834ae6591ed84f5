"""Where an objective runs: our own loop (`lab`), TRL, veRL."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

_TRAIN = {"lab": ".lab", "trl": ".trl.run", "verl": ".verl.run"}


def trains(host: str) -> Callable[..., Path]:
    """The `train` of a host, which makes a run directory of a configuration.

    All take (config, *, task, progress, resume) and return the directory (`lab.train`).

    Raises:
        ValueError: the host's library is not installed; says what to install.
    """
    return import_module(_TRAIN[host], __name__).train
