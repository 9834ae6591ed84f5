"""A recipe's run in memory, and what the parts of this package ask of the trainer around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ...config import TrainConfig
from ...core.distributed import Communicator
from ...core.objective import Objective
from ...data.prompts import draw, encode, redrawn
from ...data.scoring import Scorer
from ...evaluation.eval_sets import ResolvedEvalSets
from ...models.policy import Policy
from ...tasks import Example, Task


class Trainer(Protocol):
    """`EntropyGRPOTrainer`, as its callbacks and helpers know it; the rest is TRL's own."""

    objective: Objective | None
    args: Any
    model: Any
    optimizer: Any
    accelerator: Any
    state: Any
    temperature: float
    num_generations: int
    num_iterations: int
    max_completion_length: Any
    current_gradient_accumulation_steps: int
    reward_func_names: list[str]
    eos_token_ids: Any
    reward_weights: Any
    train_dataset: Any
    _analyst: Any
    _buffered_inputs: Any
    _scored: Any
    _step: int
    _tokenizer: Any
    _metrics: Any
    _run_log: Any

    @property
    def updates(self) -> int: ...
    @property
    def ranks(self) -> Communicator: ...
    def begin(self, state: Any) -> None: ...
    def other_rows(self, draw: int, count: int) -> list[dict[str, Any]]: ...

    extra_pass: Callable[..., Any]


class RecipeRun(Protocol):
    """`RecipeTrainer`, as its record and its turns know it."""

    recipe: Recipe
    accelerator: Any
    use_vllm: bool
    answers: Any
    _clock: Any
    _ending: Any
    _generate_single_turn: Callable[..., Any]

    @property
    def updates(self) -> int: ...
    def figures(self, iteration: int, tokens: float) -> dict[str, float]: ...


@dataclass
class Recipe:
    """A run in memory, built and checked (the lab's `State`, as far as TRL has it not itself).

    Attributes:
        config: with all that it leaves open chosen.
        task: prompts and verifier, or environments.
        new: tokens that a completion, or a turn of it, may take.
        stop: strings that end one.
        objective: methods and their controllers.
        policy: the model that TRL trains, as the lab samples and measures it.
        scorer: of the task; it may hold worker processes.
        held_out: what the policy is evaluated on; other tasks' scorers may hold such, too.
    """

    config: TrainConfig
    task: Task
    new: int
    stop: tuple[str, ...]
    objective: Objective
    policy: Policy
    scorer: Scorer
    held_out: ResolvedEvalSets

    @cached_property
    def drawn(self) -> Drawn:
        """The prompts."""
        return Drawn(self)


class Drawn:
    """The prompts of a run by their place among its draws; one iteration's are kept.

    A place is a number, or "ITERATION.DRAW.ROW" of prompts drawn in the place of others.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._found: dict[str, tuple[Example, list[int]]] = {}

    def examples(self, places: list[str]) -> list[Example]:
        """At places."""
        return [self._at(place)[0] for place in places]

    def token_ids(self, places: list[str]) -> list[list[int]]:
        """At places."""
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
