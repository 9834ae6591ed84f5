"""The loss of one micro-batch, under terms planned over the whole minibatch.

Shapes: B rollouts of this rank's minibatch, b of a micro-batch, T completion tokens at most.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from ...core.batch import TokenBatch
from ...core.objective import Objective, Plan
from ...dynamics import online

# fields that the driver adds to a batch; per token [B, T] or per rollout [B]
MASK, REWARD, GROUP = "entrostat_mask", "entrostat_reward", "entrostat_group"
EDITED = "entrostat_edited"  # only if a method edits advantages
IDLE = "entrostat_idle"  # rollouts of groups without a signal
CORRECTION = "entrostat_correction"  # [B, T], if veRL's rollout correction weights tokens
ROLLOUT = "entrostat_rollout"  # a rollout's index in the driver's batch
NOTE = "entrostat_note"  # JSON: the objective's state and the step
ROW = "entrostat_row"  # a rollout's index in this rank's minibatch
PREFIX = "entrostat/"  # prefix of metrics until they reach the driver


@dataclass
class Update:
    """The decisions for one optimizer step."""

    plan: Plan  # decided over all ranks; holds this rank's rollouts
    figures: dict[str, float] = field(default_factory=dict)  # metrics of the plan
    # [B, T] entropies of the forward passes; None if not needed
    now: Tensor | None = None


def loss(
    config: Update, model_output: dict[str, Any], data: Any, dp_group: Any = None
) -> tuple[Tensor, dict[str, Metric]]:
    """Return loss and metrics of a micro-batch, with the signature of veRL's losses.

    Summed over micro-batches and averaged over ranks, as FSDP averages gradients, it is the
    objective's loss of the whole minibatch. `model_output` has nested `log_probs` and `entropy` of
    prompts and responses, `data` is the micro-batch with `ROW`.
    """
    whole = config.plan.batch
    rows = data[ROW].to(whole.mask.device)
    logp = responses(model_output["log_probs"], data, whole.mask.shape[1])
    if logp.dtype in (torch.bfloat16, torch.float16):
        warnings.warn(_ROUNDED, stacklevel=2)
    H = model_output.get("entropy")
    entropy = None if H is None else responses(H, data, whole.mask.shape[1])
    if config.now is not None and entropy is not None:
        config.now[rows] = entropy.detach().to(config.now.dtype)
    plan = config.plan[rows]
    out = plan.loss(plan.at(logp, entropy))
    ranks = data["dp_size"]
    metrics = {
        PREFIX + key: Metric(AggregationType.SUM, float(value) * ranks)
        for key, value in online.of_update(out.batch, out).items()
    }
    metrics |= {
        PREFIX + key: Metric(AggregationType.MEAN, value) for key, value in config.figures.items()
    }
    return out.loss * ranks, metrics


def responses(nested: Tensor, data: Any, width: int) -> Tensor:
    """Extract the responses [b, width] from a nested model output over prompts and responses."""
    x = no_padding_2_padding(nested, data)
    return pad(x, (0, max(0, width - x.shape[1])))[:, :width]


def token_batch(data: Any, objective: Objective, device: Any) -> TokenBatch:
    """Build a worker's batch before an update: everything except the current policy's values.

    `logp` and `entropy` are those of the old policy; `data` is this rank's minibatch with the
    fields that the driver added.
    """
    names = ["old_log_probs", "entropy", "advantages", MASK, REWARD, GROUP, ROLLOUT]
    if "ref_logp" in objective.needs:
        names.append("ref_log_prob")
    names += set(data.keys()) & {EDITED, IDLE, CORRECTION}
    dense = data.select(*names).to_padded_tensor().to(device)
    return TokenBatch(
        logp=dense["old_log_probs"],
        old_logp=dense["old_log_probs"],
        mask=dense[MASK],
        advantages=dense["advantages"],
        rewards=dense[REWARD],
        group=dense[GROUP],
        entropy=dense["entropy"],
        old_entropy=dense["entropy"],
        ref_logp=dense.get("ref_log_prob", None),
        edited=dense.get(EDITED, None),
        idle=dense.get(IDLE, None),
        correction=dense.get(CORRECTION, None),
        rollout=dense[ROLLOUT],
    )


_ROUNDED = (
    "entrostat.trainers.verl: the engine gives log-probs in half precision, so ratios are rounded "
    "to some 1e-2 and clipping is biased against unlikely tokens (docs/numerics.md); set "
    "actor_rollout_ref.model.use_remove_padding=True with flash-attn installed, or train in float32"
)
