"""A run directory beside TRL's output: our metrics per iteration, and the rollouts' tokens.

    DIR/config.toml, objective.json    the settings, and everything that decides the training
    DIR/metrics.jsonl                  one line per generation batch, in the lab's format
    DIR/rollouts/000012.safetensors    `entrostat.load_rollouts` reads it
    DIR/analysis.jsonl                 one line per analysed generation batch

`entrostat report DIR` makes the page.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w
import torch
from torch import Tensor
from torch.nn.functional import pad

from ...core.batch import TokenBatch
from ...logs.files import replace_text
from ...logs.lines import JsonLines
from ...logs.rollouts import Rollouts, save_rollouts
from ...runs.run_directory import RunDirectory, forget_rollouts
from ..dump import without_padding
from .iteration import Scored


class RunLog:
    """Writes the directory; on the main process only."""

    def __init__(self, directory: str | Path, every: int) -> None:
        if every < 1:
            raise ValueError(f"EntropyGRPOTrainer: dump_every must be at least 1, got {every}")
        self.run, self.every = RunDirectory(Path(directory)), every
        self.metrics, self.analysis = JsonLines(self.run.metrics), JsonLines(self.run.analysis)
        self._written: Rollouts | None = None

    def begin(self, trainer: Any, done: int, iterations: int) -> None:
        """Make the directory and write the run's settings, under the lab's names.

        Lines and rollouts after iteration `done` are removed.
        """
        self.run.rollouts.mkdir(parents=True, exist_ok=True)
        forget_rollouts(self.run.rollouts, done)
        for log in self.run.logs().values():
            log.keep_until(done)
        objective = None if trainer.objective is None else trainer.objective.describe()
        settings = tomli_w.dumps(_settings(trainer, objective, iterations))
        replace_text(self.run.path / "config.toml", settings)
        if objective is not None:
            replace_text(self.run.path / "objective.json", json.dumps(objective, indent=1))

    def due(self, iteration: int) -> bool:
        return (iteration - 1) % self.every == 0

    def line(self, iteration: int, figures: dict[str, float]) -> None:
        self.metrics.append([{"iteration": iteration, **figures}])

    def rollouts(self, rollouts: Rollouts) -> None:
        self._written = rollouts
        save_rollouts(rollouts, self.run.rollouts)

    def analysed(
        self, line: dict[str, Any], change: Tensor, influence: Tensor, mask: Tensor
    ) -> None:
        """Write an analysis; add its columns [B, T] to the iteration's rollouts, if dumped."""
        self.analysis.append([line])
        if self._written is not None and self._written.iteration == line["iteration"]:
            own = self._written.sampled
            whole = dataclasses.replace(
                self._written, change=among(change, mask, own),
                influence=among(influence, mask, own),
            )  # fmt: skip
            save_rollouts(whole, self.run.rollouts)


def _settings(trainer: Any, objective: dict[str, Any] | None, iterations: int) -> dict[str, Any]:
    """The run's settings in config.toml's form, with TRL arguments that are not defaults."""
    args, rewards = trainer.args, "+".join(trainer.reward_func_names)
    sampled = args.per_device_train_batch_size * args.steps_per_generation
    known: dict[str, Any] = {
        "host": "trl", "model": trainer.model.config._name_or_path, "seed": args.seed,
        "iterations": iterations, "method": f"TRL's {args.loss_type}",
    }  # fmt: skip
    if objective is not None:
        known["advantage"] = objective["advantage"]
        known["optim"] = {"aggregation": objective["aggregation"]}
        known["method"] = [  # TOML has no null
            {key: "none" if value is None else value for key, value in method.items()}
            for method in objective["methods"]
        ]
    defaults = {f.name: f.default for f in dataclasses.fields(args)}
    return known | {
        "task": {"name": rewards},
        "sampling": {
            "prompts": sampled * args.world_size // trainer.num_generations,
            "rollouts": trainer.num_generations, "temperature": args.temperature,
            "max_new_tokens": args.max_completion_length,
        },
        "trl": {
            key: value
            for key, value in args.to_dict().items()
            if value != defaults.get(key) and isinstance(value, str | bool | int | float)
        },
    }  # fmt: skip


def rollouts_of(
    iteration: int, tokenizer: Any, output: dict[str, Any], ready: TokenBatch, rewards: Tensor,
    prompts: list[str], scored: Sequence[Scored],
) -> Rollouts:  # fmt: skip
    """Build this rank's rollouts of a generation batch; iterations count from 1.

    `output` is TRL's batch; `ready` has the methods' advantages [B, T]; `rewards` [B] are the given
    rewards, NaN if none; `scored` also has the texts of truncated rollouts that TRL masks.
    """
    sampler = output.get("sampling_per_token_logps")
    figures = {
        "logp": ready.old_logp, "entropy": ready.old_entropy, "advantage": ready.advantages,
        "sampler_logp": torch.full_like(ready.old_logp, math.nan) if sampler is None else sampler,
    }  # fmt: skip
    return without_padding(
        iteration, tokenizer, output["completion_ids"], output["completion_mask"].bool(),
        ready.mask, figures, prompts=prompts, completions=[one.text for one in scored],
        rewards=rewards.float(), group=ready.need("group").int(),
        finished=torch.tensor([one.finished for one in scored]), trained=~ready.need("idle"),
    )  # fmt: skip


def joined(parts: Sequence[Rollouts]) -> Rollouts:
    """Concatenate the rollouts of all ranks in rank order."""
    own = [torch.ones_like(p.tokens).bool() if p.sampled is None else p.sampled for p in parts]
    sampled = torch.cat(own)
    columns: dict[str, Any] = {
        name: torch.cat([getattr(part, name) for part in parts])
        for name, value in vars(parts[0]).items()
        if isinstance(value, Tensor) and name != "sampled"
    }
    columns["start"] = pad(torch.cat([part.start.diff() for part in parts]).cumsum(0), (1, 0))
    return dataclasses.replace(
        parts[0],
        **columns,
        prompts=[text for part in parts for text in part.prompts],
        completions=[text for part in parts for text in part.completions],
        pieces={token: text for part in parts for token, text in part.pieces.items()},
        sampled=None if bool(sampled.all()) else sampled,
    )


def among(values: Tensor, mask: Tensor, own: Tensor | None) -> Tensor:
    """Entries of [B, T] at `mask`, row by row, as [n] float32; NaN where `own` [n] is False."""
    flat = values[mask].float().cpu()
    return flat if own is None else flat.new_full(own.shape, math.nan).masked_scatter(own, flat)
