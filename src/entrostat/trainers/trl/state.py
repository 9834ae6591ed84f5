"""A recipe's run in memory, and its prompts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from ...config import TrainConfig
from ...data.prompts import draw, encode, redrawn
from ...models.policy import Policy
from ...tasks import Example
from ..assemble import Parts


@dataclass
class Recipe(Parts):
    """A run in memory, built and checked (the lab's `State`, as far as TRL has it not itself)."""

    config: TrainConfig  # with all that it leaves open chosen
    policy: Policy  # the model that TRL trains, as the lab samples and measures it

    @cached_property
    def drawn(self) -> Drawn:
        return Drawn(self)


class Drawn:
    """The prompts of a run by their place among its draws; one iteration's are kept.

    A place is a number, or "ITERATION.DRAW.ROW" of prompts drawn in the place of others.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._found: dict[str, tuple[Example, list[int]]] = {}

    def examples(self, places: list[str]) -> list[Example]:
        return [self._at(place)[0] for place in places]

    def token_ids(self, places: list[str]) -> list[list[int]]:
        return [list(self._at(place)[1]) for place in places]

    def others(self, iteration: int, again: int, count: int) -> list[str]:
        """The places of `count` prompts of an iteration's `again`-th further draw."""
        recipe = self._recipe
        examples = redrawn(recipe.task, recipe.config, iteration, again, count)
        return self._keep([f"{iteration}.{again}.{row}" for row in range(count)], examples)

    def _at(self, place: str) -> tuple[Example, list[int]]:
        if place not in self._found:
            recipe, prompts = self._recipe, self._recipe.config.sampling.prompts
            first = int(place) // prompts * prompts
            places = [str(first + row) for row in range(prompts)]
            self._found = {}
            self._keep(places, draw(recipe.task, recipe.config, first // prompts + 1))
        return self._found[place]

    def _keep(self, places: list[str], examples: list[Example]) -> list[str]:
        recipe = self._recipe
        ids = encode(recipe.policy, recipe.config, examples, recipe.new)
        self._found |= dict(zip(places, zip(examples, ids, strict=True), strict=True))
        return places
