"""Turns a torch module into the functions of parameters that `derivatives` needs.

Works with any Hugging Face causal LM. `functional` replaces the module's parameters during a call,
`forward_mode` gives it an attention with a forward-mode derivative, and `adamw_preconditioner`
reads the optimizer's scale of each parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

T = TypeVar("T")


class _Call(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, compute: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.compute = compute

    def forward(self) -> Any:
        return self.compute()


def functional(
    model: torch.nn.Module, compute: Callable[[], T]
) -> Callable[[Mapping[str, Tensor]], T]:
    """A function of the model's parameters: `compute()` with the model's parameters replaced.

    Args:
        model: the model that compute uses; restored after every call.
        compute: a closure that runs the model and returns one or several tensors.

    Returns:
        A function: parameters by name (all or some; the others stay) -> compute's result.

    Example:
        >>> model = torch.nn.Linear(1, 1, bias=False)
        >>> fn = functional(model, lambda: model(torch.ones(1)))
        >>> fn({"weight": torch.full((1, 1), 7.0)})
        tensor([7.])
    """
    call = _Call(model, compute)
    return lambda params: torch.func.functional_call(
        call, {f"model.{name}": value for name, value in params.items()}, ()
    )


@contextmanager
def forward_mode(model: Any) -> Iterator[None]:
    """Context in which the model's attention has a forward-mode derivative; restored at exit.

    Fused kernels (flash, flex, memory-efficient) have none. A Hugging Face model with another
    implementation than "sdpa" or "eager" is switched to "eager". In any model
    scaled_dot_product_attention runs its math backend.
    """
    config = getattr(model, "config", None)
    before = getattr(config, "_attn_implementation", None)
    switch = before not in (None, "sdpa", "eager")
    if switch:
        model.set_attn_implementation("eager")
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        if switch:
            model.set_attn_implementation(before)


def adamw_preconditioner(
    optimizer: torch.optim.Optimizer,
    params: Mapping[str, Tensor],
    gradient: Mapping[str, Tensor] | None = None,
    lr: float | None = None,
) -> dict[str, Tensor]:
    """The diagonal P by which AdamW scales a gradient: lr / (sqrt(v_hat) + eps).

    v_hat is the bias-corrected second moment. A step updates v_hat with its own gradient first:
    with `gradient`, P is that of the next step, on that gradient (v_hat = gradient^2 in the first
    step); without, P is that of the last step. Momentum and weight decay are not part of P:
    momentum spreads a gradient's P g over this step and later ones.

    Args:
        optimizer: Adam or AdamW.
        params: parameters of the optimizer by name.
        gradient: the next step's gradient, by name, after any clipping; required if a parameter
            has no state yet.
        lr: the learning rate; None takes the optimizer's current one.

    Returns:
        Tensors structured like params, in units of parameter per unit of gradient.

    Raises:
        ValueError: another optimizer (or its amsgrad or maximize), a parameter that is not the
            optimizer's, or a parameter without state if no gradient is given.
    """
    kinds = (torch.optim.Adam, torch.optim.AdamW)
    if not isinstance(optimizer, kinds):
        raise ValueError(
            f"adamw_preconditioner: optimizer must be Adam or AdamW, got {type(optimizer).__name__}"
        )
    for setting in ("amsgrad", "maximize"):
        if any(group.get(setting) for group in optimizer.param_groups):
            raise ValueError(f"adamw_preconditioner: {setting} is not supported; P would be wrong")
    groups = {id(p): group for group in optimizer.param_groups for p in group["params"]}
    out = {}
    for name, parameter in params.items():
        group = groups.get(id(parameter))
        if group is None:
            raise ValueError(f"adamw_preconditioner: {name} is no parameter of the optimizer")
        if gradient is not None and name not in gradient:
            raise ValueError(f"adamw_preconditioner: gradient has no {name!r}")
        state = optimizer.state.get(parameter, {})
        beta, steps, v = group["betas"][1], float(state.get("step", 0)), state.get("exp_avg_sq")
        if v is None and gradient is None:
            raise ValueError(
                f"adamw_preconditioner: {name} has no second moment yet; make a step first, or "
                "pass gradient"
            )
        if gradient is not None:
            new = (1 - beta) * gradient[name].detach().square()
            v, steps = new if v is None else beta * v + new, steps + 1
        assert v is not None
        rate = float(group["lr"] if lr is None else lr)
        out[name] = rate / ((v / (1 - beta**steps)).sqrt() + group["eps"])
    return out
