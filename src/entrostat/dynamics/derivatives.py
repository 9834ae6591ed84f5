"""Exact first-order changes, by forward-mode differentiation through the shared weights.

The closed-form estimators (`estimators`) treat every state as an independent softmax. In a network
each token's gradient moves all states at once, which these functions measure exactly:

    first_order   change at each token:     (dH_t / d theta) . (real parameter change)
    influence     change by each token:     c_i = (A_i / N) (d lp_i / d theta) . (P grad mean H)

Both are linear in the step, and one forward-mode pass computes them for all tokens.

Shapes: B sequences, T completion tokens; N tokens at mask 1.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from ..core.batch import at_least_float32

Params: TypeAlias = Tensor | Mapping[str, Tensor] | Sequence[Tensor]
"""Parameters: one tensor, tensors by name, or a row of tensors."""

TOLERANCE = 0.02
PANELS = 16  # the finest division of a step


def first_order(
    entropy_fn: Callable[..., Tensor], params: Params, direction: Params, order: int = 1
) -> tuple[Tensor, Tensor]:
    """The entropy change at every token along a parameter change d.

    order 1:  dH = J(theta) d, the tangent at the start.
    order 3:  the mean of J(theta + s d) d over s in [0, 1] by Simpson's rule, on the halves of the
    step, then on its quarters and so on, until the estimated error is less than `TOLERANCE` of
    the result's root mean square. Exact if H is a polynomial of degree 4 on each part. Needs
    five forward-mode passes for a small step, 33 at most. (AdamW's first steps are not small:
    docs/dynamics_record.md.)

    Args:
        entropy_fn: parameters -> [B, T] (any shape), through operations with a forward-mode
            derivative: `es.token_stats`, but not fused attention (`dynamics.forward_mode`).
        params: theta, a tensor or tensors by name.
        direction: d, of the same structure: the whole change by one or more updates, not a rate.
        order: 1 or 3.

    Returns:
        (entropy at theta, change), both of entropy_fn's shape, detached.

    Raises:
        ValueError: another order, or params and direction do not match.

    Example:
        >>> theta, d = torch.tensor([2.0]), torch.tensor([1.0])
        >>> first_order(lambda x: x**3, theta, d, order=3)  # 3^3 - 2^3
        (tensor([8.]), tensor([19.]))
    """
    if order not in (1, 3):
        raise ValueError(f"first_order: order must be 1 or 3, got {order}")
    _check_alike("first_order", "direction", params, direction)
    if order == 1:
        return directional(entropy_fn, params, direction)
    entropy, _, change = along(entropy_fn, params, direction)
    return entropy, change


def along(
    entropy_fn: Callable[..., Tensor], params: Params, direction: Params
) -> tuple[Tensor, Tensor, Tensor]:
    """(entropy, first-order change, Simpson's change): both orders of `first_order` at once."""
    entropy, start = directional(entropy_fn, params, direction)
    found = {0: start}  # derivatives by position in the finest grid

    def simpson(panels: int) -> Tensor:
        ends = [i * PANELS // panels for i in range(2 * panels + 1)]
        for place in ends:
            if place not in found:
                share = place / (2 * PANELS)
                there = _each(lambda x, d, s=share: x.detach() + s * d.detach(), params, direction)
                found[place] = directional(entropy_fn, there, direction)[1]
        inner = sum((4 if i % 2 else 2) * found[ends[i]] for i in range(1, 2 * panels))
        return (found[0] + inner + found[ends[-1]]) / (6 * panels)

    coarse, panels = simpson(1), 2
    change = simpson(panels)
    # to leading order the finer result's error is a fifteenth of their difference
    while panels < PANELS and (
        (change - coarse).double().norm() / 15 > TOLERANCE * change.double().norm()
    ):
        coarse, panels = change, 2 * panels
        change = simpson(panels)
    return entropy, start, change


def influence(
    logp_fn: Callable[..., Tensor],
    entropy_fn: Callable[..., Tensor],
    params: Params,
    advantages: Tensor,
    mask: Tensor,
    preconditioner: Params | None = None,
) -> Tensor:
    """The first-order change of the batch's mean entropy by each token's gradient.

    c_i = (m_i A_i / N) (d lp_i / d theta) . (P grad H), H the masked mean of entropy_fn and P the
    optimizer's preconditioner. The c_i add up to <grad H, P g>, with g the gradient of the policy
    objective sum(m A lp) / N. One backward pass gives grad H, one forward-mode pass all c_i.

    Args:
        logp_fn: parameters -> [B, T], the tokens' log-probs.
        entropy_fn: parameters -> [B, T], nats. Its values at mask 0 are not used, but its inputs
            there must be finite: the backward pass goes through all positions.
        params: theta, a tensor or tensors by name.
        advantages: [B] or [B, T].
        mask: [B, T], 1 where a token was sampled and is trained on.
        preconditioner: P's diagonal, structured like params: AdamW's lr / (sqrt(v) + eps)
            (`dynamics.adamw_preconditioner`); None for the identity, plain gradient ascent.

    Returns:
        [B, T], nats per unit of the step, 0 at mask 0, detached.

    Raises:
        ValueError: a shape does not fit, or the entropy's gradient is NaN because of mask 0.
    """
    piece = Piece(logp_fn, entropy_fn, advantages, mask)
    return influence_in_pieces([piece], params, preconditioner)[0]


@dataclass(frozen=True)
class Piece:
    """A micro-batch of b sequences, as functions of the parameters.

    Attributes:
        logp_fn: parameters -> [b, T].
        entropy_fn: parameters -> [b, T], nats.
        advantages: [b] or [b, T].
        mask: [b, T].
    """

    logp_fn: Callable[..., Tensor]
    entropy_fn: Callable[..., Tensor]
    advantages: Tensor
    mask: Tensor


def influence_in_pieces(
    pieces: Sequence[Piece], params: Params, preconditioner: Params | None = None
) -> list[Tensor]:
    """`influence` of a batch, computed in micro-batches.

    N and the mean entropy H are those of the whole batch, whatever the split: grad H is summed over
    the pieces, then each piece has its forward-mode pass.

    Args:
        pieces: the whole batch, in micro-batches; T may differ.
        params: as in `influence`.
        preconditioner: as in `influence`.

    Returns:
        One [b, T] per piece.

    Raises:
        ValueError: a shape does not fit, or there are no pieces.
    """
    if not pieces:
        raise ValueError("influence_in_pieces: pieces is empty; name at least one")
    if preconditioner is not None:
        _check_alike("influence", "preconditioner", params, preconditioner)
    for piece in pieces:
        shape = list(piece.mask.shape)
        if piece.mask.ndim != 2:
            raise ValueError(f"influence: mask must be [B, T], got shape {shape}")
        if list(piece.advantages.shape) not in (shape, shape[:1]):
            raise ValueError(
                f"influence: advantages must be {shape[:1]} or {shape}, got "
                f"{list(piece.advantages.shape)}"
            )
    N = max(1, sum(int(piece.mask.bool().sum()) for piece in pieces))
    gradient = _each(torch.zeros_like, params)
    for piece in pieces:
        share = int(piece.mask.bool().sum()) / N
        own = entropy_gradient(piece.entropy_fn, params, piece.mask)
        gradient = _each(lambda total, g, share=share: total + share * g, gradient, own)
    if preconditioner is not None:
        gradient = _each(torch.mul, gradient, preconditioner)
    out = []
    for piece in pieces:
        _, tangent = directional(piece.logp_fn, params, gradient)
        if tangent.shape != piece.mask.shape:
            raise ValueError(
                f"influence: logp_fn must return {list(piece.mask.shape)}, got "
                f"{list(tangent.shape)}"
            )
        A = at_least_float32(piece.advantages.detach())
        A = A if A.ndim == 2 else A[:, None]
        out.append(torch.where(piece.mask.bool(), A * tangent / N, 0))
    return out


def entropy_gradient(entropy_fn: Callable[..., Tensor], params: Params, mask: Tensor) -> Params:
    """Gradient of the masked mean of entropy_fn(params) [B, T], structured like params.

    0 for parameters that it does not depend on.

    Raises:
        ValueError: entropy_fn does not return the mask's shape; it and its derivative are NaN at
            mask 0, which makes the gradient NaN; or inside torch.inference_mode(), where every
            derivative would be 0.
    """
    _check_recording("entropy_gradient")
    mask = mask.bool()
    leaves = _each(lambda x: x.detach().requires_grad_(), params)
    with torch.enable_grad():
        entropy = entropy_fn(leaves)
        if entropy.shape != mask.shape:
            raise ValueError(
                f"entropy_gradient: entropy_fn must return {list(mask.shape)}, got "
                f"{list(entropy.shape)}"
            )
        mean = torch.where(mask, entropy, 0).sum() / mask.sum().clamp(min=1)
    values = list(_named(leaves).values())
    gradient = [torch.zeros_like(x) for x in values]
    if mean.requires_grad:
        gradient = list(torch.autograd.grad(mean, values, materialize_grads=True))
    if any(g.isnan().any() for g in gradient):
        _check_unheard(entropy.detach(), mask)
    return _like(leaves, gradient)


def _check_recording(function: str) -> None:
    """Raise in a mode in which torch silently returns derivatives of 0."""
    if torch.is_inference_mode_enabled():
        raise ValueError(
            f"dynamics.{function}: torch.inference_mode() is on, where torch has no derivatives; "
            "call it outside (torch.no_grad() may stay on), on tensors that were made outside"
        )


def _check_unheard(entropy: Tensor, mask: Tensor) -> None:
    """Raise if entropies are non-finite at mask 0 only, which makes the gradient NaN."""
    spoilt = ~mask & ~entropy.isfinite()
    if spoilt.any() and entropy[mask].isfinite().all():
        raise ValueError(
            f"entropy_gradient: entropy_fn is not finite at {int(spoilt.sum())} places of mask 0, "
            "and the backward pass carries 0 times that into the gradient; put numbers there in "
            "what it computes from, inputs = torch.where(mask[..., None], inputs, 0), say"
        )


@torch.no_grad()
def directional(
    fn: Callable[..., Tensor], params: Params, direction: Params
) -> tuple[Tensor, Tensor]:
    """fn(params) and its derivative along `direction`, both detached, of fn's shape.

    The derivative is 0 where fn does not depend on the parameters.

    Raises:
        ValueError: inside torch.inference_mode(), where every derivative would be 0.
    """
    _check_recording("directional")
    _load_forward_mode()
    with forward_ad.dual_level():
        dual = _each(lambda x, d: forward_ad.make_dual(x.detach(), d.detach()), params, direction)
        with _ZeroTangents():
            value = fn(dual)
        value, tangent = forward_ad.unpack_dual(value)
    return value, torch.zeros_like(value) if tangent is None else tangent


def _each(fn: Callable[..., Tensor], params: Params, *others: Params) -> Params:
    named, rest = _named(params), [_named(other) for other in others]
    return _like(params, [fn(x, *(other[name] for other in rest)) for name, x in named.items()])


def _named(params: Params) -> dict[str, Tensor]:
    if isinstance(params, Tensor):
        return {"": params}
    if isinstance(params, Mapping):
        return dict(params)
    return {str(i): x for i, x in enumerate(params)}


def _like(params: Params, values: list[Tensor]) -> Params:
    if isinstance(params, Tensor):
        return values[0]
    if isinstance(params, Mapping):
        return dict(zip(params, values, strict=True))
    return tuple(values)


def _check_alike(function: str, argument: str, params: Params, other: Params) -> None:
    mine, its = ({k: list(v.shape) for k, v in _named(x).items()} for x in (params, other))
    for name in sorted({*mine, *its}):
        if mine.get(name) != its.get(name):
            what = f"{argument}[{name!r}]" if name else argument
            raise ValueError(
                f"{function}: {what} must have the shape of params there, "
                f"{mine.get(name, 'nothing')}, got {its.get(name, 'nothing')}"
            )


@cache
def _load_forward_mode() -> None:
    """Load the part of forward mode that torch loads at first use, and hide torch's own warning."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        forward_ad.make_dual(torch.ones(1), torch.ones(1))


# operations that torch runs forty times slower if only one operand has a tangent
_PAIRS = {torch.add, torch.sub, torch.mul, Tensor.add, Tensor.sub, Tensor.mul}


class _ZeroTangents(TorchFunctionMode):
    """Context: if one operand has a tangent, give the other a tangent of zeros.

    Otherwise torch computes a placeholder's shape in Python: a third of the time of a small model's
    analysis, which has such operands in rotary embeddings and where it adds an epsilon. Finite
    values and tangents are bit-identical. Zero times an infinite value gives a tangent of NaN, for
    which the placeholder gave none.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func in _PAIRS and len(args) == 2:
            moving = [_has_tangent(x) for x in args]
            if moving[0] != moving[1]:
                like = args[moving.index(True)]
                args = [x if has else _still(x, like) for x, has in zip(args, moving, strict=True)]
        return func(*args, **(kwargs or {}))


def _has_tangent(x: Any) -> bool:
    return isinstance(x, Tensor) and forward_ad.unpack_dual(x).tangent is not None


def _still(x: Any, like: Tensor) -> Any:
    """`x` with a tangent of zero; unchanged if that would change the result's dtype."""
    x = x if isinstance(x, Tensor) else torch.tensor(x, dtype=like.dtype, device=like.device)
    return forward_ad.make_dual(x, torch.zeros_like(x)) if x.dtype == like.dtype else x
