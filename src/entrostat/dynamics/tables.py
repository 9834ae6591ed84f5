"""Summaries of tokens' entropy changes, influences and covariances: flows, shares, tables.

Pure functions of [B, T] tensors; every sum is float64, over the tokens at mask 1 only.

Shapes: B sequences, T completion tokens; N tokens at mask 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..method.steer import Quadrants, in_quadrant

TOP_SHARES = (0.0002, 0.002, 0.02, 0.2, 1.0)
QUADRANTS: tuple[Quadrants, ...] = ("I", "II", "III", "IV")
THIRDS = ("hard", "middle", "easy")  # in the order of `terciles`


@dataclass(frozen=True)
class Flow:
    """Entropy flow (OPEFO Sec. 4): sums of the changes that raise and that lower entropy.

    Attributes:
        increase: S+, sum of the positive changes.
        decrease: S-, sum of the negative changes' magnitudes.
        net: S+ - S-.
        balance: lam = (S- - S+) / (S- + S+) in [-1, 1]; 0 if both are 0. Weights 1 + lam on
            positive changes and 1 - lam on negative ones make net 0.
    """

    increase: float
    decrease: float
    net: float
    balance: float


def flow(change: Tensor, mask: Tensor) -> Flow:
    """Entropy flow of the tokens' changes.

    Args:
        change: [B, T] float, any token-level change of entropy: estimated, true, or an influence.
        mask: [B, T], 1 where a token counts.
    """
    values = _kept("flow", change, mask)
    up, down = float(values.clamp(min=0).sum()), float((-values).clamp(min=0).sum())
    total = up + down
    return Flow(up, down, up - down, (down - up) / total if total > 0 else 0.0)


@dataclass(frozen=True)
class Agreement:
    """Agreement of an estimate with the truth, over tokens (the figures of STEER Table 1).

    Attributes:
        mse: mean squared error, in the truth's units squared. STEER's is of one update and of an
            estimate with its factor eta / L, which the caller must apply.
        scaled_mse: the same after the best positive factor, over the truth's mean square: 0 is
            perfect, 1 is no better than predicting 0. Estimates are defined up to a factor.
        pcc: Pearson correlation; NaN if either is constant.
        srcc: Spearman rank correlation, ties at their mean rank; NaN likewise.
        sign: share of tokens with equal signs, among those where neither is 0.
    """

    mse: float
    scaled_mse: float
    pcc: float
    srcc: float
    sign: float


def agreement(estimate: Tensor, truth: Tensor, mask: Tensor) -> Agreement:
    """Compare an estimate of tokens' entropy changes with the truth, [B, T] each, nats."""
    from scipy.stats import rankdata  # takes more than a second to import

    x, y = _kept("agreement", estimate, mask), _kept("agreement", truth, mask)
    if not len(x):
        raise ValueError("agreement: no token is at mask 1")
    size, scale = float(y.square().mean()), 0.0
    if bool((x != 0).any()):
        scale = max(0.0, float((x * y).sum() / x.square().sum()))
    residual = float((scale * x - y).square().mean())
    both = (x != 0) & (y != 0)
    ranks = [torch.from_numpy(rankdata(v.cpu().numpy())) for v in (x, y)]
    return Agreement(
        mse=float((x - y).square().mean()),
        scaled_mse=residual / size if size > 0 else float("nan"),
        pcc=_pearson(x, y),
        srcc=_pearson(*ranks),
        sign=float((x.sign() == y.sign())[both].double().mean()) if bool(both.any()) else 0.0,
    )


def covariance_table(
    covariance: Tensor, mask: Tensor, shares: Sequence[float] = TOP_SHARES
) -> dict[float, float]:
    """Mean covariance over the tokens of largest covariance (COV Table 1): {share: mean}.

    Args:
        covariance: [B, T] float, (lp - mean lp)(A - mean A).
        mask: [B, T], 1 where a token counts.
        shares: of the N tokens, above 0 and at most 1; at least one token each.
    """
    for share in shares:
        if not 0 < share <= 1:
            raise ValueError(f"covariance_table: shares are in (0, 1], got {share}")
    values = _kept("covariance_table", covariance, mask).sort(descending=True).values
    if not len(values):
        raise ValueError("covariance_table: no token is at mask 1")
    return {s: float(values[: max(1, round(s * len(values)))].mean()) for s in shares}


def prompt_covariance(logp: Tensor, advantages: Tensor, mask: Tensor, group: Tensor) -> Tensor:
    """Covariance per prompt over whole responses (COV Eq. 7): Cov_y(log pi(y)/|y|, pi(y) A(y)).

    The bandit view of COV 3.3: the prompt is the state, a response y of |y| tokens the action. With
    x = log pi(y) / |y|, Eq. 7 is the mean over the prompt's responses of (x - mean x)(z - mean z),
    z = exp(x) A. Two choices that the paper leaves open:

    - pi(y) in the second factor is exp(log pi(y) / |y|), the geometric mean of the tokens'
      probabilities. The paper says that it normalises "the log-prob by the length of the response",
      and both factors use that log-prob. The product of the probabilities would underflow to 0 for
      a response of a thousand tokens, and the shortest responses would dominate.
    - The mean is over the K responses, as in Eq. 8. The unbiased estimate is K / (K - 1) times it.

    COV's Fig. 4 is the mean over the prompts with a signal; if all A are 0, Eq. 7 is exactly 0.

    Args:
        logp: [B, T] float, nats.
        advantages: [B] float, or [B, T], averaged over a response's tokens.
        mask: [B, T], 1 where a token counts. Responses without a token are ignored.
        group: [B] int, the prompt of each response.

    Returns:
        [G] float64, in the order of `group.unique()`; nan for a prompt with fewer than two
        responses.

    Raises:
        ValueError: shapes differ.
    """
    _check("prompt_covariance", logp, mask, "logp")
    by_token = advantages.ndim == 2
    if by_token:
        _check("prompt_covariance", advantages, mask, "advantages")
    numbers = {"group": group} if by_token else {"advantages": advantages, "group": group}
    for name, values in numbers.items():
        if values.shape != mask.shape[:1]:
            raise ValueError(
                f"prompt_covariance: {name} are {list(values.shape)}, mask is {list(mask.shape)}; "
                "give one number per response"
            )
    mask = mask.bool()
    length = mask.sum(-1)

    def of_response(values: Tensor) -> Tensor:
        kept = torch.where(mask, values.detach().double(), 0)
        return kept.sum(-1) / length.clamp(min=1)

    x = of_response(logp)
    z = x.exp() * (of_response(advantages) if by_token else advantages.detach())
    prompts, place = torch.unique(group, return_inverse=True)
    some = length > 0
    K = x.new_zeros(len(prompts)).index_add_(0, place, some.to(x.dtype))

    def of_prompt(values: Tensor) -> Tensor:
        kept = torch.where(some, values, 0)
        return x.new_zeros(len(prompts)).index_add_(0, place, kept) / K.clamp(min=1)

    # centre before multiplying: the difference of two large means would cancel
    found = of_prompt((x - of_prompt(x)[place]) * (z - of_prompt(z)[place]))
    return torch.where(K > 1, found, torch.nan)


def prompt_means(values: Tensor, group: Tensor) -> Tensor:
    """[G] float64, in the order of `group.unique()`: means over each prompt's responses, [B]."""
    _, place, size = group.unique(return_inverse=True, return_counts=True)
    total = values.new_zeros(len(size), dtype=torch.float64)
    return total.index_add_(0, place, values.double()) / size


def terciles(rewards: Tensor) -> Tensor:
    """Thirds of the prompts by difficulty: 0 the hardest, 1 the middle, 2 the easiest; [G] int64.

    By the rank of a prompt's mean reward [G]. Equal rewards are in the same third, so that a third
    may hold more than its share, or nothing.
    """
    below = (rewards[:, None] > rewards).sum(-1)
    equal = (rewards[:, None] == rewards).sum(-1)
    # the mean rank of ties, (below + equal / 2) / G, is above 0 and below 1
    return (3 * (2 * below + equal)) // (2 * max(1, len(rewards)))


def concentration(influence: Tensor, mask: Tensor, share: float) -> float:
    """The fraction of sum |influence| in the `share` of tokens with the largest; 0 if all are 0.

    Arguments are [B, T]; at least one token is taken.
    """
    if not 0 < share <= 1:
        raise ValueError(f"concentration: share is in (0, 1], got {share}")
    sizes = _kept("concentration", influence, mask).abs().sort(descending=True).values
    total = float(sizes.sum())
    return float(sizes[: max(1, round(share * len(sizes)))].sum()) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Part:
    """Summary of a set of tokens.

    Attributes:
        share: share of the N tokens.
        influence: sum of their influences, nats of the batch mean; None if not measured.
        change: sum of their changes over N, so that parts add up to the batch mean's change.
        entropy: mean entropy of their states, nats; 0 without tokens.
    """

    share: float
    influence: float | None
    change: float | None
    entropy: float


def parts(
    members: Mapping[str, Tensor],
    mask: Tensor,
    entropy: Tensor,
    change: Tensor | None = None,
    influence: Tensor | None = None,
) -> dict[str, Part]:
    """Summaries of disjoint or overlapping sets of tokens: `members`, [B, T] bool by name."""
    N = max(1, int(mask.sum()))
    table = {}
    for name, member in members.items():
        _check("parts", member, mask, f"members[{name!r}]")
        inside = member & mask.bool()
        n = int(inside.sum())
        table[name] = Part(
            share=n / N,
            influence=None if influence is None else float(_kept("parts", influence, inside).sum()),
            change=None if change is None else float(_kept("parts", change, inside).sum()) / N,
            entropy=float(_kept("parts", entropy, inside).mean()) if n else 0.0,
        )
    return table


def quadrants(advantages: Tensor, logp: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """STEER's quadrants of advantage and probability (Fig. 2), and the rest, each [B, T] bool.

    I: A > 0, p > .8 · II: A > 0, p < .2 · III: A < 0, p < .2 · IV: A < 0, p > .8. In a tabular
    policy I and III lower entropy, II and IV raise it.
    """
    _check("quadrants", advantages, mask, "advantages")
    _check("quadrants", logp, mask, "logp")
    p, mask = logp.exp(), mask.bool()
    found = {name: in_quadrant(name, advantages, p) & mask for name in QUADRANTS}
    some = torch.stack(list(found.values())).any(0)
    return found | {"rest": mask & ~some}


def clipped_sides(
    ratio: Tensor, advantages: Tensor, mask: Tensor, low: float | Tensor, high: float | Tensor
) -> dict[str, Tensor]:
    """The tokens whose gradient PPO's clip removes, by side, each [B, T] bool.

    "high": A > 0 and ratio > 1 + high · "low": A < 0 and ratio < 1 - low. Their entropy changes
    are those that each side of the clip stops. The bounds are numbers, or [B, T].
    """
    mask = mask.bool()
    return {
        "high": mask & (advantages > 0) & (ratio > 1 + high),
        "low": mask & (advantages < 0) & (ratio < 1 - low),
    }


def _kept(function: str, values: Tensor, mask: Tensor) -> Tensor:
    """[n] float64: the values at mask 1."""
    _check(function, values, mask)
    return values.detach()[mask.bool()].double()


def _check(function: str, values: Tensor, mask: Tensor, what: str = "values") -> None:
    if values.shape != mask.shape:
        raise ValueError(
            f"{function}: {what} are {list(values.shape)}, mask is {list(mask.shape)}; they must "
            "have one shape"
        )


def _pearson(x: Tensor, y: Tensor) -> float:
    a, b = x - x.mean(), y - y.mean()
    # a constant differs from its mean by rounding only
    if not all(d.norm() > 1e-12 * v.norm() for d, v in ((a, x), (b, y))):
        return float("nan")
    return float((a * b).sum() / (a.norm() * b.norm()))
