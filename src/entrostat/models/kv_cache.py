"""A key-value cache with room to grow: a step writes its keys in place.

transformers' dynamic layer concatenates: every step copies all keys and values so far. Here a
layer's tensors are views of buffers that grow by half when they are full.

Shapes: b sequences, H key-value heads, S places filled, D head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicLayer

_STEP = 64  # least places added


class RoomyLayer(DynamicLayer):
    """A dynamic layer whose `keys` and `values` [b, H, S, D] are views of larger buffers."""

    keys: Any
    values: Any
    _keys: Tensor
    _values: Tensor

    def widen(self, repeats: int, room: int, dtype: torch.dtype | None = None) -> None:
        """Each sequence `repeats` times side by side, in buffers of S + `room` places.

        `dtype` is that of the buffers; None keeps it.
        """
        self._keys, self.keys = _into(self.keys, repeats, room, dtype)
        self._values, self.values = _into(self.values, repeats, room, dtype)

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write new keys and values [b, H, n, D] behind the others; returns all of them."""
        S, n = self.keys.shape[2], key_states.shape[2]
        if S + n > self._keys.shape[2]:
            self.widen(1, max(_STEP, n, S // 2))
        self._keys[:, :, S : S + n] = key_states
        self._values[:, :, S : S + n] = value_states
        self.keys, self.values = self._keys[:, :, : S + n], self._values[:, :, : S + n]
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep some sequences, and the room."""
        room = self._keys.shape[2] - self.keys.shape[2]
        self.keys, self.values = self.keys[indices], self.values[indices]
        self.widen(1, room)


def branch(cache: Any, repeats: int, room: int) -> None:
    """Repeat each sequence of a cache `repeats` times side by side, with room for new places.

    Under autocast they are kept in its dtype: attention would cast all of them at every step, to
    the same numbers. Layers of other kinds (a sliding window, say) are repeated as they are.
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
    """The dtype of autocast on a kind of device; None outside it."""
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _into(
    x: Tensor, repeats: int, room: int, dtype: torch.dtype | None = None
) -> tuple[Tensor, Tensor]:
    """A buffer that begins with x's rows, each repeated, and the view of what is filled."""
    b, H, S, D = x.shape
    buffer = x.new_empty(b, repeats, H, S + room, D, dtype=dtype or x.dtype)
    buffer[:, :, :, :S] = x[:, None]
    buffer = buffer.view(b * repeats, H, S + room, D)
    return buffer, buffer[:, :, :S]
