"""Sequences of tokens: their means, step by step, and the rollouts of one step."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .problems import Given
from .values import finite, number

if TYPE_CHECKING:
    from ...rollouts import Rollouts

MAX_TOKEN = 2**31


@dataclass
class Rollout:
    """One sequence of another trainer's dump; lists are as long as `tokens`, None is unknown.

    `reward` is NaN where unknown; rollouts of one `group` had the same prompt.
    """

    reward: float
    group: Hashable
    prompt: str = ""
    completion: str = ""
    tokens: Sequence[int] = ()
    logp: Sequence[float | None] = ()
    sampler_logp: Sequence[float | None] = ()
    entropy: Sequence[float | None] = ()
    advantage: Sequence[float | None] = ()


class Means:
    """Means of sequences and tokens, step by step."""

    def __init__(self) -> None:
        self.sums: dict[int, dict[str, tuple[float, int]]] = {}

    def add(self, step: int, name: str, values: Sequence[float | None]) -> None:
        """Values of a step; what is unknown or not finite does not count."""
        known = finite(values)
        if known:
            total, count = self.sums.setdefault(step, {}).get(name, (0.0, 0))
            self.sums[step][name] = (total + math.fsum(known), count + len(known))

    def rollout(self, step: int, rollout: Rollout) -> None:
        """What any dump says of a sequence."""
        self.sums.setdefault(step, {})
        self.add(step, "reward/mean", [rollout.reward])
        if rollout.tokens:
            self.add(step, "rollout/length_mean", [float(len(rollout.tokens))])
            self.add(step, "entropy/exact", rollout.entropy)
            self.add(step, "entropy/nll", [-v for v in finite(rollout.logp)])

    def rows(self) -> dict[int, dict[str, float]]:
        """Step -> metric -> mean."""
        return {
            step: {name: total / count for name, (total, count) in sums.items()}
            for step, sums in self.sums.items()
        }


Sequences = Callable[[Path, Given], Iterable[tuple[int, Rollout]]]


def read_dump(path: Path, files: Sequence[Path], step: int, sequences: Sequences) -> Rollouts:
    """Rollouts of one step.

    Args:
        path: the path that the user named.
        files: those that hold rollouts of the step.
        step: which one.
        sequences: yields (step, rollout) of a file.

    Raises:
        ValueError: they are gone, or changed since they were first read.
    """
    import torch

    from ...rollouts import Rollouts

    given = Given(path)
    found = [r for file in files for at, r in sequences(file, given) if at == step]
    if not found:
        raise ValueError(f"{str(path)!r} no longer holds rollouts of step {step}")
    order: dict[Hashable, int] = {}
    group = [order.setdefault(r.group, len(order)) for r in found]
    lengths = torch.tensor([0, *(len(r.tokens) for r in found)])

    def flat(name: str) -> torch.Tensor:
        values = [v for r in found for v in getattr(r, name)]
        known = [math.nan if v is None else v for v in values]
        return torch.tensor(known, dtype=torch.float32)

    tokens = [t for r in found for t in r.tokens]
    return Rollouts(
        iteration=step,
        prompts=[r.prompt for r in found],
        completions=[r.completion for r in found],
        rewards=torch.tensor([r.reward for r in found], dtype=torch.float32),
        group=torch.tensor(group, dtype=torch.int32),
        finished=torch.zeros(len(found), dtype=torch.bool),
        trained=torch.ones(len(found), dtype=torch.bool),
        start=lengths.cumsum(0),
        tokens=torch.tensor(tokens, dtype=torch.int32),
        logp=flat("logp"),
        sampler_logp=flat("sampler_logp"),
        entropy=flat("entropy"),
        advantage=flat("advantage"),
        pieces={},
    )


def column(record: Mapping[str, Any], key: str, length: int) -> list[float | None]:
    """[length] numbers of a record's list; None where it has none, or not that many."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != length:
        return [None] * length
    return [number(v) if not isinstance(v, str) else None for v in values]


def token_ids(values: Any) -> list[int] | None:
    """A list of token ids, or None."""
    if not isinstance(values, list):
        return None
    good = all(type(v) is int and 0 <= v < MAX_TOKEN for v in values)
    return values if good else None
