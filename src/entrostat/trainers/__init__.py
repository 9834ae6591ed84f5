"""Trainers of an objective: our own loop (`lab`), TRL and veRL."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

_TRAIN = {"lab": ".lab", "trl": ".trl.run", "verl": ".verl.run"}


def trains(host: str) -> Callable[..., Path]:
    """The `train` of a host: (config, *, task, progress, resume) -> the run directory."""
    return import_module(_TRAIN[host], __name__).train
