"""Once per rollout batch, in the driver: controllers see the entropy, advantages are prepared.

No veRL here. Shapes: B rows of the batch, T completion tokens at most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ...core.batch import TokenBatch
from ...core.mismatch import mismatch
from ...core.objective import Objective
from ...core.rollouts import describe, of_kinds, outcome_figures
from ...dynamics import online


@dataclass
class Prepared:
    """What the workers get for each rollout."""

    # [B, T] with mask 0 at padding rows, the methods' advantages, shaped rewards, `idle` rollouts
    batch: TokenBatch
    metrics: dict[str, float]  # of the rollout batch and of the controllers


def prepare(
    objective: Objective,
    batch: TokenBatch,
    real: Tensor,
    progress: float,
    sampler_logp: Tensor | None = None,
    kept: Tensor | None = None,
    kinds: Sequence[str] | None = None,
) -> Prepared:
    """Move the controllers, estimate advantages, let the methods edit them.

    The order is the lab's: the controllers see the entropy of the full rollout batch, then groups
    without a signal are marked, then advantages are prepared on the others.

    Args:
        objective: its controllers move.
        batch: old_logp, old_entropy, mask, rewards, group, and ref_logp where it is needed.
        real: [B] bool, False for the synthetic rows that veRL adds to even out a batch.
        progress: 0 at the first iteration of the run, 1 at the last.
        sampler_logp: [B, T] float, the rollout engine's, where it gave them.
        kept: [B, T] bool, tokens that veRL's rejection sampling left in; None for all.
        kinds: B, the rollouts' data sources; of several each has a column of its own.

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
    objective.observe_figures(figures, progress)
    if kept is not None:  # the controllers have seen all, the methods see these
        mine = replace(mine, mask=mine.mask & kept[rows].bool())
    ready = objective.rollouts(mine)
    assert mine.group is not None
    assert mine.rewards is not None
    assert ready.outcome is not None
    own = [] if kinds is None else [kinds[i] for i in rows.tolist()]
    if len(set(own)) > 1:
        figures |= of_kinds(mine.rewards, own)
    figures |= {
        **objective.metrics(),
        "rollout/groups": float(len(mine.group.unique())),
        **outcome_figures(ready.replace(advantages=ready.outcome)),
        **online.of_rollouts(ready, ready.outcome, mine.rewards),
    }
    if sampler_logp is not None:
        figures |= mismatch(mine.old_logp, sampler_logp[rows], mine.mask)
    return Prepared(_placed(ready, rows, batch), figures)


def _placed(ready: TokenBatch, rows: Tensor, batch: TokenBatch) -> TokenBatch:
    """`batch` with what was prepared in its `rows`; the others have no token."""

    def within(name: str, blank: Tensor) -> Tensor:
        blank[rows] = getattr(ready, name).to(blank.dtype)
        return blank

    assert batch.rewards is not None
    B, T = batch.mask.shape
    edited = None if ready.edited is None else within("edited", torch.zeros_like(batch.mask))
    return TokenBatch(
        batch.logp, batch.old_logp, within("mask", torch.zeros_like(batch.mask)),
        within("advantages", torch.zeros(B, T)), rewards=within("rewards", batch.rewards.float()),
        group=batch.group, entropy=batch.entropy, old_entropy=batch.old_entropy,
        ref_logp=batch.ref_logp, idle=within("idle", torch.zeros(B, dtype=torch.bool)),
        edited=edited,
    )  # fmt: skip


def noted(notes: Sequence[Mapping[str, Any]], real: Tensor) -> dict[str, float]:
    """`rollout/truncated`, `reward/failed` and of several turns how many, from what was noted.

    `notes` are B (`agent.py`, `reward.py`), or none where others are at work; `real` [B] is False
    for rows that veRL adds.

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
