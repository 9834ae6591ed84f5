"""What goes with entropy in a run, found under the names that trainers give it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..logs.run import Run
from .course import Array

HUGE = 1e12  # a larger number in a log is none
TENTH = 10

# what is asked of -> our name and what other trainers call the same, first the most direct;
# TRL 1.16, veRL 0.9.1, slime and prime-rl as logs/importers reads them
NAMES: dict[str, tuple[str, ...]] = {
    "entropy": ("entropy/exact", "entropy/nll", "entropy/logged"),
    "score": ("reward/mean", "reward", "critic/score/mean", "critic/rewards/mean"),
    "length": ("rollout/length_mean", "completions/mean_length", "response_length/mean"),
    "truncated": (
        "rollout/truncated", "completions/clipped_ratio", "response_length/clip_ratio",
        "rollout/truncated_ratio",
    ),
    "no_signal": ("rollout/zero_advantage_share", "frac_reward_zero_std"),
    "clip": (
        "clip/both", "clip_ratio/region_mean", "actor/pg_clipfrac", "train/pg_clipfrac",
    ),
    "step": ("kl/old_new", "actor/ppo_kl", "train/ppo_kl"),
    "ratio": ("ratio/mean",),
    "rate": ("optim/lr", "learning_rate", "actor/lr", "train/lr-pg_0"),
    "gradient": ("grad/norm", "actor/grad_norm", "train/grad_norm"),
    "covariance": ("cov/mean", "cov/update"),
    "target": ("control/target",),
    "saturated": ("thermostat/saturated",),
    "mismatch_kl": ("mismatch/kl", "mismatch_kl", "rollout_corr/k3_kl", "rollout_corr/kl"),
    "mismatch_logp": (
        "mismatch/logp_abs_mean", "sampling/sampling_logp_difference/mean",
        "train/train_rollout_logprob_abs_diff",
    ),
    "mismatch_prob": ("mismatch/prob_abs_mean", "training/rollout_probs_diff_mean"),
}  # fmt: skip


@dataclass(frozen=True)
class Signal:
    """One quantity over a run.

    Attributes:
        name: the metric's name in the log.
        x: [n] iterations.
        y: [n] values, finite.
    """

    name: str
    x: Array
    y: Array

    def __len__(self) -> int:
        return len(self.y)

    @property
    def early(self) -> float:
        """Mean of the first tenth."""
        return float(self.y[: self._tenth].mean())

    @property
    def late(self) -> float:
        """Mean of the last tenth."""
        return float(self.y[-self._tenth :].mean())

    @property
    def late_noise(self) -> float:
        """Standard deviation of the last tenth."""
        return float(self.y[-self._tenth :].std())

    @property
    def _tenth(self) -> int:
        return max(1, len(self.y) // TENTH)

    def before(self, iteration: float) -> float:
        """Mean of up to a tenth of the run before an iteration; of the first ones at the start."""
        some = self.y[self.x < iteration][-self._tenth :]
        return float(some.mean()) if len(some) else self.early


def signal(run: Run, what: str) -> Signal | None:
    """A key of `NAMES` in a run; None where it logs none of its names.

    Clipping and groups without a signal are put together where they are logged in parts.
    """
    for name in NAMES[what]:
        if (found := of(run, name)) is not None:
            return found
    if what == "clip":
        return _clipped(run)
    if what == "no_signal":
        return _idle(run)
    return None


def of(run: Run, *names: str) -> Signal | None:
    """The first of some metrics that a run has; veRL's names may stand behind "verl/"."""
    for name in (form for key in names for form in (key, f"verl/{key}")):
        x, y = run.series(name)
        pairs = [(i, v) for i, v in zip(x, y, strict=True) if abs(v) < HUGE]
        if pairs:
            places, values = zip(*pairs, strict=True)
            return Signal(name, np.array(places, dtype=float), np.array(values))
    return None


def shared(a: Signal, b: Signal) -> tuple[Array, Array]:
    """Values of two signals at the iterations that both have."""
    _, first, second = np.intersect1d(a.x, b.x, return_indices=True)
    return a.y[first], b.y[second]


def _clipped(run: Run) -> Signal | None:
    """Share of tokens clipped on either side."""
    low, high = of(run, "clip/low"), of(run, "clip/high")
    if low is None or high is None or len(low) != len(high):
        return low if high is None else high
    return Signal("clip/low + clip/high", low.x, low.y + high.y)


def _idle(run: Run) -> Signal | None:
    """Share of groups whose rewards are all equal."""
    idle, groups = of(run, "rollout/zero_advantage_groups"), of(run, "rollout/groups")
    if idle is None:
        return None
    if groups is not None and len(groups) == len(idle):
        count: Array | float = groups.y
    else:
        sampling = run.config.get("sampling")
        asked = sampling.get("prompts") if isinstance(sampling, dict) else None
        if type(asked) is not int or asked < 1:
            return None
        count = float(asked)
    return Signal("rollout/zero_advantage_groups", idle.x, idle.y / np.maximum(count, 1))
