"""Rounding of log-probs at the model's output: detects, removes or emulates it.

FSDP2 casts a module's output to `MixedPrecisionPolicy.output_dtype`; accelerate's plugin sets it to
bfloat16 if training is in bfloat16. Log-probs that were computed in float32 inside the model are
returned with 8 bits, and so are the ratio and the entropy: clipping becomes biased against unlikely
tokens (REPO, arXiv 2603.11682, App. A.1).

    with watch_outputs(model) as watched:
        logp = ...                        # a forward pass
    found = logp_rounding(logp, watched.logp)      # found.dtype, found.error
    use_float32_outputs(trainer)          # before training starts; or a wrapped module, at any time

`with_rounded_ratio` emulates REPO's case, to measure its effect on the clip:

- The head and the softmax are inside the module (their cut cross-entropy; TRL's fused head), so
  the log-prob of the sampled token is rounded. A model that returns logits has the logits rounded
  before the softmax, which is another error and not emulated.
- Both passes go through the module: the training pass, and the one that measured the old policy
  ("recalculated on the training node", App. D.2): `round_logp` and `round_old_logp`.
- The cast's backward pass is the identity: the gradient is that of the exact log-prob.

Nothing else is rounded. Methods plan (`Objective.plan`) on exact log-probs and entropies, so only
the log-ratio lp - lp0 differs: the ratio, its clip, and a penalty on |lp - lp0|.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.batch import TokenBatch, at_least_float32
from ..core.loss import LossOutput, clip_sides, clipped_by, loss_metrics, surrogate

if TYPE_CHECKING:  # diagnoses also import this module and need no tyro
    from ..config import Numerics

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ENOUGH = 8  # so many different values fit bfloat16 by chance with probability 2 ** -128
FIX = (
    "set MixedPrecisionPolicy(output_dtype=torch.float32), or call "
    "entrostat.models.rounding.use_float32_outputs(trainer) before training"
)


@dataclass(frozen=True)
class Rounding:
    # torch.bfloat16 or torch.float16 if the log-probs went through it, else None
    dtype: torch.dtype | None
    # mean absolute error of a log-prob, nats: measured if the unrounded values are known, else the
    # expected error of rounding to `dtype`; 0 if `dtype` is None
    error: float

    def warning(self) -> str | None:
        """One line with the problem and the remedy; None without rounding."""
        if self.dtype is None:
            return None
        return (
            f"log-probs come out of the model rounded to {str(self.dtype).removeprefix('torch.')} "
            f"(mean error {self.error:.1g} nats), and the ratio and its clip with them; {FIX}"
        )


@torch.no_grad()
def logp_rounding(logp: Tensor, inside: Tensor | None = None) -> Rounding:
    """Whether log-probs went through bfloat16 or float16.

    Args:
        logp: the model's output, of any floating dtype; 0 marks a position without a token.
        inside: the same before the cast, if known.

    A float32 value survives a round trip through bfloat16 by chance once in 65,536; so `ENOUGH`
    different values that all do were rounded. With fewer values the result is no rounding.
    """
    values = logp.detach().flatten()
    values = values[(values != 0) & values.isfinite()]
    dtype = sixteen_bits(values)
    if dtype is None:
        return Rounding(None, 0.0)
    if inside is not None and inside.shape == logp.shape and sixteen_bits(inside.detach()) is None:
        error = (logp.detach().double() - inside.detach().double()).abs()
        return Rounding(dtype, float(error[inside != 0].mean()))
    # an error is uniform between -1/2 and 1/2 of the last bit: a quarter of it on average
    exponent = torch.frexp(values.float()).exponent.double() - 1
    bits = 7 if dtype is torch.bfloat16 else 10
    return Rounding(dtype, float((2.0 ** (exponent - bits) / 4).mean()))


def sixteen_bits(values: Tensor) -> torch.dtype | None:
    """The 16-bit dtype that represents all nonzero values exactly, or None."""
    if values.dtype in (torch.bfloat16, torch.float16):
        return values.dtype
    values = values.flatten()
    values = values[values != 0]
    if values.unique().numel() < ENOUGH:
        return None
    for dtype in (torch.bfloat16, torch.float16):
        if torch.equal(values.to(dtype).to(values.dtype), values):
            return dtype
    return None


@dataclass
class Watched:
    """Outputs of the modules under `watch_outputs`, before any wrapper's cast."""

    # the last output named `log_probs`, in the model's shape; None if there was none
    logp: Tensor | None = None


@contextmanager
def watch_outputs(model: nn.Module) -> Iterator[Watched]:
    """Context that keeps the `log_probs` of `model` before FSDP2 casts them.

    Works for models whose output has an attribute or key `log_probs`, as with TRL's fused head.
    """
    seen = Watched()

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        logp = getattr(output, "log_probs", None)
        if logp is None and isinstance(output, dict):
            logp = output.get("log_probs")
        if isinstance(logp, Tensor):
            seen.logp = logp.detach()

    # before all other hooks, FSDP2's cast among them
    handle = model.register_forward_hook(keep, prepend=True)
    try:
        yield seen
    finally:
        handle.remove()


def use_float32_outputs(target: Any) -> bool:
    """Make the model return log-probs in float32.

    Args:
        target: a trainer or an `accelerate.Accelerator`, before it wraps the model: its FSDP2
            plugin's policy is changed, for every module that it will wrap. Or a module wrapped by
            `fully_shard`, at any time: the outermost wrapper's policy is changed, so that
            activations between layers keep their dtype.

    Returns:
        Whether there was an output dtype other than float32 to change.
    """
    if isinstance(target, nn.Module):
        return _change_module(target)
    accelerator = getattr(target, "accelerator", target)
    changed = False
    plugin = getattr(getattr(accelerator, "state", None), "fsdp_plugin", None)
    policy: Any = getattr(plugin, "mixed_precision_policy", None)
    if plugin is not None and getattr(policy, "output_dtype", None) not in (None, torch.float32):
        plugin.mixed_precision_policy = dataclasses.replace(policy, output_dtype=torch.float32)
        changed = True
    # already wrapped if training has begun
    wrapped = getattr(target, "model_wrapped", None) if target is not accelerator else None
    if isinstance(wrapped, nn.Module):
        changed = _change_module(wrapped) or changed
    return changed


def _change_module(module: nn.Module) -> bool:
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            state = part._get_fsdp_state()
            if state._mp_policy.output_dtype in (None, torch.float32):
                return False
            state._mp_policy = dataclasses.replace(state._mp_policy, output_dtype=torch.float32)
            return True
    return False


def rounds(numerics: Numerics) -> bool:
    return numerics.round_logp is not None or numerics.round_old_logp is not None


def rounded(values: Tensor, to: str | None) -> Tensor:
    """Cast to "bf16" or "fp16" (nearest, ties to even) and back. None: unchanged."""
    return values if to is None else values.to(DTYPES[to]).to(values.dtype)


def with_rounded_ratio(batch: TokenBatch, numerics: Numerics) -> TokenBatch:
    """The batch with the log-ratio lp - lp0 of the rounded log-probs.

    `logp` and its gradient stay; `old_logp` becomes lp - (round(lp) - round(lp0)), detached. A loss
    reads only the difference, which is exact up to float32's rounding of lp, 5e-7 at |lp| = 8; two
    values that round alike give exactly 0.
    """
    lp = at_least_float32(batch.logp.detach())
    old = at_least_float32(batch.old_logp)
    log_ratio = rounded(lp, numerics.round_logp) - rounded(old, numerics.round_old_logp)
    return batch.replace(old_logp=lp - log_ratio)


@torch.no_grad()
def exact_figures(exact: TokenBatch, out: LossOutput) -> dict[str, Tensor]:
    """Metrics of the exact ratio, in addition to those of a loss; they add up in the same way.

    Returns:
        [] each. `numerics/clip_high_exact` and `numerics/clip_low_exact`, the shares of tokens that
        the exact ratio clips above and below (`clip/high` and `clip/low` are those of the rounded
        one); `numerics/clip_changed`, the share clipped by one of the two alone; and `kl/old_new`,
        which describes the policy and not the loss, without rounding. Empty without a ratio.
    """
    terms = out.terms
    _, policy, ratio = surrogate(exact, terms)
    if ratio is None:
        return {}
    clip = clip_sides(terms, ratio)
    figures = loss_metrics(exact, terms, policy, ratio, clip)
    changed = clipped_by(clip, exact, terms) ^ out.clipped
    return {
        "kl/old_new": figures["kl/old_new"],
        "numerics/clip_high_exact": figures["clip/high"],
        "numerics/clip_low_exact": figures["clip/low"],
        "numerics/clip_changed": changed.sum() / terms.count,
    }
