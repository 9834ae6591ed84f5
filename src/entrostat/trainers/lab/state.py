"""The state of a run, built once and checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..._text import Say
from ...agents import is_multi_turn
from ...config import TrainConfig
from ...core import rollouts
from ...data.generation import observation_tokenizer
from ...data.prompts import context_of, usual
from ...models.capabilities import is_small
from ...models.hardware import check_room, choose_threads
from ...models.policy import Policy
from ...runs import checkpoint as checkpoints
from ...runs.run_directory import default_output
from ...tasks import Task
from ..assemble import Parts, assemble, load
from .prime import Phi, second_model

FIELDS = (*rollouts.FIELDS, "process_rewards", "tempered", "influence")


@dataclass
class State(Parts):
    """The inputs of an iteration, and the state that its updates change.

    Random generators are not part of it: every stream is seeded from (seed, iteration, purpose).
    """

    config: TrainConfig  # the run's configuration, with all defaults chosen
    reference: Policy | None  # the initial policy; None if no method reads it
    policy: Policy  # the trained policy
    phi: Phi | None  # PRIME's second model
    optimizer: torch.optim.Optimizer  # AdamW over the policy's trained parameters
    scaler: torch.amp.GradScaler  # of the loss under fp16
    updates: int = 0  # optimizer steps made

    def tensors(self) -> dict[str, Tensor]:
        own = checkpoints.tensors_of(self.policy.trained(), self.optimizer)
        return own if self.phi is None else own | self.phi.tensors()

    def state_dict(self) -> dict[str, Any]:
        own = {"objective": self.objective.state_dict(), "scaler": self.scaler.state_dict()}
        return own if self.phi is None else own | {"phi": self.phi.state_dict()}

    def restore(self, saved: checkpoints.Checkpoint) -> None:
        checkpoints.restore(saved, self.policy.trained(), self.optimizer)
        self.objective.load_state_dict(saved.state["objective"])
        self.scaler.load_state_dict(saved.state["scaler"])
        if self.phi is not None:
            self.phi.restore(saved)
        self.updates = saved.updates


def build(config: TrainConfig, task: Task | None, say: Say) -> State:
    """Build the initial state of a run; write chosen defaults into the validated `config`."""
    parts = assemble(config, "lab", FIELDS, task, say)
    task, objective = parts.task, parts.objective
    for key, every in (("analyze", config.analyze.every), ("forecast", config.forecast.every)):
        if every and "tempered" in objective.needs:
            raise ValueError(
                f"{key}: rollouts of a second temperature are no part of what the policy says, and "
                f"derivatives of entropy cannot tell them apart; leave {key}.every at 0"
            )
    if not config.sampling.measure and config.precision != "fp32":
        raise ValueError(
            f"sampling.measure is false, but the sampler's log-probs are rounded to "
            f"{config.precision}, which biases every ratio; leave it true, or use --precision fp32"
        )
    policy, prompts = load(config, parts)
    small = is_small(policy.model)
    frozen = objective.needs & {"ref_logp", "process_rewards"}
    reference = policy.reference() if frozen else None
    if is_multi_turn(task):  # fail early if the chat template drops the policy's turns
        observation_tokenizer(policy, config)("", policy.eos[0])
    if policy.origin is not None:
        say(f"model: {policy.origin['name']}; its weights were quantised to "
            f"{policy.origin['quantisation']}: a little worse than the original")  # fmt: skip
    choose_threads(config, policy, small, say)
    phi = second_model(policy, reference, objective, config, small, say)
    P, room = max(map(len, prompts)), usual(task, config, task.splits[0])
    if (context := context_of(policy, config)) is not None:
        room = min(room, context - P)
    output = Path(config.output or default_output(config))
    check_room(
        policy, config, room, output, say, reference=reference is not None, second=phi is not None
    )
    optimizer, scaler = build_optimizer(policy, config)
    return State(
        **vars(parts), config=config, reference=reference, policy=policy, phi=phi,
        optimizer=optimizer, scaler=scaler,
    )  # fmt: skip


def build_optimizer(
    policy: Policy, config: TrainConfig
) -> tuple[torch.optim.Optimizer, torch.amp.GradScaler]:
    assert config.optim.lr is not None
    optimizer = torch.optim.AdamW(
        policy.trained().values(), lr=config.optim.lr, betas=config.optim.betas,
        weight_decay=config.optim.weight_decay, fused=True,
    )  # fmt: skip
    optimizer.param_groups[0]["initial_lr"] = config.optim.lr  # as torch's schedulers set it
    return optimizer, torch.amp.GradScaler(policy.device.type, enabled=config.precision == "fp16")
