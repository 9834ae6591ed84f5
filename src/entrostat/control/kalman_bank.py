"""A bank of Kalman filters that learns a knob's effect on entropy online.

Each candidate model has a gain g, a delay of D iterations, a lag a (an optimizer's momentum) and
noise levels q of entropy and drift. Under a candidate

    v_t     = a v_t-1 + (1 - a) x_t-D                  the part of the knob x in effect
    H_t+1   = H_t + d_t + g v_t + w,   w ~ N(0, s^2 q_H)     entropy before iteration t + 1
    d_t+1   = d_t + w',                w' ~ N(0, s^2 q_d)    the drift without the knob
    y_t     = H_t + e,                 e ~ N(0, s^2)         entropy of a batch of rollouts

which is linear, so that one Kalman filter gives H, d and the likelihood of every y. The noise s is
unknown: it has an inverse gamma distribution, discounted by `FORGET` per iteration, so that the
likelihood is Student's t (West and Harrison, Bayesian Forecasting and Dynamic Models, 4.6 and 6).
Candidates are weighted by likelihood. The weights decay to the prior by `FORGET` too, so that a
gain may change during the run (Raftery et al., 2010, dynamic model averaging).

The knob's position runs from 0 (lowers entropy most) to 1 (raises entropy most). x is the position
minus the start position, so that d is the drift at the start position. Gains are positive and in
units of the first entropy. Arrays may have leading dimensions, one bank each.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

FORGET = 0.97  # per iteration: a memory of about 33 iterations
NOISE = 0.02  # initial s, relative to the first entropy
BELIEF = 3.0  # weight of the initial s, in observations
LIKELY, DECADES = 0.1, 0.7  # the prior of the gain: centre, and width in decades
LATE = ((0, 0.0), (0, 0.5), (0, 0.8), (1, 0.0), (2, 0.0))  # (delay, lag)
RESTLESS = ((0.3, 0.05), (0.5, 0.3))  # (sqrt q_H, sqrt q_d)
MEMORY = 1 + max(delay for delay, _ in LATE)


def _candidates() -> tuple[Array, NDArray[np.int64], Array, Array, Array]:
    """Gains, delays, lags and the two q of every candidate; each [M]."""
    gains = np.logspace(-4, 4, 33)
    grid = [(g, *late, *q) for g in gains for late in LATE for q in RESTLESS]
    g, delay, lag, level, drift = np.array(grid).T
    return g, delay.astype(np.int64), lag, level**2, drift**2


GAIN, DELAY, LAG, Q_LEVEL, Q_DRIFT = _candidates()
# heavy tails: a gain four decades off stays possible
_PRIOR = -np.log1p((np.log10(GAIN / LIKELY) / DECADES) ** 2)
PRIOR = _PRIOR - np.logaddexp.reduce(_PRIOR)


@dataclass(frozen=True, eq=False)
class Bank:
    """The filters' state after some iterations. M candidates; leading dimensions are banks."""

    scale: Array  # [...] the first entropy, the unit of gains
    level: Array  # [..., M] H
    drift: Array  # [..., M] d
    squares: Array  # [..., M] sum of the squared errors, each over its variance in units of s^2
    weight: Array  # [..., M] log of the candidates' probabilities
    acting: Array  # [..., M] v
    covariance: Array  # [3, M] of H, of H with d and of d, in units of s^2
    belief: float  # effective number of observations behind s
    start: Array  # [...] the knob's start position, 0 to 1
    inputs: Array  # [..., MEMORY] the knob in the last iterations minus `start`, newest first

    @property
    def knob(self) -> Array:
        return self.start + self.inputs[..., 0]

    @property
    def noise(self) -> Array:
        return np.sqrt((np.exp(self.weight) * self.squares).sum(-1) / self.belief)

    @property
    def gain(self) -> Array:
        """[...]: entropy change per iteration by the knob's whole range (geometric mean)."""
        return self.scale * np.exp((np.exp(self.weight) * np.log(GAIN)).sum(-1))

    @property
    def entropy(self) -> Array:
        return (np.exp(self.weight) * self.level).sum(-1)

    @property
    def change(self) -> Array:
        """[...]: entropy change per iteration if the part of the knob in effect stays as it is."""
        moves = self.drift + GAIN * self.scale[..., None] * self.acting
        return (np.exp(self.weight) * moves).sum(-1)

    def to_dict(self) -> dict[str, Any]:
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {k: v if isinstance(v, float) else v.tolist() for k, v in values.items()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Bank:
        arrays = {name: np.asarray(v) for name, v in data.items() if name != "belief"}
        return cls(belief=data["belief"], **arrays)


def begin(entropy: Array, scale: Array, x: Array) -> Bank:
    """The bank after a first entropy [...] with the knob at x [...]."""
    shape, one = (*np.shape(entropy), len(GAIN)), np.ones(len(GAIN))
    first = BELIEF * (NOISE * scale[..., None]) ** 2
    return Bank(
        scale, np.broadcast_to(entropy[..., None], shape), np.zeros(shape),
        np.broadcast_to(first, shape), np.broadcast_to(PRIOR, shape),
        np.zeros(shape), np.stack([one, 0 * one, 4 * one]), BELIEF, x,
        np.zeros((*np.shape(x), MEMORY)),
    )  # fmt: skip


def learn(bank: Bank, entropy: Array) -> Bank:
    """The bank after another entropy [...], the one that follows its last input."""
    acting = LAG * bank.acting + (1 - LAG) * bank.inputs[..., DELAY]
    expected = bank.level + bank.drift + GAIN * bank.scale[..., None] * acting
    var, cov, var_drift = bank.covariance
    var, cov, var_drift = var + 2 * cov + var_drift + Q_LEVEL, cov + var_drift, var_drift + Q_DRIFT
    spread, error = var + 1, entropy[..., None] - expected
    to_level, to_drift = var / spread, cov / spread
    variance = bank.squares / bank.belief * spread
    likelihood = -0.5 * np.log(variance)
    likelihood -= (bank.belief + 1) / 2 * np.log1p(error**2 / (bank.belief * variance))
    weight = FORGET * bank.weight + (1 - FORGET) * PRIOR + likelihood
    return replace(
        bank,
        level=expected + to_level * error,
        drift=bank.drift + to_drift * error,
        squares=FORGET * bank.squares + error**2 / spread,
        weight=weight - np.logaddexp.reduce(weight, axis=-1)[..., None],
        acting=acting,
        covariance=np.stack(
            [(1 - to_level) * var, (1 - to_level) * cov, var_drift - to_drift * cov]
        ),
        belief=FORGET * bank.belief + 1,
    )


def wanted(bank: Bank, goal: Array, stiffness: float) -> Array:
    """[..., M]: each candidate's best lasting move of the knob.

    The move m that minimises sum_j (H_t+j - goal_j)^2 + stiffness h (s m)^2 over the h iterations
    ahead, x_t+i = x_t-1 + m, in the candidate's noiseless prediction: least squares in one unknown.

    Args:
        bank: the bank after the entropy before iteration t.
        goal: [..., h] desired entropy before iterations t + 1 to t + h.
        stiffness: cost of a move, relative to the noise's part in the sum.
    """
    gain = GAIN * bank.scale[..., None]
    x, kept, stays = bank.inputs[..., :1], bank.acting, bank.level
    top, bottom = np.zeros_like(bank.level), np.zeros_like(bank.level)
    for j, response in enumerate(_responses(goal.shape[-1])):
        since = j - DELAY  # the input in effect, in iterations from now
        past = bank.inputs[..., np.clip(-since - 1, 0, MEMORY - 1)]
        kept = LAG * kept + (1 - LAG) * np.where(since >= 0, x, past)
        stays = stays + bank.drift + gain * kept
        top = top + gain * response * (goal[..., j, None] - stays)
        bottom = bottom + (gain * response) ** 2
    cost = stiffness * goal.shape[-1] * bank.noise[..., None] ** 2
    return top / (bottom + cost)


def effect(bank: Bank, horizon: int) -> Array:
    """[..., M]: entropy change by a lasting move over the whole range, RMS over the horizon."""
    responses = np.array(_responses(horizon))
    return GAIN * bank.scale[..., None] * np.sqrt((responses**2).mean(0))


@cache
def _responses(horizon: int) -> tuple[Array, ...]:
    """[M] for each iteration ahead: entropy change by a lasting unit move, divided by the gain."""
    moved, total, out = np.zeros(len(GAIN)), np.zeros(len(GAIN)), []
    for j in range(horizon):
        moved = LAG * moved + (1 - LAG) * (j >= DELAY)
        total = total + moved
        out.append(total)
    return tuple(out)


def agreed(bank: Bank, moves: Array, slack: Array, dissent: float, danger: float) -> Array:
    """[...]: a quantile of the candidates' moves, capped by a quantile with slack.

    All but a share `dissent` of the weight would move at least as far. All but a share `danger`
    would do so with their slack added. 0 if the quantiles disagree on the direction. `moves`
    [..., M] is each candidate's move, `slack` [..., M] the additional move it accepts.
    """
    up = np.minimum(_quantile(bank, moves, dissent), _quantile(bank, moves + slack, danger))
    down = np.maximum(
        _quantile(bank, moves, 1 - dissent), _quantile(bank, moves - slack, 1 - danger)
    )
    return np.where(up > 0, up, np.where(down < 0, down, 0.0))


def _quantile(bank: Bank, values: Array, p: float) -> Array:
    """[...]: the p-quantile of values [..., M] under the bank's weights."""
    order = np.argsort(values, -1)
    below = np.cumsum(np.exp(np.take_along_axis(bank.weight, order, -1)), -1)
    at = np.minimum((below < p).sum(-1), len(GAIN) - 1)
    ranked = np.take_along_axis(values, order, -1)
    return np.take_along_axis(ranked, at[..., None], -1)[..., 0]


def apply(bank: Bank, x: Array) -> Bank:
    """The bank with the knob's position [...], 0 to 1, in the iteration that begins."""
    new = (x - bank.start)[..., None]
    return replace(bank, inputs=np.concatenate([new, bank.inputs[..., :-1]], -1))
