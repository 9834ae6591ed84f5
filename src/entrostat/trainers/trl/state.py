"""The state of a recipe's run, and its prompts."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...config import TrainConfig
from ...data.prompts import draw, encode, redrawn
from ...models.policy import Policy
from ...tasks import Example
from ..assemble import Parts


@dataclass
class Recipe(Parts):
    """A run in memory, built and checked: the lab's `State`, without the parts that TRL holds.

    A prompt is named by its place among the run's draws: a number, or "ITERATION.DRAW.ROW" for a
    replacement. The prompts of one iteration are kept.
    """

    config: TrainConfig  # with all defaults chosen
    policy: Policy  # the model that TRL trains, as the lab samples and measures it
    _drawn: dict[str, tuple[Example, list[int]]] = field(default_factory=dict, init=False)

    def examples(self, places: list[str]) -> list[Example]:
        return [self._at(place)[0] for place in places]

    def token_ids(self, places: list[str]) -> list[list[int]]:
        return [list(self._at(place)[1]) for place in places]

    def others(self, iteration: int, again: int, count: int) -> list[str]:
        """Places of `count` prompts of an iteration's `again`-th redraw."""
        examples = redrawn(self.task, self.config, iteration, again, count)
        return self._keep([f"{iteration}.{again}.{row}" for row in range(count)], examples)

    def _at(self, place: str) -> tuple[Example, list[int]]:
        if place not in self._drawn:
            prompts = self.config.sampling.prompts
            first = int(place) // prompts * prompts
            places = [str(first + row) for row in range(prompts)]
            self._drawn = {}
            self._keep(places, draw(self.task, self.config, first // prompts + 1))
        return self._drawn[place]

    def _keep(self, places: list[str], examples: list[Example]) -> list[str]:
        ids = encode(self.policy, self.config, examples, self.new)
        self._drawn |= dict(zip(places, zip(examples, ids, strict=True), strict=True))
        return places
