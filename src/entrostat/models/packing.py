"""Packs sequences into a few full rows: no padding, and a group's prompt only once.

A padded batch of B rollouts computes every prompt K times and pads every row to the longest. In a
packed row each prompt is followed by its completions, and an attention mask lets a completion see
only its prompt and itself. The last token of a completion predicts no trained token, so it is left
out. The result equals that of the padded batch, up to rounding.

Shapes: B sequences, P prompt and T completion columns; R rows of S positions; n completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .rollout import Sequences

# positions per row, unless a sequence is longer: attention costs S^2, padding falls with S
_ROW = 96
_WIDE = (96, 128, 192, 256, 384, 512)
# S at which attention costs as much as the rest of a language model of 135M parameters
_BALANCE = 3000
_PROMPT, _PADDING = -1, -2  # owners of positions outside completions


@dataclass
class Packed:
    tokens: Tensor  # [R, S] int64
    positions: Tensor  # [R, S] int64, each token's position in its own sequence
    attention: Tensor  # [R, 1, S, S] bool, True where a position may attend
    # [n] int64, the position (in R x S) whose output predicts each completion token, in the order
    # of `Sequences.mask`'s true entries
    source: Tensor


def pack(sequences: Sequences, wide: bool = False) -> Packed:
    """Pack sequences; those of one prompt (`Sequences.prompt`) share it within a row.

    `wide` searches for the cheapest row length; rows of 96 positions suit the smallest models.
    """
    device = sequences.tokens.device
    tokens = sequences.tokens.cpu().numpy()
    P = sequences.prompt_width
    prompt_of = sequences.prompt.tolist()
    prompt_length = sequences.attention[:, :P].sum(-1).tolist()
    sampled = sequences.mask.cpu().numpy()
    # tokens after the last sampled one predict nothing
    length = [int(row.nonzero()[0][-1]) + 1 if row.any() else 0 for row in sampled]
    longest = max(
        (p + max(n - 1, 0) for p, n in zip(prompt_length, length, strict=True)), default=1
    )
    order = sorted(range(len(length)), key=lambda i: prompt_of[i])
    parts = [(prompt_of[i], prompt_length[i], max(length[i] - 1, 0)) for i in order]
    size = max(_ROW, longest)
    if wide:
        sizes = sorted({max(width, longest) for width in _WIDE})
        size = min(sizes, key=lambda s: _next_fit(parts, s)[1] * s * (1 + s / _BALANCE))
    places, rows = _next_fit(parts, size)

    # per place: its token, its position id, its owner, and the prompt copy that it is in or that
    # it sees
    ids, at, owner, group = (np.full(rows * size, fill) for fill in (0, 0, _PADDING, 0))
    nothing = np.zeros(0, np.int64)
    source = [nothing] * len(length)
    copies, last_prompt = 0, 0  # the place of a prompt's last token

    def put(place: int, i: int, first: int, count: int, whose: int) -> None:
        """Put tokens of sequence i at a place of the rows, from position `first` on."""
        here, column = slice(place, place + count), P - prompt_length[i] + first
        ids[here] = tokens[i, column : column + count]
        at[here] = np.arange(first, first + count)
        owner[here], group[here] = whose, copies

    for i, (place, new) in zip(order, places, strict=True):
        if new:
            copies, last_prompt = copies + 1, place - 1
            put(place - prompt_length[i], i, 0, prompt_length[i], _PROMPT)
        if n := length[i]:
            put(place, i, prompt_length[i], n - 1, i)
            before = np.concatenate([[last_prompt], np.arange(place, place + n - 1)])
            source[i] = before[sampled[i, :n]]

    owners, groups = (torch.from_numpy(x).view(rows, size).to(device) for x in (owner, group))
    place = torch.arange(size, device=device)
    attention = (
        (groups[:, :, None] == groups[:, None, :])
        & ((owners[:, :, None] == owners[:, None, :]) | (owners == _PROMPT)[:, None, :])
        & (place[:, None] >= place)
    )
    return Packed(
        torch.from_numpy(ids).view(rows, size).to(device),
        torch.from_numpy(at).view(rows, size).to(device),
        attention[:, None],
        torch.from_numpy(np.concatenate([nothing, *source])).to(device),
    )


def _next_fit(parts: list[tuple[int, int, int]], size: int) -> tuple[list[tuple[int, bool]], int]:
    """Next-fit packing of completions into rows of `size` places, in the order of their prompts.

    `parts` are (prompt, its length, places of the completion). A prompt is copied into each row
    that needs it. Returns per completion (its first place, whether a copy of its prompt is placed
    before it), and the number of rows.
    """
    found, row, used, current = [], 0, 0, None
    for prompt, prompt_length, places in parts:
        new = current != prompt
        if used + (prompt_length if new else 0) + places > size:
            row, used, new = row + 1, 0, True
        used += prompt_length if new else 0
        found.append((row * size + used, new))
        current, used = prompt, used + places
    return found, row + 1
