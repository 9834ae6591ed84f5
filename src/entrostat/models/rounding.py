"""Log-probs that a wrapper rounds on their way out of the model: found, and undone.

FSDP2 casts what a module returns to `MixedPrecisionPolicy.output_dtype`; accelerate's plugin sets
it to bfloat16 where training is in bfloat16. Log-probs that were computed in float32 inside the
model come out with 8 bits, and so do the ratio and the entropy: clipping becomes biased against
unlikely tokens (REPO, arXiv 2603.11682, App. A.1).

    with watch_outputs(model) as watched:
        logp = ...                        # a forward pass
    found = logp_rounding(logp, watched.logp)      # found.dtype, found.error
    use_float32_outputs(trainer)          # before training starts; or a wrapped module, at any time

Shapes: any; what is compared has one value per token.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

ENOUGH = 8  # so many different values that fit bfloat16 by chance: 2 ** -128
FIX = (
    "set MixedPrecisionPolicy(output_dtype=torch.float32), or call "
    "entrostat.models.rounding.use_float32_outputs(trainer) before training"
)


@dataclass(frozen=True)
class Rounding:
    """What a probe found.

    Attributes:
        dtype: torch.bfloat16 or torch.float16 if the log-probs went through it, else None.
        error: mean absolute error of a log-prob, nats: measured where the values before the
            rounding are known, else what rounding to `dtype` costs on average; 0 where `dtype` is
            None.
    """

    dtype: torch.dtype | None
    error: float

    def warning(self) -> str | None:
        """One line that says what is wrong and what to do; None where nothing is."""
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
        logp: as they came out; 0 marks a place without a token. Of any floating dtype.
        inside: the same before they left the model, where known.

    A float32 value survives a round trip through bfloat16 by chance once in 65,536; so
    `ENOUGH` different values that all do were rounded. With fewer, nothing is said.
    """
    values = logp.detach().flatten()
    values = values[(values != 0) & values.isfinite()]
    dtype = sixteen_bits(values)
    if dtype is None:
        return Rounding(None, 0.0)
    if inside is not None and inside.shape == logp.shape and sixteen_bits(inside.detach()) is None:
        error = (logp.detach().double() - inside.detach().double()).abs()
        return Rounding(dtype, float(error[inside != 0].mean()))
    # an error is uniform between -1/2 and 1/2 of the last bit: on average a quarter of it
    exponent = torch.frexp(values.float()).exponent.double() - 1
    bits = 7 if dtype is torch.bfloat16 else 10
    return Rounding(dtype, float((2.0 ** (exponent - bits) / 4).mean()))


def sixteen_bits(values: Tensor) -> torch.dtype | None:
    """The 16-bit dtype that all of the values, other than 0, fit exactly."""
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
    """What the modules under `watch_outputs` returned, before any wrapper's cast.

    Attributes:
        logp: the last output named `log_probs`, shape as the model's; None where there was none.
    """

    logp: Tensor | None = field(default=None)


@contextmanager
def watch_outputs(model: nn.Module) -> Iterator[Watched]:
    """Keep the `log_probs` that `model` computes, before FSDP2 casts them.

    Works for models that return an output with an attribute or key `log_probs`, as TRL's fused head
    does.
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
    """Let log-probs leave the model in float32.

    Args:
        target: a trainer or an `accelerate.Accelerator`, before it wraps the model: its FSDP2
            plugin's policy is changed, for every module that it will wrap. Or a module that
            `fully_shard` has wrapped, at any time: the outermost wrapper's policy is changed, so
            that what passes between the layers keeps its dtype.

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
    # wrapped already, where training has begun
    wrapped = getattr(target, "model_wrapped", None) if target is not accelerator else None
    if isinstance(wrapped, nn.Module):
        changed = _change_module(wrapped) or changed
    return changed


def _change_module(module: nn.Module) -> bool:
    """The same for the outermost wrapped module in `module`."""
    from torch.distributed.fsdp import FSDPModule

    for part in module.modules():
        if isinstance(part, FSDPModule):
            state = part._get_fsdp_state()
            if state._mp_policy.output_dtype in (None, torch.float32):
                return False
            state._mp_policy = dataclasses.replace(state._mp_policy, output_dtype=torch.float32)
            return True
    return False
