"""Rollouts that are drawn after an iteration's own.

Dynamic sampling (DAPO, arXiv 2503.14476, Eq. 11) redraws prompts whose group has no signal until
the batch is full. No rollouts carry over between iterations, and every draw has its own random
stream, so a resumed run gives the same result. Rollouts at a second temperature are drawn beside an
iteration's own if a method asks for them (AEPO).

Shapes: B rollouts of the iteration, K of a prompt; T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.batch import TokenBatch
from ...core.rollouts import has_signal
from ...core.stats import TokenStats
from ...data.prompts import redrawn
from ...data.scoring import Scorer
from ...method.rounding import share_of
from ...models.rollout import Sequences
from .experience import Sampled, generate_for, measured, statistics
from .state import State


def with_signal(
    state: State,
    sampled: Sampled,
    rewards: Tensor,
    score: Scorer,
    on_progress: Callable[[int], None],
) -> tuple[Sampled, Tensor, dict[str, float]]:
    """Replace the prompts of an iteration whose groups have no signal.

    Returns rollouts, rewards [B] and metrics: `rollout/redraws` rounds, `rollout/redrawn` prompts
    and `rollout/redrawn_tokens`. `reward/drawn_mean` is the mean reward of the first draw, before
    any selection.
    """
    rounds = state.config.sampling.redraws
    if not rounds:
        return sampled, rewards, {}
    figures = {
        "reward/drawn_mean": float(rewards.double().mean()),
        "reward/failed": float(score.failed),
        "rollout/redraws": 0.0, "rollout/redrawn": 0.0, "rollout/redrawn_tokens": 0.0,
    }  # fmt: skip
    K = len(rewards) // len(sampled.examples)
    for again in range(1, rounds + 1):
        without = (~has_signal(rewards, K)).nonzero()[:, 0].tolist()
        if not without:
            break
        examples = redrawn(state.task, state.config, sampled.iteration, again, len(without))
        more = generate_for(state, examples, sampled.iteration, "redraw", on_progress, again=again)
        extra = more.scored(score)
        figures["reward/failed"] += score.failed
        figures["rollout/redraws"] += 1
        figures["rollout/redrawn"] += len(examples)
        figures["rollout/redrawn_tokens"] += float(more.sequences.mask.sum())
        good = has_signal(extra, K).nonzero()[:, 0].tolist()
        swaps = dict(zip(without, good, strict=False))
        sampled, rewards = _replaced(state, sampled, rewards, more, extra, swaps)
    return sampled, rewards, figures


def _replaced(
    state: State, own: Sampled, rewards: Tensor, more: Sampled, extra: Tensor, swaps: dict[int, int]
) -> tuple[Sampled, Tensor]:
    """Replace prompts by those of `more`; `swaps` maps a place to the number of its replacement."""
    prompts, K = len(own.examples), len(rewards) // len(own.examples)
    both = together(own, more, state.policy.pad)
    # source prompt of each place, in the joined rollouts
    source = [prompts + swaps[i] if i in swaps else i for i in range(prompts)]
    rows = [K * number + k for number in source for k in range(K)]
    places = torch.tensor(rows)
    picked = both.sequences[places.to(both.sequences.prompt.device)]
    number = torch.arange(prompts, device=picked.prompt.device).repeat_interleave(K)
    judged = both.answers.judged
    answers = replace(
        own.answers, sequences=replace(picked, prompt=number).trimmed(),
        texts=[both.answers.texts[row] for row in rows],
        judged=[judged[row] for row in rows] if judged else None,
    )  # fmt: skip
    examples = [both.examples[number] for number in source]
    return Sampled(own.iteration, examples, answers), torch.cat([rewards, extra])[places]


def with_resampled(
    state: State,
    sampled: Sampled,
    rewards: Tensor,
    batch: TokenBatch,
    score: Scorer,
    on_progress: Callable[[int], None],
    metrics: dict[str, float],
) -> tuple[Sampled, Tensor, TokenBatch]:
    """Append the rollouts that a method asks for at another temperature.

    The old policy's statistics of all rollouts are at the run's own temperature. If the objective
    may ask, the batch has `tempered`, even when it asks for none. Controllers have observed the
    entropy of `batch` [B, T]. `reward/failed` in `metrics` also counts these rollouts.
    """
    if "tempered" not in state.objective.needs:
        return sampled, rewards, batch
    none = torch.zeros_like(batch.mask[:, 0])
    asked = state.objective.resamples()
    if asked is None:
        return sampled, rewards, batch.replace(tempered=none)
    examples = sampled.examples[: share_of(asked.share, len(sampled.examples))]
    more = generate_for(
        state, examples, sampled.iteration, "temper", on_progress, temperature=asked.temperature
    )
    extra = more.scored(score)
    metrics["reward/failed"] += score.failed
    both, rewards = together(sampled, more, state.policy.pad), torch.cat([rewards, extra])
    T, old = both.sequences.mask.shape[1], statistics(state, state.policy, more.sequences)
    of_both = TokenStats(
        torch.cat([_wide(batch.old_logp, T), _wide(old.logp, T)]),
        torch.cat([_wide(batch.need("old_entropy"), T), _wide(old.entropy, T)]),
    )
    tempered = torch.cat([none, none.new_ones(len(extra))])
    return both, rewards, measured(both.sequences, rewards, of_both).replace(tempered=tempered)


def together(own: Sampled, more: Sampled, pad_id: int) -> Sampled:
    """Join rollouts; prompts of `more` are numbered after those of `own`."""
    judged = [*(own.answers.judged or []), *(more.answers.judged or [])]
    answers = replace(
        own.answers, texts=[*own.answers.texts, *more.answers.texts], judged=judged or None,
        sequences=_joined(own.sequences, more.sequences, pad_id, len(own.examples)),
    )  # fmt: skip
    return Sampled(own.iteration, [*own.examples, *more.examples], answers)


def _joined(own: Sequences, more: Sequences, pad_id: int, prompts: int) -> Sequences:
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


def _wide(values: Tensor, T: int) -> Tensor:
    """Pad [n, t] to [n, T] with 0 on the right."""
    return pad(values, (0, T - values.shape[1]))
