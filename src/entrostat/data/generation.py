"""What the policy answers to prompts: one completion each, or turns with an environment.

Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..agents import is_multi_turn
from ..config import TrainConfig
from ..models.policy import Policy
from ..models.rollout import Sequences, Source, of_dropped, sample
from ..models.stops import EarlyStop
from ..tasks import Example, Task
from .prompts import context_of, new_tokens, sampler_settings, stop_strings, turns_of
from .scoring import Scorer
from .turns import TurnLimits, observation_tokenizer, play


@dataclass(frozen=True)
class Answers:
    """B rollouts, those of a prompt side by side."""

    sequences: Sequences  # as token ids
    texts: list[str]  # B completions; of several turns all that was said after the prompt
    # B times reward and, in words, why there is none ("" where there is), as the environments gave
    # them; None where the task's scorer is to be asked
    judged: list[tuple[float, str]] | None = None
    # where there may be several turns `rollout/turns_mean` and `rollout/observed_mean`, tokens that
    # the environment of a rollout said; where rollouts may be dropped, of these
    figures: dict[str, float] = field(default_factory=dict)

    def of_rollouts(self, examples: Sequence[Example]) -> list[Example]:
        """B: the prompt of each rollout."""
        return [examples[number] for number in self.sequences.prompt.tolist()]

    def scored(self, score: Scorer, examples: Sequence[Example], iteration: int) -> Tensor:
        """Rewards [B] float32, by the environments or by the task's scorer; see `Scorer`."""
        return score(self.texts, self.of_rollouts(examples), iteration, self.judged)


def answer(
    policy: Policy, config: TrainConfig, task: Task, split: str, examples: Sequence[Example],
    prompts: list[list[int]], *, rollouts: int, generator: Source, training: bool,
    enough: EarlyStop | None = None, sampler: Callable[..., Sequences] = sample, **how: Any,
) -> Answers:  # fmt: skip
    """The policy as it stands, on prompts of a task, which is played where it has environments.

    `prompts` are the examples' token ids; `training` says which reward of the environments counts;
    `sampler` is `sample`, or another host's in its place; `how` are other arguments of `sample`.
    """
    stop = stop_strings(task, config)
    how |= sampler_settings(policy, config, new_tokens(task, config, split), stop)
    how |= {"rollouts": rollouts, "generator": generator}
    if not is_multi_turn(task):
        sequences = sampler(policy.model, prompts, enough=enough, **how)
        return _waited_for(sequences, policy.decode(sequences, stop))
    rules = TurnLimits(
        turns_of(task, split), context_of(policy, config), how.pop("max_new_tokens"),
        observation_tokenizer(policy, config), stop,
    )  # fmt: skip
    played = play(
        task, rules, examples, prompts, training=training, enough=enough, sampler=sampler,
        timeout=config.scoring.environment_timeout, **how,
    )  # fmt: skip
    return _waited_for(*played)


def _waited_for(
    sequences: Sequences, texts: list[str], judged: list[tuple[float, str]] | None = None,
    turns: list[int] | None = None,
) -> Answers:  # fmt: skip
    """The answers that were waited for, with figures of these and of the others."""
    figures = of_dropped(sequences)
    if sequences.dropped is not None and bool(sequences.dropped.any()):
        rows = (~sequences.dropped).nonzero()[:, 0]
        sequences, places = sequences[rows].trimmed(), rows.tolist()
        texts = [texts[i] for i in places]
        judged = judged and [judged[i] for i in places]
        turns = turns and [turns[i] for i in places]
    if turns is not None:
        observed = sequences.completed & ~sequences.mask
        figures["rollout/turns_mean"] = sum(turns) / len(turns)
        figures["rollout/observed_mean"] = float(observed.sum(-1).double().mean())
    return Answers(sequences, texts, judged, figures)
