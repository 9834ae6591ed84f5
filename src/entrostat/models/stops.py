"""Stop rules of sampling: stop strings in the decoded text, and early stopping.

A string may begin inside one token and end inside another, so token ids cannot be compared. The
token that completes it is the completion's last one, trained on like an eos.

Early stop (REPO App. D.2): sampling stops once enough rollouts have ended; the others are dropped.
These are the longest, so the trained rollouts are a biased sample of the policy: lengths of both
are logged.

Shapes: n rollouts that are sampled together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from ..config import Sampling

SHARE = 0.9  # share of all rollouts that must have ended, REPO's
# extra tokens decoded before those of the string: the first token of a text may lose its space
_CONTEXT = 8


@dataclass(frozen=True)
class Stops:
    strings: tuple[str, ...]  # at least one, none empty
    # maps token ids of several completions to their texts
    decode: Callable[[list[list[int]]], list[str]]

    def completed(self, tokens: Tensor) -> Tensor:
        """Whether each completion so far [b, n] has reached a stop: [b] bool.

        Call it after every token: only the last tokens are checked.
        """
        found = self.ended(tokens[:, -self._tail :].tolist())
        return torch.tensor(found, device=tokens.device)

    def ended(self, completions: list[list[int]]) -> list[bool]:
        """Whether each completion has a stop in its last tokens."""
        texts = self.decode([ids[-self._tail :] for ids in completions])
        return [any(s in text for s in self.strings) for text in texts]

    @property
    def _tail(self) -> int:
        # a token is at least one byte of the string
        return max(len(s.encode()) for s in self.strings) + _CONTEXT


def cut(text: str, stops: Sequence[str]) -> str:
    """A completion cut before its first stop."""
    ends = [place for s in stops if (place := text.find(s)) >= 0]
    return text[: min(ends)] if ends else text


@dataclass(frozen=True)
class EarlyStop:
    group: int  # rollouts of every prompt that must have ended
    share: float  # share of all rollouts that must have ended, in (0, 1]

    def reached(self, ended: Tensor, prompt: Tensor) -> bool:
        """Whether sampling may stop.

        `ended` [n] marks rollouts that have ended; `prompt` [n] numbers their prompts without gaps.
        """
        if int(ended.sum()) / len(ended) < self.share:
            return False
        first, last = int(prompt.min()), int(prompt.max())
        counts = torch.bincount(prompt[ended] - first, minlength=last - first + 1)
        return int(counts.min()) >= self.group


def early_stop_of(sampling: Sampling) -> EarlyStop | None:
    """The configured rule; None without early stopping."""
    enough = sampling.enough
    if not enough.on:
        return None
    share = SHARE if enough.share is None else enough.share
    return EarlyStop(enough.least(sampling.rollouts), share)
