"""Advantage estimators: outcome rewards [B] to one advantage per rollout [B]. Pure functions.

Formulas and names are those of the papers: GRPO (DeepSeekMath, arXiv 2402.03300), RLOO
(arXiv 2402.14740), Dr. GRPO (arXiv 2503.20783), REINFORCE++ (arXiv 2501.03262), OPO
(arXiv 2505.23585), GDPO (arXiv 2601.05242), MaxRL (arXiv 2602.02710), pass@k training (arXiv
2503.19595, as implemented in veRL).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from .._names import unknown

EPS = 1e-6


class Groups:
    """Sums over groups of rollouts.

    Args:
        group: [B] int; equal numbers are rollouts of one prompt.
        dtype: dtype of `size`.

    Attributes:
        index: [B] int64, the group of each rollout in 0..G-1.
        size: [G], number of rollouts in each group.
    """

    def __init__(self, group: Tensor, dtype: torch.dtype) -> None:
        _, self.index, size = torch.unique(group, return_inverse=True, return_counts=True)
        self.size = size.to(dtype)

    def sum(self, values: Tensor) -> Tensor:
        """[B, ...] -> [B, ...]: each rollout gets the sum over its own group."""
        total = values.new_zeros(self.size.shape + values.shape[1:])
        return total.index_add_(0, self.index, values)[self.index]

    def mean(self, values: Tensor) -> Tensor:
        """[B] -> [B]: each rollout gets the mean over its own group."""
        return self.sum(values) / self.own_size

    def largest(self, values: Tensor) -> Tensor:
        """[B] -> [G]: the largest value of each group."""
        start = torch.full_like(self.size, -torch.inf, dtype=values.dtype)
        return start.scatter_reduce(0, self.index, values, "amax")

    def varies(self, values: Tensor) -> Tensor:
        """[B] -> [B] bool: whether the values of each rollout's group differ, NaN ignored."""
        known = ~values.isnan()
        high = self.largest(torch.where(known, values, -torch.inf))
        low = -self.largest(torch.where(known, -values, -torch.inf))
        return (high > low)[self.index]

    @property
    def own_size(self) -> Tensor:
        """[B]: the size of each rollout's group."""
        return self.size[self.index]


def _grpo(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    centred = _dr_grpo(rewards, groups, lengths, eps)
    return centred / (_std(centred, groups) + eps)


def _std(centred: Tensor, groups: Groups) -> Tensor:
    return (groups.sum(centred**2) / (groups.own_size - 1)).sqrt()


def _rloo(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    K = groups.own_size
    return K / (K - 1) * _dr_grpo(rewards, groups, lengths, eps)


def _dr_grpo(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    return _exact_zero(rewards - groups.mean(rewards), rewards, groups)


def _opo(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    if lengths is None:
        raise ValueError(
            "advantages: 'opo' weights rewards by length; pass lengths=[B] (trained tokens)"
        )
    lengths = lengths.to(rewards.dtype)
    baseline = groups.sum(lengths * rewards) / groups.sum(lengths).clamp(min=1)
    return _exact_zero(rewards - baseline, rewards, groups)


def _maxrl(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    if bool((rewards < 0).any()):
        raise ValueError(
            f"advantages: 'maxrl' divides by a group's mean reward, a rate of success; got "
            f"{rewards.min().item():g}. Rewards must be at least 0"
        )
    centred = _dr_grpo(rewards, groups, lengths, eps)
    return torch.where(centred == 0, 0, centred / groups.mean(rewards).clamp(min=1e-30))


def _grpo_passk(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    best = groups.largest(rewards)
    first = rewards == best[groups.index]
    second = groups.largest(torch.where(first, -torch.inf, rewards))[groups.index]
    alone = first & (groups.sum(first.to(rewards.dtype)) == 1)
    std = _std(_dr_grpo(rewards, groups, lengths, eps), groups)
    return torch.where(alone, (rewards - second) / (std + eps), 0)


def _exact_zero(centred: Tensor, rewards: Tensor, groups: Groups) -> Tensor:
    """Set groups of equal rewards to exactly 0; a rounded mean of three times .1 does not."""
    return torch.where(groups.varies(rewards), centred, 0)


def _grpo_batch(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    return _dr_grpo(rewards, groups, lengths, eps) / (rewards.std() + eps)


def _gdpo(
    rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float,
    weights: Sequence[float] | None = None,
) -> Tensor:  # fmt: skip
    """[B]: normalize each column of rewards [B, F] or [B] (NaN: not scored), then sum, whiten."""
    total = torch.zeros_like(groups.own_size)
    constant = torch.ones_like(groups.index, dtype=torch.bool)
    for i, part in enumerate(rewards.view(len(rewards), -1).unbind(-1)):
        known = ~part.isnan()
        n = groups.sum(known.to(part.dtype))
        value = torch.where(known, part, 0)
        centred = torch.where(known, value - groups.sum(value) / n.clamp(min=1), 0)
        std = (groups.sum(centred**2) / (n - 1).clamp(min=1)).sqrt()
        varies = groups.varies(part)
        weight = 1.0 if weights is None else weights[i]
        total = total + weight * torch.where(varies, centred / (std + eps), 0)
        constant &= ~varies
    return torch.where(constant, 0, _whiten(total, eps))


def _whiten(values: Tensor, eps: float) -> Tensor:
    whitened = (values - values.mean()) / (values.std() + eps)
    return torch.where((values == values[0]).all(), 0, whitened)


def _reinforce_pp(rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float) -> Tensor:
    return _whiten(rewards, eps)


def _reinforce_pp_baseline(
    rewards: Tensor, groups: Groups, lengths: Tensor | None, eps: float
) -> Tensor:
    return _whiten(_dr_grpo(rewards, groups, lengths, eps), eps)


ESTIMATORS: dict[str, Callable[[Tensor, Groups, Tensor | None, float], Tensor]] = {
    "grpo": _grpo,
    "grpo_batch": _grpo_batch,
    "gdpo": _gdpo,
    "rloo": _rloo,
    "dr_grpo": _dr_grpo,
    "reinforce_pp": _reinforce_pp,
    "reinforce_pp_baseline": _reinforce_pp_baseline,
    "opo": _opo,
    "maxrl": _maxrl,
    "grpo_passk": _grpo_passk,
}
NEED_PAIRS = ("grpo", "grpo_batch", "gdpo", "rloo", "dr_grpo", "opo", "maxrl", "grpo_passk")


def advantages(
    name: str,
    rewards: Tensor,
    group: Tensor,
    lengths: Tensor | None = None,
    *,
    eps: float = EPS,
    weights: Sequence[float] | None = None,
    lone: bool = False,
) -> Tensor:
    """One advantage per rollout, from outcome rewards.

    ===================== ===========================================================
    grpo                  (R - mean) / (std + 1e-6) over the group, std unbiased
    grpo_batch            grpo with the standard deviation of the whole batch's rewards
    gdpo                  reinforce_pp of the weighted sum of each reward function's grpo
    rloo                  R - mean of the other K-1
    dr_grpo               R - mean of the group
    reinforce_pp          (R - mean) / (std + 1e-6) over the batch
    reinforce_pp_baseline reinforce_pp after subtracting the group's mean
    opo                   R - sum(len R) / sum(len) over the group
    maxrl                 (R - mean) / mean of the group; rewards must be at least 0
    grpo_passk            a single best rollout: (R - second best) / (std + 1e-6); others 0
    ===================== ===========================================================

    Args:
        name: one of the estimators above.
        rewards: [B] number; under `gdpo` also [B, F], one column per reward function, NaN where
            a function did not score the rollout.
        group: [B] int; equal numbers are rollouts of one prompt. Groups may differ in size.
        lengths: [B] trained tokens; only `opo` needs it.
        eps: added to a standard deviation.
        weights: [F], weights of `gdpo`'s reward functions; None for 1 each.
        lone: allow groups of one. Under a group estimator their advantage is 0; their rewards
            count in the batch's deviation.

    Returns:
        [B], float32 (float64 for float64 rewards). A group of equal rewards gives exactly 0 under
        the group estimators.

    Raises:
        ValueError: unknown name, shapes that differ, a reward that is not finite, a group of one
            under a group estimator (without `lone`), or a negative reward under `maxrl`.

    Example:
        >>> advantages("rloo", torch.tensor([1.0, 0.0, 0.0]), torch.tensor([7, 7, 7]))
        tensor([ 1.0000, -0.5000, -0.5000])
    """
    if name not in ESTIMATORS:
        raise ValueError(unknown("advantage estimator", name, ESTIMATORS))
    rewards = rewards.detach()
    if rewards.dtype != torch.float64:
        rewards = rewards.float()
    several = rewards.ndim == 2 and name == "gdpo"
    if weights is not None and not (several and len(weights) == rewards.shape[1]):
        raise ValueError(
            f"advantages: weights must be one for each column of rewards [B, F] under 'gdpo', got "
            f"{len(weights)} for {list(rewards.shape)}"
        )
    if (rewards.ndim != 1 and not several) or group.shape != rewards.shape[:1]:
        raise ValueError(
            f"advantages: rewards and group must both be [B], got {list(rewards.shape)} and "
            f"{list(group.shape)}"
        )
    if lengths is not None and lengths.shape != group.shape:
        raise ValueError(
            f"advantages: lengths must be {list(group.shape)}, got {list(lengths.shape)}"
        )
    wrong = rewards.isinf() if several else ~rewards.isfinite()  # NaN in a column: not scored
    if wrong.any():
        bad = wrong.nonzero()[0].tolist()
        value = rewards[tuple(bad)].item()
        raise ValueError(f"advantages: rewards{bad} is {value}; need a number")
    if rewards.numel() == 0:
        return rewards.new_zeros(len(rewards))
    groups = Groups(group, rewards.dtype)
    if name in NEED_PAIRS and not lone and bool((groups.size < 2).any()):
        raise ValueError(
            f"advantages: a group of one rollout; '{name}' compares rollouts of one prompt, so "
            "sample at least 2 per prompt or use 'reinforce_pp'"
        )
    if len(rewards) < 2:
        return rewards.new_zeros(len(rewards))  # a batch of one has no spread to compare with
    if several:
        found = _gdpo(rewards, groups, lengths, eps, weights)
    else:
        found = ESTIMATORS[name](rewards, groups, lengths, eps)
    return torch.where(groups.own_size > 1, found, 0) if name in NEED_PAIRS else found
