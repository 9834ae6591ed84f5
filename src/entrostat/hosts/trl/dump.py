"""A run directory beside TRL's own output: our figures an iteration, and its rollouts' tokens.

    DIR/metrics.jsonl                  one line a generation batch, as the lab writes it
    DIR/rollouts/000012.safetensors    `entrostat.load_rollouts` reads it

`entrostat analyze DIR` makes the report.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...batch import TokenBatch
from ...logs.lines import JsonLines
from ...logs.rollouts import Rollouts, save_rollouts
from ..lab.dump import flatten, token_pieces


class RunLog:
    """Writes the directory; on the main process only."""

    def __init__(self, directory: str | Path, every: int) -> None:
        if every < 1:
            raise ValueError(f"EntropyGRPOTrainer: dump_every must be at least 1, got {every}")
        self.directory = Path(directory)
        self.every = every
        self.metrics = JsonLines(self.directory / "metrics.jsonl")

    def open(self, done: int) -> None:
        """Make the directory; lines after iteration `done` are forgotten."""
        (self.directory / "rollouts").mkdir(parents=True, exist_ok=True)
        if self.metrics.path.exists():
            self.metrics.keep_until(done)

    def due(self, iteration: int) -> bool:
        """Whether this iteration's tokens are written."""
        return (iteration - 1) % self.every == 0

    def line(self, iteration: int, figures: dict[str, float]) -> None:
        """One line of figures; what is no number is left out."""
        kept = {key: value for key, value in figures.items() if math.isfinite(value)}
        self.metrics.append([{"iteration": iteration, **kept}])

    def rollouts(self, rollouts: Rollouts) -> None:
        """One file of tokens."""
        save_rollouts(rollouts, self.directory / "rollouts")


def own_rows(tokenizer: Any, output: dict[str, Any], mask: Tensor, eos: list[int]) -> list[Any]:
    """This rank's rollouts as plain data, to be gathered: texts, ids, the sampler's log-probs."""
    rows = []
    sampler = output.get("sampling_per_token_logps")
    for i in range(len(mask)):
        prompt = output["prompt_ids"][i][output["prompt_mask"][i].bool()]
        completion = output["completion_ids"][i][output["completion_mask"][i].bool()]
        rows.append(
            {
                "prompt": tokenizer.decode(prompt, skip_special_tokens=True),
                "completion": tokenizer.decode(completion, skip_special_tokens=True),
                "finished": len(completion) > 0 and int(completion[-1]) in eos,
                "tokens": output["completion_ids"][i][mask[i]].tolist(),
                "sampler": None if sampler is None else sampler[i][mask[i]].tolist(),
            }
        )
    return rows


def rollouts_of(
    iteration: int, whole: TokenBatch, advantage: Tensor, kept: Tensor, rows: list[Any],
    tokenizer: Any,
) -> Rollouts:  # fmt: skip
    """The rollouts of all ranks.

    Args:
        iteration: which generation batch, from 1.
        whole: B rollouts with old_logp, old_entropy, rewards and group.
        advantage: [B, T] after the methods' edits, 0 where not trained.
        kept: [B] bool, trained on.
        rows: B of `own_rows`, in the same order.
        tokenizer: for the text of each token.
    """
    assert whole.rewards is not None
    assert whole.group is not None
    assert whole.old_entropy is not None
    tokens = torch.tensor([t for row in rows for t in row["tokens"]], dtype=torch.int32)
    nan = [math.nan]
    sampler = [x for row in rows for x in (row["sampler"] or nan * len(row["tokens"]))]
    return Rollouts(
        iteration=iteration,
        prompts=[row["prompt"] for row in rows],
        completions=[row["completion"] for row in rows],
        rewards=whole.rewards.float().cpu(),
        group=whole.group.int().cpu(),
        finished=torch.tensor([row["finished"] for row in rows]),
        trained=kept.cpu(),
        start=torch.cat([whole.lengths.new_zeros(1), whole.lengths.cumsum(0)]).cpu(),
        tokens=tokens,
        logp=flatten(whole.old_logp, whole.mask).float(),
        sampler_logp=torch.tensor(sampler, dtype=torch.float32),
        entropy=flatten(whole.old_entropy, whole.mask).float(),
        advantage=flatten(advantage, whole.mask).float(),
        pieces=token_pieces(tokenizer, tokens),
    )
