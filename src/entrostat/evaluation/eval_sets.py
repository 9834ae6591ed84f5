"""Evaluation sets used in training: the task's own splits, or those of `[[eval]]`.

A set's own settings override the run's for sampling. Metrics of its responses, such as entropy, are
still measured at the run's temperature, so they are comparable between sets and with the rollouts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from .._names import unknown
from ..config import EvalSet, Evaluation, TrainConfig
from ..data.prompts import encode, example, new_tokens
from ..data.scoring import Scorer
from ..models.policy import Policy
from ..runs.best_checkpoint import figures_of
from ..runs.resolve import check_task, task_of
from ..tasks import Task

FIGURES = ("avg@k", "pass@k", "distinct", "entropy", "prompt_entropy")


@dataclass(frozen=True)
class ResolvedEvalSet:
    name: str  # used in rows and figures
    task: Task
    split: str
    config: TrainConfig  # the run's configuration with the set's settings
    run: TrainConfig  # the run's own; its temperature is used for entropies
    score: Scorer
    greedy: bool = False  # whether decoding is greedy

    @property
    def count(self) -> int:
        size, asked = self.task.size(self.split), self.config.eval.prompts
        return asked if size is None else min(asked, size)

    def due(self, iteration: int) -> bool:
        """Whether the set is evaluated after an iteration; 0 and the last always are."""
        every = self.config.eval.every
        return iteration in (0, self.config.iterations) or bool(every and iteration % every == 0)


class ResolvedEvalSets(ExitStack):
    """A run's sets in order of evaluation; owns the worker processes of other tasks' scorers."""

    def __init__(self, sets: Sequence[ResolvedEvalSet], scorers: Sequence[Scorer] = ()) -> None:
        super().__init__()
        self.sets = tuple(sets)
        for scorer in scorers:
            self.push(scorer)

    def __iter__(self) -> Iterator[ResolvedEvalSet]:
        return iter(self.sets)

    def due(self, iteration: int) -> list[ResolvedEvalSet]:
        return [one for one in self.sets if one.due(iteration)]


def resolve_eval_sets(
    config: TrainConfig, task: Task, score: Scorer, say: Callable[[str], None]
) -> ResolvedEvalSets:
    own = [EvalSet(split=split) for split in task.splits[1:]]
    sets, scorers = [], []
    resolved = config.eval.resolved if config.eval.sets else [config.eval] * len(own)
    for place, (one, settings) in enumerate(zip(config.eval.sets or own, resolved, strict=True), 1):
        try:
            other = None
            if one.task is not None:
                other = task_of(replace(config, task=one.task))
                check_task(other, trained=False)
            found = _resolved(one, settings, other or task, score, config)
        except ValueError as error:
            raise ValueError(f"[[eval]] {place}: {error}") from None
        if other is not None:
            scorers.append(Scorer(other, config.scoring, say))
            found = replace(found, score=scorers[-1])
        if found.config.eval.prompts:
            sets.append(found)
    names = [one.name for one in sets]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"[[eval]]: {names.count(name)} sets are called {name!r}; name them")
    check_best(config.save.best, names)
    return ResolvedEvalSets(sets, scorers)


def check_best(best: str, names: Sequence[str]) -> None:
    if not best:
        return
    if not names:
        raise ValueError(f"save.best is {best!r}, but the run evaluates nothing; see eval.prompts")
    known = [f"{name}/{figure}" for name in names for figure in FIGURES]
    for one in figures_of(best):
        if one not in known:
            raise ValueError(unknown("figure for save.best:", one, known))


def check_prompts(sets: Iterable[ResolvedEvalSet], policy: Policy) -> None:
    """Raise ValueError, before a run begins, if prompts of `[[eval]]` do not fit the policy."""
    for one in sets:
        if one.config.eval.sets:
            examples = [example(one.task, i, one.split) for i in range(one.count)]
            new = new_tokens(one.task, one.config, one.split)
            try:
                encode(policy, one.config, examples, new, ValueError)
            except ValueError as error:
                raise ValueError(f"[[eval]] {one.name!r}: {error}") from None


def _resolved(
    one: EvalSet, numbers: Evaluation, task: Task, score: Scorer, config: TrainConfig
) -> ResolvedEvalSet:
    splits, foreign = tuple(task.splits), one.task is not None
    split = one.split or (splits[1] if len(splits) > 1 else splits[0] if foreign else "")
    if split not in splits:
        if not split:
            raise ValueError(
                f"task {task.name!r} holds nothing out; name a split of {', '.join(splits)}"
            )
        raise ValueError(unknown(f"split of task {task.name!r}:", split, splits))
    name = f"{task.name}/{one.split}" if one.split else task.name
    sampling, prompt = config.sampling, config.prompt
    if foreign:  # the other task's prompt and stop settings override the run's
        sampling = replace(sampling, max_new_tokens=None, stop=None)
        chat = getattr(task, "chat", None)
        prompt = prompt if chat is None else replace(prompt, chat=chat)
    own = {key: getattr(one, key) for key in ("temperature", "top_p", "max_new_tokens")}
    greedy = one.temperature == 0
    own |= {"temperature": 1.0} if greedy else {}
    sampling = replace(sampling, **{key: value for key, value in own.items() if value is not None})
    settings = replace(
        config, task=one.task or config.task, sampling=sampling, prompt=prompt, eval=numbers
    )
    name = one.name or (name if foreign else split)
    return ResolvedEvalSet(name, task, split, settings, config, score, greedy)
