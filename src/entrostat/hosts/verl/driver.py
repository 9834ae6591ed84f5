"""Once per rollout batch, in the driver: controllers see the entropy, advantages are prepared.

No veRL here. Shapes: B rollouts, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ...batch import TokenBatch
from ...dynamics import online
from ...objective import Objective
from ..mismatch import mismatch
from ..rollouts import describe, graded, idle_groups


@dataclass
class Prepared:
    """What the workers get for each rollout.

    Attributes:
        batch: [B, T] with mask 0 at padding rows, the methods' advantages, shaped rewards, and
            `idle` rollouts.
        metrics: figures of the rollout batch and of the controllers.
    """

    batch: TokenBatch
    metrics: dict[str, float]


def prepare(
    objective: Objective,
    batch: TokenBatch,
    real: Tensor,
    progress: float,
    sampler_logp: Tensor | None = None,
) -> Prepared:
    """Move the controllers, estimate advantages, let the methods edit them.

    The order is the lab's: the controllers see the entropy of the full rollout batch, then groups
    without a signal are marked, then advantages are prepared on the others.

    Args:
        objective: its controllers move.
        batch: old_logp, old_entropy, mask, rewards, group, and ref_logp where it is needed.
        real: [B] bool, False for the synthetic rows that veRL adds to even out a batch.
        progress: 0 at the first iteration of the run, 1 at the last.
        sampler_logp: [B, T] float, the rollout engine's log-probs, where it gave them.

    Raises:
        ValueError: a reward or an entropy is no number, or a group has one rollout where the
            estimator compares.
    """
    assert batch.rewards is not None
    if not torch.isfinite(batch.rewards[real]).all():
        raise ValueError("veRL gave a reward that is no finite number; look at the reward function")
    rows = real.nonzero()[:, 0]
    mine = batch[rows]
    figures = describe(mine)
    objective.observe(
        entropy=figures["entropy/exact"], nll=figures["entropy/nll"],
        perplexity=figures["entropy/perplexity"], progress=progress,
    )  # fmt: skip
    outcome = graded(objective, mine)
    ready = objective.prepare(outcome)
    assert mine.rewards is not None
    assert mine.group is not None
    assert outcome.advantages is not None
    figures |= {
        "rollout/groups": float(len(mine.group.unique())),
        "rollout/zero_advantage_groups": float(idle_groups(outcome)),
        **objective.metrics(),
        **online.of_rollouts(ready, outcome.advantages, mine.rewards),
    }
    if sampler_logp is not None:
        figures |= mismatch(mine.old_logp, sampler_logp[rows], mine.mask)
    return Prepared(_with_padding(ready, batch, rows), figures)


def noted(notes: Sequence[Mapping[str, Any]], real: Tensor) -> dict[str, float]:
    """`rollout/truncated`, `reward/failed` and of several turns how many, from what was noted.

    Args:
        notes: B of them (`agent.py`, `reward.py`); none where others are at work.
        real: [B] bool, False for rows that veRL adds.

    Raises:
        ValueError: the scorer failed at every answer of several.
    """
    own = [note for note, counts in zip(notes, real.tolist(), strict=False) if counts]
    figures: dict[str, float] = {}
    if own and all("finished" in note for note in own):
        figures["rollout/truncated"] = 1 - sum(note["finished"] for note in own) / len(own)
    for name in ("turns", "observed"):
        if own and all(name in note for note in own):
            figures[f"rollout/{name}_mean"] = sum(note[name] for note in own) / len(own)
    scored = [note.get("reward_extra_info") or {} for note in own]
    if scored and all("failed" in info for info in scored):
        failed = sum(info["failed"] for info in scored)
        figures["reward/failed"] = float(failed)
        if 1 < len(scored) == failed:
            raise ValueError(
                f"the task's scorer failed at all {len(scored)} answers of an iteration: a bug of "
                "the task, or something that it lacks here? The log has its first errors"
            )
    return figures


def numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures of an iteration that are numbers, numpy's among them, as JSON takes them."""
    return {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, Real) and not isinstance(value, bool)
    }


def _with_padding(ready: TokenBatch, batch: TokenBatch, rows: Tensor) -> TokenBatch:
    """`ready`, which is rows [n] of `batch`, in its place; the other rows have no token."""
    assert batch.rewards is not None
    assert ready.rewards is not None
    assert ready.advantages is not None
    assert ready.idle is not None

    def placed(values: Tensor) -> Tensor:
        return values.new_zeros(len(batch), *values.shape[1:]).index_copy(0, rows, values)

    return TokenBatch(
        batch.logp, batch.old_logp, placed(ready.mask), placed(ready.advantages.float()),
        rewards=batch.rewards.float().index_copy(0, rows, ready.rewards.float()),
        group=batch.group, entropy=batch.entropy, old_entropy=batch.old_entropy,
        ref_logp=batch.ref_logp, idle=placed(ready.idle),
        edited=None if ready.edited is None else placed(ready.edited),
    )  # fmt: skip
