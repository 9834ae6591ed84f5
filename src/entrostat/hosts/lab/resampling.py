"""Rollouts at a second temperature, where a method asks for them (AEPO), beside an iteration's own.

Shapes: B rollouts of the iteration, C further ones, T completion tokens at most of either.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...batch import TokenBatch
from ...method import Resample
from ...method.selection import share_of
from .answers import answer
from .experience import Sampled, statistics
from .prompts import encode
from .rollout import Sequences
from .scoring import Scorer
from .seeds import generator, stream_seed
from .state import State


def with_resampled(
    state: State,
    sampled: Sampled,
    rewards: Tensor,
    batch: TokenBatch,
    score: Scorer,
    on_progress: Callable[[int], None],
    metrics: dict[str, float],
) -> tuple[Sampled, Tensor, TokenBatch]:
    """The iteration's rollouts, and after them those that a method asks for now.

    The old policy's figures of all are at the run's own temperature. Where the objective may ask,
    the batch says who is `tempered`, also where it asks for none.

    Args:
        state: the policy as it stands.
        sampled: B rollouts.
        rewards: [B].
        batch: [B, T], measured; controllers have seen its entropy.
        score: for the further rollouts.
        on_progress: as `sample` takes it.
        metrics: of the iteration; `reward/failed` counts the further rollouts too.
    """
    if "tempered" not in state.objective.needs:
        return sampled, rewards, batch
    none = torch.zeros_like(batch.mask[:, 0])
    asked = state.objective.resamples()
    if asked is None:
        return sampled, rewards, batch.replace(tempered=none)
    more = _sample(state, sampled, asked, on_progress)
    extra = more.scored(score)
    metrics["reward/failed"] += score.failed
    sequences = _joined(sampled.sequences, more.sequences, state.policy.pad, len(sampled.examples))
    old = statistics(state, state.policy, more.sequences)
    T = sequences.mask.shape[1]
    logp, entropy = (
        torch.cat([_wide(of_own, T), _wide(of_more, T)])
        for of_own, of_more in ((batch.old_logp, old.logp), (batch.old_entropy, old.entropy))
    )
    rewards = torch.cat([rewards, extra])
    answers = replace(
        sampled.answers, sequences=sequences, texts=[*sampled.answers.texts, *more.answers.texts]
    )
    tempered = torch.cat([none, none.new_ones(len(extra))])
    both = TokenBatch(
        logp, logp, sequences.mask, rewards=rewards.to(batch.mask.device), group=sequences.prompt,
        entropy=entropy, old_entropy=entropy, tempered=tempered,
        rollout=torch.arange(len(sequences.mask), device=batch.mask.device),
    )  # fmt: skip
    examples = [*sampled.examples, *more.examples]
    return Sampled(sampled.iteration, examples, answers), rewards, both


def _sample(
    state: State, sampled: Sampled, asked: Resample, on_progress: Callable[[int], None]
) -> Sampled:
    config, policy, iteration = state.config, state.policy, sampled.iteration
    examples = sampled.examples[: share_of(asked.share, len(sampled.examples))]
    torch.manual_seed(stream_seed(config.seed, iteration, "temper"))
    hot = replace(config, sampling=replace(config.sampling, temperature=asked.temperature))
    answers = answer(
        policy, hot, state.task, state.task.splits[0], examples,
        encode(policy, config, examples, state.new), training=True,
        rollouts=config.sampling.rollouts,
        generator=generator(config.seed, iteration, "temper", policy.device),
        on_progress=on_progress,
        where=f"iteration {iteration}, second temperature",
    )  # fmt: skip
    return Sampled(iteration, examples, answers)


def _joined(own: Sequences, more: Sequences, pad_id: int, prompts: int) -> Sequences:
    """B + C sequences; those of `more` are of prompts that are numbered after the first ones."""
    P = max(own.prompt_width, more.prompt_width)
    T = max(own.mask.shape[1], more.mask.shape[1])

    def whole(sequences: Sequences, values: Tensor, fill: int) -> Tensor:
        left, right = P - sequences.prompt_width, T - sequences.mask.shape[1]
        return pad(values, (left, right), value=fill)

    return Sequences(
        torch.cat([whole(s, s.tokens, pad_id) for s in (own, more)]),
        torch.cat([whole(s, s.attention, 0) for s in (own, more)]),
        P,
        torch.cat([_wide(s.mask, T) for s in (own, more)]),
        torch.cat([_wide(s.sampler_logp, T) for s in (own, more)]),
        torch.cat([own.finished, more.finished]),
        torch.cat([own.prompt, more.prompt + prompts]),
    )


def _wide(values: Tensor | None, T: int) -> Tensor:
    """[n, t] -> [n, T], 0 on the right."""
    assert values is not None
    return pad(values, (0, T - values.shape[1]))
