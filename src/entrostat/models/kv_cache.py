"""Key-value caches for decoding: one in growing buffers, and one with a CUDA graph per step.

transformers' dynamic layer concatenates: every step copies all keys and values so far. The tensors
of a `RoomyLayer` are views of buffers that grow by half when full.

A decoding step launches about 20 kernels per layer, and for models up to a few billion parameters
launching takes longer than running. A CUDA graph launches all kernels at once. It needs tensors at
fixed addresses, so keys and values are in buffers and a mask hides unwritten positions. When the
buffers are full, or half of the sequences have ended, new buffers are made and the graph is
captured again. Without CUDA the same forward pass runs without a graph, as in the tests.

Shapes: b sequences, J key-value heads of size D, G query heads on each, S positions, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import DynamicLayer

from .attention import attending

NAME = "entrostat_decode"
_ROOM = 512  # initial positions for completions; growth doubles all positions
_STEP = 64  # positions added, at least


class PreallocatedLayer(DynamicLayer):
    """Buffers of keys and values [b, J, S, D]; `update` writes one position of each sequence."""

    keys: Any
    values: Any
    place: Tensor  # [1] int64, shared by the layers

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [b, J, 1, D] at `place`; returns the buffers."""
        self.keys.index_copy_(2, self.place, key_states.to(self.keys.dtype))
        self.values.index_copy_(2, self.place, value_states.to(self.values.dtype))
        return self.keys, self.values


class GraphedDecoder:
    """Decodes after prompts, step by step, with a model of full-attention layers.

    `cache` has the prompts' keys and values from the model's own pass; `attention`
    [b / repeats, P] int64 is 1 on the prompts' tokens. A prompt has `repeats` sequences, side by
    side, of at most `places` positions with the prompt. A `dtype` of None keeps the cache's.
    """

    def __init__(
        self, model: Any, cache: Any, attention: Tensor, repeats: int, places: int,
        dtype: torch.dtype | None,
    ) -> None:  # fmt: skip
        device, P = attention.device, attention.shape[1]
        self.model, self.cache, self._places = model, cache, places
        self._place = torch.zeros(1, dtype=torch.int64, device=device)
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None
        S = _multiple_of_8(min(places, P + _ROOM))
        for i, layer in enumerate(cache.layers):
            fixed = PreallocatedLayer()
            fixed.__dict__.update(layer.__dict__)
            fixed.place = self._place
            fixed.keys = _spread(layer.keys, repeats, S, dtype)
            fixed.values = _spread(layer.values, repeats, S, dtype)
            cache.layers[i] = fixed
        seen = attention.bool().repeat_interleave(repeats, 0)
        self._mask = _hidden(len(seen), S, cache.layers[0].keys)
        self._mask[:, 0, 0, :P].masked_fill_(seen, 0)
        self._forget()

    def _forget(self) -> None:
        shape = (2, len(self._mask), 1)
        self._tokens, self._positions = self._place.new_zeros(shape)
        self._graph: Any = None
        self._logits: Tensor | None = None
        self._warm = False

    def __call__(self, tokens: Tensor, positions: Tensor, place: int) -> Tensor:
        """Logits [b, V] after one more token of each sequence; valid until the next call.

        `tokens` [b] and position ids [b, 1] are int64; `place` is the token's index among the S.
        """
        if place >= self._mask.shape[-1]:
            self._grow()
        self._tokens.copy_(tokens[:, None])
        self._positions.copy_(positions)
        self._place.fill_(place)
        self._mask[:, :, :, place] = 0
        if self._pool is None or not self._warm:  # libraries initialise in the first pass
            self._warm = True
            return self._forward()
        if self._graph is None:
            self._graph = self._captured()
        self._graph.replay()
        assert self._logits is not None
        return self._logits

    def _captured(self) -> Any:
        """The forward pass as a graph; `torch.cuda.graph` would empty torch's memory cache."""
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                self._logits = self._forward()
            finally:
                graph.capture_end()
        torch.cuda.current_stream().wait_stream(stream)
        return graph

    def select(self, rows: Tensor) -> None:
        for layer in self.cache.layers:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
        self._mask = self._mask[rows]
        self._forget()

    def _grow(self) -> None:
        S, before = self._mask.shape[-1], self._mask
        S = _multiple_of_8(min(self._places, 2 * S))
        for layer in self.cache.layers:
            layer.keys = _spread(layer.keys, 1, S, None)
            layer.values = _spread(layer.values, 1, S, None)
        self._mask = _hidden(len(before), S, before)
        self._mask[..., : before.shape[-1]] = before
        self._forget()

    def _forward(self) -> Tensor:
        with attending(self.model, NAME, _attend):
            return self.model(
                input_ids=self._tokens, attention_mask=self._mask, position_ids=self._positions,
                past_key_values=self.cache, use_cache=True, logits_to_keep=1,
            ).logits[:, -1]  # fmt: skip


def _multiple_of_8(places: int) -> int:
    """Round up to a multiple of 8: fused attention reads mask rows in blocks of 8."""
    return places + -places % 8


def _hidden(b: int, places: int, like: Tensor) -> Tensor:
    """A mask [b, 1, 1, S] that hides every position."""
    return like.new_full((b, 1, 1, places), -torch.inf)


def _spread(x: Tensor, repeats: int, places: int, dtype: torch.dtype | None) -> Tensor:
    """[b, J, P, D] as [b repeats, J, S, D], each sequence repeated; unwritten positions are 0.

    `dtype` is the buffer's; None keeps that of `x`.
    """
    b, J, P, D = x.shape
    buffer = x.new_zeros(b, repeats, J, places, D, dtype=dtype or x.dtype)
    buffer[:, :, :, :P] = x[:, None]
    return buffer.view(b * repeats, J, places, D)


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Query [b, J, G, D], the mask [b, 1, 1, S]."""
    mask = mask.expand(*query.shape[:3], -1)
    return scaled_dot_product_attention(query, key, value, mask, scale=scaling)


class RoomyLayer(DynamicLayer):
    """A dynamic layer whose `keys` and `values` [b, H, S, D] are views of larger buffers."""

    keys: Any
    values: Any
    _keys: Tensor
    _values: Tensor

    def widen(self, repeats: int, room: int, dtype: torch.dtype | None = None) -> None:
        """Repeat each sequence `repeats` times side by side, in buffers of S + `room` positions."""
        S = self.keys.shape[2]
        self._keys = _spread(self.keys, repeats, S + room, dtype)
        self._values = _spread(self.values, repeats, S + room, dtype)
        self.keys, self.values = self._keys[:, :, :S], self._values[:, :, :S]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append new keys and values [b, H, n, D]; returns all of them."""
        S, n = self.keys.shape[2], key_states.shape[2]
        if S + n > self._keys.shape[2]:
            self.widen(1, max(_STEP, n, S // 2))
        self._keys[:, :, S : S + n] = key_states
        self._values[:, :, S : S + n] = value_states
        self.keys, self.values = self._keys[:, :, : S + n], self._values[:, :, : S + n]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        room = self._keys.shape[2] - self.keys.shape[2]
        self.keys, self.values = self.keys[indices], self.values[indices]
        self.widen(1, room)


def branch(cache: Any, repeats: int, room: int) -> None:
    """Repeat each sequence of a cache `repeats` times side by side, with room for new positions.

    Under autocast keys and values are kept in its dtype; otherwise attention would cast all of them
    at every step, to the same numbers. Layers of other kinds (a sliding window) are only repeated.
    """
    for i, layer in enumerate(cache.layers):
        if type(layer) is DynamicLayer and layer.is_initialized:
            roomy = RoomyLayer()
            roomy.__dict__.update(layer.__dict__)
            roomy.widen(repeats, min(room, _STEP), autocast_dtype(roomy.keys.device.type))
            cache.layers[i] = roomy
        else:
            layer.batch_repeat_interleave(repeats)


def autocast_dtype(device: str) -> torch.dtype | None:
    """The dtype of autocast on a device type; None outside autocast."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
