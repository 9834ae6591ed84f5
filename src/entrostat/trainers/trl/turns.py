"""Multi-turn rollouts in TRL: the lab plays them (`data/generation.py`), TRL samples the turns.

`rollouts` is a `rollout_func` of TRL's; its `env_mask` marks the tokens that the policy sampled.
Each turn is generated from the token ids of the context, which is never re-tokenized from text.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...agents import is_multi_turn
from ...config import TrainConfig
from ...data.generation import answer
from ...models.rollout import Sequences
from ...tasks import Task
from .arguments import sharded

_TOGETHER = "processes generate together then, but their rollouts take different numbers of turns"


def refuse(config: TrainConfig, task: Task, world: int) -> None:
    """Raise ValueError if the task has several turns and `world` processes cannot play it."""
    if not is_multi_turn(task):
        return
    own, several = config.trl, world > 1
    for wrong, what, why in (
        (own.get("mask_truncated_completions"), "trl.mask_truncated_completions",
         "TRL takes a rollout whose last turn has no eos for a truncated one; leave it out"),
        (several and own.get("vllm_mode") == "server", "trl.vllm_mode 'server'",
         f"{_TOGETHER}; leave it out, or start one process"),
        (own.get("vllm_tensor_parallel_size", 1) > 1, "trl.vllm_tensor_parallel_size",
         f"{_TOGETHER}; leave it out"),
        (several and sharded(), "a model that is sharded over processes",
         f"{_TOGETHER}; launch without FSDP and DeepSpeed, or use --host lab"),
    ):  # fmt: skip
        if wrong:
            raise ValueError(
                f"host 'trl': task {task.name!r} is played in turns, which {what} does not allow: "
                f"{why}"
            )


def rollouts(places: list[str], trainer: Any) -> dict[str, Any]:
    """Return this process's rollouts in TRL's format, one per place among the run's draws.

    Texts, rewards, ends and metrics, for which TRL has no field, are left in `answers` of the
    `RecipeTrainer`.
    """
    recipe = trainer.recipe
    task, prompts = recipe.task, recipe.token_ids(places)
    trainer.answers = answers = answer(
        recipe.policy, recipe.config, task, task.splits[0], recipe.examples(places), prompts,
        rollouts=1, generator=None, training=True, sampler=partial(turn, trainer),
    )  # fmt: skip
    trainer._clock.lap("sample")
    sequences = answers.sequences

    def ragged(values: Tensor) -> list[list[Any]]:
        rows = zip(values, sequences.completed, strict=True)
        return [row[there].tolist() for row, there in rows]

    return {
        "prompt_ids": prompts,
        "completion_ids": ragged(sequences.completions),
        "logprobs": ragged(sequences.sampler_logp) if trainer.use_vllm else None,
        "env_mask": ragged(sequences.mask.int()),
    }


def turn(trainer: Any, model: Any, contexts: list[list[int]], *, pad: int, **_: Any) -> Sequences:
    """Generate one turn per context with TRL: completions [B, T] only, without the contexts.

    Log-probs are vLLM's, NaN if missing; 0 without vLLM.
    """
    turns, logprobs = trainer._generate_single_turn(contexts, None, {}, 1)
    return Sequences.ragged(
        [[] for _ in turns], turns, range(len(turns)), pad, torch.device("cpu"),
        finished=trainer._ending.finished(turns),
        logp=logprobs and [[math.nan if x is None else x for x in row] for row in logprobs],
    )  # fmt: skip
