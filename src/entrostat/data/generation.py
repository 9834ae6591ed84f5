"""Generation from prompts: one completion each, or several turns with an environment.

In several turns the policy and its environment alternate until one of them ends the rollout. Each
turn is one call of `sample` on whole contexts: the prompt and everything since. Keys and values of
earlier turns are recomputed in one pass over the context; no cache is kept between turns, however
long the environments take. Observation tokens are context: tokens at mask 0, which are never
sampled, trained on or measured.

    prompt | turn | observation | turn | ... | turn
    mask     1 1    0 0 0 0       1 1          1 1

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

# placeholder for a policy's turn in the chat template; unlikely in any system message
_WORD = "entrostat 9b1d6f03 turn"


@dataclass(frozen=True)
class Answers:
    """B rollouts with their texts, those of a prompt side by side."""

    sequences: Sequences  # as token ids
    texts: list[str]  # B completions; with several turns everything after the prompt
    # B pairs from the environments: reward, and the reason if there is none (else ""); None if the
    # task's scorer gives the rewards
    judged: list[tuple[float, str]] | None = None
    # with several turns `rollout/turns_mean` and `rollout/observed_mean` (observation tokens per
    # rollout); with early stopping the metrics of dropped rollouts
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
    """Generate rollouts with the current policy on a task's prompts, with its environments if any.

    `prompts` are the examples' token ids; `training` selects which reward of the environments
    counts; `sampler` is `sample`, or another trainer's; `how` are other arguments of `sample`.
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
    """The rollouts that were not dropped, with metrics of both kinds."""
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
    """Tokenizes an environment's observations."""

    policy: Policy  # the policy with the tokenizer
    chat: bool  # as a user's turn of the chat template; else as plain text
    system: str  # the system message of the prompts

    def __call__(self, observation: str, last: int) -> list[int]:
        """The observation's token ids, after a turn whose last token is `last`.

        With the template, they begin with its tokens after the policy's turn, except for an end
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
    """A rollout in progress."""

    prompt: list[int]  # token ids
    ids: list[int] = field(default_factory=list)  # tokens after it, sampled and observed
    sampled: list[bool] = field(default_factory=list)  # whether the policy sampled the token
    # nats, as sampled; 0 for observation tokens
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)  # nats, likewise
    turns: int = 0  # number of the policy's turns
    last: int = 0  # start of its latest turn
    open: bool = True  # whether it continues
    done: bool = False  # whether its environment ended it
    dropped: bool = False  # whether early stopping dropped it

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
    """Limits of a rollout that its environment does not end."""

    turns: int  # most turns
    context: int | None  # most tokens of a prompt and its rollout; None for any number
    new: int  # most tokens of a turn
    hearing: ObservationTokenizer  # tokenizes observations
    stop: tuple[str, ...]  # strings that end a turn

    def texts(self, rollouts: Sequence[Rollout]) -> list[str]:
        """The text of each rollout, turns and observations, up to the stop of its last turn."""
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
    """Run rollouts of each prompt with their environments, `batch` at once, in whole groups.

    Arguments are as in `answer` and `sample`, which samples a turn; given uniform numbers are
    [B, turns x T]. `enough` is checked before each turn except the first, on the rollouts at once.
    Each call of an environment may take `timeout` seconds.

    Returns:
        B rollouts, those of a prompt side by side; the text after each prompt, turns and
        observations; B pairs of reward and the reason if the environment failed (else ""); B
        counts of the policy's turns.
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
    """A row of the sampled tokens: ids, log-probs, entropies (log-probs if there are none)."""
    n = int(said.mask[row].sum())
    H = said.sampler_logp if said.sampler_entropy is None else said.sampler_entropy
    values = (said.completions, said.sampler_logp, H)
    ids, logp, entropy = (x[row, :n].tolist() for x in values)
    return ids, logp, entropy
