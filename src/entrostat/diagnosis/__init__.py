"""Diagnosis of a run: the verdict on entropy, its onset, likely causes, and what to try."""

from __future__ import annotations

from .causes import Cause
from .diagnosis import Diagnosis, diagnose, table
from .events import Event
from .remedies import Remedy
from .verdict import Judged, Movement, judge

__all__ = [
    "Cause", "Diagnosis", "Event", "Judged", "Movement", "Remedy", "diagnose", "judge", "table",
]  # fmt: skip
