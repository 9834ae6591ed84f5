"""Softmax policies small enough to know everything about: what the theory is checked against.

Independent of `entrostat`, apart from `Sample.batch` and `Sample.step`, which hand a policy to it.
S states, V actions, all float64. A tabular policy is its logits z [S, V]; a step g [S, V] moves it
to z + eta g.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import torch
from torch import Tensor

import entrostat as es

ROW = 3  # tokens in a row of `Sample`'s batches


def entropy(z: Tensor) -> Tensor:
    """[..., V] logits -> [...] nats."""
    lp = z.log_softmax(-1)
    return -(lp.exp() * lp).sum(-1)


def entropy_gradient(z: Tensor) -> Tensor:
    """[S, V]: of each state's entropy by its own logits, by automatic differentiation."""
    z = z.detach().requires_grad_()
    return torch.autograd.grad(entropy(z).sum(), z)[0]


def change(z: Tensor, step: Tensor) -> Tensor:
    """[S]: d/d eta of the entropies of z + eta step, at eta = 0."""
    return (entropy_gradient(z) * step).sum(-1)


def probabilities(z: Tensor) -> tuple[Tensor, Tensor]:
    """pi [S, V] and L = log pi - E[log pi] [S, V]."""
    lp = z.log_softmax(-1)
    pi = lp.exp()
    return pi, lp - (pi * lp).sum(-1, keepdim=True)


def mean(z: Tensor, values: Tensor) -> Tensor:
    """[S]: expectation of values [S, V] over the actions."""
    return (z.softmax(-1) * values).sum(-1)


def covariance(z: Tensor, f: Tensor, g: Tensor) -> Tensor:
    """[S]: covariance of f and g [S, V] over the actions."""
    return mean(z, f * g) - mean(z, f) * mean(z, g)


def centred(z: Tensor, A: Tensor) -> Tensor:
    """[S, V]: A less its mean over the actions of each state."""
    return A - mean(z, A).unsqueeze(-1)


def policy_gradient(z: Tensor, A: Tensor) -> Tensor:
    """[S, V]: gradient of each state's E[A] by its logits, A held fixed, by autograd."""
    z = z.detach().requires_grad_()
    return torch.autograd.grad((z.softmax(-1) * A).sum(), z)[0]


# ---------------------------------------------------------------------------- finite steps


def _entropy(z: list[Decimal]) -> Decimal:
    top = max(z)
    weights = [(x - top).exp() for x in z]
    total = sum(weights, Decimal(0))
    return total.ln() - sum(w * (x - top) for w, x in zip(weights, z, strict=True)) / total


def remainder(z: Tensor, step: Tensor, claim: float, eta: float) -> float:
    """H(z + eta step) - H(z) - eta claim for one state [V], in 60 decimal digits."""
    with localcontext() as context:
        context.prec = 60
        base = [Decimal(x) for x in z.tolist()]
        moved = [x + Decimal(eta) * Decimal(g) for x, g in zip(base, step.tolist(), strict=True)]
        return float(_entropy(moved) - _entropy(base) - Decimal(eta) * Decimal(claim))


def assert_halving_quarters(z: Tensor, step: Tensor, claim: Tensor | float) -> None:
    """The claim is the first-order change of H along step [V]: what it leaves is O(eta^2).

    With e(eta) = c eta^2 + O(eta^3), e(eta) - 4 e(eta/2) = O(eta^3); a first-order error of delta
    leaves -eta delta there.
    """
    size = max(1.0, step.abs().max().item())
    eta = 2.0**-20 / size
    whole, half = (remainder(z, step, float(claim), x) for x in (eta, eta / 2))
    cubic = 100 * (eta * size) ** 3
    rounding = 1e-13 * eta * size  # of the claim, in float64
    assert abs(whole - 4 * half) <= cubic + rounding, (whole, half, whole / half if half else None)


# ---------------------------------------------------------------------------- shared parameters


class Network:
    """A softmax policy whose S states share parameters theta [P]: W2 tanh(W1 x_s + b)."""

    def __init__(self, seed: int, S: int, V: int, hidden: int = 3) -> None:
        g = torch.Generator().manual_seed(seed)
        self.shapes = [(hidden, 2), (hidden,), (V, hidden)]
        size = sum(math.prod(shape) for shape in self.shapes)
        self.x = torch.randn(S, 2, generator=g, dtype=torch.float64)
        self.theta = torch.randn(size, generator=g, dtype=torch.float64)
        self.A = 2 * torch.randn(S, V, generator=g, dtype=torch.float64)

    def logits(self, theta: Tensor) -> Tensor:
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = [t.view(s) for t, s in zip(theta.split(sizes), self.shapes, strict=True)]
        return (self.x @ parts[0].T + parts[1]).tanh() @ parts[2].T

    def scores(self) -> Tensor:
        """u [S, V, P]: gradient of every log pi(a | s) by theta."""
        return torch.func.jacrev(lambda t: self.logits(t).log_softmax(-1))(self.theta)

    def change(self, step: Tensor) -> Tensor:
        """[S]: derivative of the entropies along step [P], by automatic differentiation."""
        return torch.func.jacrev(lambda t: entropy(self.logits(t)))(self.theta) @ step


# ---------------------------------------------------------------------------- as a batch


class Sample:
    """Rollouts in which every action appears as often as its probability says.

    From counts [S, V] of positive integers: state s is visited with frequency d_s in proportion to
    its total, pi(a | s) = counts[s, a] / total. So a mean over the batch's tokens is exactly the
    expectation over s ~ d and a ~ pi, and the gradient of a token_mean loss the expected gradient.
    Tokens lie in rows of 3; what is left of the last row is masked and NaN.
    """

    def __init__(self, counts: Tensor) -> None:
        self.z = counts.double().log()
        self.d = counts.sum(-1).double() / counts.sum()
        cells = torch.repeat_interleave(torch.arange(counts.numel()), counts.flatten())
        B = -(-len(cells) // ROW)
        self.index = torch.nn.functional.pad(cells, (0, B * ROW - len(cells))).view(B, ROW)
        self.mask = (torch.arange(B * ROW) < len(cells)).view(B, ROW)
        self.states = self.index // counts.shape[-1]

    def tokens(self, table: Tensor) -> Tensor:
        """[B, 3]: the entries [S, V] (or [S]) of the sampled tokens, NaN at mask 0."""
        values = table[self.states] if table.ndim == 1 else table.flatten()[self.index]
        return torch.where(self.mask, values, math.nan)

    def mean(self, tokens: Tensor) -> Tensor:
        """[]: mean of [B, 3] over the tokens."""
        return tokens[self.mask].mean()

    def by_state(self, tokens: Tensor) -> Tensor:
        """[S]: the mean of each state's tokens."""
        return torch.stack(
            [tokens[self.mask & (self.states == s)].mean() for s in range(len(self.d))]
        )

    def batch(self, A: Tensor, z: Tensor | None = None, old: Tensor | None = None) -> es.TokenBatch:
        """Tokens with advantages A [S, V] under logits z, begun at old logits (both z by default).

        The gradient flows from logp and entropy to z.
        """
        z = self.z if z is None else z
        old = z.detach() if old is None else old
        lp, lp0 = z.log_softmax(-1), old.log_softmax(-1)
        return es.TokenBatch(
            logp=self.tokens(lp),
            old_logp=self.tokens(lp0),
            mask=self.mask,
            advantages=self.tokens(A),
            entropy=self.tokens(entropy(z)),
            old_entropy=self.tokens(entropy(old)),
            sum_p2=self.tokens((2 * lp).exp().sum(-1).detach()),
            sum_p2_logp=self.tokens(((2 * lp).exp() * lp).sum(-1).detach()),
        )

    def step(self, objective: es.Objective, A: Tensor) -> Tensor:
        """[S, V]: what one unit of gradient descent on the objective's loss adds to the logits."""
        z = self.z.clone().requires_grad_()
        loss = objective.loss(objective.prepare(self.batch(A, z))).loss
        return -torch.autograd.grad(loss, z)[0]
