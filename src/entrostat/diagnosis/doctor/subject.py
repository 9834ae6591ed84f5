"""Interface of the checks to a run before it starts: policy, first rollouts, a trial update.

The training loop implements it (`trainers.lab.rehearsal`).

Shapes: B rollouts, T completion tokens at most, V vocabulary; n tokens computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from ...config import TrainConfig
from ...core.batch import TokenBatch
from ...core.objective import Objective
from ...core.stats import TokenStats
from ...models.policy import Policy
from ...models.rollout import Sequences
from ...tasks import Task

NO_SIGNAL = "no group has a signal, so no update would be made"
PROMPTS = 8  # one group each: 64 rollouts by default, seconds for the tiny policy


@dataclass(frozen=True)
class Exact:
    """Some tokens, recomputed in float64."""

    rows: Tensor  # [b] indices of the rollouts
    z: Tensor  # [n, V] logits: the head's operands multiplied in float64
    given: Tensor | None  # [n, V] logits of the model, if statistics are computed from them
    targets: Tensor  # [n] ids
    own: TokenStats  # log-prob and entropy, [n] each, as in training

    def logp(self, temperature: float) -> Tensor:
        """Log-probs of the targets, [n] float64."""
        p = (self.z / temperature).log_softmax(-1)
        return p.gather(1, self.targets[:, None])[:, 0]


@dataclass(frozen=True)
class Moved:
    """A policy after an iteration's updates, on the same rollouts."""

    stats: TokenStats  # [B, T] log-probs and entropies
    figures: dict[str, float]  # metrics of the updates
    # (a, b, |g_a - g_b| / |g_a|): gradients g from micro-batches of a and of b rollouts
    pieces: tuple[int, int, float]


class Subject(Protocol):
    """A run before its start, with B rollouts; `tokens` of them are at mask 1."""

    @property
    def config(self) -> TrainConfig: ...  # resolved
    @property
    def task(self) -> Task: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def objective(self) -> Objective: ...  # before the first update, first entropy observed
    @property
    def sequences(self) -> Sequences: ...
    @property
    def batch(self) -> TokenBatch: ...  # [B, T] old log-probs and rewards, no advantages
    @property
    def graded(self) -> TokenBatch: ...  # [B, T] with outcome advantages
    @property
    def trained(self) -> int: ...  # number of rollouts trained on
    @property
    def figures(self) -> dict[str, float]: ...  # metrics of the rollout batch
    @property
    def tokens(self) -> int: ...
    @property
    def own(self) -> Tensor: ...  # [B, T] bool: at mask 1 and sampled at the run's temperature
    @property
    def whole(self) -> TokenBatch: ...  # [B, T] with values of other models; no advantages
    @property
    def exact(self) -> Exact | None: ...  # None if the model has no linear head
    @property
    def moved(self) -> Moved | None: ...  # after trial updates, undone since; None without a signal
    def of_exact(self, values: Tensor) -> Tensor: ...  # [B, T] -> [n] tokens of `exact`
    def after(self, objective: Objective) -> Tensor: ...  # [B, T] entropies after updates
