"""The entropy alarm of a run: metrics for the log, a message when it is raised."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..control import Alarm


class EntropyMonitor:
    """Monitors the entropy of a run's lines in order (`entrostat.control.Alarm`).

    `tell` is called with a message each time the alarm is raised, except for the `past` lines of a
    resumed run.
    """

    def __init__(
        self, alarm: Alarm, tell: Callable[[str], None], past: Iterable[Mapping[str, Any]] = ()
    ) -> None:
        self.alarm, self._tell = alarm, tell
        for row in past:
            self._see(row)

    def line(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """The metrics with the alarm's added; reads those of entropy and target."""
        before = self.alarm.raised
        if not self._see(metrics):
            return dict(metrics)
        if self.alarm.raised and not before:
            self._tell(f"alarm: {self.alarm.forecast()}")
        return {**metrics, **self.alarm.figures()}

    def _see(self, row: Mapping[str, Any]) -> bool:
        entropy, target = row.get("entropy/exact"), row.get("control/target")
        if not isinstance(entropy, int | float) or math.isnan(entropy):
            return False
        known = isinstance(target, int | float)
        self.alarm = self.alarm.seen(float(entropy), float(target) if known else None)
        return True
