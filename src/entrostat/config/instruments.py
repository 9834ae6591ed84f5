"""What is measured beside training, now and then; weights stay the same."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Analyze:
    """What updates do to entropy, token by token (docs/dynamics.md); weights stay the same."""

    every: int = 0
    """Iterations between analyses, the first iteration among them; 0 for none."""

    def due(self, iteration: int) -> bool:
        """Whether an iteration (1, 2, ...) is analysed."""
        return _due(self.every, iteration)


@dataclass
class Forecast:
    """The change of entropy on fresh prompts, foretold before the updates (docs/dynamics.md)."""

    every: int = 0
    """Iterations between forecasts, the first iteration among them; 0 for none."""
    prompts: int = 64
    """Fresh prompts on which entropy is measured before and after."""
    rollouts: int = 8
    """Rollouts of each."""

    def due(self, iteration: int) -> bool:
        """Whether one is made in an iteration (1, 2, ...)."""
        return _due(self.every, iteration)


def _due(every: int, iteration: int) -> bool:
    return every > 0 and (iteration == 1 or iteration % every == 0)
