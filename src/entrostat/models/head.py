"""The language-model head: token statistics directly from the hidden states before it.

A model's `forward` multiplies by the head and keeps all logits in memory. Here the head's input is
captured, and `token_stats` does the rest in tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.stats import TokenStats, token_stats

# smaller vocabularies are faster with the model's own logits (docs/numerics.md)
SMALLEST_VOCABULARY = 4096


@dataclass(frozen=True)
class LanguageHead:
    """Softcap and scale of a model's map from hidden states to logits, beside its linear layer."""

    softcap: float | None  # c of c tanh(logits / c), or None
    scale: float  # factor on the layer's output

    def stats(
        self, model: Any, hidden: Tensor, targets: Tensor, temperature: float, moments: bool = False
    ) -> TokenStats:
        """Statistics [n] of the tokens `targets` [n] that hidden states [n, D] predict."""
        layer = model.get_output_embeddings()
        return token_stats(
            hidden, layer.weight, targets, getattr(layer, "bias", None), temperature, self.softcap,
            moments, scale=self.scale,
        )  # fmt: skip


@contextmanager
def caught(model: Any, source: Tensor | None = None) -> Iterator[list[Tensor]]:
    """Context that captures the input of the model's head; the head itself gets one row of it.

    The list receives [n, D] for the positions `source` [n], or the whole input.
    """
    found: list[Tensor] = []

    def take(hidden: Tensor) -> Tensor:
        found.append(hidden if source is None else hidden.flatten(0, 1)[source])
        return found[-1][:1]

    with _before(model, take):
        yield found


def only_at(model: Any, source: Tensor) -> AbstractContextManager[None]:
    """Context in which the model's head gets the hidden states of the positions `source` [n] only.

    The logits are [n, V]: those of other positions are never computed.
    """
    return _before(model, lambda hidden: hidden.flatten(0, 1)[source])


@contextmanager
def _before(model: Any, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    def hook(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (change(inputs[0]), *inputs[1:])

    handle = model.get_output_embeddings().register_forward_pre_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def find_head(model: Any) -> LanguageHead | None:
    """The head as described by the model's configuration; None if it is not a linear layer."""
    layer = model.get_output_embeddings()
    if getattr(layer, "weight", None) is None or layer.weight.ndim != 2:
        return None
    if hasattr(layer, "base_layer"):  # an adapter on the head: the weight alone is not the head
        return None
    config = model.config.get_text_config()
    scale = getattr(config, "logit_scale", None)  # Cohere
    if not isinstance(scale, int | float):
        scale = 1 / (getattr(config, "logits_scaling", None) or 1.0)  # Granite
    return LanguageHead(getattr(config, "final_logit_softcapping", None), float(scale))
