"""Recipes for veRL on one machine."""

from __future__ import annotations

from typing import Any

from entrostat.config import TrainConfig, from_dict
from entrostat.data.scoring import Scorer
from entrostat.evaluation.eval_sets import ResolvedEvalSet, resolve_eval_sets
from entrostat.trainers.verl import model_ref


def config_of(**tables: Any) -> TrainConfig:
    start = {"host": "verl", "method": "repo_r", "iterations": 3, "output": "run"}
    sampling = {"prompts": 4, "rollouts": 2} | tables.pop("sampling", {})
    verl = {"trainer.n_gpus_per_node": 1, "ray_kwargs.ray_init.num_cpus": 16}
    verl |= tables.pop("verl", {})
    asked = tables.pop("eval", {})
    if not isinstance(asked, list):
        asked = {"prompts": 3, "samples": 2} | asked
    return from_dict({**start, "sampling": sampling, "eval": asked, "verl": verl, **tables})


def sets_of(config: TrainConfig) -> tuple[ResolvedEvalSet, ...]:
    task = model_ref.make(config)
    return resolve_eval_sets(config, task, Scorer(task, config.scoring, print), print).sets
