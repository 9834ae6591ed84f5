"""Once per rollout batch, in the driver: update controllers and prepare advantages.

The rollouts are split by length into shares, one thread each, which act as ranks
(`core/distributed.py`). The result is the same to the last bit. The node's processors share the
work while its GPUs wait, and a share is only as wide as its own longest rollout.

Afterwards an iteration's rollouts are written from the same batch.

Imports no veRL. Shapes: B rollouts, T completion tokens at most, n those of a share, t its tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from ..._processors import processors
from ...core.batch import TokenBatch
from ...core.distributed import Communicator
from ...core.mismatch import mismatch
from ...core.objective import Objective
from ...core.rollouts import describe, of_kinds, outcome_figures
from ...core.thread_ranks import Threads
from ...dynamics import online
from ...logs.rollouts import Rollouts
from ..dump import without_padding

_WORTH = 1 << 20  # minimum tokens per thread


@dataclass
class Prepared:
    # [B, T] with mask 0 at padding rows, the methods' advantages, shaped rewards, `idle` rollouts
    batch: TokenBatch
    metrics: dict[str, float]  # metrics of the rollout batch and of the controllers


def prepare(
    objective: Objective,
    batch: TokenBatch,
    real: Tensor,
    progress: float,
    sampler_logp: Tensor | None = None,
    threads: int | None = None,
    kept: Tensor | None = None,
    kinds: Sequence[str] | None = None,
) -> Prepared:
    """Update the controllers, estimate advantages, let the methods edit them.

    The order is the lab's: the controllers observe the entropy of the full rollout batch, then
    groups without a signal are marked, then the advantages of the others are prepared.

    Args:
        objective: its controllers are updated.
        batch: old_logp, old_entropy, mask, rewards, group, and ref_logp if it is needed.
        real: [B] bool, False for the padding rows that veRL adds to a batch.
        progress: 0 at the first iteration of the run, 1 at the last.
        sampler_logp: [B, T] float, the rollout engine's log-probs, if available.
        threads: number of threads; None uses the available processors, a million tokens each.
        kept: [B, T] bool, tokens that veRL's rejection sampling kept; None for all.
        kinds: B data sources; several of them each get their own metrics.
    """
    rewards = batch.need("rewards")
    if not torch.isfinite(rewards[real]).all():
        raise ValueError("veRL gave a reward that is no finite number; look at the reward function")
    rows = real.nonzero()[:, 0]
    ends = _ends(batch.mask[rows])
    if threads is None:
        threads = min(processors() // torch.get_num_threads(), int(ends.sum()) // _WORTH)
    shares = _shares(ends, max(1, min(threads, len(rows))))
    crew = Threads(len(shares), wait=None)

    def described(ranks: Communicator) -> tuple[TokenBatch, dict[str, float]]:
        share = _share(batch, rows, shares[ranks.rank], ends, ranks)
        return share, describe(share)

    begun = crew.run(described)
    figures = begun[0][1]
    objective.observe_figures(figures, progress)

    def judged(ranks: Communicator) -> tuple[TokenBatch, dict[str, float]]:
        share, places = begun[ranks.rank][0], rows[shares[ranks.rank]]
        if kept is not None:  # the controllers have observed all tokens, the methods see these
            left = share.mask & kept[places, : share.mask.shape[1]].bool()
            share = replace(share, mask=left)
        sampler = None if sampler_logp is None else sampler_logp[places, : share.mask.shape[1]]
        return _judged(objective, share, sampler)

    done = crew.run(judged)
    ready = [(rows[share], part) for share, (part, _) in zip(shares, done, strict=True)]
    own = [] if kinds is None else [kinds[i] for i in rows.tolist()]
    if len(set(own)) > 1:
        figures |= of_kinds(rewards[rows], own)
    return Prepared(_together(ready, batch), figures | objective.metrics() | done[0][1])


def _judged(
    objective: Objective, share: TokenBatch, sampler_logp: Tensor | None
) -> tuple[TokenBatch, dict[str, float]]:
    """Prepare a share's advantages; also return the metrics of all shares."""
    ready = objective.rollouts(share)
    outcome = ready.replace(advantages=ready.outcome)
    (group,), _ = share.whole.gather(share.need("group"))
    figures = {
        "rollout/groups": float(len(group.unique())),
        **outcome_figures(outcome),
        **online.of_rollouts(ready, ready.need("outcome"), share.need("rewards")),
    }
    if sampler_logp is not None:
        figures |= mismatch(share.old_logp, sampler_logp, share.mask, share.whole)
    return ready, figures


def _ends(mask: Tensor) -> Tensor:
    """Index after the last token of each rollout [n, T], [n] int64; 0 without tokens."""
    T = mask.shape[1]
    return torch.where(mask.any(-1), T - mask.flip(-1).to(torch.uint8).argmax(-1), 0)


def _shares(ends: Tensor, count: int) -> list[Tensor]:
    """Split rollouts into `count` shares [n] of similar lengths and equal work."""
    order = ends.argsort(stable=True)
    upto = ends[order].cumsum(0)
    wanted = upto[-1] * torch.arange(1, count) / count if len(upto) else torch.zeros(0)
    cuts = [0, *torch.searchsorted(upto.double(), wanted.double()).tolist(), len(order)]
    return [order[begin:end] for begin, end in pairwise(cuts)]


def _share(
    batch: TokenBatch, rows: Tensor, share: Tensor, ends: Tensor, ranks: Communicator
) -> TokenBatch:
    """Select the rollouts at `share` of `rows`, cut to the longest of them."""
    width = max(1, int(ends[share].max())) if len(share) else 1
    values = {}
    for part in fields(batch):
        value = getattr(batch, part.name)
        if isinstance(value, Tensor):
            value = value[rows[share]] if value.ndim == 1 else value[rows[share], :width]
        values[part.name] = value
    return TokenBatch(**values | {"ranks": ranks, "rollout": share})


def noted(notes: Sequence[Mapping[str, Any]], real: Tensor) -> dict[str, float]:
    """Compute `rollout/truncated`, `reward/failed` and multi-turn means from the workers' notes.

    `notes` are B (`agent.py`, `reward.py`), or none under other loops; `real` [B] is False for rows
    that veRL adds.
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
    """The numeric metrics of an iteration, numpy's included, as floats for JSON."""
    return {
        key: float(value)
        for key, value in figures.items()
        if isinstance(value, Real) and not isinstance(value, bool)
    }


def _together(shares: Sequence[tuple[Tensor, TokenBatch]], batch: TokenBatch) -> TokenBatch:
    """Merge prepared shares, each with its rows [n], into `batch`; other rows have no token."""

    def placed(name: str, into: Tensor) -> Tensor:
        for rows, share in shares:
            values = getattr(share, name)
            if values is None:  # no rollout of this share was edited
                continue
            if values.ndim == 1:
                into[rows] = values.to(into.dtype)
            else:
                into[rows, : values.shape[1]] = values.to(into.dtype)
        return into

    B, T = batch.mask.shape
    edited = any(share.edited is not None for _, share in shares)
    return TokenBatch(
        batch.logp, batch.old_logp, placed("mask", torch.zeros(B, T, dtype=torch.bool)),
        placed("advantages", torch.zeros(B, T)),
        rewards=placed("rewards", batch.need("rewards").float()), group=batch.group,
        entropy=batch.entropy, old_entropy=batch.old_entropy,
        ref_logp=batch.ref_logp, idle=placed("idle", torch.zeros(B, dtype=torch.bool)),
        edited=placed("edited", torch.zeros(B, T, dtype=torch.bool)) if edited else None,
    )  # fmt: skip


def rollouts_of(
    iteration: int, prompts: Sequence[Tensor], notes: Sequence[Mapping[str, Any]],
    batch: Mapping[str, Tensor], tokenizer: Any,
) -> Rollouts:  # fmt: skip
    """Build the `Rollouts` of an iteration; rollouts of a prompt are adjacent.

    `prompts` are B lists of token ids, `notes` the agent loop's B notes (`completion`, `finished`).
    `batch` has [B, T] responses, mask (1 at sampled tokens), logp, entropy, advantages,
    sampler_logp (may be absent). It has [B] lengths (response tokens, observations included),
    rewards, group, idle.
    """
    order = torch.argsort(batch["group"], stable=True)
    rows = {name: values[order] for name, values in batch.items()}
    places, idle, mask = order.tolist(), rows["idle"].bool(), rows["mask"].bool()
    figures = {
        "logp": rows["logp"], "entropy": rows["entropy"],
        "sampler_logp": rows.get("sampler_logp", torch.full_like(rows["logp"], torch.nan)),
        "advantage": rows["advantages"].masked_fill(idle[:, None], 0),
    }  # fmt: skip
    return without_padding(
        iteration, tokenizer, rows["responses"],
        torch.arange(mask.shape[1]) < rows["lengths"][:, None], mask, figures,
        prompts=tokenizer.batch_decode([prompts[i].tolist() for i in places]),
        completions=[notes[i]["completion"] for i in places],
        rewards=rows["rewards"].float(),
        group=torch.unique(rows["group"], return_inverse=True)[1].int(),
        finished=torch.tensor([bool(notes[i]["finished"]) for i in places]), trained=~idle,
    )  # fmt: skip
