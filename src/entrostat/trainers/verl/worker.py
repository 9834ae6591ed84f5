"""Once per update, in the workers: the plan over the whole minibatch and all data-parallel ranks.

veRL's worker splits a minibatch into micro-batches and calls the loss on each. The plan is made
before that, in `train_batch`, where this rank's whole minibatch is available. Methods query all
ranks for sums, maxima and thresholds, with the same generator on each. The loss function looks up
its rows in the plan, so nothing depends on the split.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import torch
from torch import Tensor
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils as tu
from verl.utils.config import omega_conf_to_dataclass
from verl.utils.device import get_device_id
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ...core.batch import TokenBatch
from ...core.objective import Objective
from ...core.process_ranks import ranks, shared_generator
from ..hold import Hold, Moved
from .held import HELD, look
from .loss import NOTE, PREFIX, ROW, Update, loss, responses, token_batch
from .selfcheck import check
from .settings import PolicyLoss


class EntropyTrainingWorker(TrainingWorker):
    """veRL's training worker with an objective in place of its policy loss."""

    objective: Objective | None = None

    def use_objective(self, settings: PolicyLoss) -> None:
        """Build the objective; its state arrives with every rollout batch."""
        check()
        self.objective = settings.objective()
        self.seed, self.hold, self.bypass = settings.seed, Hold.of(self.objective), False
        if self.hold is not None:
            step = self.engine.optimizer_step
            self.engine.optimizer_step = lambda: self._stepped(step())

    def train_mini_batch(self, data: Any) -> Any:
        """Make all updates of a rollout batch, with the controllers' state from the driver."""
        assert self.objective is not None
        note = tu.get(data, NOTE)
        if note is None:
            raise ValueError(
                "entrostat.trainers.verl: the batch comes from another trainer; set "
                "trainer.v1.trainer_mode=entrostat"
            )
        told = json.loads(note)
        self.objective.load_state_dict(told["objective"])
        self.step, self.updates, self.bypass = told["step"], 0, told.get("bypass", False)
        self.epochs = tu.get(data, "epochs", default=1)
        size = tu.get(data, "mini_batch_size") // self.engine.get_data_parallel_size()
        self.planned = self.epochs * (len(data) // size)
        output = super().train_mini_batch(data)
        if self.hold is not None and output is not None:
            held = {f"{PREFIX}{HELD}{key}": [x] for key, x in self.hold.numbers().items()}
            tu.get(output, "metrics").update(held)
        return output

    def _stepped(self, norm: Any) -> Any:
        """Pass the engine's gradient norm to the multiplier; return it unchanged."""
        assert self.hold is not None
        engine, update = self.engine, self.update
        moved = None if update.now is None else Moved.of(update.now, update.plan.batch)
        clip = engine.optimizer_config.clip_grad
        self.hold.stepped(float(norm), clip, engine.optimizer, self.planned, moved)
        return norm

    def train_batch(self, data: Any) -> Any:
        """Make one optimizer step: plan, then veRL's own loop over micro-batches."""
        self.update = self.plan(data)
        self.set_loss_fn(partial(loss, config=self.update))
        self.updates += 1
        return super().train_batch(data)

    def plan(self, data: Any) -> Update:
        """Plan this minibatch with the methods, and number its rows.

        On the first update of a rollout batch the current policy is the old one, whose log-probs
        and entropies are in the batch. Later, if a method reads the current policy's values, they
        are computed first, in a pass without gradient.
        """
        objective = self.objective
        assert objective is not None
        # in bypass mode the old log-probs are the sampler's, not those of our weights
        fresh = self.updates == 0 and not self.bypass
        group = self.engine.get_data_parallel_group()
        batch = token_batch(data, objective, get_device_id())
        batch = batch.replace(ranks=ranks(group, batch.mask.device))
        if self.hold is not None:
            optimizer = self.engine.optimizer
            stream = (self.seed, "hold", self.step, self.updates)
            if self.hold.due(optimizer, self.updates, self.planned):
                look(self.engine, self.hold, self._ready(data), batch, stream)
            self.hold.decide(optimizer, self.planned)
        generator = shared_generator(self.seed, "select", self.step, self.updates)
        measure = partial(self._measure, data, batch)
        plan = objective.step(batch, generator, fresh=fresh, measure=measure)
        live = batch.whole.over(batch.policy_mask)
        data[ROW] = torch.arange(len(batch))
        figures = {
            "plan/tokens": float(live.tokens),
            "plan/sequences": float(live.sequences),
            "plan/passes": float(plan.measured),
        }
        unseen = self.hold is not None and 0 < self.updates < self.planned // self.epochs
        now = torch.zeros_like(batch.old_logp) if unseen else None
        return Update(plan, figures, now)

    def _ready(self, data: Any, kind: str = "") -> Any:
        """The minibatch with the engine settings of veRL's worker; `kind` is "infer_" or ""."""
        view, engine = data.copy(), self.engine_config
        tu.assign_non_tensor(
            view,
            use_remove_padding=self.model_config.get("use_remove_padding", False),
            use_dynamic_bsz=engine.use_dynamic_bsz,
            max_token_len_per_gpu=getattr(engine, f"{kind}max_token_len_per_gpu"),
            micro_batch_size_per_gpu=getattr(engine, f"{kind}micro_batch_size_per_gpu"),
            use_fused_kernels=engine.use_fused_kernels,
        )
        return view

    def _measure(self, data: Any, batch: TokenBatch) -> tuple[Tensor, Tensor | None]:
        """Log-probs and entropies [B, T] of the current policy."""
        view = self._ready(data, "infer_")
        keep = tu.get(data, "disable_auto_offload", default=False)
        with self.engine.eval_mode(disable_auto_offload=keep):
            output = self.engine.infer_batch(view, loss_function=None)["model_output"]
        width = batch.mask.shape[1]
        H = output.get("entropy")
        device = batch.mask.device
        logp = responses(output["log_probs"], data, width).to(device)
        return logp, None if H is None else responses(H, data, width).to(device)


class EntropyActorWorker(ActorRolloutRefWorker):
    """veRL's hybrid worker whose actor trains on an objective."""

    actor_worker_cls = EntropyTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def init_model(self) -> None:
        super().init_model()
        if isinstance(self.actor, EntropyTrainingWorker):
            self.actor.use_objective(omega_conf_to_dataclass(self.config.actor.policy_loss))
