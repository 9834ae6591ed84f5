"""Exact entropy dynamics against loops of autograd, finite differences and hand computation.

References: gradients one token at a time (reverse mode), steps really made, scipy, fractions. Where
a network is needed: `Network`, a causal transformer of plain operations whose head is its embedding
(shared weights), and models of transformers built from tiny configs.
"""

import cProfile
import math
import pstats
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
import torch
import transformers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import forward_ad
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import entrostat as es
from builders import f64, refused
from entrostat.dynamics import (
    Piece,
    adamw_preconditioner,
    agreement,
    clipped_sides,
    concentration,
    covariance_table,
    entropy_gradient,
    first_order,
    flow,
    forward_mode,
    functional,
    influence,
    influence_in_pieces,
    parts,
    prompt_covariance,
    quadrants,
    terciles,
)
from entrostat.dynamics.derivatives import _load_forward_mode, along
from examples import examples

NAN, INF = math.nan, math.inf
EXACT = {"rtol": 1e-9, "atol": 1e-12}
FIELDS = ("logp", "entropy", "sum_p2", "sum_p2_logp")


def cases(n: int) -> settings:
    return settings(max_examples=examples(n), deadline=None, derandomize=True, database=None)


def seeded(seed: int) -> Callable[..., Tensor]:
    g = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=g, dtype=torch.float64)


def alike(params: dict[str, Tensor], seed: int, scale: float = 1.0) -> dict[str, Tensor]:
    """Random tensors of the same names, shapes and dtypes."""
    draw = seeded(seed)
    return {k: scale * draw(*v.shape).to(v.dtype) for k, v in params.items()}


def plus(params: dict[str, Tensor], direction: dict[str, Tensor], share: float = 1.0):
    return {k: v.detach() + share * direction[k] for k, v in params.items()}


def near(got: Tensor, want: Tensor, relative: float) -> None:
    """Equal up to a share of the largest value, which must not be 0."""
    assert got.shape == want.shape
    size = want.abs().max().item()
    assert size > 0
    worst = (got.double() - want.double()).abs().max().item()
    assert worst <= relative * size, (worst / size, got, want)


def definition(z: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The statistics of logits [..., V], as they are defined."""
    lp = z.log_softmax(-1)
    p = lp.exp()
    return {
        "logp": lp.gather(-1, targets.unsqueeze(-1)).squeeze(-1),
        "entropy": -(p * lp).sum(-1),
        "sum_p2": (p * p).sum(-1),
        "sum_p2_logp": (p * p * lp).sum(-1),
    }


# ---------------------------------------------------------------------------- a network


class Network:
    """One causal attention layer and an MLP over V tokens; the head is the embedding.

    B sequences of T + 1 random tokens; the first is the prompt.
    """

    def __init__(self, seed: int, B: int = 3, T: int = 4, V: int = 7, D: int = 4) -> None:
        draw = seeded(seed)
        shapes = {
            "embed": (V, D), "q": (D, D), "k": (D, D), "v": (D, D), "o": (D, D),
            "up": (D, 5), "b": (5,), "down": (5, D),
        }  # fmt: skip
        self.params = {name: 0.8 * draw(*shape) for name, shape in shapes.items()}
        self.position = draw(T, D)
        g = torch.Generator().manual_seed(seed)
        self.ids = torch.randint(0, V, (B, T + 1), generator=g)
        self.A = draw(B, T)
        self.mask = torch.rand(B, T, generator=g) < 0.7
        self.mask[0, 0], self.mask[1, 1] = True, False

    def logits(self, w, rows: slice = slice(None)) -> Tensor:
        ids = self.ids[rows, :-1]
        x = w["embed"][ids] + self.position
        scores = (x @ w["q"]) @ (x @ w["k"]).transpose(-1, -2) / 2
        T = ids.shape[1]
        future = torch.ones(T, T).triu(1).bool()
        x = x + scores.masked_fill(future, -INF).softmax(-1) @ (x @ w["v"]) @ w["o"]
        x = x + (x @ w["up"] + w["b"]).tanh() @ w["down"]
        return x @ w["embed"].T

    def logp(self, w, rows: slice = slice(None)) -> Tensor:
        return definition(self.logits(w, rows), self.ids[rows, 1:])["logp"]

    def entropy(self, w, rows: slice = slice(None)) -> Tensor:
        return definition(self.logits(w, rows), self.ids[rows, 1:])["entropy"]


def gradients(value: Tensor, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    found = torch.autograd.grad(value, list(leaves.values()), retain_graph=True, allow_unused=True)
    return {
        k: torch.zeros_like(x) if g is None else g
        for (k, x), g in zip(leaves.items(), found, strict=True)
    }


def dot(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    assert a.keys() == b.keys()
    return torch.stack([(a[k] * b[k]).sum() for k in a]).sum()


def leaves_of(params: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v.detach().clone().requires_grad_() for k, v in params.items()}


def tangents_by_loop(values: Tensor, leaves: dict[str, Tensor], direction: dict[str, Tensor]):
    """Derivative of every element of values along the direction, one backward pass each."""
    flat = [dot(gradients(v, leaves), direction) for v in values.flatten()]
    return torch.stack(flat).view(values.shape)


def influence_by_loop(lp: Tensor, H: Tensor, leaves, A: Tensor, mask: Tensor, P=None) -> Tensor:
    """The definition: one backward pass per token, and a dot product."""
    N = int(mask.sum())
    gradient = gradients(sum(h for h, m in zip(H.flatten(), mask.flatten(), strict=True) if m) / N,
                         leaves)  # fmt: skip
    if P is not None:
        gradient = {k: g * P[k] for k, g in gradient.items()}
    out = torch.zeros(mask.shape, dtype=lp.dtype)
    for b, t in mask.nonzero().tolist():
        out[b, t] = A[b, t] / N * dot(gradients(lp[b, t], leaves), gradient)
    return out


# ---------------------------------------------------------------------------- first_order


def test_first_order_by_hand():
    theta, d = f64([2.0]), f64([1.0])
    entropy, change = first_order(lambda x: x**3, theta, d)
    assert (entropy.item(), change.item()) == (8.0, 12.0)  # 3 x^2
    entropy, change = first_order(lambda x: x**3, theta, d, order=3)
    assert (entropy.item(), change.item()) == (8.0, 19.0)  # 3^3 - 2^3


@cases(30)
@given(st.lists(st.integers(-9, 9), min_size=5, max_size=5), st.integers(-5, 5), st.integers(-5, 5))
def test_order_3_is_exact_for_quartics(coefficients, theta, d):
    def polynomial(x):
        return sum(c * x**k for k, c in enumerate(coefficients))

    entropy, change = first_order(lambda x: polynomial(x) + 0 * x, f64([theta]), f64([d]), order=3)
    assert entropy.item() == polynomial(theta)
    real = polynomial(theta + d) - polynomial(theta)
    assert change.item() == pytest.approx(real, rel=1e-13, abs=1e-9)


def test_order_3_of_a_quintic_has_simpsons_error():
    # over h the integral of f = 5 x^4 less Simpson's is -(h/2)^5 f''''/90 = -h^5/24: over both
    # halves of d, -2 (d/2)^5/24
    theta, d = f64([1.0, -2.0]), f64([2.0, 1.0])
    _, change = first_order(lambda x: x**5, theta, d, order=3)
    assert_close(change, (theta + d) ** 5 - theta**5 + d**5 / 384)


@pytest.mark.parametrize("seed", [0, 1])
def test_order_1_is_the_derivative(seed):
    net = Network(seed)
    d = alike(net.params, seed + 10)
    entropy, change = first_order(net.entropy, net.params, d)
    assert_close(entropy, net.entropy(net.params))
    leaves = leaves_of(net.params)
    assert_close(change, tangents_by_loop(net.entropy(leaves), leaves, d), **EXACT)
    h = 1e-5
    ahead, behind = (net.entropy(plus(net.params, d, s)) for s in (h, -h))
    near(change, (ahead - behind) / (2 * h), 1e-7)


@pytest.mark.parametrize("seed", [0, 1])
def test_order_3_is_simpsons_rule_on_both_halves_of_the_step(seed):
    net = Network(seed)
    d = alike(net.params, seed + 10, 0.02)  # small, so that halves are fine enough
    slopes = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        leaves = leaves_of(plus(net.params, d, share))
        slopes.append(tangents_by_loop(net.entropy(leaves), leaves, d))
    entropy, change = first_order(net.entropy, net.params, d, order=3)
    assert_close(entropy, net.entropy(net.params))
    weighted = sum(w * x for w, x in zip((1, 4, 2, 4, 1), slopes, strict=True))
    assert_close(change, weighted / 12, **EXACT)


@pytest.mark.parametrize(("order", "power"), [(1, 2), (3, 5)])
def test_the_error_falls_with_the_order(order, power):
    net = Network(2)
    d = alike(net.params, 3, {1: 0.006, 3: 0.012}[order])

    def error(share):
        step = {k: share * v for k, v in d.items()}
        real = net.entropy(plus(net.params, step)) - net.entropy(net.params)
        return first_order(net.entropy, net.params, step, order)[1] - real

    whole, half = error(1.0), error(0.5)
    assert whole.norm() > 1e-8
    near(2**power * half, whole, 0.25)


@pytest.mark.parametrize("order", [1, 3])
def test_small_steps_add_up_to_the_real_change(order):
    net, n = Network(4), 20
    d = alike(net.params, 5, 0.1)
    step = {k: v / n for k, v in d.items()}
    total, w = torch.zeros(net.mask.shape, dtype=torch.float64), net.params
    for _ in range(n):
        total += first_order(net.entropy, w, step, order)[1]
        w = plus(w, step)
    real = net.entropy(plus(net.params, d)) - net.entropy(net.params)
    near(total, real, {1: 0.15, 3: 1e-5}[order])


@pytest.mark.parametrize("order", [1, 3])
def test_parameters_by_name_in_a_row_or_as_one_tensor(order):
    net = Network(1)
    d = alike(net.params, 3, 0.1)
    names, sizes = list(net.params), [v.numel() for v in net.params.values()]

    def unpacked(flat):
        return {
            k: x.view(net.params[k].shape) for k, x in zip(names, flat.split(sizes), strict=True)
        }

    def packed(tensors):
        return torch.cat([x.flatten() for x in tensors.values()])

    def of_row(row):
        assert isinstance(row, tuple)
        return net.entropy(dict(zip(names, row, strict=True)))

    want = first_order(net.entropy, net.params, d, order)
    shuffled = {k: d[k] for k in reversed(names)}
    for got in (
        first_order(net.entropy, net.params, shuffled, order),
        first_order(of_row, tuple(net.params.values()), tuple(d.values()), order),
        first_order(of_row, list(net.params.values()), list(d.values()), order),
        first_order(lambda x: net.entropy(unpacked(x)), packed(net.params), packed(d), order),
    ):
        assert_close(got, want, **EXACT)


@pytest.mark.parametrize("shape", [(), (3,), (2, 1, 3)])
@pytest.mark.parametrize("order", [1, 3])
def test_any_shape_and_dtype(shape, order):
    theta = torch.ones(shape)
    for dtype in (torch.float32, torch.float64):
        entropy, change = first_order(lambda x: x**2, theta.to(dtype), 2 * theta.to(dtype), order)
        assert entropy.dtype == change.dtype == dtype
        assert_close(entropy, theta.to(dtype))
        assert_close(change, {1: 4, 3: 8}[order] * theta.to(dtype))  # 2 * 2, or 3^2 - 1


@pytest.mark.parametrize("order", [1, 3])
def test_first_order_leaves_the_parameters_alone(order):
    net = Network(0)
    leaves = leaves_of(net.params)
    d = {k: v.requires_grad_() for k, v in alike(net.params, 1).items()}
    with torch.enable_grad():
        entropy, change = first_order(net.entropy, leaves, d, order)
    assert not entropy.requires_grad
    assert not change.requires_grad
    for k, x in leaves.items():
        assert x.grad is None
        assert x.requires_grad
        assert torch.equal(x.detach(), net.params[k])


def test_both_orders_at_once():
    net = Network(3)
    d = alike(net.params, 4, 0.1)
    entropy, tangent, change = along(net.entropy, net.params, d)
    first, third = (first_order(net.entropy, net.params, d, order) for order in (1, 3))
    assert_close((entropy, tangent), first, **EXACT)
    assert_close((entropy, change), third, **EXACT)
    assert (tangent - change).abs().max() > 1e-3


@pytest.mark.parametrize("order", [1, 3])
def test_what_does_not_depend_on_the_parameters_does_not_change(order):
    entropy, change = first_order(lambda x: torch.full((2, 3), 7.0), f64([1]), f64([1]), order)
    assert_close(entropy, torch.full((2, 3), 7.0))
    assert_close(change, torch.zeros(2, 3))
    params, d = {"a": f64([2]), "b": f64([5])}, {"a": f64([1]), "b": f64([1e9])}
    assert first_order(lambda w: w["a"] * 3, params, d, order)[1].item() == 3


@pytest.mark.parametrize("order", [0, 2, 4, -1])
def test_another_order_is_an_error(order):
    refused(lambda: first_order(lambda x: x, f64([1]), f64([1]), order), "order", f"got {order}")


@pytest.mark.parametrize(
    ("params", "direction", "words"),
    [
        (f64([1, 2]), f64([1]), r"first_order: direction must have.*\[2\], got \[1\]"),
        ({"w": f64([[1]])}, {"w": f64([1])}, r"direction\['w'\].*\[1, 1\], got \[1\]"),
        ({"w": f64([1])}, {}, r"direction\['w'\].*\[1\], got nothing"),
        ({"w": f64([1])}, {"w": f64([1]), "x": f64([1])}, r"direction\['x'\].*nothing, got \[1\]"),
        ((f64([1]), f64([2])), (f64([1]),), r"direction\['1'\].*\[1\], got nothing"),
    ],
)
def test_a_direction_that_does_not_fit_is_an_error(params, direction, words):
    with pytest.raises(ValueError, match=words):
        first_order(lambda w: f64([1]), params, direction)


# ---------------------------------------------------------------------------- entropy_gradient


def test_entropy_gradient():
    net = Network(3)
    leaves = leaves_of(net.params)
    want = gradients(net.entropy(leaves)[net.mask].mean(), leaves)
    found = entropy_gradient(net.entropy, net.params, net.mask)
    assert list(found) == list(net.params)
    for k, g in want.items():
        assert_close(found[k], g, **EXACT)


def test_entropy_gradient_comes_in_the_form_of_the_parameters():
    mask = torch.tensor([[True, True]])
    x, y = f64([[1.0, 2.0]]), f64([[5.0]])
    one = entropy_gradient(lambda w: w**2, x, mask)
    assert torch.equal(one, f64([[1.0, 2.0]]))
    row = entropy_gradient(lambda w: w[0] ** 2, (x, y), mask)
    assert isinstance(row, tuple)
    assert torch.equal(row[0], f64([[1.0, 2.0]]))
    assert torch.equal(row[1], f64([[0.0]]))


def test_entropy_gradient_of_no_token_is_zero():
    found = entropy_gradient(lambda w: w**2, f64([[1.0, 2.0]]), torch.zeros(1, 2).bool())
    assert torch.equal(found, f64([[0.0, 0.0]]))


# ---------------------------------------------------------------------------- influence


@pytest.mark.parametrize("per_token", [True, False], ids=["[B,T]", "[B]"])
@pytest.mark.parametrize("diagonal", [False, True], ids=["identity", "diagonal"])
@pytest.mark.parametrize("seed", [0, 1])
def test_influence_is_its_definition(seed, diagonal, per_token):
    net = Network(seed)
    P = {k: v.abs() + 0.1 for k, v in alike(net.params, 9).items()} if diagonal else None
    A = net.A if per_token else net.A[:, 0]
    wide = A if per_token else A[:, None].expand(net.mask.shape)
    leaves = leaves_of(net.params)
    want = influence_by_loop(net.logp(leaves), net.entropy(leaves), leaves, wide, net.mask, P)
    got = influence(net.logp, net.entropy, net.params, A, net.mask, P)
    assert_close(got, want, **EXACT)
    assert (got[~net.mask] == 0).all()
    assert not got.requires_grad

    # they add up to <grad H, P g>, g the gradient of the objective
    g = gradients((wide * net.logp(leaves))[net.mask].sum() / net.mask.sum(), leaves)
    step = g if P is None else {k: P[k] * g[k] for k in g}
    mean = gradients(net.entropy(leaves)[net.mask].mean(), leaves)
    assert got.sum().item() == pytest.approx(dot(mean, step).item(), rel=1e-9)
    # ... which is the mean of where the step moves entropy
    where = first_order(net.entropy, net.params, step)[1]
    assert got.sum().item() == pytest.approx(where[net.mask].mean().item(), rel=1e-9)
    # ... and what a small real step does
    h = 1e-6
    moved = [net.entropy(plus(net.params, step, s))[net.mask].mean() for s in (h, -h)]
    assert got.sum().item() == pytest.approx((moved[0] - moved[1]).item() / (2 * h), rel=1e-6)


def test_influence_takes_parameters_in_any_form():
    net = Network(2)
    P = alike(net.params, 9)
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask, P)
    names = list(net.params)

    def of(fn):
        return lambda row: fn(dict(zip(names, row, strict=True)))

    row, scale = tuple(net.params.values()), tuple(P.values())
    got = influence(of(net.logp), of(net.entropy), row, net.A, net.mask, scale)
    assert_close(got, want, **EXACT)
    shuffled = {k: P[k] for k in reversed(names)}
    got = influence(net.logp, net.entropy, net.params, net.A, net.mask, shuffled)
    assert_close(got, want, **EXACT)
    name = "down"
    got = influence(
        lambda x: net.logp(net.params | {name: x}), lambda x: net.entropy(net.params | {name: x}),
        net.params[name], net.A, net.mask, P[name],
    )  # fmt: skip
    only = {k: v if k == name else 0 * v for k, v in P.items()}
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask, only)
    assert_close(got, want, **EXACT)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
@pytest.mark.parametrize("junk", [NAN, INF, -INF])
def test_masked_positions_are_deaf(junk, dtype):
    net = Network(1)
    assert not net.mask.all()
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask)

    def spoilt(fn):
        return lambda w: torch.where(net.mask, fn(w), junk)

    def spoilt_tangent(w):  # its derivative is junk there as well
        return torch.where(net.mask, net.logp(w), junk * net.logp(w))

    A = torch.where(net.mask, net.A, junk)
    got = influence(spoilt_tangent, spoilt(net.entropy), net.params, A, net.mask.to(dtype))
    assert_close(got, want, **EXACT)


@pytest.mark.parametrize("junk", [NAN, INF])
def test_inputs_that_are_no_numbers_at_mask_0_are_refused_and_unheard_once_replaced(junk):
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    w = torch.randn(3, generator=g, dtype=torch.float64)
    A = torch.randn(2, 4, generator=g, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    live = mask.bool()
    spoilt = torch.where(live[..., None], x, junk)

    def of(inputs):
        return lambda w: (inputs @ w).square()

    # grad H = mean of 2 (x.w) x, d lp_i = 2 (x_i.w) x_i: c_i = A_i/5 <d lp_i, grad H>
    slopes = (2 * (x @ w))[..., None] * x
    expected = torch.where(live, A / 5 * (slopes @ (slopes[live].sum(0) / 5)), 0)
    assert_close(influence(of(spoilt), of(x), w, A, mask), expected, **EXACT)
    refused(lambda: influence(of(x), of(spoilt), w, A, mask), "entropy_fn")
    again = of(torch.where(live[..., None], spoilt, 0))  # as the message says
    assert_close(influence(of(spoilt), again, w, A, mask), expected, **EXACT)
    # a policy that has diverged is the caller's to see
    broken = of(torch.full_like(x, junk))
    assert influence(of(x), broken, w, A, mask)[live].isnan().all()


def test_rows_and_columns_of_padding_change_nothing():
    net = Network(1)
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask)

    def padded(x, value=NAN):
        return torch.nn.functional.pad(x, (2, 1, 1, 2), value=value)

    got = influence(
        lambda w: padded(net.logp(w)), lambda w: padded(net.entropy(w)), net.params,
        padded(net.A), padded(net.mask, False),
    )  # fmt: skip
    assert_close(got, padded(want, 0.0), **EXACT)


def test_micro_batches_change_nothing():
    net = Network(5, B=4)
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask)
    rows = [slice(0, 1), slice(1, 4)]

    def by_rows(fn):
        return lambda w: torch.cat([fn(w, r) for r in rows])

    got = influence(by_rows(net.logp), by_rows(net.entropy), net.params, net.A, net.mask)
    assert_close(got, want, **EXACT)
    # rows for themselves, against the whole batch's gradient put together from micro-batches
    n = [int(net.mask[r].sum()) for r in rows]
    gradient = {k: torch.zeros_like(v) for k, v in net.params.items()}
    for r, tokens in zip(rows, n, strict=True):
        part = entropy_gradient(lambda w, r=r: net.entropy(w, r), net.params, net.mask[r])
        gradient = plus(gradient, part, tokens / sum(n))
    for r in rows:
        tangent = first_order(lambda w, r=r: net.logp(w, r), net.params, gradient)[1]
        mine = torch.where(net.mask[r], net.A[r] * tangent / sum(n), 0)
        assert_close(mine, want[r], **EXACT)


# In a table of softmaxes z [S, V], grad lp_i = onehot - pi at its state s alone, and of the mean
# entropy of N tokens of which n_s are at s, (n_s / N) dH_s/dz_a = -(n_s / N) pi_a (log pi_a + H).
# So c_i = (A_i / N)(n_s / N) [-p (lp + H) + sum pi^2 log pi + H sum pi^2] = tabular_i n_s / N^2.
@pytest.mark.parametrize("repeated", [False, True], ids=["each state once", "states repeated"])
def test_influence_in_a_table_is_the_tabular_estimator(repeated):
    draw, B, T, V = seeded(0), 3, 4, 5
    mask = torch.ones(B, T, dtype=torch.bool)
    mask[2, 3] = False
    states = torch.arange(B * T).view(B, T)
    if repeated:
        states = torch.tensor([[0, 1, 1, 2], [0, 0, 2, 1], [2, 1, 0, 3]])
    N = 11
    z = 2 * draw(int(states.max()) + 1, V)
    actions = torch.randint(0, V, (B, T), generator=torch.Generator().manual_seed(1))
    A = draw(B, T)

    def logp(w):
        return definition(w[states], actions)["logp"]

    def entropy(w):
        return definition(w[states], actions)["entropy"]

    got = influence(logp, entropy, z, A, mask)
    found = definition(z[states], actions)
    tabular = es.dynamics.estimate(
        "tabular", es.TokenBatch(old_logp=found["logp"], mask=mask, advantages=A, **found)
    )
    for b, t in mask.nonzero().tolist():
        s, a = int(states[b, t]), int(actions[b, t])
        n = int(((states == s) & mask).sum())
        pi = z[s].softmax(-1).tolist()
        H = -sum(p * math.log(p) for p in pi)
        S2, S2L = sum(p * p for p in pi), sum(p * p * math.log(p) for p in pi)
        bracket = -pi[a] * (math.log(pi[a]) + H) + S2L + H * S2
        assert got[b, t].item() == pytest.approx(A[b, t].item() * bracket * n / N**2, rel=1e-9)
        assert got[b, t].item() == pytest.approx(tabular[b, t].item() * n / N**2, rel=1e-9)
    assert got[2, 3] == 0


def test_parameters_on_which_entropy_or_log_probs_do_not_depend():
    net = Network(0)
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask)
    more = net.params | {"value_head": f64([[1.0, 2.0]]), "shift": f64([1.0])}
    got = influence(
        lambda w: net.logp(w) + 5 * w["shift"], net.entropy, more, net.A, net.mask
    )  # dH / d shift = 0
    assert_close(got, want, **EXACT)
    got = influence(
        net.logp, lambda w: net.entropy(w) + 5 * w["shift"], more, net.A, net.mask
    )  # d lp / d shift = 0
    assert_close(got, want, **EXACT)
    # where both do, it counts, in units of P: (A / N) 5 P 2
    P = {k: torch.ones_like(v) for k, v in more.items()} | {"shift": f64([3.0])}
    got = influence(
        lambda w: net.logp(w) + 5 * w["shift"], lambda w: net.entropy(w) + 2 * w["shift"],
        more, net.A, net.mask, P,
    )  # fmt: skip
    extra = torch.where(net.mask, 30 * net.A / net.mask.sum(), 0)
    assert_close(got, want + extra, **EXACT)
    # log-probs that depend on nothing are moved by nothing
    got = influence(lambda w: net.A, net.entropy, net.params, net.A, net.mask)
    assert_close(got, torch.zeros_like(net.A))


def test_no_token_no_influence():
    net = Network(0)
    got = influence(net.logp, net.entropy, net.params, net.A, torch.zeros_like(net.mask))
    assert_close(got, torch.zeros_like(net.A))


def test_influence_leaves_the_parameters_alone_and_works_without_gradients():
    net = Network(0)
    leaves = leaves_of(net.params)
    A = net.A.clone().requires_grad_()
    want = influence(net.logp, net.entropy, net.params, net.A, net.mask)
    with torch.no_grad():
        assert_close(influence(net.logp, net.entropy, leaves, A, net.mask), want, **EXACT)
    got = influence(net.logp, net.entropy, leaves, A, net.mask)
    assert not got.requires_grad
    for k, x in leaves.items():
        assert x.grad is None
        assert torch.equal(x.detach(), net.params[k])
    assert not any(v.requires_grad for v in net.params.values())


def test_a_product_beyond_float16():
    w, mask = torch.ones(1, 1, dtype=torch.float16), torch.ones(1, 1)
    A = torch.full((1, 1), 400.0, dtype=torch.float16)
    assert influence(lambda w: 200 * w, lambda w: w, w, A, mask).item() == 80_000


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_dtypes(dtype):
    net = Network(0)
    params = {k: v.float() for k, v in net.params.items()}
    net.position = net.position.float()
    A = (4 * net.A).round().to(dtype)
    got = influence(net.logp, net.entropy, params, A, net.mask)
    assert got.dtype == torch.float32
    leaves = leaves_of(params)
    want = influence_by_loop(net.logp(leaves), net.entropy(leaves), leaves, A.float(), net.mask)
    near(got, want, 1e-5)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"advantages": torch.ones(4)}, r"advantages must be \[3\] or \[3, 4\], got \[4\]"),
        ({"advantages": torch.ones(3, 1)}, r"advantages must be .*got \[3, 1\]"),
        ({"advantages": torch.ones(())}, r"advantages must be .*got \[\]"),
        ({"logp_fn": lambda w: w["up"]}, r"logp_fn must return \[3, 4\], got \[4, 5\]"),
        ({"entropy_fn": lambda w: w["b"]}, r"entropy_fn must return \[3, 4\], got \[5\]"),
        ({"preconditioner": {}}, r"preconditioner\['b'\].*\[5\], got nothing"),
    ],
)
def test_influence_refuses_what_does_not_fit(change, words):
    net = Network(0)
    args = {
        "logp_fn": net.logp, "entropy_fn": net.entropy, "params": net.params,
        "advantages": net.A, "mask": net.mask,
    }  # fmt: skip
    with pytest.raises(ValueError, match=words):
        influence(**(args | change))


# ---------------------------------------------------------------------------- functional


def test_functional_puts_other_parameters_in_place_for_a_call():
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1, bias=False)).double()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    x = f64([[1.0, -2.0]])
    fn = functional(model, lambda: (model(x), 2 * model(x)))
    w = alike(dict(model.named_parameters()), 0)
    want = (x @ w["0.weight"].T + w["0.bias"]) @ w["1.weight"].T
    assert_close(fn(w), (want, 2 * want))
    # those that are not given stay
    want = (x @ before["0.weight"].T + before["0.bias"]) @ w["1.weight"].T
    assert_close(fn({"1.weight": w["1.weight"]})[0], want)
    for k, v in model.state_dict().items():
        assert torch.equal(v, before[k])


@pytest.mark.parametrize("order", [1, 3])
def test_parameters_that_stay_leave_no_graph(order):
    model = torch.nn.Linear(1, 1).double()
    fn = functional(model, lambda: model(f64([[3.0]])) ** 2)
    own = {"bias": model.bias}
    found = first_order(fn, own, {"bias": f64([1.0])}, order)
    which = influence(fn, fn, own, f64([2.0]), torch.ones(1, 1))
    assert not any(x.requires_grad for x in (*found, which))
    y = (3 * model.weight + model.bias).item()
    assert_close(found[1].item(), 2 * y if order == 1 else 2 * y + 1)
    assert_close(which.item(), 2 * (2 * y) ** 2)


def test_functional_restores_the_model_when_compute_raises():
    model = torch.nn.Linear(1, 1)
    weight, value = model.weight, model.weight.detach().clone()

    def compute():
        raise ArithmeticError("no")

    refused(
        lambda: functional(model, compute)({"weight": torch.zeros(1, 1)}),
        "no",
        error=ArithmeticError,
    )
    assert model.weight is weight
    assert torch.equal(model.weight, value)


# ---------------------------------------------------------------------------- transformers

V, PAD, SOFTCAP = 19, 0, 0.7
SIZES = {
    "vocab_size": V, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


def build(name: str, dtype: torch.dtype = torch.float64, implementation: str | None = None):
    """A model with weights large enough for attention to matter."""
    if name == "qwen2":
        model = transformers.Qwen2ForCausalLM(
            transformers.Qwen2Config(**SIZES, tie_word_embeddings=True)
        )
    elif name == "llama":
        model = transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**SIZES, tie_word_embeddings=False)
        )
    elif name == "gpt2":
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=V, n_embd=16, n_layer=2, n_head=4, n_positions=32,
                bos_token_id=None, eos_token_id=None, pad_token_id=None,
            )
        )  # fmt: skip
    else:
        model = transformers.Gemma2ForCausalLM(
            transformers.Gemma2Config(
                **SIZES, head_dim=4, query_pre_attn_scalar=4, sliding_window=4,
                attn_logit_softcapping=1.5, final_logit_softcapping=SOFTCAP,
            )
        )  # fmt: skip
    draw = seeded(0)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            noise, norm = draw(*parameter.shape), ".ln_" in key or "norm" in key
            parameter.copy_((1.0 if norm else 0.0) + (0.1 if parameter.ndim == 1 else 0.35) * noise)
    if implementation is not None:
        model.set_attn_implementation(implementation)
    return model.to(dtype).eval()


class Rollouts:
    """Two prompts of 2 and 4 tokens, the first padded on the left, and 3 completion tokens each."""

    def __init__(self, model, padded: bool = True) -> None:
        g = torch.Generator().manual_seed(3)
        self.model = model
        self.ids = torch.randint(1, V, (2, 7), generator=g)
        self.attention = torch.ones(2, 7, dtype=torch.int64)
        if padded:
            self.ids[0, :2], self.attention[0, :2] = PAD, 0
        self.targets = self.ids[:, 4:]
        self.mask = torch.tensor([[True, True, True], [True, True, False]])
        self.A = f64([[1.5, -0.5, 0.3], [-1.0, 2.0, NAN]])

    def inputs(self):
        position = (self.attention.cumsum(-1) - 1).clamp(min=0)
        return {
            "input_ids": self.ids, "attention_mask": self.attention, "position_ids": position,
            "use_cache": False,
        }  # fmt: skip

    def plainly(self) -> dict[str, Tensor]:
        """By the model's own logits."""
        logits = self.model(**self.inputs()).logits[:, 3:-1]
        return definition(logits, self.targets)

    def stats(self) -> es.TokenStats:
        """By hidden states and the head."""
        hidden = self.model.base_model(**self.inputs()).last_hidden_state[:, 3:-1]
        softcap = SOFTCAP if "Gemma" in type(self.model).__name__ else None
        weight = self.model.get_output_embeddings().weight
        return es.token_stats(hidden, weight, self.targets, softcap=softcap)


@contextmanager
def untouched(model) -> Iterator[None]:
    """Parameters, buffers, flags and gradients are the same after as before, bit for bit."""
    before = {k: (v, v.detach().clone()) for k, v in model.state_dict(keep_vars=True).items()}
    flags = [p.requires_grad for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    yield
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    for k, (same, value) in before.items():
        assert after[k] is same
        assert torch.equal(after[k].detach().view(torch.uint8), value.view(torch.uint8))
    assert [p.requires_grad for p in model.parameters()] == flags
    assert [m.training for m in model.modules()] == modes
    assert all(p.grad is None for p in model.parameters())


MODELS = [
    ("qwen2", "sdpa", torch.float64, True),
    ("qwen2", "sdpa", torch.float32, True),
    ("qwen2", "eager", torch.float32, True),
    ("llama", "sdpa", torch.float64, True),
    ("llama", "eager", torch.float64, False),
    ("gpt2", "sdpa", torch.float64, True),
    ("gpt2", "eager", torch.float32, True),
    ("gemma2", "eager", torch.float64, False),
    ("gemma2", "eager", torch.float32, True),
]


# transformers computes RMSNorm and, in eager attention, the softmax in float32 whatever the model's
# dtype. So of the float64 models GPT-2 with sdpa alone is exact; and eager attention of a float64
# model gives NaN under left padding (float64's lowest number is -inf in float32)
@pytest.mark.parametrize(
    ("name", "implementation", "dtype", "padded"),
    MODELS,
    ids=[f"{m[0]}-{m[1]}-{str(m[2])[-2:]}" for m in MODELS],
)
def test_transformers(name, implementation, dtype, padded):
    model = build(name, dtype, implementation)
    rollouts = Rollouts(model, padded)
    own = dict(model.named_parameters())
    d, P = alike(own, 1, 0.1), {k: v.abs() + 0.1 for k, v in alike(own, 2).items()}
    exact = dtype == torch.float64 and (name, implementation) == ("gpt2", "sdpa")
    relative = 1e-9 if exact else 1e-5 if dtype == torch.float64 else 2e-4
    logp = functional(model, lambda: rollouts.stats().logp)
    entropy = functional(model, lambda: rollouts.stats().entropy)

    found = rollouts.plainly()  # reverse mode, the model's own parameters
    where = tangents_by_loop(found["entropy"], own, d)
    which = {
        key: influence_by_loop(found["logp"], found["entropy"], own, rollouts.A, rollouts.mask, by)
        for key, by in (("identity", None), ("diagonal", P))
    }
    with untouched(model), forward_mode(model):
        assert model.config._attn_implementation == implementation
        before, change = first_order(entropy, own, d)
        near(before, found["entropy"].detach(), relative)
        near(change, where, relative)
        for key, by in (("identity", None), ("diagonal", P)):
            got = influence(logp, entropy, own, rollouts.A, rollouts.mask, by)
            near(got, which[key], relative)
            assert got[1, 2] == 0
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_a_tied_embedding_counts_once_and_in_both_roles(name):
    model = build(name)
    rollouts = Rollouts(model)
    own = dict(model.named_parameters())
    head, embedding = model.get_output_embeddings().weight, model.get_input_embeddings().weight
    assert head is embedding
    (key,) = [k for k, v in own.items() if v is embedding]
    fn = functional(model, lambda: rollouts.stats().entropy)
    d = {k: 1.0 * (k == key) * v for k, v in alike(own, 4).items()}
    with untouched(model), forward_mode(model):
        _, change = first_order(fn, own, d)
        _, alone = first_order(fn, {key: own[key]}, {key: d[key]})
    assert_close(alone, change, **EXACT)
    # RMSNorm's float32 leaves noise of 1e-7 / h
    h, relative = {"gpt2": (1e-5, 1e-6), "qwen2": (1e-3, 1e-3)}[name]
    moved = []
    for step in (h, -2 * h, h):  # the model's own weight really moved, and back
        with torch.no_grad():
            embedding += step * d[key]
            moved.append(rollouts.plainly()["entropy"])
    near(change, (moved[0] - moved[1]) / (2 * h), relative)


def test_left_padding_changes_nothing():
    model = build("qwen2")
    rollouts, own = Rollouts(model), dict(model.named_parameters())
    d = alike(own, 5, 0.1)
    with forward_mode(model):
        fn = functional(model, lambda: rollouts.stats().entropy)
        padded = first_order(fn, own, d)
        for row, first in ((0, 2), (1, 0)):
            alone = Rollouts(model)
            alone.ids = rollouts.ids[row : row + 1, first:]
            alone.attention = torch.ones_like(alone.ids)
            at = 3 - first
            inputs = alone.inputs()

            def entropy(inputs=inputs, at=at):
                z = model(**inputs).logits[:, at:-1]
                return definition(z, torch.zeros(z.shape[:-1], dtype=torch.int64))["entropy"]

            got = first_order(functional(model, entropy), own, d)
            for a, b in zip(got, padded, strict=True):
                assert_close(a[0], b[row], **EXACT)


class Fused(torch.autograd.Function):
    """As flash attention is to autograd: a kernel without a forward-mode derivative."""

    @staticmethod
    def forward(ctx, q, k, v, mask, scale):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, scale=scale)

    @staticmethod
    def backward(ctx, *gradients):
        raise AssertionError("the fused kernel was used")


def fused_attention(module, q, k, v, attention_mask, scaling=None, **_):
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return Fused.apply(q, k, v, attention_mask, scaling).transpose(1, 2).contiguous(), None


@pytest.fixture
def fused() -> Iterator[str]:
    name = "fused_of_dynamics_test"
    ALL_ATTENTION_FUNCTIONS.register(name, fused_attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(name, eager_mask)
    yield name
    for mapping in (ALL_ATTENTION_FUNCTIONS, ALL_MASK_ATTENTION_FUNCTIONS):
        type(mapping)._global_mapping.pop(name)


@pytest.mark.parametrize("name", ["qwen2", "gpt2"])
def test_a_fused_attention_is_switched_and_restored(fused, name):
    model = build(name, torch.float32, fused)
    rollouts, own = Rollouts(model), dict(model.named_parameters())
    d = alike(own, 1, 0.1)
    A = rollouts.A
    logp = functional(model, lambda: rollouts.stats().logp)
    entropy = functional(model, lambda: rollouts.stats().entropy)
    with pytest.raises(RuntimeError):  # no forward-mode derivative: else this test shows nothing
        first_order(entropy, own, d)
    with untouched(model), forward_mode(model):
        assert model.config._attn_implementation == "eager"
        where = first_order(entropy, own, d)[1]
        which = influence(logp, entropy, own, A, rollouts.mask)
    assert model.config._attn_implementation == fused
    with pytest.raises(AssertionError, match="fused kernel"):  # really used again
        rollouts.stats().entropy.sum().backward()

    twin = build(name, torch.float32, "sdpa")
    rollouts = Rollouts(twin)
    found, own = rollouts.plainly(), dict(twin.named_parameters())
    near(where, tangents_by_loop(found["entropy"], own, d), 2e-4)
    near(which, influence_by_loop(found["logp"], found["entropy"], own, A, rollouts.mask), 2e-4)


def sdp_settings() -> list[bool]:
    b = torch.backends.cuda
    return [b.flash_sdp_enabled(), b.mem_efficient_sdp_enabled(), b.math_sdp_enabled()]


@pytest.mark.parametrize("implementation", ["fused", "sdpa", "eager"])
def test_attention_is_restored_when_the_body_raises(fused, implementation):
    implementation = fused if implementation == "fused" else implementation
    model, before = build("qwen2", implementation=implementation), sdp_settings()

    def body():
        with forward_mode(model):
            assert sdp_settings() == [False, False, True]
            raise ArithmeticError("no")

    with untouched(model), pytest.raises(ArithmeticError, match="no"):
        body()
    assert model.config._attn_implementation == implementation
    assert sdp_settings() == before
    with forward_mode(model):
        pass
    assert model.config._attn_implementation == implementation
    assert sdp_settings() == before


def test_forward_mode_of_any_module_with_attention():
    class Attention(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config = {"not": "of transformers"}
            self.qkv = torch.nn.Linear(4, 12).double()

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).unsqueeze(1).chunk(3, -1)
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    model, x = Attention(), seeded(0)(2, 3, 4)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.copy_(seeded(i + 1)(*parameter.shape))
    own = dict(model.named_parameters())
    d = alike(own, 3)
    want = tangents_by_loop(model(x), own, d)
    with untouched(model), forward_mode(model):
        got = first_order(functional(model, lambda: model(x)), own, d)[1]
    assert_close(got, want, **EXACT)


# ---------------------------------------------------------------------------- tangents of stats


class Problem:
    """Hidden states, a head and directions for each."""

    def __init__(self, seed: int, N: int, V: int, D: int, dtype=torch.float64) -> None:
        draw = seeded(seed)
        self.values = {
            "hidden": draw(N, D), "weight": 2 * draw(V, D), "bias": draw(V),
        }  # fmt: skip
        self.values = {k: v.to(dtype) for k, v in self.values.items()}
        self.tangents = {k: draw(*v.shape).to(dtype) for k, v in self.values.items()}
        g = torch.Generator().manual_seed(seed)
        self.targets = torch.randint(0, V, (N,), generator=g)

    def forward(self, names, targets=None, **settings) -> tuple[dict, dict]:
        """Values and tangents of all statistics, with `names` moving."""
        targets = self.targets if targets is None else targets
        _load_forward_mode()
        with forward_ad.dual_level():
            x = {
                k: forward_ad.make_dual(v, self.tangents[k]) if k in names else v
                for k, v in self.values.items()
            }
            found = es.token_stats(
                x["hidden"], x["weight"], targets, bias=x["bias"], moments=True, **settings
            )
            duals = {f: forward_ad.unpack_dual(getattr(found, f)) for f in FIELDS}
        return {f: d.primal for f, d in duals.items()}, {f: d.tangent for f, d in duals.items()}

    def at(self, names, h: float, **settings) -> es.TokenStats:
        """Values per step along the direction, without duals."""
        x = {k: v + h * self.tangents[k] if k in names else v for k, v in self.values.items()}
        return es.token_stats(
            x["hidden"], x["weight"], self.targets, bias=x["bias"], moments=True, **settings
        )


SETTINGS = [
    {},
    {"temperature": 0.6},
    {"softcap": 1.5},
    {"scale": 0.4},
    {"temperature": 1.7, "softcap": 2.5, "scale": 1.3},
]


@pytest.mark.parametrize(
    "names",
    [("hidden",), ("weight",), ("bias",), ("hidden", "weight", "bias")],
    ids=["hidden", "weight", "bias", "all"],
)
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_tangents_of_token_stats(monkeypatch, settings, names):
    problem = Problem(1, N=7, V=11, D=3)
    got = []
    for logits in (2**22, 3 * 11, 1):  # held at once: all of them, of 3 rows, of 1
        monkeypatch.setattr("entrostat.core.stats.reference.LOGITS", logits)
        got.append(problem.forward(names, **settings))
    leaves = leaves_of(problem.values)
    found = es.token_stats(
        leaves["hidden"], leaves["weight"], problem.targets, bias=leaves["bias"], moments=True,
        **settings,
    )  # fmt: skip
    direction = {k: v * (k in names) for k, v in problem.tangents.items()}

    z = settings.get("scale", 1) * (leaves["hidden"] @ leaves["weight"].T + leaves["bias"])
    if "softcap" in settings:
        z = settings["softcap"] * (z / settings["softcap"]).tanh()
    defined = definition(z / settings.get("temperature", 1), problem.targets)
    h = 1e-6
    ahead, behind = (problem.at(names, s, **settings) for s in (h, -h))
    for field in FIELDS:
        by_definition = tangents_by_loop(defined[field], leaves, direction)
        by_gradient = tangents_by_loop(getattr(found, field), leaves, direction)
        difference = (getattr(ahead, field) - getattr(behind, field)) / (2 * h)
        for values, tangents in got:
            assert_close(values[field], defined[field].detach(), **EXACT)
            assert_close(tangents[field], by_definition, **EXACT)
            assert_close(tangents[field], by_gradient, **EXACT)
            near(tangents[field], difference, 1e-6)


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, c: (x * c + 0.5) * 3 - c,
        lambda x, c: torch.mul(c, torch.add(2.0, x)) - x,
        lambda x, c: (c - x).mul(c[0]) + torch.sub(x, 1),
        lambda x, c: x * torch.tensor([1, 2, 3]) + c,  # of another type
    ],
)
def test_a_tangent_of_zero_changes_no_bit(fn, monkeypatch):
    """Beside torch's own forward mode."""
    theta, d, c = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0))
    found = es.dynamics.first_order(lambda x: fn(x, c), theta, d)
    monkeypatch.setattr("entrostat.dynamics.derivatives._ZeroTangents", nullcontext)
    wanted = es.dynamics.first_order(lambda x: fn(x, c), theta, d)
    assert all(map(torch.equal, found, wanted))


def test_no_shape_of_a_placeholder_is_worked_out_in_python(monkeypatch):
    theta, d, c = torch.randn(3, 2, 3, generator=torch.Generator().manual_seed(0))

    def in_python() -> bool:
        with cProfile.Profile() as profile:
            es.dynamics.first_order(lambda x: x * c + 0.5, theta, d)
        return any("_refs" in file for file, _, _ in pstats.Stats(profile).stats)

    assert not in_python()
    monkeypatch.setattr("entrostat.dynamics.derivatives._ZeroTangents", nullcontext)
    assert in_python()


@pytest.mark.parametrize("implementation", ["auto", "plain", "tiled"])
def test_ignored_targets_have_tangent_zero(monkeypatch, implementation):
    monkeypatch.setattr("entrostat.core.stats.reference.LOGITS", 22)
    problem = Problem(2, N=6, V=11, D=3)
    values, tangents = problem.forward(("hidden", "weight"))
    targets = problem.targets.clone()
    targets[[0, 3]] = -7
    problem.values["hidden"][[0, 3]] = NAN
    problem.tangents["hidden"][[0, 3]] = INF
    for shape in ((6,), (2, 3)):
        wide = dict(problem.values)
        problem.values["hidden"] = wide["hidden"].view(*shape, 3)
        problem.tangents["hidden"] = problem.tangents["hidden"].view(*shape, 3)
        got = problem.forward(
            ("hidden", "weight"), targets.view(shape), ignore_index=-7,
            implementation=implementation,
        )  # fmt: skip
        for field in FIELDS:
            for mine, whole in zip(got, (values, tangents), strict=True):
                want = whole[field].clone()
                want[[0, 3]] = 0
                assert mine[field].shape == shape
                assert_close(mine[field].flatten(), want, **EXACT)


def test_no_target_at_all_has_tangent_zero():
    problem = Problem(2, N=4, V=5, D=2)
    values, tangents = problem.forward(("hidden",), torch.full((4,), -100))
    for field in FIELDS:
        assert torch.equal(values[field], torch.zeros(4, dtype=torch.float64))
        assert torch.equal(tangents[field], torch.zeros(4, dtype=torch.float64))


def test_a_token_that_cannot_be_has_tangents_that_are_numbers():
    problem = Problem(3, N=4, V=6, D=2)
    problem.targets[:] = torch.tensor([0, 1, 3, 5])
    problem.values["bias"][[2, 4]] = -INF
    values, tangents = problem.forward(("hidden", "weight", "bias"))
    kept = [0, 1, 3, 5]
    for k in ("weight", "bias"):
        problem.values[k] = problem.values[k][kept]
        problem.tangents[k] = problem.tangents[k][kept]
    problem.targets = torch.arange(4)
    want = problem.forward(("hidden", "weight", "bias"))
    for field in FIELDS:
        assert_close(values[field], want[0][field], **EXACT)
        assert_close(tangents[field], want[1][field], **EXACT)


def test_tangents_over_a_large_vocabulary():
    # 4.3 million logits: more than are computed at once in either mode
    N, vocabulary = 33, 2**17
    problem = Problem(4, N=N, V=vocabulary, D=3, dtype=torch.float32)
    problem.values["hidden"] *= 3
    settings = {"temperature": 0.8, "softcap": 20.0}
    values, tangents = problem.forward(("hidden", "weight", "bias"), **settings)
    leaves = leaves_of(problem.values)
    found = es.token_stats(
        leaves["hidden"], leaves["weight"], problem.targets, bias=leaves["bias"], moments=True,
        **settings,
    )  # fmt: skip
    probe = seeded(5)(N).float()
    for field in FIELDS:
        assert tangents[field].dtype == torch.float32
        near(values[field], getattr(found, field).detach(), 1e-5)
        want = dot(gradients((probe * getattr(found, field)).sum(), leaves), problem.tangents)
        size = (probe * tangents[field]).abs().sum().item()
        got = (probe * tangents[field]).sum().item()
        assert got == pytest.approx(want.item(), abs=1e-4 * size)


def test_no_tensor_of_the_size_of_the_logits(monkeypatch):
    monkeypatch.setattr("entrostat.core.stats.reference.LOGITS", 3000)
    sizes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for x in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(x, Tensor):
                    sizes.append(x.numel())
            return out

    problem = Problem(0, N=64, V=1000, D=2)
    with Watch():
        problem.forward(("hidden", "weight"))
    assert 1000 <= max(sizes) <= 3000


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_has_float32_tangents(dtype):
    problem = Problem(5, N=5, V=9, D=4, dtype=dtype)
    twin = Problem(5, N=5, V=9, D=4, dtype=dtype)
    twin.values = {k: v.double() for k, v in problem.values.items()}
    twin.tangents = {k: v.double() for k, v in problem.tangents.items()}
    want = twin.forward(("hidden", "weight", "bias"), softcap=3.0, scale=0.7)
    got = problem.forward(("hidden", "weight", "bias"), softcap=3.0, scale=0.7)
    for field in FIELDS:
        for mine, exact in zip(got, want, strict=True):
            assert mine[field].dtype == torch.float32
            near(mine[field], exact[field], 1e-5)


def test_autocast_does_not_touch_the_tangents():
    problem = Problem(6, N=5, V=9, D=4, dtype=torch.float32)
    want = problem.forward(("hidden", "weight"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = problem.forward(("hidden", "weight"))
    for field in FIELDS:
        for mine, exact in zip(got, want, strict=True):
            assert mine[field].dtype == torch.float32
            near(mine[field], exact[field], 1e-6)


@pytest.mark.parametrize("implementation", ["auto", "plain", "tiled", "triton"])
def test_any_implementation_passes_tangents_on(implementation):
    problem = Problem(7, N=5, V=9, D=4)
    want = problem.forward(("hidden", "weight"))
    got = problem.forward(("hidden", "weight"), implementation=implementation)
    for field in FIELDS:
        for mine, exact in zip(got, want, strict=True):
            assert_close(mine[field], exact[field], **EXACT)


def test_moments_of_duals_only_where_asked_for():
    problem = Problem(8, N=3, V=5, D=2)
    with forward_ad.dual_level():
        hidden = forward_ad.make_dual(problem.values["hidden"], problem.tangents["hidden"])
        found = es.token_stats(hidden, problem.values["weight"], problem.targets)
        tangent = forward_ad.unpack_dual(found.entropy).tangent
    assert found.sum_p2 is None
    assert found.sum_p2_logp is None
    problem.values["bias"] *= 0
    assert_close(tangent, problem.forward(("hidden",))[1]["entropy"], **EXACT)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("shape", [(7,), (2, 3), ()])
def test_tangents_of_token_stats_from_logits(shape, temperature):
    draw = seeded(9)
    z, d = 2 * draw(*shape, 8), draw(*shape, 8)
    targets = torch.randint(0, 8, shape, generator=torch.Generator().manual_seed(0))
    with forward_ad.dual_level():
        found = es.token_stats_from_logits(
            forward_ad.make_dual(z, d), targets, temperature, moments=True
        )
        duals = {f: forward_ad.unpack_dual(getattr(found, f)) for f in FIELDS}
    leaves = {"z": z.clone().requires_grad_()}
    reverse = es.token_stats_from_logits(leaves["z"], targets, temperature, moments=True)
    defined = definition(leaves["z"] / temperature, targets)
    h = 1e-6
    ahead, behind = (
        es.token_stats_from_logits(z + s * d, targets, temperature, moments=True) for s in (h, -h)
    )
    for field in FIELDS:
        primal, tangent = duals[field]
        assert_close(primal, defined[field].detach(), **EXACT)
        assert_close(tangent, tangents_by_loop(defined[field], leaves, {"z": d}), **EXACT)
        assert_close(tangent, tangents_by_loop(getattr(reverse, field), leaves, {"z": d}), **EXACT)
        near(tangent, (getattr(ahead, field) - getattr(behind, field)) / (2 * h), 1e-6)


# ---------------------------------------------------------------------------- AdamW


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.Adam])
def test_preconditioner_is_the_step_that_adamw_makes(kind, steps):
    params = {k: torch.nn.Parameter(seeded(i)(3, 2)) for i, k in enumerate("xy")}
    optimizer = kind(
        [
            {"params": [params["x"]], "lr": 0.3, "eps": 0.05, "betas": (0.0, 0.9)},
            {"params": [params["y"]], "lr": 0.01, "eps": 1e-8, "betas": (0.0, 0.99)},
        ],
        weight_decay=0.0,
    )
    draw = seeded(5)
    for i in range(steps):
        gradient = {k: ((1 + i) * draw(3, 2)).requires_grad_() for k in params}
        held = len(optimizer.state)
        foretold = adamw_preconditioner(optimizer, params, gradient)
        assert len(optimizer.state) == held
        before = {k: p.detach().clone() for k, p in params.items()}
        for k, p in params.items():
            p.grad = gradient[k].detach().clone()
        optimizer.step()
        P = adamw_preconditioner(optimizer, params)
        assert list(P) == list(foretold) == ["x", "y"]
        for k, p in params.items():
            assert not P[k].requires_grad
            assert not foretold[k].requires_grad
            assert_close(P[k] * gradient[k].detach(), before[k] - p.detach(), **EXACT)
            assert_close(foretold[k], P[k], **EXACT)
    assert adamw_preconditioner(optimizer, {"z": params["y"]}).keys() == {"z"}


def test_preconditioner_of_the_first_step_by_hand():
    a = torch.nn.Parameter(f64([5.0, 5.0]))
    optimizer = torch.optim.AdamW([a], lr=0.2, eps=0.5, betas=(0.9, 0.95))
    P = adamw_preconditioner(optimizer, {"a": a}, {"a": f64([-1.5, 0.0])})
    assert_close(P, {"a": f64([0.1, 0.4])}, **EXACT)


def test_preconditioner_at_another_learning_rate():
    a = torch.nn.Parameter(f64([5.0, 5.0]))
    optimizer = torch.optim.AdamW([a], lr=0.2, eps=0.5)
    gradient = {"a": f64([-1.5, 0.0])}
    for lr, want in ((1.0, [0.5, 2.0]), (0.0, [0.0, 0.0])):
        P = adamw_preconditioner(optimizer, {"a": a}, gradient, lr=lr)
        assert_close(P, {"a": f64(want)}, **EXACT)
    optimizer.param_groups[0]["lr"] = 1.0  # as a schedule would
    P = adamw_preconditioner(optimizer, {"a": a}, gradient)
    assert_close(P, {"a": f64([0.5, 2.0])}, **EXACT)


def test_momentum_and_decay_are_no_part_of_the_preconditioner():
    a = torch.nn.Parameter(f64([1.0, -1.0]))
    optimizer = torch.optim.AdamW([a], lr=0.5, betas=(0.9, 0.75), eps=0.25, weight_decay=0.3)
    for g in ([1.0, 0.0], [2.0, 0.0]):
        a.grad = f64(g)
        optimizer.step()
    # v = .75 (.25 1) + .25 4 = 1.1875, over 1 - .75^2 = .4375
    P = adamw_preconditioner(optimizer, {"a": a})["a"]
    assert_close(P, f64([0.5 / (math.sqrt(1.1875 / 0.4375) + 0.25), 0.5 / 0.25]), **EXACT)


def test_influences_add_up_to_what_an_adamw_step_does():
    net = Network(6)
    params = {k: torch.nn.Parameter(v.clone()) for k, v in net.params.items()}
    groups = [
        {"params": [v for k, v in params.items() if (k == "embed") == tied], "lr": lr}
        for tied, lr in ((True, 0.01), (False, 0.003))
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.0, 0.9), eps=1e-3, weight_decay=0.0)
    for _ in range(3):
        objective = torch.where(net.mask, net.A * net.logp(params), 0).sum() / net.mask.sum()
        optimizer.zero_grad()
        (-objective).backward()
        gradient = {k: v.grad.clone() for k, v in params.items()}
        before = {k: v.detach().clone() for k, v in params.items()}
        P = adamw_preconditioner(optimizer, params, gradient)
        optimizer.step()
        moved = {k: v.detach() - before[k] for k, v in params.items()}
        which = influence(net.logp, net.entropy, before, net.A, net.mask, P)
        where = first_order(net.entropy, before, moved)[1]
        assert which.sum().item() == pytest.approx(where[net.mask].mean().item(), rel=1e-8)


def test_preconditioner_errors():
    a, b = (torch.nn.Parameter(f64([1.0])) for _ in range(2))
    refused(
        lambda: adamw_preconditioner(torch.optim.SGD([a], lr=0.1), {"w": a}, {"w": a}),
        "optimizer",
        "got SGD",
    )
    optimizer = torch.optim.AdamW([a])
    refused(
        lambda: adamw_preconditioner(optimizer, {"a": a, "b": b}, {"a": a, "b": b}),
        "b is no parameter of the optimizer",
    )
    refused(lambda: adamw_preconditioner(optimizer, {"a": a}), "second moment")
    # one that had no gradient when the others stepped
    both = torch.optim.AdamW([a, b], lr=0.5, eps=1.0)
    a.grad = f64([2.0])
    both.step()
    refused(lambda: adamw_preconditioner(both, {"a": a, "b": b}), "adamw_preconditioner:")
    assert_close(adamw_preconditioner(both, {"a": a}), {"a": f64([0.5 / 3])}, **EXACT)
    P = adamw_preconditioner(both, {"b": b}, {"b": f64([-4.0])})
    assert_close(P, {"b": f64([0.1])}, **EXACT)


# ---------------------------------------------------------------------------- tables

JUNK = st.sampled_from([NAN, INF, -INF, 1e300])


@st.composite
def masked(draw: st.DrawFn, columns: int, least: int = 0):
    """[B, T] mask, and `columns` pairs (tensor with junk where masked, values at mask 1)."""
    B, T = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    flags = draw(st.lists(st.booleans(), min_size=B * T, max_size=B * T))
    assume(sum(flags) >= least)
    # multiples of 1/8 in a small range: ties and zeros happen, sums are exact
    number = st.integers(-16, 16).map(lambda k: k / 8)
    pairs = []
    for _ in range(columns):
        values = [draw(number) if flag else draw(JUNK) for flag in flags]
        kept = [v for v, flag in zip(values, flags, strict=True) if flag]
        pairs.append((f64(values).view(B, T), kept))
    dtype = draw(st.sampled_from([torch.bool, torch.int64, torch.float32]))
    return torch.tensor(flags).view(B, T).to(dtype), *pairs


def both(values: list[float], *others: list[float]) -> list[Tensor]:
    """Rows of 2 from lists of even length."""
    return [f64(x).view(-1, 2) for x in (values, *others)]


@cases(40)
@given(masked(1))
def test_flow_against_fractions(case):
    mask, (change, kept) = case
    up = sum((Fraction(x) for x in kept if x > 0), Fraction(0))
    down = sum((-Fraction(x) for x in kept if x < 0), Fraction(0))
    got = flow(change, mask)
    assert (got.increase, got.decrease, got.net) == (up, down, up - down)
    assert got.balance == (float((down - up) / (down + up)) if up + down else 0)
    # Eq. 9: it balances what it weights
    if up and down:
        a, b = (1 + got.balance) * got.increase, (1 - got.balance) * got.decrease
        assert a == pytest.approx(b)
    assert all(isinstance(x, float) for x in vars(got).values())


def test_flow_by_hand():
    change, mask = f64([[3.0, -1.0, NAN], [0.5, -0.5, 0.0]]), torch.tensor([[1, 1, 0], [1, 1, 1]])
    got = flow(change, mask)
    assert (got.increase, got.decrease, got.net, got.balance) == (3.5, 1.5, 2.0, -0.4)
    got = flow(-change, mask)
    assert (got.increase, got.decrease, got.net, got.balance) == (1.5, 3.5, -2.0, 0.4)
    assert flow(f64([[1.0]]), torch.ones(1, 1)).balance == -1
    assert flow(f64([[-1.0]]), torch.ones(1, 1)).balance == 1
    assert vars(flow(change, torch.zeros(2, 3))) == {
        "increase": 0.0, "decrease": 0.0, "net": 0.0, "balance": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_are_float64(dtype):
    # 2^24 + 1 is no float32, 257 no bfloat16
    big = 2.0**24
    x = torch.tensor([[big, 1.0, 1.0, 1.0], [-big, -1.0, -1.0, -1.0]], dtype=dtype).requires_grad_()
    mask = torch.ones(2, 4)
    got = flow(x, mask)
    assert (got.increase, got.decrease) == (big + 3, big + 3)
    top = mask.clone()
    top[1] = 0
    assert covariance_table(x, top, [1.0])[1.0] == (big + 3) / 4
    assert concentration(x, top, 0.25) == big / (big + 3)
    everything = {"all": torch.ones(2, 4, dtype=torch.bool)}
    part = parts(everything, top, x, x, x)["all"]
    assert part.influence == big + 3
    assert (part.change, part.entropy) == ((big + 3) / 4, (big + 3) / 4)
    assert agreement(x, torch.zeros(2, 4), top).mse == (big * big + 3) / 4


@cases(60)
@given(masked(2, least=2))
def test_agreement_against_scipy(case):
    mask, (estimate, x), (truth, y) = case
    got = agreement(estimate, truth, mask)
    a, b = np.array(x), np.array(y)
    assert got.mse == pytest.approx(float(np.mean((a - b) ** 2)), rel=1e-12)
    signs = [(p > 0) == (q > 0) for p, q in zip(x, y, strict=True) if p and q]
    if signs:
        assert got.sign == pytest.approx(sum(signs) / len(signs), rel=1e-12)
    if len(set(x)) == 1 or len(set(y)) == 1:
        assert math.isnan(got.pcc)
        assert math.isnan(got.srcc)
    else:
        assert got.pcc == pytest.approx(scipy.stats.pearsonr(a, b).statistic, abs=1e-12)
        assert got.srcc == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)
    size = float(np.mean(b**2))
    if size == 0:
        assert math.isnan(got.scaled_mse)
        return
    # no factor >= 0 does better, and one does as well
    factors = np.append(np.linspace(0, 4, 41), max(0.0, float(a @ b) / max(float(a @ a), 1e-9)))
    found = [float(np.mean((c * a - b) ** 2)) / size for c in factors]
    assert got.scaled_mse == pytest.approx(min(found), abs=1e-12)


def test_agreement_by_hand():
    estimate, truth = both([1.0, 2.0, 0.0, NAN], [2.0, 1.0, 0.0, 5.0])
    mask = torch.tensor([[1, 1], [1, 0]])
    got = agreement(estimate, truth, mask)
    assert got.mse == pytest.approx(2 / 3)
    assert got.scaled_mse == pytest.approx(0.36)  # factor 4/5: (1.44 + .36) / 5
    assert got.pcc == pytest.approx(0.5)  # (-0 + 1 * 0 ...): cov 1/3, variances 2/3
    assert got.srcc == pytest.approx(0.5)  # ranks 2 3 1 and 3 2 1
    assert got.sign == 1.0  # of two
    got = agreement(-estimate, truth, mask)
    assert got.scaled_mse == 1.0  # no positive factor helps
    assert got.pcc == pytest.approx(-0.5)
    assert got.sign == 0.0
    signs = agreement(*both([1.0, -1.0, 1.0, 0.0], [2.0, 3.0, 1.0, 1.0]), torch.ones(2, 2))
    assert signs.sign == pytest.approx(2 / 3)


@pytest.mark.parametrize("factor", [1e-12, 3.0, 1e12])
def test_agreement_up_to_a_factor(factor):
    draw = seeded(1)
    x, y, mask = draw(3, 4), draw(3, 4), torch.ones(3, 4)
    one, other = agreement(x, y, mask), agreement(factor * x, y, mask)
    for field in ("scaled_mse", "pcc", "srcc", "sign"):
        assert getattr(one, field) == pytest.approx(getattr(other, field), rel=1e-9)
    perfect = agreement(factor * y, y, mask)
    assert perfect.scaled_mse == pytest.approx(0, abs=1e-15)
    assert perfect.pcc == pytest.approx(1)
    assert perfect.srcc == pytest.approx(1)
    assert perfect.sign == 1


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3, 1e9 + 0.1, 1e-30])
def test_correlations_with_a_constant_are_nan(value):
    constant, mask = torch.full((3, 7), value, dtype=torch.float64), torch.ones(3, 7)
    moving = seeded(0)(3, 7)
    for got in (agreement(constant, moving, mask), agreement(moving, constant, mask)):
        assert math.isnan(got.pcc)
        assert math.isnan(got.srcc)
    # a small spread around a large value is none of these
    got = agreement(1e4 + 1e-3 * moving, moving, mask)
    assert got.pcc == pytest.approx(1, abs=1e-6)


def test_covariance_table_by_hand():
    # of 5000 values 1..5000: the largest 1, 10, 100, 1000, all
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(0))
    values = torch.full((101, 50), NAN, dtype=torch.float64)
    values[:100] = (order + 1.0).view(100, 50)
    mask = torch.zeros(101, 50)
    mask[:100] = 1
    assert covariance_table(values, mask) == {
        0.0002: 5000.0, 0.002: 4995.5, 0.02: 4950.5, 0.2: 4500.5, 1.0: 2500.5,
    }  # fmt: skip
    # largest, not largest in size; at least one token
    signed = f64([[-9.0, 2.0], [1.0, -3.0]])
    assert covariance_table(signed, torch.ones(2, 2), [0.001, 0.5, 0.75]) == {
        0.001: 2.0, 0.5: 1.5, 0.75: 0.0,
    }  # fmt: skip


def pad(rows: list[list[float]], width: int) -> tuple[Tensor, Tensor]:
    """Ragged rows as [B, T], junk behind them, and their mask."""
    values = f64([[*row, *[NAN] * (width - len(row))] for row in rows])
    return values, torch.tensor([[i < len(row) for i in range(width)] for row in rows])


@pytest.mark.parametrize("width", [1, 3])
def test_prompt_covariance_is_eq_7_over_all_responses(width):
    """A policy of three tokens, the last of which ends a response, drawn exactly in proportion.

    At one token a response it is Theorem 1's covariance over the vocabulary, to the letter.
    """

    def next_token(prefix: tuple[int, ...]) -> list[Fraction]:
        shares = [(1, 2, 1), (1, 1, 2), (2, 1, 1), (2, 2, 0)][(sum(prefix) + len(prefix)) % 4]
        return [Fraction(n, 4) for n in shares]

    found: dict[tuple[int, ...], list[Fraction]] = {(): []}  # response -> its tokens' probabilities
    for _ in range(width):
        found = {
            y + (() if y and y[-1] == 2 else (a,)): ps + ([] if y and y[-1] == 2 else [p])
            for y, ps in found.items()
            for a, p in enumerate([Fraction(1)] if y and y[-1] == 2 else next_token(y))
            if p
        }
    advantage = {y: math.sin(1 + 3 * len(y) + sum(y)) for y in found}
    chance = {y: math.prod(ps, start=Fraction(1)) for y, ps in found.items()}
    assert sum(chance.values()) == 1
    x = {y: sum(math.log(p) for p in ps) / len(ps) for y, ps in found.items()}
    z = {y: math.exp(x[y]) * advantage[y] for y in found}
    mean_x, mean_z = (sum(float(chance[y]) * v[y] for y in found) for v in (x, z))
    truth = sum(float(chance[y]) * (x[y] - mean_x) * (z[y] - mean_z) for y in found)

    drawn = [y for y in found for _ in range(int(chance[y] * 4**width))]
    logp, mask = pad([[math.log(p) for p in found[y]] for y in drawn], width)
    A, group = f64([advantage[y] for y in drawn]), torch.full((len(drawn),), 7)
    got = prompt_covariance(logp, A, mask, group)
    assert_close(got, f64([truth]), **EXACT)
    per_token = torch.where(mask, A[:, None], NAN)
    assert_close(prompt_covariance(logp, per_token, mask, group), got, **EXACT)
    assert abs(truth) > 1e-3


def test_prompt_covariance_of_groups_of_any_size():
    draw = seeded(5)
    sizes = {4: 1, -2: 5, 9: 2, 3: 8, 11: 3}
    group = torch.tensor([g for g, n in sizes.items() for _ in range(n)])
    group = group[torch.randperm(len(group), generator=torch.Generator().manual_seed(0))]
    B, T = len(group), 6
    logp, A = -draw(B, T).abs(), draw(B)
    mask = torch.rand(B, T, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[:, 2] = True
    empty = (group == 11).nonzero()[0]  # a response without a token counts for nothing
    mask[empty] = False
    A[empty] = NAN
    A[group == 9] = 0
    got = prompt_covariance(torch.where(mask, logp, NAN), A, mask, group)
    assert got.dtype == torch.float64
    for value, g in zip(got.tolist(), sorted(sizes), strict=True):
        rows = [i for i in range(B) if group[i] == g and mask[i].any()]
        x = np.array([logp[i][mask[i]].mean() for i in rows])
        z = np.exp(x) * np.array([A[i] for i in rows])
        if g == 4:
            assert math.isnan(value)
        elif g == 9:
            assert value == 0
        else:
            assert value == pytest.approx(np.cov(x, z, ddof=0)[0, 1], rel=1e-12)
    # float64 inside: 2^24 + 1 is no float32
    big = 2.0**24
    exact = prompt_covariance(
        torch.tensor([[big, 1.0, -big], [0.0, 0.0, 0.0]]), torch.tensor([1.0, 0.0]),
        torch.ones(2, 3), torch.zeros(2, dtype=torch.int64),
    )  # fmt: skip
    assert float(exact) == pytest.approx(math.exp(1 / 3) / 12, rel=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"logp": torch.zeros(2, 2)}, "logp are [2, 2]"),
        ({"advantages": torch.zeros(3)}, "advantages are [3]"),
        ({"advantages": torch.zeros(2, 1)}, "advantages are [2, 1]"),
        ({"group": torch.zeros(1, dtype=torch.int64)}, "group are [1]"),
        ({"group": torch.zeros(2, 3, dtype=torch.int64)}, "group are [2, 3]"),
    ],
)
def test_prompt_covariance_refuses_other_shapes(change, words):
    given = {
        "logp": torch.zeros(2, 3), "advantages": torch.zeros(2), "mask": torch.ones(2, 3),
        "group": torch.zeros(2, dtype=torch.int64),
    }  # fmt: skip
    refused(lambda: prompt_covariance(**given | change), words)


def test_terciles_by_hand():
    assert terciles(f64([0.6, 0.1, 0.5, 0.2, 0.4, 0.3])).tolist() == [2, 0, 2, 0, 1, 1]
    assert terciles(f64([0.1, 0.9, 0.5, 0.7])).tolist() == [0, 2, 1, 1]
    # equal rewards stay together: ranks 1 to 4 of six are one third, centred at 2.5
    assert terciles(f64([0.5, 0.5, 0.5, 0.5, 0.7, 0.9])).tolist() == [1, 1, 1, 1, 2, 2]
    assert terciles(f64([0.5] * 5)).tolist() == [1] * 5
    assert terciles(f64([])).tolist() == []
    for G in (3, 9, 30):
        counts = torch.bincount(terciles(torch.randperm(G).double()), minlength=3)
        assert counts.tolist() == [G // 3] * 3


def test_an_estimate_of_given_clipped_tokens():
    """STEER's indicator from outside is that of the bounds which it stands for."""
    draw = seeded(3)
    logp = -draw(4, 5).abs()
    batch = es.TokenBatch(
        logp, logp - 0.4 * draw(4, 5), torch.ones(4, 5), advantages=draw(4), entropy=draw(4, 5)
    )
    ratio, A = (batch.logp - batch.old_logp).exp(), batch.advantages[:, None]
    held = ((A > 0) & (ratio > 1.28)) | ((A < 0) & (ratio < 0.8))
    assert held.any()
    for name in ("omega", "omega_realised"):
        got = es.dynamics.estimate(name, batch, clipped=held)
        assert_close(got, es.dynamics.estimate(name, batch, low=0.2, high=0.28), **EXACT)
        assert (got[held] == 0).all()
        assert (es.dynamics.estimate(name, batch)[held] != 0).all()
    refused(lambda: es.dynamics.estimate("omega", batch, low=0.2, clipped=held), "clipped")
    refused(lambda: es.dynamics.estimate("omega", batch, clipped=held[:, 0]), "[4]", "[4, 5]")


# .29 * 100 is just below 29 in binary, .07 * 100 just above 7
@pytest.mark.parametrize(
    ("share", "n"), [(0.29, 29), (0.07, 7), (0.57, 57), (0.14, 14), (1.0, 100)]
)
def test_a_share_of_a_hundred_tokens_is_that_many(share, n):
    values = torch.arange(1.0, 101.0).view(10, 10)
    mask = torch.ones(10, 10)
    top = sum(range(101 - n, 101))
    assert covariance_table(values, mask, [share])[share] == pytest.approx(top / n, rel=1e-14)
    assert concentration(values, mask, share) == pytest.approx(top / 5050, rel=1e-14)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, NAN])
def test_shares_out_of_range_are_an_error(share):
    x = torch.ones(1, 2)
    refused(lambda: covariance_table(x, x, [0.5, share]), "shares", f"got {share}")
    refused(lambda: concentration(x, x, share), "share", f"got {share}")


@cases(60)
@given(masked(1, least=1), st.sampled_from([0.1, 0.25, 0.5, 1.0]))
def test_concentration_is_a_share_of_the_sizes(case, share):
    mask, (values, kept) = case
    sizes = sorted((abs(x) for x in kept), reverse=True)
    got = concentration(values, mask, share)
    assert concentration(values, mask, 1.0) == (1.0 if sum(sizes) else 0.0)
    if sum(sizes) == 0:
        assert got == 0
        return
    # n is share N where that is whole, at least 1, and one of its neighbours elsewhere
    exact = share * len(sizes)
    allowed = {max(1, math.floor(exact)), max(1, math.ceil(exact))}
    assert any(got == pytest.approx(sum(sizes[:n]) / sum(sizes), rel=1e-12) for n in allowed)
    assert concentration(-values, mask, share) == got


def test_concentration_by_hand():
    values, mask = f64([[-4.0, 3.0, NAN], [2.0, -1.0, INF]]), torch.tensor([[1, 1, 0], [1, 1, 0]])
    assert concentration(values, mask, 0.5) == 0.7
    assert concentration(values, mask, 0.25) == 0.4
    assert concentration(values, mask, 0.001) == 0.4
    assert concentration(values, torch.zeros(2, 3), 0.5) == 0


@cases(30)
@given(masked(3, least=1), st.data())
def test_parts_of_a_partition_add_up(case, data):
    mask, (entropy, h), (change, c), (effect, e) = case
    n = mask.numel()
    label = torch.tensor(data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
    label = label.view(mask.shape)
    found = parts({k: label == i for i, k in enumerate("abc")}, mask, entropy, change, effect)
    assert list(found) == ["a", "b", "c"]
    N = len(h)
    assert sum(p.share for p in found.values()) == pytest.approx(1)
    assert sum(p.influence for p in found.values()) == pytest.approx(sum(e), abs=1e-12)
    assert sum(p.change for p in found.values()) == pytest.approx(sum(c) / N, abs=1e-12)
    assert sum(p.share * p.entropy for p in found.values()) == pytest.approx(sum(h) / N, abs=1e-12)
    inside = [int(x) for x in label[mask.bool()]]
    for i, part in enumerate(found.values()):
        mine = [x for x, k in zip(h, inside, strict=True) if k == i]
        assert part.share == pytest.approx(len(mine) / N)
        assert part.entropy == pytest.approx(sum(mine) / len(mine) if mine else 0, abs=1e-12)


def test_parts_by_hand():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    entropy = f64([[1.0, 2.0, 3.0], [4.0, NAN, INF]])
    change = f64([[0.5, -1.0, 0.25], [-0.25, NAN, INF]])
    members = {
        "all": torch.ones(2, 3, dtype=torch.bool),
        "first": torch.tensor([[1, 0, 0], [1, 1, 0]]).bool(),
        "none": torch.tensor([[0, 0, 0], [0, 1, 1]]).bool(),
    }
    found = parts(members, mask, entropy, change, 2 * change)
    assert {k: (p.share, p.influence, p.change, p.entropy) for k, p in found.items()} == {
        "all": (1.0, -1.0, -0.125, 2.5),
        "first": (0.5, 0.5, 0.0625, 2.5),
        "none": (0.0, 0.0, 0.0, 0.0),
    }
    found = parts(members, mask, entropy)
    assert all(p.change is None and p.influence is None for p in found.values())
    found = parts(members, torch.zeros(2, 3), entropy, change)
    assert all((p.share, p.change, p.entropy) == (0, 0, 0) for p in found.values())


def test_quadrants_by_hand():
    p = f64([[0.9, 0.1, 0.5], [0.1, 0.9, 0.5], [0.9, 0.1, NAN], [0.81, 0.79, 0.19], [0.21, 1, 0]])
    A = f64([[1.0, 1.0, 1.0], [-1, -1, -1], [0.0, 0.0, 1.0], [2, 2, 2], [-2, -2, -2]])
    mask = torch.ones(5, 3)
    mask[2, 2] = 0
    names = [["I", "II", "rest"], ["III", "IV", "rest"], ["rest", "rest", None],
             ["I", "rest", "II"], ["rest", "IV", "III"]]  # fmt: skip
    got = quadrants(A, p.log(), mask)
    assert list(got) == ["I", "II", "III", "IV", "rest"]
    for name, member in got.items():
        assert member.dtype == torch.bool
        assert member.tolist() == [[x == name for x in row] for row in names]


@cases(60)
@given(masked(2))
def test_quadrants_are_a_partition(case):
    mask, (A, _), (logp, _) = case
    logp = -logp.abs()
    got = quadrants(A, logp, mask)
    assert torch.equal(torch.stack(list(got.values())).sum(0), mask.bool().long())
    for name, positive in (("I", True), ("II", True), ("III", False), ("IV", False)):
        assert ((A[got[name]] > 0) == positive).all()
        assert (A[got[name]] != 0).all()


def test_clipped_sides_by_hand():
    ratio = f64([[1.6, 1.5, 1.4, 0.7], [0.7, 0.75, 0.8, 1.6], [1.6, 0.7, 1.6, NAN]])
    A = f64([[1.0, 1.0, 1.0, 1.0], [-1.0, -1.0, -1.0, -1.0], [0.0, 0.0, NAN, 1.0]])
    mask = torch.ones(3, 4)
    mask[2, 2:] = 0
    got = clipped_sides(ratio, A, mask, low=0.25, high=0.5)
    assert list(got) == ["high", "low"]
    assert got["high"].tolist() == [[True, False, False, False], [False] * 4, [False] * 4]
    assert got["low"].tolist() == [[False] * 4, [True, False, False, False], [False] * 4]


def test_clipped_sides_of_bounds_by_token():
    ratio, A = f64([[1.6, 1.6], [0.7, 0.7]]), f64([[1.0, 1.0], [-1.0, -1.0]])
    bound = f64([[0.5, 0.7], [0.25, 0.35]])
    got = clipped_sides(ratio, A, torch.ones(2, 2), bound, bound)
    assert got["high"].tolist() == [[True, False], [False, False]]
    assert got["low"].tolist() == [[False, False], [True, False]]


@cases(40)
@given(masked(2))
def test_clipped_sides_are_where_ppo_has_no_gradient(case):
    mask, (A, _), (shift, _) = case
    low, high = 0.3, 0.45  # no ratio below lies on these
    ratio = (shift + 2.5) / 2
    kept = mask.bool()
    r, a = ratio[kept].requires_grad_(), A[kept]
    surrogate = torch.minimum(r * a, r.clamp(1 - low, 1 + high) * a)
    (slope,) = torch.autograd.grad(surrogate.sum(), r)
    held = torch.zeros_like(kept)
    held[kept] = (slope == 0) & (a != 0)
    got = clipped_sides(ratio, A, mask, low, high)
    each = clipped_sides(ratio, A, mask, torch.full(A.shape, low), torch.full(A.shape, high))
    assert got.keys() == each.keys()
    assert all(torch.equal(got[side], each[side]) for side in got)
    assert torch.equal(got["high"] | got["low"], held)
    assert not (got["high"] & got["low"]).any()
    assert (A[got["high"]] > 0).all()
    assert (A[got["low"]] < 0).all()


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("flow", lambda x, m: flow(x, m)),
        ("agreement", lambda x, m: agreement(x, torch.ones(m.shape), m)),
        ("agreement", lambda x, m: agreement(torch.ones(m.shape), x, m)),
        ("covariance_table", lambda x, m: covariance_table(x, m)),
        ("concentration", lambda x, m: concentration(x, m, 0.5)),
        ("parts", lambda x, m: parts({"a": m.bool()}, m, x)),
        ("parts", lambda x, m: parts({"a": m.bool()}, m, torch.ones(m.shape), change=x)),
        ("parts", lambda x, m: parts({"a": m.bool()}, m, torch.ones(m.shape), influence=x)),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (2, 1), (3, 2)])
def test_values_of_another_shape_are_an_error(name, call, shape):
    refused(lambda: call(torch.ones(shape), torch.ones(2, 3)), name, f"{list(shape)}")


@pytest.mark.parametrize("fn", [lambda x, m: agreement(x, x, m), covariance_table])
def test_no_token_is_an_error_where_there_is_a_mean(fn):
    refused(lambda: fn(torch.ones(2, 3), torch.zeros(2, 3)), "no token is at mask 1")


# what the tests above found, mended since


def test_an_entropy_that_depends_on_nothing_has_no_gradient():
    theta = torch.ones(3)
    found = influence(
        lambda x: x.sum().expand(2, 3), lambda x: torch.ones(2, 3), theta, torch.ones(2),
        torch.ones(2, 3),
    )  # fmt: skip
    assert torch.equal(found, torch.zeros(2, 3))


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32, torch.int64])
def test_entropy_gradient_takes_any_mask(dtype):
    mask = torch.tensor([[1, 0, 1]]).to(dtype)
    theta = torch.tensor([1.0, 2.0, 3.0])
    gradient = entropy_gradient(lambda x: x.square().unsqueeze(0), theta, mask)
    assert torch.equal(gradient, torch.tensor([1.0, 0.0, 3.0]))  # 2 x / 2 at the two tokens


@pytest.mark.parametrize("setting", ["amsgrad", "maximize"])
def test_settings_of_adam_that_p_does_not_know_are_refused(setting):
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter], **{setting: True})
    refused(
        lambda: adamw_preconditioner(optimizer, {"a": parameter}, {"a": torch.ones(2)}), setting
    )


def test_other_optimizers_and_missing_gradients_are_refused():
    parameter = torch.nn.Parameter(torch.ones(2))
    refused(
        lambda: adamw_preconditioner(torch.optim.Adamax([parameter]), {"a": parameter}),
        "got Adamax",
    )
    refused(
        lambda: adamw_preconditioner(torch.optim.AdamW([parameter]), {"a": parameter}, {}),
        "gradient",
        "'a'",
    )


def test_tables_and_influence_check_shapes():
    x, mask = torch.ones(2, 3), torch.ones(2, 3, dtype=torch.bool)
    refused(lambda: parts({"a": torch.ones(3, dtype=torch.bool)}, mask, x), "['a']", "[3]")
    refused(lambda: quadrants(torch.ones(2), x, mask), "quadrants:", "advantages")
    refused(
        lambda: influence(lambda t: t, lambda t: t, torch.ones(3), torch.ones(3), torch.ones(3)),
        "mask",
        "[B, T]",
    )


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_pieces_give_the_influence_of_the_whole(cut):
    """A linear map of the parameters with shared weights; the mask is ragged."""
    g = torch.Generator().manual_seed(3)
    X, Y = (torch.randn(5, 3, 4, generator=g, dtype=torch.float64) for _ in range(2))
    theta, A = torch.randn(4, generator=g, dtype=torch.float64), torch.randn(5, generator=g)
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 1, 1], [1, 1, 0], [0, 0, 0]])
    P = torch.rand(4, generator=g, dtype=torch.float64)
    pieces = [
        Piece(lambda t, x=x: (x @ t).tanh(), lambda t, y=y: (y @ t).square(), a, m)
        for x, y, a, m in zip(
            X.split(cut), Y.split(cut), A.split(cut), mask.split(cut), strict=True
        )
    ]
    found = torch.cat(influence_in_pieces(pieces, theta, P))
    N = 8  # tokens at mask 1
    on = mask.bool()
    gradient = P * (2 * (Y @ theta)[..., None] * Y)[on].sum(0) / N
    slope = (1 - (X @ theta).tanh().square())[..., None] * X @ gradient
    assert_close(found, torch.where(on, A[:, None].double() * slope / N, 0), **EXACT)
    refused(lambda: influence_in_pieces([], theta), "pieces")


def test_a_long_step_is_divided_until_two_estimates_agree():
    """sin(a x) over a step of 1: a = 1 takes five places, a = 12 more, a of 1000 is given up."""
    passes = []

    def change(a, places):
        passes.clear()

        def entropy(x):
            passes.append(None)
            return torch.sin(a * x)

        x = torch.linspace(0, 1, 12, dtype=torch.float64).view(3, 4)
        found = first_order(entropy, x, torch.ones_like(x), order=3)[1]
        assert len(passes) == places
        return found, torch.sin(a * (x + 1)) - torch.sin(a * x)

    near(*change(1, 5), 1e-4)
    found, real = change(12, 17)
    assert (found - real).norm() < 0.02 * real.norm()
    wild = 2000 * torch.rand(3, 4, generator=torch.Generator().manual_seed(0)).double()
    change(wild, 33)


def test_inference_mode_is_an_error_and_no_zeros():
    """torch takes every derivative for 0 there, and says nothing."""
    z, d = torch.tensor([[[1.0, 0.0, -1.0]]]), torch.tensor([[[1.0, 0.0, 0.0]]])

    def entropy(z: Tensor) -> Tensor:
        return -(z.softmax(-1) * z.log_softmax(-1)).sum(-1)

    def logp(z: Tensor) -> Tensor:
        return z.log_softmax(-1)[..., 0]

    # dH/dz_0 = -p_0 (ln p_0 + H)
    p = (torch.tensor([1.0, 0.0, -1.0])).double().exp()
    p = p / p.sum()
    H = -(p * p.log()).sum()
    one, mask = torch.ones(1), torch.ones(1, 1)
    with torch.no_grad():
        change = es.dynamics.first_order(entropy, z, d)[1]
    assert change.item() == pytest.approx(float(-p[0] * (p[0].log() + H)), rel=1e-5)
    for call in (
        lambda: es.dynamics.first_order(entropy, z, d),
        lambda: es.dynamics.first_order(entropy, z, d, order=3),
        lambda: es.dynamics.influence(logp, entropy, z, one, mask),
    ):
        with torch.inference_mode(), pytest.raises(ValueError, match=r"inference_mode\(\) is on"):
            call()
