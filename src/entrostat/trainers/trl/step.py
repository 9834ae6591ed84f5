"""Optimizer steps in TRL: the objective's plan for each, and its metrics.

TRL runs micro-batches one by one; the objective decides before the first, over all micro-batches
left in the step. If another generation batch begins inside the step, it decides again from there,
and each part counts by its share of the step's rollouts.

Shapes: n rollouts of this process in a part of a step, T completion tokens at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from accelerate import DistributedType
from torch import Tensor, nn

from ...core.batch import TokenBatch
from ...core.loss import LossOutput
from ...core.objective import Objective, Plan
from ...core.process_ranks import shared_generator, sum_over_ranks
from ...dynamics import online
from ..hold import Gradient, Hold, Moved, check_adam, decide
from .iteration import cut_anew, micro_batches, shares, token_batch
from .settings import mean_of

# distributed types in which each process has all parameters
WHOLE = {name for name in DistributedType.__members__ if name == "NO" or name.startswith("MULTI_")}


class Steps:
    """The optimizer steps of a GRPOTrainer that trains on an objective."""

    def __init__(self, trainer: Any, objective: Objective) -> None:
        self._trainer, self._objective = trainer, objective
        self._mean, self.hold = mean_of(trainer.args, objective), Hold.of(objective)
        if self.hold is not None:
            check_whole(trainer.accelerator.distributed_type)
            check_checkpointing(trainer.args)
        # no update has trained on the next one's prompts, of which h and the change are measured
        self.whole_groups = (
            self.hold is not None and trainer.num_iterations == 1 and trainer.updates > 1
        )
        self.shuffled_epochs = False  # TRL shuffles once for all epochs
        self._moved: Moved | None = None
        self._plans: list[Plan] = []
        self._generated_at = 0
        self._start()

    def _start(self) -> None:
        self._unseen: TokenBatch | None = None
        self._entropies: list[Tensor] = []
        self._gradient: Gradient | None = None
        self._sums: dict[str, Tensor] = {}

    def begin(self) -> None:
        """Raise before the first generation if the multiplier cannot be solved for."""
        if self.hold is not None:
            check_adam(self._trainer.optimizer)

    def micro_batch(self, inputs: Any) -> Any:
        """The coming micro-batch: TRL's `inputs`, or the first of an epoch that is cut anew."""
        trainer, steps = self._trainer, self._trainer.args.steps_per_generation
        place = trainer._step % (steps * trainer.num_iterations)
        anew = self.whole_groups or (self.shuffled_epochs and place > 0)
        if place % steps or not anew or not trainer.model.training:
            return inputs
        trainer._buffered_inputs = cut_anew(trainer._buffered_inputs, self.whole_groups)
        return trainer._buffered_inputs[0]

    def generated(self) -> None:
        """Discard plans of the previous generation batch."""
        self._plans, self._generated_at = [], self._trainer.state.global_step

    @torch.no_grad()
    def plan(self, model: nn.Module) -> Plan:
        if self._trainer.place == 0 or not self._plans:
            self._plans = self._planned(model)
        return self._plans.pop(0)

    def _planned(self, model: nn.Module) -> list[Plan]:
        """Plan the micro-batches that are left of the step, or of the generation batch."""
        trainer, place, step = self._trainer, self._trainer.place, self._trainer._step
        micro = trainer.current_gradient_accumulation_steps
        steps = trainer.args.steps_per_generation
        every = steps * trainer.num_iterations
        count = min(micro - place, every - step % every)
        pieces = [trainer._buffered_inputs[(step + k) % steps] for k in range(count)]
        if trainer._analyst is not None:
            trainer._analyst.before_step(pieces)
        now = trainer.state.global_step
        batch, made = token_batch(pieces).replace(ranks=trainer.ranks), now - self._generated_at
        if place == 0:
            self._start()
            if 0 < made * micro < steps and count == micro:
                self._unseen = batch
            self._decide(batch, made, micro / count)
        scale = mean = None
        if self._objective.conventions == "trl":
            batch = batch.replace(micro_batch=micro_batches(pieces))
            constant = self._objective.max_length or trainer.max_completion_length
            scale, mean = shares(trainer, pieces, self._mean, constant)
        plan = self._objective.step(
            batch, shared_generator(trainer.args.seed, "select", now, *([place] if place else [])),
            fresh=made == 0, measure=lambda: self._measured(model, pieces), scale=scale, mean=mean,
        )  # fmt: skip
        if count < micro:
            plan = plan.share(count / micro)
        ends = torch.tensor([len(piece["completion_ids"]) for piece in pieces]).cumsum(0).tolist()
        return [plan[i:j] for i, j in zip([0, *ends], ends, strict=False)]

    def _decide(self, batch: TokenBatch, made: int, parts: float) -> None:
        """Choose the thermostat's multiplier, or in `after_backward` if the gradient is due.

        `batch` is the step's, or the first of its `parts` parts.
        """
        trainer, hold = self._trainer, self.hold
        if hold is None or trainer.optimizer is None:
            return
        if hold.due(trainer.optimizer, made, trainer.updates) or hold.exact:
            groups = trainer.optimizer.param_groups
            self._gradient = Gradient([p for g in groups for p in g["params"]], self._scale)
            self._tokens = max(1, batch.whole.tokens) * parts
        else:
            hold.decide(trainer.optimizer, trainer.updates)

    @property
    def _scale(self) -> float:
        """Loss scale of accelerate (fp16)."""
        scaler = self._trainer.accelerator.scaler
        return 1.0 if scaler is None else scaler.get_scale()

    def _measured(self, model: nn.Module, pieces: list[dict[str, Any]]) -> tuple[Tensor, Tensor]:
        now = [self._trainer.extra_pass(model, piece) for piece in pieces]
        return torch.cat([logp for logp, _, _ in now]), torch.cat([H for _, H, _ in now])

    def add(self, out: LossOutput, entropy: Tensor) -> None:
        """Add a micro-batch's loss, with its entropies [B, T]."""
        self._entropies.append(entropy.detach())
        if self._gradient is not None:
            self._gradient.add(entropy, out.batch.mask, self._tokens)
        for key, value in online.of_update(out.batch, out).items():
            self._sums[key] = self._sums[key] + value if key in self._sums else value

    def after_backward(self) -> None:
        """Choose the multiplier after the backward pass of the step's last micro-batch."""
        trainer, hold, entropy, scale = self._trainer, self.hold, self._gradient, self._scale
        left = trainer.current_gradient_accumulation_steps - trainer.place
        if hold is None or entropy is None or left:
            return
        if trainer.ranks.world > 1:
            entropy.over_ranks()
        _multiply(entropy.parameters, 1 / scale)  # exact, since the scale is a power of two
        decide(hold, trainer.optimizer, entropy, trainer.updates, self._clip)
        _multiply(entropy.parameters, scale)
        self._gradient = None

    def end(self) -> dict[str, float]:
        """Sum the step's metrics (`online.of_update`) over all processes."""
        seen = self._unseen
        self._moved = None if seen is None else Moved.of(torch.cat(self._entropies), seen)
        return sum_over_ranks(self._sums)

    def stepped(self, norm: float) -> None:
        """Record the step's gradient norm before clipping, after its backward pass."""
        if self.hold is not None:
            trainer = self._trainer
            self.hold.stepped(norm, self._clip, trainer.optimizer, trainer.updates, self._moved)

    @property
    def _clip(self) -> float:
        return self._trainer.args.max_grad_norm or math.inf


def check_whole(kind: Any) -> None:
    if str(getattr(kind, "value", kind)) not in WHOLE:
        raise ValueError(
            f"thermostat: the multiplier is solved for with whole parameters, and {kind} shards "
            "them; use DDP, or the method {'name': 'thermostat', 'target': ..., 'knob': "
            "'entropy_coef'}"
        )


def check_checkpointing(args: Any) -> None:
    """Raise on reentrant gradient checkpointing, through which no second gradient is taken."""
    if args.gradient_checkpointing and (args.gradient_checkpointing_kwargs or {}).get(
        "use_reentrant"
    ):
        raise ValueError(
            "thermostat: gradient_checkpointing_kwargs={'use_reentrant': True} hides the weights "
            "from the entropy's gradient; set 'use_reentrant': False"
        )


def _multiply(parameters: Sequence[Tensor], factor: float) -> None:
    if factor != 1:
        torch._foreach_mul_([p.grad for p in parameters if p.grad is not None], factor)
