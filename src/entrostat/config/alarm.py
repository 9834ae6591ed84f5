"""When a run warns that its entropy leaves a band."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class AlarmBand:
    """What entropy is to stay within; the alarm says when it is on its way out."""

    low: str = "0.5x"
    """Where the band begins: nats, or a share of the first entropy."""
    high: str = "1.5x"
    """Where it ends, likewise."""

    def check(self) -> None:
        """Read both ends."""
        from ..control import Alarm  # numpy and scipy, which `--help` does not need

        Alarm(self.low, self.high)
