"""A recipe's run in memory, and what the parts of this package ask of the trainer around them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from ...config import TrainConfig
from ...core.distributed import Communicator
from ...core.objective import Objective
from ...data.prompts import draw, encode
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
    reward_func_names: list[str]
    eos_token_ids: Any
    reward_weights: Any
    train_dataset: Any
    _scored: Any
    _tokenizer: Any
    _metrics: Any
    _run_log: Any

    @property
    def updates(self) -> int: ...
    @property
    def ranks(self) -> Communicator: ...
    def begin(self, state: Any) -> None: ...

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
    """The prompts of a run by their place among its draws; one iteration's are kept."""

    def __init__(self, recipe: Recipe) -> None:
        self._recipe, self._iteration = recipe, 0
        self._examples: list[Example] = []
        self._ids: list[list[int]] = []

    def of(self, iteration: int) -> list[Example]:
        """An iteration's."""
        if iteration != self._iteration:
            recipe = self._recipe
            self._examples = draw(recipe.task, recipe.config, iteration)
            self._ids = encode(recipe.policy, recipe.config, self._examples, recipe.new)
            self._iteration = iteration
        return self._examples

    def examples(self, places: list[str]) -> list[Example]:
        """At places."""
        return [self.of(iteration)[row] for iteration, row in map(self._split, places)]

    def token_ids(self, places: list[str]) -> list[list[int]]:
        """At places."""
        self.examples(places)
        return [list(self._ids[row]) for _, row in map(self._split, places)]

    def _split(self, place: str) -> tuple[int, int]:
        before, row = divmod(int(place), self._recipe.config.sampling.prompts)
        return before + 1, row
