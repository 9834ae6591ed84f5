"""What the policy answers to prompts: one completion each, or turns with an environment.

In several turns the policy speaks and its environment replies, until one of them ends it. Each turn
is one call of `sample` on whole contexts: the prompt, and all that was said since. Keys and values
of the turns before are computed again, in one pass over the context; between turns there is nothing
to keep, whatever the environments take. What an environment says is context: tokens at mask 0,
which are never sampled, trained on or measured.

    prompt | turn | what the environment said | turn | ... | turn
    mask     1 1    0 0 0 0                     1 1          1 1

A rollout ends when its environment is done or has failed, after the task's last turn, and before a
turn that might not fit into the context.

Shapes: B rollouts, P prompt tokens at most, T completion tokens (of all turns) at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..agents import Reply, Worlds, is_multi_turn
from ..config import TrainConfig
from ..errors import RunStopped
from ..models.policy import Policy, rendered, vocabulary
from ..models.rollout import Sequences, Source, of_dropped, sample
from ..models.stops import EarlyStop, cut
from ..tasks import Example, Task
from .prompts import context_of, new_tokens, sampler_settings, stop_strings, turns_of, uses_chat
from .scoring import Scorer

# stands for a turn of the policy's in the chat template; no system message says it by chance
_WORD = "entrostat 9b1d6f03 turn"


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


@dataclass(frozen=True)
class ObservationTokenizer:
    """How an environment's words become tokens."""

    policy: Policy  # whose tokenizer it is
    chat: bool  # as a user's turn of the chat template; else as they are
    system: str  # as the prompts have it

    def __call__(self, observation: str, last: int) -> list[int]:
        """Token ids that follow a turn whose last token is `last`.

        Through the template, they begin with what it puts behind the policy's turn, but for an end
        token that was sampled.
        """
        text = observation
        if self.chat:
            text = rendered(
                self.policy.tokenizer,
                [{"role": "user", "content": "."}, {"role": "assistant", "content": _WORD},
                 {"role": "user", "content": observation}], self.system
            )  # fmt: skip
            _, there, text = text.partition(_WORD)
            if not there:
                raise ValueError(
                    "the tokenizer's chat template leaves the policy's own turns out, which a task "
                    "of several turns needs; give another model, or use --prompt.chat false"
                )
        ids = self.policy.tokenizer(text, add_special_tokens=False)["input_ids"] if text else []
        if max(ids, default=0) >= (known := vocabulary(self.policy.model)):
            raise RunStopped(
                f"the tokenizer makes token {max(ids)} of what an environment said, "
                f"{observation[:60]!r}, but the model's vocabulary has {known}: give the model "
                "with its own tokenizer"
            )
        sampled = self.chat and last in self.policy.eos and ids[:1] == [last]
        return ids[1:] if sampled else ids


def observation_tokenizer(policy: Policy, config: TrainConfig) -> ObservationTokenizer:
    return ObservationTokenizer(policy, uses_chat(policy.tokenizer, config), config.prompt.system)


@dataclass
class Rollout:
    """A rollout as it grows, token by token."""

    prompt: list[int]  # token ids
    ids: list[int] = field(default_factory=list)  # of all that was said after it, by both
    sampled: list[bool] = field(default_factory=list)  # whether the policy said it
    # nats, as sampled; 0 where the environment spoke
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)  # nats, likewise
    turns: int = 0  # how many the policy has had
    last: int = 0  # where its newest turn begins
    open: bool = True  # whether it goes on
    done: bool = False  # whether its environment ended it
    dropped: bool = False  # whether it was not waited for

    @property
    def context(self) -> list[int]:
        return self.prompt + self.ids

    @property
    def observed(self) -> int:
        return len(self.ids) - sum(self.sampled)

    def say(self, ids: list[int], logp: list[float], entropy: list[float]) -> None:
        self.last, self.turns = len(self.ids), self.turns + 1
        self._add(ids, True, logp, entropy)

    def hear(self, reply: Reply, failed: bool, rules: TurnLimits) -> None:
        self.done = reply.done and not failed
        self.open = not reply.done and self.turns < rules.turns
        if not self.open:
            return
        ids = rules.hearing(reply.observation, self.context[-1])
        room = len(self.context) + len(ids) + rules.new
        if rules.context is not None and room > rules.context:
            self.open = False
        else:
            self._add(ids, False, [0.0] * len(ids), [0.0] * len(ids))

    def _add(self, ids: list[int], own: bool, logp: list[float], entropy: list[float]) -> None:
        self.ids += ids
        self.sampled += [own] * len(ids)
        self.logp += logp
        self.entropy += entropy


@dataclass(frozen=True)
class TurnLimits:
    """What ends a rollout that its environment does not end."""

    turns: int  # most turns
    context: int | None  # tokens of a prompt and its rollout at most; None for any number
    new: int  # tokens that a turn may take
    hearing: ObservationTokenizer  # how observations become tokens
    stop: tuple[str, ...]  # strings that end a turn

    def texts(self, rollouts: Sequence[Rollout]) -> list[str]:
        """All that was said in each, by both: up to the stop of its last turn."""
        policy = self.hearing.policy
        heads = policy.texts([one.ids[: one.last] for one in rollouts])
        tails = policy.texts([one.ids[one.last :] for one in rollouts])
        return [head + cut(tail, self.stop) for head, tail in zip(heads, tails, strict=True)]


def play(
    task: Task, rules: TurnLimits, examples: Sequence[Example], prompts: list[list[int]], *,
    training: bool, timeout: float, rollouts: int, generator: Source, batch: int, pad: int,
    exact: bool = False, enough: EarlyStop | None = None,
    sampler: Callable[..., Sequences] = sample, **how: Any,
) -> tuple[Sequences, list[str], list[tuple[float, str]], list[int]]:  # fmt: skip
    """Play rollouts of each prompt, `batch` at once, each with its environment, in whole groups.

    Arguments are as of `answer` and `sample`, which samples a turn; numbers that decide tokens are
    [B, turns x T]. `enough` is asked before each turn but the first, of the rollouts at once. An
    environment may take `timeout` seconds for one thing.

    Returns:
        B rollouts, those of a prompt side by side; all that was said after each prompt, by both; B
        times reward and, in words, why the environment failed ("" where it did not); B counts of
        the policy's turns.
    """
    how |= {"batch": batch, "max_new_tokens": rules.new, "pad": pad, "exact": exact}
    each, device = max(1, batch // rollouts), rules.hearing.policy.device
    found: list[Rollout] = []
    judged: list[tuple[float, str]] = []
    for first in range(0, len(prompts), each):
        here = [Rollout(ids) for ids in prompts[first : first + each] for _ in range(rollouts)]
        of_each = [e for e in examples[first : first + each] for _ in range(rollouts)]
        source = generator
        if isinstance(source, Tensor):
            source = source[len(found) : len(found) + len(here)]
        with Worlds(task, of_each, timeout) as worlds:
            _play(rules, here, worlds, rollouts, source, enough, partial(sampler, **how))
            rewards = worlds.rewards(training)
            judged += [(r, worlds.failures.get(i, "")) for i, r in enumerate(rewards)]
        found += here
    sequences = Sequences.ragged(
        [one.prompt for one in found], [one.ids for one in found],
        [place // rollouts for place in range(len(found))], pad, device,
        finished=[one.done for one in found], mask=[one.sampled for one in found],
        logp=[one.logp for one in found],
        entropy=[one.entropy for one in found] if exact else None,
        dropped=None if enough is None else [one.dropped for one in found],
    )  # fmt: skip
    return sequences, rules.texts(found), judged, [one.turns for one in found]


def _play(
    rules: TurnLimits, here: list[Rollout], worlds: Worlds, rollouts: int, generator: Source,
    enough: EarlyStop | None, sampler: Callable[..., Sequences],
) -> None:  # fmt: skip
    policy = rules.hearing.policy
    number = torch.arange(len(here)) // rollouts
    for turn in range(rules.turns):
        live = [i for i, one in enumerate(here) if one.open]
        if not live:
            return
        if turn and enough is not None:
            ended = torch.tensor([not one.open for one in here])
            if enough.reached(ended, number):
                for i in live:
                    here[i].dropped = True
                return
        source = generator
        if isinstance(source, Tensor):
            source = source[live, turn * rules.new : (turn + 1) * rules.new]
        # at the first turn a prompt's rollouts share its keys and values
        each, asked = (1, live) if turn else (rollouts, live[::rollouts])
        contexts = [here[i].context for i in asked]
        said = sampler(policy.model, contexts, rollouts=each, generator=source)
        replies = worlds.reply(dict(zip(live, policy.decode(said, rules.stop), strict=True)))
        for row, i in enumerate(live):
            here[i].say(*_turn(said, row))
            here[i].hear(replies[i], i in worlds.failures, rules)


def _turn(said: Sequences, row: int) -> tuple[list[int], list[float], list[float]]:
    """A row of what was sampled: ids, log-probs, entropies (log-probs where there are none)."""
    n = int(said.mask[row].sum())
    H = said.sampler_logp if said.sampler_entropy is None else said.sampler_entropy
    values = (said.completions, said.sampler_logp, H)
    ids, logp, entropy = (x[row, :n].tolist() for x in values)
    return ids, logp, entropy
