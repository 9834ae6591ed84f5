"""Dynamic sampling in TRL: replace prompts whose groups have no signal (DAPO, Eq. 11).

Every draw of prompts is seeded by its place in the run, so a resumed run repeats it.

Shapes: B rollouts of this process, K of a prompt; A rollouts of all processes, F reward functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.process_ranks import sum_over_ranks
from ...core.rollouts import has_signal
from .iteration import IMAGES, loss_mask

Generate = Callable[[Any], dict[str, Any]]


def check(trainer: Any, redraws: int) -> None:
    args, who = trainer.args, f"EntropyGRPOTrainer: redraws={redraws}"
    if redraws < 0:
        raise ValueError(f"{who} must be at least 0")
    if redraws and not hasattr(trainer.train_dataset, "__getitem__"):
        raise ValueError(f"{who}: prompts are drawn by their number; give a map-style dataset")
    rollouts = args.per_device_train_batch_size * args.steps_per_generation
    if redraws and rollouts % args.num_generations:
        raise ValueError(
            f"{who}: a group lies on two processes; make per_device_train_batch_size * "
            f"steps_per_generation a multiple of num_generations = {args.num_generations}"
        )


def dataset_rows(trainer: Any, draw: int, count: int) -> list[dict[str, Any]]:
    """Rows of `count` prompts of the data set, for this process and a batch's `draw`-th draw."""
    rank, data = trainer.accelerator.process_index, trainer.train_dataset
    seed = [trainer.args.seed, trainer.state.global_step, trainer.place, draw, rank]
    rng = np.random.default_rng(seed)
    return [data[int(i)] for i in np.resize(rng.permutation(len(data))[:count], count)]


@torch.no_grad()
def redrawn(
    trainer: Any, output: dict[str, Any], generate: Generate, redraws: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """Replace the groups of a generation batch that have no signal.

    `output` is TRL's batch of this process's B rollouts; `generate` makes such a batch of other
    prompts. Both leave in `trainer._scored` the rewards [A, F] of all processes and this process's
    rollouts.

    Returns:
        The batch, and the cost: `rollout/redraws` draws, `rollout/redrawn` prompts,
        `rollout/redrawn_tokens`; `reward/drawn_mean` is the mean of the first draw.
    """
    if any(output.get(key) is not None for key in IMAGES):
        raise ValueError("EntropyGRPOTrainer: redraws: rollouts with images cannot be drawn again")
    K, world = trainer.num_generations, trainer.accelerator.num_processes
    rank, B = trainer.accelerator.process_index, len(output["completion_ids"])
    scores, rows = trainer._scored
    first = _total(trainer, scores)
    costs = torch.zeros(3, dtype=torch.float64)
    for draw in range(1, redraws + 1):
        idle = ~has_signal(_total(trainer, scores), K).view(world, -1)  # [world, groups of each]
        count = int(idle.sum(-1).max())  # processes generate together, so the count is equal on all
        if not count:
            break
        more = generate([row for row in trainer.other_rows(draw, count) for _ in range(K)])
        extra, others = trainer._scored
        good = has_signal(_total(trainer, extra), K).view(world, -1)
        costs += torch.tensor([1, count * world, 0], dtype=torch.float64)
        costs[2] += sum_over_ranks({"n": loss_mask(more).sum().double()})["n"]
        scores, rows = scores.clone(), list(rows)
        for process in range(world):
            pairs = zip(idle[process].nonzero()[:, 0].tolist(),
                        good[process].nonzero()[:, 0].tolist(), strict=False)  # fmt: skip
            swaps = [(K * place + k, K * group + k) for place, group in pairs for k in range(K)]
            for here, there in swaps:
                scores[process * B + here] = extra[process * count * K + there]
            if process == rank and swaps:
                output = _replaced(trainer, output, more, swaps)
                for here, there in swaps:
                    rows[here] = others[there]
    trainer._scored = scores, rows
    if costs[0]:
        tokens = sum_over_ranks({"n": loss_mask(output).sum().double()})["n"]
        output["num_items_in_batch"] = torch.full_like(output["num_items_in_batch"], int(tokens))
    names = ("rollout/redraws", "rollout/redrawn", "rollout/redrawn_tokens")
    figures = dict(zip(names, costs.tolist(), strict=True))
    return output, figures | {"reward/drawn_mean": float(first.nanmean())}


def _total(trainer: Any, scores: Tensor) -> Tensor:
    """Weighted sum [A] of rewards [A, F]; NaN counts as 0."""
    return (scores * trainer.reward_weights.to(scores.device)).nansum(1)


def _replaced(
    trainer: Any, output: dict[str, Any], more: dict[str, Any], swaps: list[tuple[int, int]]
) -> dict[str, Any]:  # fmt: skip
    """Replace rows of the batch by rows of `more`; prompts are padded on the left."""
    here, there = (torch.tensor(side) for side in zip(*swaps, strict=True))
    B, made = len(output["completion_ids"]), {}
    for key, value in output.items():
        other = more.get(key)
        if not isinstance(value, Tensor) or not value.ndim or len(value) != B:
            made[key] = value
            continue
        assert isinstance(other, Tensor)
        if value.ndim == 2:
            fill = trainer._tokenizer.pad_token_id if key.endswith("_ids") else 0
            width = max(value.shape[1], other.shape[1])
            value, other = (_wide(x, width, fill, key.startswith("prompt")) for x in (value, other))
        made[key] = value.index_copy(0, here.to(value.device), other[there.to(other.device)])
    return made


def _wide(values: Tensor, width: int, fill: int, left: bool) -> Tensor:
    """Pad [n, t] to [n, width]."""
    more = width - values.shape[1]
    return pad(values, (more, 0) if left else (0, more), value=fill)
