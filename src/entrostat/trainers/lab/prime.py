"""PRIME's second model phi, trained online beside the policy on the outcomes of its rollouts.

`method/prime.py` explains its purpose and the points that paper and code leave open.

Shapes: B rollouts, those of groups with a signal; T completion tokens at most.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from ..._text import Say
from ...config import TrainConfig
from ...core.batch import masked_mean
from ...core.objective import Objective
from ...errors import RunStopped
from ...method.prime import Prime
from ...models.policy import Policy
from ...models.rollout import Sequences
from ...runs import checkpoint as checkpoints

CLIP = 10.0  # maximum gradient norm of phi, as in the authors' script
_PREFIX = "phi/"  # prefix of its tensors in a checkpoint
TEMPERATURE = 1.0  # of phi's and the reference's log-probs


@dataclass
class Phi:
    """The model that gives token rewards, and its training state."""

    objective: Objective  # the objective that reads the rewards; its `prime` may have schedules
    policy: Policy  # phi itself, initially a copy of the policy
    reference: Policy  # the initial policy, frozen
    optimizer: torch.optim.Optimizer  # AdamW over phi's trained parameters
    scaler: torch.amp.GradScaler  # of phi's loss under fp16
    micro_batch: int  # sequences in memory at once; any value gives the same gradient
    updates: int = 0  # steps made; at 0, phi equals the reference

    @property
    def settings(self) -> Prime:
        return settings_of(self.objective)

    def token_rewards(
        self, sequences: Sequences, outcomes: Tensor, group: Tensor, where: str
    ) -> tuple[Tensor, dict[str, float]]:
        """Return token rewards [B, T] float32, 0 at mask 0, and train phi once on these rollouts.

        `outcomes` [B] are in [0, 1], `group` [B] is the prompt of each.

        Returns:
            Rewards of phi before the pass, or after it (`phi_update`), and `prime/...` metrics.
            Loss and accuracies are taken before each update, on the rollouts it trains on. The mean
            is of the token rewards as used.
        """
        _check(outcomes, where)
        if self.settings.phi_lr is not None:
            self.optimizer.param_groups[0]["lr"] = self.settings.phi_lr
        reference = self.reference.measure(sequences, TEMPERATURE, self.micro_batch).logp
        ratio = torch.zeros_like(reference)
        # before its first update phi is the reference: only rounding differs, which the method's
        # `norm` would amplify
        if self.settings.phi_update == "after" and self.updates:
            ratio = self._ratio(sequences, reference)
        scores, norms = torch.zeros_like(outcomes), []
        for rows in whole_groups(group, self.settings.phi_minibatches):
            scores[rows], norm = self._update(
                sequences[rows], outcomes[rows], reference[rows], where
            )
            norms += [norm] if math.isfinite(norm) else []
        if self.settings.phi_update == "before":
            ratio = self._ratio(sequences, reference)
        rewards = self.settings.beta * ratio
        figures = {
            "prime/loss": float(binary_cross_entropy_with_logits(scores, outcomes)),
            **accuracies(scores, outcomes, group),
            "prime/reward_mean": float(masked_mean(rewards, sequences.mask)),
            "prime/lr": self.optimizer.param_groups[0]["lr"],
        }
        return rewards, figures | ({"prime/grad_norm": fmean(norms)} if norms else {})

    def _ratio(self, sequences: Sequences, reference: Tensor) -> Tensor:
        """[B, T]: log pi_phi - log pi_ref."""
        return self.policy.measure(sequences, TEMPERATURE, self.micro_batch).logp - reference

    def _update(
        self, sequences: Sequences, outcomes: Tensor, reference: Tensor, where: str
    ) -> tuple[Tensor, float]:
        """Make one step; return the scores before it (beta sum of log-ratios) [B], and the norm.

        The cross-entropy is the mean over all B rollouts, however they are cut into micro-batches.
        """
        self.optimizer.zero_grad(set_to_none=True)
        total, scores = 0.0, []
        for rows in torch.arange(len(outcomes), device=outcomes.device).split(self.micro_batch):
            logp = self.policy.token_stats(sequences[rows], TEMPERATURE).logp
            score = self.settings.beta * (logp - reference[rows]).sum(-1)
            loss = binary_cross_entropy_with_logits(score, outcomes[rows], reduction="sum")
            loss = loss / len(outcomes)
            self.scaler.scale(loss).backward()
            total += float(loss.detach())
            # 0 for the reference itself, except for rounding
            scores.append(score.detach() if self.updates else torch.zeros_like(score))
        self.scaler.unscale_(self.optimizer)
        trained = self.optimizer.param_groups[0]["params"]
        norm = float(torch.nn.utils.clip_grad_norm_(trained, CLIP))
        # under fp16 a step that overflows is skipped and the scale halved, as for the policy
        skipped = self.scaler.is_enabled() and self.scaler.get_scale() >= 1e-3
        if not math.isfinite(total) or not (math.isfinite(norm) or skipped):
            raise RunStopped(
                f"{where}: prime's second model: its loss is {total}, its gradient's norm {norm}. "
                "No step was made; the last checkpoint is good. Lower method.prime.phi_lr or use "
                "--precision fp32, then start again or resume"
            )
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.updates += math.isfinite(norm)
        self.optimizer.zero_grad(set_to_none=True)  # the policy's update needs the memory
        return torch.cat(scores), norm

    def tensors(self) -> dict[str, Tensor]:
        return checkpoints.tensors_of(self.policy.trained(), self.optimizer, _PREFIX)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "scaler": self.scaler.state_dict()}

    def restore(self, saved: checkpoints.Checkpoint) -> None:
        checkpoints.restore(saved, self.policy.trained(), self.optimizer, _PREFIX)
        self.updates = saved.state["phi"]["updates"]
        self.scaler.load_state_dict(saved.state["phi"]["scaler"])


def settings_of(objective: Objective) -> Prime:
    """The objective's `prime` method; defaults if only another method reads token rewards."""
    return next((m for m in objective.methods if isinstance(m, Prime)), Prime())


def second_model(
    policy: Policy,
    reference: Policy | None,
    objective: Objective,
    config: TrainConfig,
    small: bool,
    say: Say,
) -> Phi | None:
    """Build phi at the start of a run; None if no method reads token rewards."""
    if "process_rewards" not in objective.needs:
        return None
    assert reference is not None
    settings = settings_of(objective)
    # frozen parameters are shared: under LoRA, all but the adapters
    frozen = {id(p): p for p in policy.model.parameters() if not p.requires_grad}
    phi = replace(policy, model=copy.deepcopy(policy.model, frozen))
    lr = learning_rate(settings, config, small)
    optimizer = torch.optim.AdamW(
        phi.trained().values(), lr=lr, betas=config.optim.betas, weight_decay=0.0, fused=True
    )
    scaler = torch.amp.GradScaler(policy.device.type, enabled=config.precision == "fp16")
    size = sum(p.numel() for p in phi.trained().values())
    when = "learns from each rollout batch, then scores it"
    if settings.phi_update == "after":
        when = "scores each rollout batch, then learns from it"
    say(f"prime: a second model, {size:,} parameters trained at {lr:g}, {when}")
    return Phi(objective, phi, reference, optimizer, scaler, config.optim.micro_batch)


def learning_rate(settings: Prime, config: TrainConfig, small: bool) -> float:
    if settings.phi_lr is not None:
        return settings.phi_lr
    if config.lora.rank:
        return 1e-5
    return 1e-4 if small else 1e-6


def whole_groups(group: Tensor, parts: int) -> list[Tensor]:
    """Split rows into at most `parts` minibatches of whole groups, about equal in prompts."""
    _, index = torch.unique(group, return_inverse=True)
    prompts = torch.arange(int(index.max()) + 1, device=group.device)
    pieces = prompts.tensor_split(min(parts, len(prompts)))
    return [torch.isin(index, piece).nonzero()[:, 0] for piece in pieces]


@torch.no_grad()
def accuracies(scores: Tensor, outcomes: Tensor, group: Tensor) -> dict[str, float]:
    """Accuracies of scores [B] against outcomes [B] in [0, 1]; a tie counts half.

    `prime/accuracy`: share of rollouts whose score has the sign of outcome - 1/2.
    `prime/pair_accuracy`: share of the pairs of one prompt with different outcomes in which the
    better has the larger score; absent without such a pair.
    """
    agree = 0.5 + 0.5 * scores.sign() * (outcomes - 0.5).sign()
    out = {"prime/accuracy": float(agree.mean())}
    better = (group[:, None] == group) & (outcomes[:, None] > outcomes)  # [B, B]
    if bool(better.any()):
        won = 0.5 + 0.5 * (scores[:, None] - scores).sign()
        out["prime/pair_accuracy"] = float(won[better].mean())
    return out


def _check(outcomes: Tensor, where: str) -> None:
    bad = ((outcomes < 0) | (outcomes > 1)).nonzero()[:, 0]
    if len(bad):
        raise RunStopped(
            f"{where}: `prime` trains its second model on outcomes in [0, 1] by cross-entropy, and "
            f"this task gave a reward of {outcomes[bad[0]].item():g}. Give rewards in [0, 1], or "
            "take `loop_token`, the same without token rewards. No update was made"
        )
