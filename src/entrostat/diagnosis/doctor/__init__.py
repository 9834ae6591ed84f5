"""The doctor: what makes a run's figures untrue, or a method idle, found before it starts.

table.py      the checks, and who asks them
settings.py   by the settings alone: also at the start of every `train`
subject.py    what the checks ask of a policy and its first rollouts
numbers.py    rounding, cancellation, sampler against trainer, temperature
tokens.py     padding, eos, group sizes, groups without a signal
acting.py     ratio, selection, gates, penalties;  knobs.py  targets;  cut.py  two ranks
recorded.py   the same by what a run left
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

from .finding import Finding
from .recorded_rollouts import rollouts_at
from .subject import PROMPTS
from .table import CHECKS, examine_run, examine_subject, lines, preflight, summary

__all__ = [
    "CHECKS", "PROMPTS", "Finding", "examine_run", "examine_subject", "lines", "preflight",
    "rollouts_at", "summary",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name != "examine":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.examine has moved to entrostat.trainers.lab", DeprecationWarning, stacklevel=2
    )
    return import_module("entrostat.trainers.lab").examine
