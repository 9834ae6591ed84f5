"""Metrics of a rollout batch and of an iteration's updates, independent of the trainer.

With several ranks each has its own rollouts, and metrics are over all ranks.

Shapes: B rollouts of this rank, A of all ranks, T completion tokens at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..dynamics import online
from .advantages import Groups
from .batch import TokenBatch
from .distributed import row_sums

# fields that every trainer fills, beyond those of every batch
FIELDS = ("rewards", "group", "entropy", "old_entropy", "ref_logp")


def describe(batch: TokenBatch, lengths: Tensor | None = None) -> dict[str, float]:
    """Metrics of a rollout batch before any update.

    Args:
        batch: old_logp, old_entropy, mask, rewards (NaN where unknown) and group.
        lengths: [B] tokens of each rollout, if the mask leaves some of them out.
    """
    old_entropy = batch.need("old_entropy")
    H = row_sums(old_entropy.detach()) / batch.lengths.clamp(min=1)
    nll = -row_sums(batch.old_logp.detach()) / batch.lengths.clamp(min=1)
    (rewards, group, tokens, lengths, H, nll), _ = batch.whole.gather(
        batch.need("rewards").double(), batch.need("group"), batch.lengths,
        batch.lengths if lengths is None else lengths, H, nll,
    )  # fmt: skip
    trained, stderr = tokens > 0, standard_error(H, tokens, group)
    known = ~rewards.isnan()
    rewards, group = rewards[known], group[known]
    groups = Groups(group, rewards.dtype)
    entropy, logp = batch.whole.mean(old_entropy, batch.old_logp)
    if not batch.whole.tokens:  # every rollout is masked: there is no mean
        entropy = math.nan
    variance = groups.mean((rewards - groups.mean(rewards)).square())
    values = {
        "entropy/exact": entropy,
        "entropy/stderr": stderr,
        # OPEFO Eq. 5: short and long responses count equally
        "entropy/response_mean": H.sum() / trained.sum().clamp(min=1),
        "entropy/nll": -logp,
        # over the responses that have a token
        "entropy/perplexity": (nll.exp() * trained).sum() / trained.sum().clamp(min=1),
        "reward/mean": rewards.mean(),
        "reward/std_in_group": (variance.sqrt() / groups.own_size).sum() / len(groups.size),
        "reward/best_in_group": groups.largest(rewards).mean(),
        **_group_outcomes(rewards, groups),
        "rollout/length_mean": lengths.double().mean(),
        "rollout/length_max": lengths.max(),
        "rollout/tokens": lengths.sum(),
    }
    return {key: float(value) for key, value in values.items()}


def _group_outcomes(rewards: Tensor, groups: Groups) -> dict[str, Tensor]:
    """Shares of groups whose rewards [A] are all right (at least 1) or all wrong (at most 0)."""
    right, wrong = -groups.largest(-rewards) >= 1, groups.largest(rewards) <= 0
    found = {"all_right": right, "all_wrong": wrong, "mixed": ~(right | wrong)}
    return {f"groups/{name}": share.double().mean() for name, share in found.items()}


def has_signal(rewards: Tensor, K: int) -> Tensor:
    """[groups] bool: whether the rewards [A] of a group (K consecutive ones) differ."""
    groups = rewards.view(-1, K)
    return (groups != groups[:, :1]).any(-1)


def of_kinds(rewards: Tensor, kinds: Sequence[str | None]) -> dict[str, float]:
    """`rewards/KIND/mean` (TRL's column name): the mean reward [B] of the rollouts of each kind."""
    found: dict[str, list[float]] = {}
    for kind, reward in zip(kinds, rewards.tolist(), strict=True):
        if kind is not None:
            found.setdefault(kind, []).append(reward)
    return {f"rewards/{kind}/mean": sum(r) / len(r) for kind, r in sorted(found.items())}


def standard_error(H: Tensor, tokens: Tensor, group: Tensor) -> float:
    """Standard error between prompts of the mean entropy of a token, nats.

    With S_p the sum of the entropies and N_p the tokens of prompt p, the mean is the ratio of their
    sums, and its variance is P / (P - 1) sum_p (S_p - mean N_p)^2 / (sum_p N_p)^2 (Cochran,
    Sampling Techniques, 6.3). With a single prompt it is between rollouts; with one rollout, NaN.

    `H` [A] are the mean entropies of rollouts, nats; rollouts without tokens do not count.
    """
    live = tokens > 0
    H, tokens, group = H[live], tokens[live], group[live]
    if not len(tokens):
        return math.nan
    units = Groups(group, torch.float64).index
    if int(units.max()) == 0:  # one prompt
        units = torch.arange(len(units), device=units.device)
    P = int(units.max()) + 1
    if P < 2:
        return math.nan
    N = tokens.double()
    mean = (H * N).sum() / N.sum()
    off = N.new_zeros(P).index_add_(0, units, (H - mean) * N)
    return float((P / (P - 1) * off.square().sum()).sqrt() / N.sum())


def outcome_figures(batch: TokenBatch) -> dict[str, float]:
    """`rollout/zero_advantage_groups`, and minimum, maximum and quantiles of the advantages [A].

    Args:
        batch: with `idle` and the estimator's advantages, [B] or [B, T] (a response's mean is
            taken).
    """
    A = batch.need("advantages").double()
    if A.ndim == 2:
        A = row_sums(torch.where(batch.mask, A, 0)) / batch.lengths.clamp(min=1)
    (A,), _ = batch.whole.gather(A)
    shares = {"min": 0.0, "p10": 0.1, "p50": 0.5, "p90": 0.9, "max": 1.0}
    found = A.quantile(A.new_tensor([*shares.values()]))
    quantiles = {f"advantage/{name}": float(x) for name, x in zip(shares, found, strict=True)}
    return {"rollout/zero_advantage_groups": float(idle_groups(batch)), **quantiles}


def idle_groups(batch: TokenBatch) -> int:
    """The number of groups without a learning signal: idle, or with all advantages 0."""
    A = batch.need("advantages")
    signal = ~batch.need("idle") & (A if A.ndim == 1 else A.abs().sum(-1)).ne(0)
    (group, signal), _ = batch.whole.gather(batch.need("group"), signal)
    return len(group.unique()) - len(group[signal].unique())


class MetricAccumulator:
    """Accumulates the metrics of an iteration's updates; ratios are formed at the end.

    Sums (`online.of_update`) are over all tokens of the iteration's updates; any other metric is
    averaged over the times it was added.
    """

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._others: dict[str, list[float]] = {}

    def add(self, values: Mapping[str, float]) -> None:
        for key, value in values.items():
            if key.startswith(online.PART):
                self._sums[key] = self._sums.get(key, 0.0) + value
            else:
                self._others.setdefault(key, []).append(value)

    def figures(self) -> dict[str, float]:
        means = {key: sum(values) / len(values) for key, values in self._others.items()}
        return means | online.figures(self._sums)
