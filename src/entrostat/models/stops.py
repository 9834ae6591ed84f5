"""Strings that end a completion, found in the decoded text.

A string may begin inside one token and end inside another, so token ids cannot be compared. The
token that completes it is the completion's last one, trained on like an eos.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# tokens decoded before those that could spell the string: the first of a text may lose its space
_CONTEXT = 8


@dataclass(frozen=True)
class Stops:
    """Strings that end a completion.

    Attributes:
        strings: at least one, none empty.
        decode: token ids of several completions to their texts.
    """

    strings: tuple[str, ...]
    decode: Callable[[list[list[int]]], list[str]]

    def completed(self, tokens: Tensor) -> Tensor:
        """Whether each completion so far [b, n] has come to a stop: [b] bool.

        To be asked after every token: only the last tokens are looked at.
        """
        found = self.ended(tokens[:, -self._tail :].tolist())
        return torch.tensor(found, device=tokens.device)

    def ended(self, completions: list[list[int]]) -> list[bool]:
        """Whether each completion has a stop in its last tokens."""
        texts = self.decode([ids[-self._tail :] for ids in completions])
        return [any(s in text for s in self.strings) for text in texts]

    @property
    def _tail(self) -> int:
        # a token stands for one byte of the string or more
        return max(len(s.encode()) for s in self.strings) + _CONTEXT


def cut(text: str, stops: Sequence[str]) -> str:
    """A completion without its first stop and what follows."""
    ends = [place for s in stops if (place := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text
