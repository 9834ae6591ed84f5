"""What the checks ask of a run that has not begun: its policy, its first rollouts, a tried update.

Whoever has a training loop supplies it (`trainers.lab.rehearsal`).

Shapes: B rollouts, T completion tokens at most, V vocabulary; n tokens that are computed exactly.
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
PROMPTS = 8  # of a group each: 64 rollouts by default, seconds for the tiny policy


@dataclass(frozen=True)
class Exact:
    """Some tokens in float64."""

    rows: Tensor  # of the rollouts, [b]
    z: Tensor  # [n, V] logits in float64, of the head's own operands
    given: Tensor | None  # [n, V] what the model returned, where statistics are made of that
    targets: Tensor  # [n] ids
    own: TokenStats  # log-prob and entropy [n] each as training has them

    def logp(self, temperature: float) -> Tensor:
        """[n] float64, of the targets."""
        p = (self.z / temperature).log_softmax(-1)
        return p.gather(1, self.targets[:, None])[:, 0]


@dataclass(frozen=True)
class Moved:
    """A policy after an iteration's updates, on the same rollouts."""

    stats: TokenStats  # [B, T] log-probs and entropies
    figures: dict[str, float]  # of the updates
    # (a, b, |g_a - g_b| / |g_a|) of the gradient in micro-batches of a and of b rollouts
    pieces: tuple[int, int, float]


class Subject(Protocol):
    """A run that has not begun, and its first rollouts: B of them, `tokens` at mask 1."""

    @property
    def config(self) -> TrainConfig: ...  # the run's, resolved
    @property
    def task(self) -> Task: ...
    @property
    def policy(self) -> Policy: ...
    @property
    def objective(self) -> Objective: ...  # before the first update; it has seen the first entropy
    @property
    def sequences(self) -> Sequences: ...
    @property
    def batch(self) -> TokenBatch: ...  # [B, T] before advantages: the old policy's, rewards
    @property
    def graded(self) -> TokenBatch: ...  # [B, T] with outcome advantages
    @property
    def trained(self) -> int: ...  # rollouts that are trained on
    @property
    def figures(self) -> dict[str, float]: ...  # of the rollout batch
    @property
    def tokens(self) -> int: ...
    @property
    def own(self) -> Tensor: ...  # [B, T] bool: at mask 1, sampled at the run's own temperature
    @property
    def whole(self) -> TokenBatch: ...  # [B, T] with what methods ask of other models; ungraded
    @property
    def exact(self) -> Exact | None: ...  # in float64; None where the model has no linear head
    @property
    def moved(self) -> Moved | None: ...  # updates tried, taken back; None with nothing to train on
    def of_exact(self, values: Tensor) -> Tensor: ...  # [B, T] -> [n], the tokens of `exact`
    def after(self, objective: Objective) -> Tensor: ...  # [B, T] entropies after its updates
