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
        # a token stands for one byte of the string or more
        tail = max(len(s.encode()) for s in self.strings) + _CONTEXT
        texts = self.decode(tokens[:, -tail:].tolist())
        found = [any(s in text for s in self.strings) for text in texts]
        return torch.tensor(found, device=tokens.device)


def cut(text: str, stops: Sequence[str]) -> str:
    """A completion without its first stop and what follows."""
    ends = [place for s in stops if (place := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text
