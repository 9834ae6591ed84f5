"""Where an iteration's time goes: `time/...`, all in seconds but for the tokens."""

from __future__ import annotations

import time


class Timer:
    """Laps of an iteration, from when it is made."""

    def __init__(self) -> None:
        self._at = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, name: str, without: float = 0.0) -> None:
        """End a lap, or another part of it; `without` are seconds that belong elsewhere."""
        now = time.perf_counter()
        self._laps[name] = self._laps.get(name, 0.0) + now - self._at - without
        self._at = now

    def skip(self) -> None:
        """What has passed since the last lap is none of the training's."""
        self._at = time.perf_counter()

    def figures(self, tokens: float) -> dict[str, float]:
        """`time/LAP`, their sum `time/iteration`, and tokens per second; 0 where no time passed."""
        seconds = sum(self._laps.values())
        return {f"time/{name}": lap for name, lap in self._laps.items()} | {
            "time/iteration": seconds,
            "time/tokens_per_second": tokens / seconds if seconds > 0 else 0.0,
        }
