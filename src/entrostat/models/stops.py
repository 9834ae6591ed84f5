"""What ends sampling: strings in the decoded text, and enough rollouts that are in.

A string may begin inside one token and end inside another, so token ids cannot be compared. The
token that completes it is the completion's last one, trained on like an eos.

Early stop (REPO App. D.2): sampling stops once enough rollouts are in; the rest is dropped. The
longest are those that are dropped, so what is trained on is not what the policy would have said:
lengths of both are logged.

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

SHARE = 0.9  # of all rollouts that must be in, REPO's
# tokens decoded before those that could spell the string: the first of a text may lose its space
_CONTEXT = 8


@dataclass(frozen=True)
class Stops:
    strings: tuple[str, ...]  # at least one, none empty
    # token ids of several completions to their texts
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


@dataclass(frozen=True)
class EarlyStop:
    group: int  # rollouts of every prompt that must be
    share: float  # share of all that must be, in (0, 1]

    def reached(self, ended: Tensor, prompt: Tensor) -> bool:
        """Whether sampling may stop.

        `ended` [n] are those that are in; `prompt` [n] is equal for those of one prompt, and no
        number between is left out.
        """
        if int(ended.sum()) / len(ended) < self.share:
            return False
        first, last = int(prompt.min()), int(prompt.max())
        counts = torch.bincount(prompt[ended] - first, minlength=last - first + 1)
        return int(counts.min()) >= self.group


def early_stop_of(sampling: Sampling) -> EarlyStop | None:
    """The configured rule; None where every rollout is waited for."""
    enough = sampling.enough
    if not enough.on:
        return None
    share = SHARE if enough.share is None else enough.share
    return EarlyStop(enough.least(sampling.rollouts), share)
