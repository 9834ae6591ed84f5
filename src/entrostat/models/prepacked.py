"""Products with weights that a CPU library has reordered once, for step-by-step decoding.

A decoding step multiplies a few rows, one per sequence, by every weight of the model, and the
library (MKL in float32, oneDNN in bf16) reorders a weight for each such product. While weights do
not change this can be done once, as torch's compiler does with frozen weights: the operators are
those of its lowering. Results differ from the layer's by rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MOST_ROWS = 128  # above, reordering is a small part of a product
# products of as many rows before a weight is reordered, which costs about what three save
_PATIENCE = 8


@contextmanager
def prepacked(model: nn.Module) -> Iterator[None]:
    """Context in which linear layers multiply up to 128 rows by reordered weight copies.

    Weights must not change meanwhile. A copy is made after a layer has had the same number of rows
    several times, and again for another number. All copies are freed at the end.
    """
    layers = [m for m in model.modules() if isinstance(m, nn.Linear) and _is_plain(m)]
    for layer in layers:
        layer.forward = _Reordered(layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward  # restores the class's own


def can_prepack() -> bool:
    """Whether torch has the operators, and they agree with a linear layer."""
    layer, x = nn.Linear(24, 40), torch.linspace(-1, 1, 3 * 24).view(3, 24)
    try:
        with torch.no_grad():
            for dtype, bound in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
                with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                    product = _multiply(x, _reorder(layer, 3), layer, 3)
                    if product.dtype != dtype:
                        return False
                    if not torch.allclose(product.float(), layer(x).float(), atol=bound):
                        return False
    except (AttributeError, NotImplementedError, RuntimeError, TypeError):
        return False  # private to torch: another release may rename them
    return True


class _Reordered:
    """The forward function of a linear layer, [..., D] to [..., E], by reordered weights."""

    def __init__(self, layer: nn.Linear) -> None:
        self.layer = layer
        self.rows = self.seen = 0
        self.weight: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        rows = input.numel() // max(1, input.shape[-1])
        if rows != self.rows:
            self.rows, self.seen, self.weight = rows, 0, None
        self.seen += 1
        if self.weight is None:
            if self.seen <= _PATIENCE or rows > MOST_ROWS:
                return nn.Linear.forward(self.layer, input)
            self.weight = _reorder(self.layer, rows)
        return _multiply(input, self.weight, self.layer, rows)


def _is_plain(layer: nn.Linear) -> bool:
    # a subclass, or a forward set by another library, may do more than multiply
    return type(layer) is nn.Linear and "forward" not in vars(layer)


def _half() -> bool:
    if not torch.is_autocast_enabled("cpu"):
        return False
    return torch.get_autocast_dtype("cpu") == torch.bfloat16


def _reorder(layer: nn.Linear, rows: int) -> Tensor:
    operators: Any = torch.ops
    weight = layer.weight.detach()
    if _half():
        return operators.mkldnn._reorder_linear_weight(weight.bfloat16(), rows)
    return operators.mkl._mkl_reorder_linear_weight(weight, rows)


def _multiply(x: Tensor, weight: Tensor, layer: nn.Linear, rows: int) -> Tensor:
    operators: Any = torch.ops
    bias = layer.bias
    if _half():
        bias = None if bias is None else bias.bfloat16()
        return operators.mkldnn._linear_pointwise(x.bfloat16(), weight, bias, "none", [], "")
    return operators.mkl._mkl_linear(x, weight, layer.weight, bias, rows)
