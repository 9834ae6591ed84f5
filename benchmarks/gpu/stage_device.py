"""Stage `device`: what is computed on the GPU equals float64 and the CPU.

Shapes: N tokens, D hidden size, V vocabulary; B sequences, T tokens.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from kit import Kit
from torch import Tensor

import entrostat as es
from entrostat.core.batch import TokenBatch
from entrostat.testing.data import MASK, PER_TOKEN, contract_data, moved
from entrostat.testing.layouts import fields

FIELDS = ("logp", "entropy", "sum_p2", "sum_p2_logp")
# errors allowed: of values (absolute, relative above 1), of gradients (norm over norm)
BOUNDS = {
    torch.float32: (1e-4, 1e-4),
    torch.bfloat16: (1e-4, 1e-2),
    torch.float16: (1e-4, 2e-3),
}


def run(kit: Kit) -> None:
    """Token statistics against float64, then every method on both devices."""
    token_statistics(kit)
    methods(kit)


# --- token statistics


def token_statistics(kit: Kit) -> None:
    """Values and gradients of each implementation, dtype and vocabulary."""
    implementations = ["plain", "tiled"] + (["triton"] if kit.device == "cuda" else [])
    for V in (50257, 151936, 262144) if not kit.tiny else (1000,):
        for dtype in BOUNDS:
            inputs = make_inputs(kit.size(256, 12), kit.size(256, 16), V, kit.device, dtype)
            exact = evaluate(inputs, None)
            for implementation in implementations:
                if implementation == "plain" and V > 200000:
                    continue
                case = f"token_stats, {implementation}, {str(dtype)[6:]}, V = {V}"
                found = evaluate(inputs, implementation)
                values = max(value_error(found[f], exact[f]) for f in FIELDS)
                gradient = max(
                    norm_error(found[f"{x} of {f}"], exact[f"{x} of {f}"])
                    for f in FIELDS for x in ("hidden", "weight")
                )  # fmt: skip
                bounds = BOUNDS[dtype]
                kit.row(
                    case, values <= bounds[0] and gradient <= bounds[1],
                    f"values {bounds[0]:g}, gradients {bounds[1]:g}",
                    values=values, gradients=gradient,
                )  # fmt: skip
            del exact


def make_inputs(N: int, D: int, V: int, device: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """hidden [N, D], weight [V, D], targets [N]; rows from flat to nearly certain."""
    g = torch.Generator().manual_seed(V)
    hidden = torch.randn(N, D, generator=g) * torch.linspace(0.1, 6, N)[:, None]
    weight = torch.randn(V, D, generator=g) / math.sqrt(D)
    targets = torch.randint(V, (N,), generator=g)
    likeliest = (hidden @ weight.t()).argmax(1)
    targets = torch.where(torch.arange(N) % 2 == 0, targets, likeliest)
    return hidden.to(device, dtype), weight.to(device, dtype), targets.to(device)


def evaluate(inputs: tuple[Tensor, ...], implementation: Any) -> dict[str, Tensor]:
    """Each field, and its sum's gradients; None: from float64 logits, by definition."""
    hidden, weight, targets = inputs
    exact = implementation is None
    hidden, weight = (
        (x.double() if exact else x).detach().requires_grad_() for x in (hidden, weight)
    )
    if exact:
        lp = (hidden @ weight.t()).log_softmax(-1)
        p = lp.exp()
        stats = {
            "logp": lp.gather(1, targets[:, None])[:, 0], "entropy": -(p * lp).sum(1),
            "sum_p2": p.square().sum(1), "sum_p2_logp": (p.square() * lp).sum(1),
        }  # fmt: skip
    else:
        found = es.token_stats(hidden, weight, targets, moments=True, implementation=implementation)
        stats = {field: getattr(found, field) for field in FIELDS}
    out: dict[str, Tensor] = {}
    for field, value in stats.items():
        out[field] = value.detach().double()
        both = torch.autograd.grad(value.sum(), (hidden, weight), retain_graph=True)
        for name, gradient in zip(("hidden", "weight"), both, strict=True):
            out[f"{name} of {field}"] = gradient.detach().double()
    return out


def value_error(got: Tensor, true: Tensor) -> float:
    """The largest error, relative where the value is above 1."""
    return float(((got - true).abs() / true.abs().clamp(min=1)).max())


def norm_error(got: Tensor, true: Tensor) -> float:
    """The norm of the error over the norm."""
    return float((got - true).norm() / true.norm())


# --- methods


def methods(kit: Kit) -> None:
    """Every method: what it prepares, plans and computes, on the CPU and on the device."""
    dirty = contract_data()
    for key in PER_TOKEN:  # what is masked must not be read there either
        dirty[key] = torch.where(MASK.bool(), dirty[key], math.nan)
    batches = {
        "float64": contract_data(), "NaN at mask 0": dirty,
        "bf16": contract_data(torch.bfloat16), "24 x 61 float32, with ties": fields(),
    }  # fmt: skip
    for name, data in batches.items():
        chosen, raised, worst, worst_of = [], [], 0.0, ""
        for method in es.methods():
            try:
                here, there = (passed(method, data, device) for device in ("cpu", kit.device))
            except Exception as error:
                raised.append(f"{method}: {type(error).__name__}: {str(error)[:200]}")
                continue
            if any(here[key] != there[key] for key in ("frozen", "weighted")):
                chosen.append(method)
            error = max(
                value_error(there["tensors"][key], value) for key, value in here["tensors"].items()
            )
            if not error <= worst:
                worst, worst_of = error, method
        bound = 1e-11 if "64" in name or "NaN" in name else 1e-5
        kit.row(
            f"{len(es.methods())} methods on {name}: GPU beside CPU",
            not chosen and not raised and worst <= bound,
            f"the same tokens chosen, error at most {bound:g}",
            worst_error=worst, of=worst_of, other_choice=", ".join(chosen) or "none",
            raised="; ".join(raised) or "none",
        )  # fmt: skip


def passed(method: str, data: dict[str, Tensor], device: str) -> dict[str, Any]:
    """Prepare, plan, loss and backward on a device; everything as float64 on the CPU."""
    own: dict[str, Any] = {key: value.to(device) for key, value in data.items()}
    leaves = [own[key].clone().requires_grad_() for key in ("logp", "entropy")]
    objective = moved(es.make_objective(method, max_length=64))
    batch = TokenBatch(**own | dict(zip(("logp", "entropy"), leaves, strict=True)))
    batch = objective.prepare(batch)
    terms = objective.plan(batch, generator=torch.Generator().manual_seed(5))
    out = objective.loss(batch, terms)
    gradients = torch.autograd.grad(out.loss, leaves, allow_unused=True)
    weights = terms.weight * torch.ones_like(batch.old_logp)
    tensors = {
        "advantages": batch.advantages, "weight": weights, "loss": out.loss,
        "tokens": out.per_token, **{f"figure {k}": v for k, v in out.metrics.items()},
        **{f"gradient {i}": g for i, g in enumerate(gradients)},
    }  # fmt: skip
    frozen = None if terms.frozen is None else terms.frozen.cpu().tolist()
    return {
        "tensors": {k: v.detach().double().cpu() for k, v in tensors.items() if v is not None},
        "frozen": frozen,
        "weighted": ((weights != 1) & batch.mask).cpu().tolist(),
    }
