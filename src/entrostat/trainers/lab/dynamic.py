"""Dynamic sampling: prompts whose group has no signal are drawn anew, until the batch is full.

DAPO (arXiv 2503.14476), Eq. 11. Nothing is carried from one iteration to the next, and every draw
has a random stream of its own, so that a resumed run repeats what it would have done.

Shapes: B rollouts of the iteration, K of a prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from ...data.prompts import redrawn
from ...data.scoring import Scorer
from .experience import Sampled, generate_for
from .resampling import together
from .state import State


def with_signal(
    state: State,
    sampled: Sampled,
    rewards: Tensor,
    score: Scorer,
    on_progress: Callable[[int], None],
) -> tuple[Sampled, Tensor, dict[str, float]]:
    """The iteration's rollouts, other prompts in the place of those without a signal.

    Returns rollouts and rewards [B], and what it cost: `rollout/redraws` rounds, `rollout/redrawn`
    prompts and `rollout/redrawn_tokens`; `reward/drawn_mean` is the mean reward of the first draw,
    which no choice has touched.
    """
    rounds = state.config.sampling.redraws
    if not rounds:
        return sampled, rewards, {}
    figures = {
        "reward/drawn_mean": float(rewards.double().mean()),
        "reward/failed": float(score.failed),
        "rollout/redraws": 0.0, "rollout/redrawn": 0.0, "rollout/redrawn_tokens": 0.0,
    }  # fmt: skip
    for again in range(1, rounds + 1):
        without = (~_teaches(sampled, rewards)).nonzero()[:, 0].tolist()
        if not without:
            break
        examples = redrawn(state.task, state.config, sampled.iteration, again, len(without))
        more = generate_for(state, examples, sampled.iteration, "redraw", on_progress, again=again)
        extra = more.scored(score)
        figures["reward/failed"] += score.failed
        figures["rollout/redraws"] += 1
        figures["rollout/redrawn"] += len(examples)
        figures["rollout/redrawn_tokens"] += float(more.sequences.mask.sum())
        good = _teaches(more, extra).nonzero()[:, 0].tolist()
        swaps = dict(zip(without, good, strict=False))
        sampled, rewards = _replaced(state, sampled, rewards, more, extra, swaps)
    return sampled, rewards, figures


def _teaches(sampled: Sampled, rewards: Tensor) -> Tensor:
    """[prompts] bool: whether the rewards of a prompt's rollouts differ."""
    groups = rewards.view(len(sampled.examples), -1)
    return (groups != groups[:, :1]).any(-1)


def _replaced(
    state: State, own: Sampled, rewards: Tensor, more: Sampled, extra: Tensor, swaps: dict[int, int]
) -> tuple[Sampled, Tensor]:
    """The rollouts with prompts of `more` in the place of some, `swaps` place -> its number."""
    prompts, K = len(own.examples), len(rewards) // len(own.examples)
    both = together(own, more, state.policy.pad)
    # where the rollouts of each place stand among both
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
