"""The driver's side: veRL's synchronous trainer with an objective.

It overrides these parts of veRL's trainer: the advantages are ours; an update carries the
objective's state to the workers; checkpoints hold that state; the workers are `EntropyActorWorker`;
a run of `--host verl` writes its rollouts as the lab does.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ray
import torch
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.trainer.ppo.utils import Role
from verl.trainer.ppo.v1 import trainer_base
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from ...control import Alarm
from ...core.batch import TokenBatch
from ...dynamics import online
from ...logs.files import atomic
from ...logs.rollouts import save_rollouts
from ...runs.entropy_monitor import EntropyMonitor
from ..hold import Hold
from .checkpoints import LINE
from .completions import read
from .driver import noted, numbers, prepare, rollouts_of
from .held import HELD
from .loss import CORRECTION, EDITED, GROUP, IDLE, MASK, NOTE, PREFIX, REWARD, ROLLOUT
from .refusals import corrects
from .selfcheck import NAME, check
from .settings import check_run
from .worker import EntropyActorWorker

logger = logging.getLogger(__name__)
FILE = "entrostat.json"
# of a rollout dump: our name, and the name in veRL's batch
_DUMPED = {
    "responses": "responses", "mask": "response_mask", "logp": "old_log_probs",
    "entropy": "entropy", "advantages": "advantages", "sampler_logp": "rollout_log_probs",
    "rewards": REWARD, "group": GROUP, "idle": IDLE,
}  # fmt: skip
_ACTORS = (Role.Actor, Role.ActorRollout, Role.ActorRolloutRef)


@register_trainer(NAME)
class EntropyTrainer(PPOTrainerSync):
    """veRL's trainer_mode "sync" with an objective: `trainer.v1.trainer_mode=entrostat`.

    Raises:
        ValueError: veRL cannot run the objective with this configuration.
        RuntimeError: the plugin is not active.
    """

    _figures: Mapping[str, Any] = MappingProxyType({})  # metrics of the newest iteration, so far

    def __init__(self, config: Any) -> None:
        check()
        self.settings, self.objective = check_run(config)
        # veRL's code compares with the literal "sync" in several places
        with open_dict(config):
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self._watch([])
        logger.warning("entrostat: %r", self.objective)

    def _watch(self, past: list[dict[str, Any]]) -> None:
        """Monitor entropy after the iterations in `past`; an alarm goes to veRL's log."""
        path = self.config.data.get("entrostat")
        alarm = Alarm(**({} if path is None else read(path).alarm))
        self._past = past
        self._monitor = EntropyMonitor(alarm, logger.warning, past)

    def _init_resource_pool_mgr(self) -> None:
        super()._init_resource_pool_mgr()
        for role in _ACTORS:
            if role in self.role_worker_mapping:
                self.role_worker_mapping[role] = ray.remote(EntropyActorWorker)

    def step(self, metrics: dict[str, Any], timing_raw: dict[str, Any]) -> Any:
        """Run an iteration; its rollouts reach the disk before its checkpoint.

        Its metrics are kept for the checkpoint, because veRL logs them only after an evaluation.
        """
        began = time.perf_counter()
        batch = super().step(metrics, timing_raw)
        if (path := self.config.data.get("entrostat")) is not None:
            self._dump_rollouts(batch, read(path).rollouts_every)
        times = {f"timing_s/{name}": seconds for name, seconds in timing_raw.items()}
        self._figures = metrics | times | {"timing_s/step": time.perf_counter() - began}
        return batch

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Update controllers and compute advantages, from the old policy's statistics."""
        tq = trainer_base.tq
        names = ["uid", "response_mask", "rm_scores", "old_log_probs", "entropy"]
        if "ref_logp" in self.objective.needs:
            names.append("ref_log_prob")
        # may be absent: log-probs if the engine gives none, notes under another agent loop
        names += ["rollout_log_probs", "extra_fields", "data_source"]
        data = tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=names
        )
        uids = list(data.pop("uid").tolist())
        notes, kinds = data.pop("extra_fields", None), data.pop("data_source", None)
        kinds = None if kinds is None else [str(kind) for kind in kinds.tolist()]
        real = torch.tensor(_real(batch))
        _check_sessions([key for key, own in zip(batch.keys, real, strict=True) if own])
        lengths = data["response_mask"]
        dense = data.to_padded_tensor()
        number = {uid: i for i, uid in enumerate(dict.fromkeys(uids))}
        rollouts = TokenBatch(
            logp=dense["old_log_probs"],
            old_logp=dense["old_log_probs"],
            mask=dense["response_mask"],
            rewards=dense["rm_scores"].sum(-1),
            group=torch.tensor([number[uid] for uid in uids]),
            entropy=dense["entropy"],
            old_entropy=dense["entropy"],
            ref_logp=dense["ref_log_prob"] if "ref_log_prob" in names else None,
        )
        last = max(1, self.total_training_steps - 1)
        progress = min(1.0, (self.global_steps - 1) / last)
        sampled = dense.get("rollout_log_probs", None)
        correction, kept = None, None
        if corrects(partial(OmegaConf.select, self.config)):
            correction, kept, found = self._correction(rollouts, sampled)
            metrics.update(found)
        prepared = prepare(
            self.objective, rollouts, real, progress, sampled, kept=kept, kinds=kinds
        )
        metrics.update(self._monitor.line(prepared.metrics))
        metrics.update(noted([] if notes is None else notes.tolist(), real))
        seen = ("entropy/exact", "control/target")
        self._past.append({key: metrics[key] for key in seen if key in metrics})
        ready = prepared.batch
        A = response_to_nested(ready.advantages, lengths)
        fields = {
            "advantages": A,
            "returns": A.clone(),
            MASK: response_to_nested(ready.mask.to(torch.int64), lengths),
            REWARD: ready.rewards,
            GROUP: ready.group,
            IDLE: ready.need("idle").to(torch.int64),
            ROLLOUT: torch.arange(len(ready)),
        }
        if correction is not None:
            fields[CORRECTION] = response_to_nested(correction, lengths)
        if self._bypasses:
            fields["old_log_probs"] = data["rollout_log_probs"]
        if ready.edited is not None:
            fields[EDITED] = response_to_nested(ready.edited.to(torch.int64), lengths)
        return tq.kv_batch_put(
            keys=batch.keys,
            partition_id=batch.partition_id,
            fields=TensorDict(fields, batch_size=len(batch)),
        )

    @property
    def _bypasses(self) -> bool:
        return bool(OmegaConf.select(self.config, "algorithm.rollout_correction.bypass_mode"))

    def _compute_old_log_prob(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """The old policy's log-probs and entropies, in bypass mode too.

        In bypass mode veRL skips this pass, but the controllers need its entropies. The sampler's
        log-probs replace the old policy's once the advantages are computed.
        """
        if not self._bypasses:
            return super()._compute_old_log_prob(batch, metrics)
        correction = self.config.algorithm.rollout_correction
        with open_dict(correction):
            correction.bypass_mode = False
        try:
            return super()._compute_old_log_prob(batch, metrics)
        finally:
            with open_dict(correction):
                correction.bypass_mode = True

    def _correction(
        self, rollouts: TokenBatch, sampled: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor, dict[str, float]]:
        """Compute veRL's own correction: weights [B, T] or None, tokens kept [B, T], its metrics.

        In bypass mode the ratio is already relative to the sampler, so the weights are not used.
        There veRL rejects anew in every micro-batch; here it is done once, by the old policy.
        """
        if sampled is None:
            raise ValueError(
                "algorithm.rollout_correction: the rollout engine gave no log-probs; set "
                "actor_rollout_ref.rollout.calculate_log_probs=True"
            )
        own = self.config.algorithm.rollout_correction
        names = ("rollout_is", "rollout_is_threshold", "rollout_is_batch_normalize", "rollout_rs",
                 "rollout_rs_threshold")  # fmt: skip
        given = {name: own.get(name) for name in names}
        weights, kept, figures = compute_rollout_correction_and_rejection_mask(
            rollouts.old_logp, sampled, rollouts.mask, **given
        )
        if weights is None or self._bypasses:
            return None, kept.bool(), figures
        return weights.batch["rollout_is_weights"], kept.bool(), figures

    def _update_actor(self, batch: Any, metrics: dict[str, Any]) -> Any:
        """Run the updates with the objective's state; rename the metrics."""
        note = {
            "step": self.global_steps, "objective": self.objective.state_dict(),
            "bypass": self._bypasses,
        }  # fmt: skip
        batch.extra_info[NOTE] = json.dumps(note)
        batch = super()._update_actor(batch, metrics)
        ours = [key for key in metrics if key.startswith(f"actor/{PREFIX}")]
        values = {key.removeprefix(f"actor/{PREFIX}"): metrics.pop(key) for key in ours}
        held = {key: values.pop(key) for key in list(values) if key.startswith(HELD)}
        if held and (hold := Hold.of(self.objective)) is not None:
            hold.take({key.removeprefix(HELD): value for key, value in held.items()})
        metrics.update(online.figures(values))
        return batch

    def _log_rollout_data(self, batch: Any, timing_raw: Any, rollout_data_dir: str) -> None:
        """Write veRL's texts, except in a run of `--host verl`, which dumps its own rollouts."""
        if self.config.data.get("entrostat") is None:
            super()._log_rollout_data(batch, timing_raw, rollout_data_dir)

    def _dump_rollouts(self, batch: Any, every: int) -> None:
        if not every or self.global_steps % every:
            return
        keys = [key for key, real in zip(batch.keys, _real(batch), strict=True) if real]
        names = [*_DUMPED.values(), "prompts", "extra_fields"]
        data = trainer_base.tq.kv_batch_get(
            keys=keys, partition_id=batch.partition_id, select_fields=names
        )
        prompts, notes = data.pop("prompts").unbind(), data.pop("extra_fields").tolist()
        lengths = data["responses"].offsets().diff()
        dense = data.to_padded_tensor()
        rows = {ours: dense[name] for ours, name in _DUMPED.items() if name in dense.keys()}  # noqa: SIM118
        rows["lengths"] = lengths
        rollouts = rollouts_of(self.global_steps, prompts, notes, rows, self.tokenizer)
        save_rollouts(rollouts, Path(self.config.trainer.rollout_data_dir))

    @property
    def _checkpoint(self) -> Path:
        return Path(self.config.trainer.default_local_dir, f"global_step_{self.global_steps}")

    def _save_checkpoint(self) -> None:
        # before veRL names this checkpoint the latest
        folder = self._checkpoint
        with atomic(folder / FILE) as part:
            state = self.objective.state_dict() | {"alarm": self._past}
            part.write_text(json.dumps(state), encoding="utf-8")
        with atomic(folder / LINE) as part:
            line = {"step": self.global_steps, "data": numbers(self._figures)}
            part.write_text(json.dumps(line) + "\n", encoding="utf-8")
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps == 0:
            return
        folder = self._checkpoint
        if self.config.trainer.resume_mode == "resume_path":
            folder = Path(self.config.trainer.resume_from_path)
        try:
            state = json.loads((folder / FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"checkpoint {folder}: no readable {FILE} ({error}), so the controllers' state is "
                "lost; it was written by another trainer. Start from its weights "
                "(actor_rollout_ref.model.path) or set trainer.resume_mode=disable"
            ) from None
        self._watch(state.pop("alarm", []))
        self.objective.load_state_dict(state)


def _real(batch: Any) -> list[bool]:
    """Whether each row is real, False for the padding rows that veRL adds to a batch."""
    return [not tag.get("is_padding", False) for tag in batch.tags]


def _check_sessions(keys: list[str]) -> None:
    """Raise on agent loops that make several training rows per rollout ("UID_SESSION_INDEX")."""
    sessions = [key.rsplit("_", 1)[0] for key in keys]
    if len(set(sessions)) < len(sessions):
        twice = next(session for session in sessions if sessions.count(session) > 1)
        raise ValueError(
            f"entrostat.trainers.verl: rollout {twice} has several outputs; advantages of such "
            "agent loops are not defined here. Use one that returns one output per rollout"
        )
