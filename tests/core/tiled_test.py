"""Token statistics by tiles against decimals, closed forms in float64 and finite differences."""

import contextlib
import math
import sys
from decimal import Decimal, localcontext

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import grad
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import entrostat as es
from builders import f64
from examples import examples
from processes import run_code

FIELDS = ("logp", "entropy", "sum_p2", "sum_p2_logp")
INF = math.inf
VOCABULARY = 151936
TIGHT = {"rtol": 1e-10, "atol": 1e-12}


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# ---------------------------------------------------------------------------- what is expected


class Exact:
    """Statistics of [N, V] logits in float64 by their definitions, and gradients of the logits.

    Where one token has more than half, 1 - p and log p of it follow from the others' p, and its
    gradient from theirs: a gradient of softmax's logits sums to 0.
    """

    def __init__(self, logits: Tensor, targets: Tensor) -> None:
        z = logits.detach().double().numpy()
        self.rows, self.targets = np.arange(len(z)), targets.numpy()
        shifted = z - z.max(1, keepdims=True)
        lp = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        p = np.exp(lp)
        self.top = np.argmax(p, 1)
        self.likely = p[self.rows, self.top] > 0.5
        rows, top = self.rows[self.likely], self.top[self.likely]
        others = p[rows]
        others[np.arange(len(rows)), top] = 0
        p[rows, top], lp[rows, top] = 1 - others.sum(1), np.log1p(-others.sum(1))
        self.p, self.lp = p, np.where(p > 0, lp, 0)
        self.values = {
            "logp": lp[self.rows, self.targets],
            "entropy": -(p * self.lp).sum(1),
            "sum_p2": (p**2).sum(1),
            "sum_p2_logp": (p**2 * self.lp).sum(1),
        }

    def value(self, field: str) -> Tensor:
        return torch.from_numpy(self.values[field])

    def gradient(self, field: str) -> Tensor:
        """[N, V] gradient of the sum over tokens of a statistic."""
        p, lp = self.p, self.lp
        if field == "logp":
            out = -p.copy()
            out[self.rows, self.targets] += 1
        elif field == "entropy":
            out = -p * (lp + self.values["entropy"][:, None])
        else:
            # M_kj = sum p^k (log p)^j: k p^k lp^j + j p^k lp^(j-1) - p (k M_kj + j M_k,j-1)
            S2, S2L = (self.values[x][:, None] for x in ("sum_p2", "sum_p2_logp"))
            out = (
                2 * p * (p - S2) if field == "sum_p2" else 2 * p**2 * lp + p**2 - p * (2 * S2L + S2)
            )
        rows, top = self.rows[self.likely], self.top[self.likely]
        out[rows, top] = 0
        out[rows, top] = -out[rows].sum(1)
        return torch.from_numpy(out)


def decimals(logits: list[float], target: int) -> dict[str, tuple[float, list[float]]]:
    """Value and gradient of each statistic of one row, in 60 digits."""
    with localcontext() as context:
        context.prec = 60
        z = [Decimal(x) for x in logits]
        lp = [x - max(z) for x in z]
        norm = sum(x.exp() for x in lp).ln()
        lp = [x - norm for x in lp]
        p = [x.exp() for x in lp]
        H = -sum(a * b for a, b in zip(p, lp, strict=True))
        S2 = sum(a * a for a in p)
        S2L = sum(a * a * b for a, b in zip(p, lp, strict=True))
        both = list(zip(p, lp, strict=True))
        found = {
            "logp": (lp[target], [(i == target) - a for i, a in enumerate(p)]),
            "entropy": (H, [-a * (b + H) for a, b in both]),
            "sum_p2": (S2, [2 * a * (a - S2) for a in p]),
            "sum_p2_logp": (S2L, [2 * a * a * b + a * a - a * (2 * S2L + S2) for a, b in both]),
        }
        return {k: (float(v), [float(x) for x in g]) for k, (v, g) in found.items()}


@pytest.mark.parametrize(
    "row",
    [
        [0.0, 1.0, -2.0, 0.5, 0.25],
        [3.0, 3.0, -1.0, 3.0, 0.0],
        [-12.0, 0.0, -14.5, -13.0, -40.0],
        [-30.0, -29.0, -33.0, 0.0, -28.0],
        [7.0, 7.0, -20.0, -22.0, -21.0],
    ],
)
@pytest.mark.parametrize("target", [0, 1, 3])
def test_the_closed_form_of_these_tests_against_decimals(row, target):
    exact = Exact(f64([row]), torch.tensor([target]))
    for field, (value, gradient) in decimals(row, target).items():
        assert exact.value(field).item() == pytest.approx(value, rel=1e-13, abs=1e-300)
        scale = max(map(abs, gradient))
        assert exact.gradient(field)[0].tolist() == pytest.approx(
            gradient, rel=1e-11, abs=1e-11 * scale + 1e-17 * (row[0] == 7)
        )


def of_logits(logits: Tensor, targets: Tensor, **options) -> tuple[es.TokenStats, Tensor]:
    """Statistics of exactly these [N, V] logits, and the weight [V, N] whose gradient is theirs.

    hidden is the identity, so each logit is 1 * logit + 0s; -inf comes by a bias.
    """
    weight = logits.t().contiguous().requires_grad_()
    hidden = torch.eye(len(logits), dtype=logits.dtype)
    options = {"implementation": "tiled", "moments": True, **options}
    return es.token_stats(hidden, weight, targets, **options), weight


def check_values(stats: es.TokenStats, exact: Exact, **tolerance) -> None:
    for field in FIELDS:
        assert_close(getattr(stats, field).double(), exact.value(field), **tolerance)


def logits_gradient(stats: es.TokenStats, field: str, weight: Tensor, gain: float = 1.0) -> Tensor:
    """[N, V] gradient of a statistic's sum."""
    (found,) = grad(gain * getattr(stats, field).sum(), weight, retain_graph=True)
    return found.t()


# ---------------------------------------------------------------------------- random shapes


@st.composite
def problems(draw) -> dict:
    N, V, D = draw(st.integers(0, 9)), draw(st.integers(1, 23)), draw(st.integers(1, 5))
    g = generator(draw(st.integers(0, 2**31)))
    scale = draw(st.sampled_from([0.1, 1.0, 6.0]))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    targets = torch.randint(0, V, (N,), generator=g)
    if draw(st.booleans()):
        targets[torch.rand(N, generator=g) < 0.4] = -100
    return {
        "hidden": normal(N, D) * scale,
        "weight": normal(V, D),
        "bias": normal(V) if draw(st.booleans()) else None,
        "targets": targets,
        "gains": normal(4, N),
        "used": draw(st.lists(st.booleans(), min_size=4, max_size=4)),
        "wanted": draw(st.lists(st.booleans(), min_size=3, max_size=3)),
        "temperature": draw(st.sampled_from([1.0, 0.6, 2.5])),
        "softcap": draw(st.sampled_from([None, 2.0, 30.0])),
        "scale": draw(st.sampled_from([1.0, 0.25, 3.0])),
        "tile": (draw(st.integers(1, 10)), draw(st.integers(1, 25))),
        "moments": draw(st.booleans()),
    }


@settings(max_examples=examples(250), derandomize=True, deadline=None, database=None)
@given(problems())
@pytest.mark.parametrize("implementation", ["tiled", "plain"])
def test_any_shape_and_setting(implementation, a):
    hidden, weight, bias, targets = (a[x] for x in ("hidden", "weight", "bias", "targets"))
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    untouched = [x.clone() for x in inputs]
    wanted = [x for x, y in zip(inputs, a["wanted"], strict=False) if y]
    for x in wanted:
        x.requires_grad_()
    moments = a["moments"]
    stats = es.token_stats(
        hidden, weight, targets, bias, a["temperature"], a["softcap"], moments,
        scale=a["scale"], tile=a["tile"], implementation=implementation,
    )  # fmt: skip

    # softcap(scale (hidden weight^T + bias)) / temperature, by hand
    keep = targets != -100
    raw = hidden.detach()[keep] @ weight.detach().t() + (0 if bias is None else bias.detach())
    z, slope = a["scale"] * raw, torch.full_like(raw, a["scale"])
    if a["softcap"] is not None:
        slope = slope / torch.cosh(z / a["softcap"]).square()
        z = a["softcap"] * torch.tanh(z / a["softcap"])
    exact = Exact(z / a["temperature"], targets[keep])
    fields = FIELDS if moments else FIELDS[:2]
    assert moments or stats.sum_p2 is None
    assert moments or stats.sum_p2_logp is None
    loss, dz = torch.zeros(()).double(), torch.zeros_like(raw)
    for field, gain, used in zip(fields, a["gains"], a["used"], strict=False):
        got = getattr(stats, field)
        assert got.dtype == torch.float64
        assert got[~keep].tolist() == [0.0] * int((~keep).sum())
        assert_close(got[keep], exact.value(field), rtol=1e-9, atol=1e-12)
        if used:
            loss = loss + (gain * got).sum()
            dz += gain[keep, None] * exact.gradient(field)
    for x, y in zip(inputs, untouched, strict=True):
        assert torch.equal(x, y)
    if not wanted or not loss.requires_grad:
        return
    draw = dz * slope / a["temperature"]
    by_hand = {id(weight): draw.t() @ hidden.detach()[keep], id(bias): draw.sum(0)}
    by_hand[id(hidden)] = torch.zeros_like(hidden).index_put((keep,), draw @ weight.detach())
    for x, got in zip(wanted, grad(loss, wanted), strict=True):
        assert_close(got, by_hand[id(x)], rtol=1e-8, atol=1e-10)


def problem(
    N: int = 7, V: int = 11, D: int = 3, dtype: torch.dtype = torch.float64, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """hidden [N, D], weight [V, D], bias [V], targets [N]; the first three need gradients."""
    g = generator(seed)
    tensors = [
        torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype).requires_grad_()
        for shape in ((N, D), (V, D), (V,))
    ]
    hidden, weight, bias = tensors
    return hidden, weight, bias, torch.randint(0, V, (N,), generator=g)


def logits_of(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    z = hidden.detach().double() @ weight.detach().double().t()
    return z if bias is None else z + bias.detach().double()


@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("tile", [(3, 4), (7, 11), (1, 1), (512, 2048)])
def test_gradients_by_finite_differences(tile, softcap):
    hidden, weight, bias, targets = problem()

    def statistics(*inputs: Tensor) -> tuple[Tensor, ...]:
        x, w, b = inputs
        stats = es.token_stats(
            x, w, targets, b, 0.8, softcap, True, scale=1.3, implementation="tiled", tile=tile
        )
        return tuple(getattr(stats, field) for field in FIELDS)

    # entry by entry for one tile, along random directions for the others
    assert torch.autograd.gradcheck(
        statistics, (hidden, weight, bias), eps=1e-6, atol=1e-8, rtol=1e-6,
        fast_mode=tile != (3, 4),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float64, 1e-13), (torch.float32, 2e-6)],
    ids=["f64", "f32"],
)
def test_results_do_not_depend_on_the_tile(dtype, tolerance):
    hidden, weight, bias, targets = problem(N=37, V=53, D=5, dtype=dtype)
    exact = Exact(logits_of(hidden, weight, bias), targets)
    seen = []
    for tile in ((37, 53), (1, 1), (2, 3), (36, 52), (37, 1), (1, 53), (38, 54), (10**6, 10**6)):
        stats = es.token_stats(
            hidden, weight, targets, bias, moments=True, implementation="tiled", tile=tile
        )
        check_values(stats, exact, rtol=2 * tolerance, atol=2 * tolerance)
        loss = sum(getattr(stats, x).square().sum() for x in FIELDS)
        seen.append([getattr(stats, x) for x in FIELDS] + list(grad(loss, (hidden, weight, bias))))
    for other in seen[1:]:
        for x, y in zip(seen[0], other, strict=True):
            assert_close(x, y, rtol=10 * tolerance, atol=10 * tolerance)


def test_strips_of_a_tile():
    # a tile is worked through in strips of rows: 96 rows of 6001 columns are three, the last ragged
    hidden, weight, bias, targets = problem(N=96, V=6001, D=2)
    exact = Exact(logits_of(hidden, weight, bias), targets)
    stats = es.token_stats(
        hidden, weight, targets, bias, moments=True, implementation="tiled", tile=(96, 6001)
    )
    check_values(stats, exact, **TIGHT)
    for field in FIELDS:
        (found,) = grad(getattr(stats, field).sum(), hidden, retain_graph=True)
        assert_close(found, exact.gradient(field) @ weight.detach(), **TIGHT)


# ---------------------------------------------------------------------------- where the largest is


def placed(top: int, V: int = 12, height: float = 4.0) -> list[float]:
    row = [0.5 * math.sin(3.0 * i) for i in range(V)]
    row[top] = height
    return row


@pytest.mark.parametrize("top", [0, 3, 4, 9, 10, 11])
@pytest.mark.parametrize("height", [4.0, 40.0])
@pytest.mark.parametrize("target", ["it", "another"])
def test_the_largest_may_be_in_any_tile(top, height, target):
    # tiles of 4, 4 and 4 columns, and of 5, 5 and a ragged 2
    logits = f64([placed(top, height=height)] * 3)
    targets = torch.full((3,), top if target == "it" else (top + 5) % 12)
    exact = Exact(logits, targets)
    for tile in ((2, 4), (2, 5)):
        stats, weight = of_logits(logits, targets, tile=tile)
        check_values(stats, exact, rtol=1e-12, atol=0)
        for field in FIELDS:
            found, want = logits_gradient(stats, field, weight), exact.gradient(field)
            scale = want.abs().max().item()
            assert_close(found, want, rtol=1e-9, atol=1e-9 * scale)


@pytest.mark.parametrize("step", [0.3, -0.3, 5.0, -5.0, 60.0, -60.0])
@pytest.mark.parametrize("columns", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_largest_moves_at_every_tile(dtype, columns, step):
    logits = torch.stack([step * torch.arange(20), step * torch.arange(20) - 1e4]).to(dtype)
    targets = torch.tensor([19, 3])
    exact = Exact(logits, targets)
    stats, weight = of_logits(logits, targets, tile=(2, columns))
    tolerance = 1e-6 if dtype == torch.float32 else 1e-12
    check_values(stats, exact, rtol=tolerance, atol=0)
    for field in FIELDS:
        want = exact.gradient(field)
        assert_close(
            logits_gradient(stats, field, weight).double(), want,
            rtol=10 * tolerance, atol=tolerance * want.abs().max().item(),
        )  # fmt: skip


def test_errors_do_not_add_up_where_the_largest_moves_a_thousand_times():
    # one column per tile; each new largest scales what was summed before it
    logits = torch.stack([2**-10 * torch.arange(1500), 2**-7 * torch.arange(1500) - 40.0])
    targets = torch.tensor([1499, 700])
    stats, _ = of_logits(logits, targets, tile=(2, 1))
    check_values(stats, Exact(logits, targets), rtol=1.3e-7, atol=0)


@pytest.mark.parametrize(
    "tied",
    [[0, 1], [0, 4], [3, 11], [8, 9, 10], [0, 1, 4, 5, 8, 9], list(range(12))],
    ids=str,
)
@pytest.mark.parametrize("level", [0.0, 6.0, 60.0, -1e4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ties_at_the_top(dtype, level, tied):
    # k of the largest logit and 12 - k of one that is d less: weights 1 and w = exp(-d)
    k, d = len(tied), 2.5
    row = torch.full((12,), level - d, dtype=dtype)
    row[tied] = level
    targets = torch.tensor([tied[0], tied[-1], 7])
    stats, weight = of_logits(row.expand(3, 12), targets, tile=(2, 4))
    w = math.exp(-d)
    n = k + (12 - k) * w
    H = math.log(n) + (12 - k) * w * d / n
    log_probs = [-math.log(n), -math.log(n), -math.log(n) - (0 if 7 in tied else d)]
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    assert_close(stats.logp.double(), f64(log_probs), rtol=tolerance, atol=0)
    assert_close(stats.entropy.double(), f64([H] * 3), rtol=tolerance, atol=0)
    squares = (k + (12 - k) * w * w) / n**2
    assert_close(stats.sum_p2.double(), f64([squares] * 3), rtol=tolerance, atol=0)
    # each token of the largest logit gets the same gradient, whichever was left out of the sums
    for field in FIELDS[1:]:
        found = logits_gradient(stats, field, weight)
        first = found[0, tied[0]].item()
        assert found[:, tied].flatten().tolist() == pytest.approx(
            [first] * (3 * k), rel=1e-5, abs=1e-7
        )
    found = logits_gradient(stats, "entropy", weight)
    by_hand = [[(1 / n) * -(-math.log(n) + H) if i in tied else 0.0 for i in range(12)]] * 3
    for i in set(range(12)) - set(tied):
        by_hand[0][i] = (w / n) * -(-math.log(n) - d + H)
    assert_close(found.double(), f64(by_hand), rtol=1e-5, atol=1e-7)


# ---------------------------------------------------------------------------- 151,936 tokens


def vocabulary_rows() -> dict[str, Tensor]:
    """Float32 rows [n, 151936] by kind."""
    g, V = generator(0), VOCABULARY
    tail = torch.randn(V, generator=g, dtype=torch.float64)
    tail -= tail.logsumexp(0)
    peaked, far, tied, twins = [], [], [], []
    for exponent in range(1, 13):
        rest = 10.0**-exponent
        row = (tail + math.log(rest / (1 - rest))).float()
        row[(7919 * exponent**3) % V] = 0.0
        peaked.append(row)
        # logits of size 1e4 are multiples of 2^-10
        far.append((row.double() - 1e4).float())
        # equal odds for all tokens but one
        flat = torch.full((V,), math.log(rest / (1 - rest) / (V - 1)))
        flat[(104729 * exponent) % V] = 0.0
        tied.append(flat)
        # two tokens of the same logit, the first and the last, share 1 - rest
        row = row.clone()
        row[row == 0] = -50.0
        row[0] = row[-1] = -math.log(2)
        twins.append(row)
    level = torch.randn(V, generator=g)
    return {
        "peaked": torch.stack(peaked),
        "far below 0": torch.stack(far),
        "tied tail": torch.stack(tied),
        "tied top": torch.stack(twins),
        "flat": torch.stack([torch.zeros(V), torch.full((V,), -1e4), 1e-3 * level, level]),
    }


@pytest.fixture(scope="module")
def vocabulary() -> dict[str, Tensor]:
    return vocabulary_rows()


KINDS = ("peaked", "far below 0", "tied tail", "tied top", "flat")


@pytest.mark.parametrize("kind", KINDS)
def test_accuracy_at_151936_tokens(vocabulary, kind):
    logits = vocabulary[kind]
    N = len(logits)
    top = logits.argmax(1)
    # half of the targets are the largest, half are not
    targets = torch.where(torch.arange(N) % 2 == 0, top, (top + 70_001) % VOCABULARY)
    stats, weight = of_logits(logits, targets)
    assert {getattr(stats, x).dtype for x in FIELDS} == {torch.float32}
    exact = Exact(logits, targets)
    if kind in ("peaked", "tied tail"):  # the rows are what they are meant to be
        rest = 1 - np.exp(exact.lp[exact.rows, exact.top])
        assert np.log10(rest[:9]) == pytest.approx(-np.arange(1.0, 10), abs=0.01)
    # relative, however small the entropy and the log-prob are
    check_values(stats, exact, rtol=1e-6, atol=0)
    for field in FIELDS:
        found, want = logits_gradient(stats, field, weight).double(), exact.gradient(field)
        # the largest of a row, which is nearly certain: 1 - p cancels if it is written so
        at = torch.arange(N)
        # (p - S2 of nearly equal tokens does, so moments of such rows keep only the last bound)
        if field in ("logp", "entropy") or kind not in ("tied top", "flat"):
            scale = want.abs().max(1).values + 1e-20  # where all are alike it is 0
            assert ((found[at, top] - want[at, top]).abs() <= 1e-5 * scale).all()
            # the whole row, in the largest norm and in the sum of sizes
            assert ((found - want).abs().max(1).values <= 1e-5 * scale).all()
            total = want.abs().sum(1)
            assert ((found - want).abs().sum(1) <= 1e-5 * total + 1e-30).all()
        # and each entry, against the terms it is the sum of
        p, lp = torch.from_numpy(exact.p), torch.from_numpy(exact.lp)
        H = exact.value("entropy")[:, None]
        terms = p if field in ("logp", "sum_p2") else p * (lp.abs() + H)
        others = torch.ones_like(p, dtype=torch.bool)
        others[at, top] = False
        limit = 1e-5 * (want.abs() + terms)
        assert ((found - want).abs() <= limit)[others].all()


@pytest.mark.parametrize("exponent", [3, 6, 9, 12])
def test_the_gradient_of_a_nearly_certain_token_in_closed_form(exponent):
    # two tokens: p = 1 / (1 + r), 1 - p = r / (1 + r), r = exp(x)
    x = torch.tensor(math.log(10.0**-exponent))
    logits, targets = torch.stack([x * 0, x])[None], torch.tensor([0])
    stats, weight = of_logits(logits, targets, tile=(1, 1))
    r, x = math.exp(x.item()), x.item()
    p, q = 1 / (1 + r), r / (1 + r)
    # logit 0 against logit x: dp/dz = p q
    by_hand = {
        "logp": q,
        "entropy": p * q * x,  # d/dz of -(p log p + q log q) = p q (log q - log p)
        "sum_p2": 2 * p * q * (1 - r) / (1 + r),  # 2 p q (p - q)
        # p q (2 p log p + p - 2 q log q - q)
        "sum_p2_logp": p * q * (p - q + 2 * (p * -math.log1p(r) - q * (x - math.log1p(r)))),
    }
    for field, want in by_hand.items():
        found = logits_gradient(stats, field, weight)[0]
        assert found.tolist() == pytest.approx([want, -want], rel=1e-5, abs=0)


# ---------------------------------------------------------------------------- tokens that cannot be


@pytest.mark.parametrize("implementation", ["tiled", "plain"])
@pytest.mark.parametrize("gain", [1.0, -1000.0])
@pytest.mark.parametrize(
    "gone",
    [[2], [0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10], [0, 1, 2, 3, 4, 5, 6, 7], [1, 5, 9], "all but 6"],
    ids=str,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("low", [-INF, "lowest"])
def test_a_token_that_cannot_be(implementation, gain, gone, dtype, low):
    # tiles of 4, 4 and 3 columns, some without a possible token; all is as without those tokens.
    # The dtype's lowest number is a common -inf; temperature 1/2 makes -inf of it
    gone = [i for i in range(11) if i != 6] if gone == "all but 6" else gone
    keep = [i for i in range(11) if i not in gone]
    hidden, weight, bias, _ = problem(N=3, dtype=dtype)
    with torch.no_grad():
        bias[gone] = torch.finfo(dtype).min if low == "lowest" else low
    targets = torch.tensor([keep[len(keep) // 2], keep[0], keep[-1]])
    for temperature in (1.0, 0.5):
        stats = es.token_stats(
            hidden, weight, targets, bias, temperature, moments=True,
            implementation=implementation, tile=(2, 4),
        )  # fmt: skip
        z = logits_of(hidden, weight, bias)[:, keep] / temperature
        exact = Exact(z, torch.tensor([keep.index(t) for t in targets.tolist()]))
        tolerance = 2e-6 if dtype == torch.float32 else 1e-12
        check_values(stats, exact, rtol=tolerance, atol=tolerance)
        for field in FIELDS:
            loss = gain * getattr(stats, field).sum()
            dh, dw, db = grad(loss, (hidden, weight, bias), retain_graph=True)
            dz = gain * exact.gradient(field) / temperature
            near = {"rtol": 10 * tolerance, "atol": 10 * tolerance * abs(gain)}
            assert_close(db[keep].double(), dz.sum(0), **near)
            assert_close(dw[keep].double(), dz.t() @ hidden.detach().double(), **near)
            assert_close(dh.double(), dz @ weight.detach().double()[keep], **near)
            assert db[gone].tolist() == [0.0] * len(gone)
            assert dw[gone].abs().max().item() == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_token_that_cannot_be_in_half_precision(dtype):
    """fp16 has no number as low as what stands in for -inf: compared in it, nothing is lower."""
    bias = torch.zeros(8, dtype=dtype)
    bias[3] = -INF
    hidden = torch.zeros(2, 4, dtype=dtype, requires_grad=True)
    weight = torch.ones(8, 4, dtype=dtype)
    found = es.token_stats(
        hidden,
        weight,
        torch.tensor([0, 1]),
        bias,
        moments=True,
        implementation="tiled",
        tile=(4, 3),
    )
    # seven equal ones are left
    assert_close(found.entropy, torch.full((2,), math.log(7)))
    assert_close(found.sum_p2, torch.full((2,), 1 / 7))
    assert_close(found.logp, torch.full((2,), -math.log(7)))
    found.entropy.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_the_log_prob_of_a_token_that_cannot_be():
    bias = f64([0.0, -INF, 1.0])
    stats = es.token_stats(
        torch.zeros(1, 1).double(), torch.zeros(3, 1).double(), torch.tensor([1]), bias,
        implementation="tiled", tile=(1, 2),
    )  # fmt: skip
    assert stats.logp.item() == -INF
    p = 1 / (1 + math.e)
    assert stats.entropy.item() == pytest.approx(
        -(p * math.log(p) + (1 - p) * math.log(1 - p)), rel=1e-13
    )


@pytest.mark.parametrize("level", [-1e15, 1e15, 1e32, 3e38])
def test_rows_of_enormous_logits(level):
    stats, weight = of_logits(torch.full((1, 8), level), torch.tensor([3]), tile=(1, 3))
    assert stats.logp.item() == pytest.approx(-math.log(8), rel=1e-6)
    assert stats.entropy.item() == pytest.approx(math.log(8), rel=1e-6)
    found = logits_gradient(stats, "logp", weight)
    by_hand = [[7 / 8 if i == 3 else -1 / 8 for i in range(8)]]
    assert_close(found, torch.tensor(by_hand), rtol=1e-6, atol=0)


# ---------------------------------------------------------------------------- edges


def test_a_vocabulary_of_one():
    hidden, weight, _, _ = problem(N=2, V=1)
    stats = es.token_stats(
        hidden, weight, torch.zeros(2).long(), moments=True, implementation="tiled"
    )
    assert [getattr(stats, x).tolist() for x in FIELDS] == [[0, 0], [0, 0], [1, 1], [0, 0]]
    total = sum(getattr(stats, x).sum() for x in FIELDS)
    for found in grad(total, (hidden, weight)):
        assert found.abs().max().item() == 0


@pytest.mark.parametrize("implementation", ["tiled", "plain", "auto"])
@pytest.mark.parametrize("shape", [(0,), (3, 0), (2, 3), ()])
def test_no_target(implementation, shape):
    # N = 0, or every target is ignored
    hidden = torch.randn(*shape, 3, generator=generator(0)).requires_grad_()
    _, weight, bias, _ = problem(dtype=torch.float32)
    stats = es.token_stats(
        hidden, weight, torch.full(shape, -100), bias, moments=True, implementation=implementation
    )
    for field in FIELDS:
        got = getattr(stats, field)
        assert got.dtype == torch.float32
        assert got.shape == shape
        assert not got.any()
        for x, found in zip(
            (hidden, weight, bias),
            grad(got.sum(), (hidden, weight, bias), retain_graph=True),
            strict=True,
        ):
            assert torch.equal(found, torch.zeros_like(x))


@pytest.mark.parametrize("implementation", ["tiled", "plain"])
@pytest.mark.parametrize("ignore_index", [-100, -1, 5])
def test_ignored_targets(implementation, ignore_index):
    # an id of the vocabulary may be the one that is ignored
    hidden, weight, bias, _ = problem(N=6)
    targets = torch.tensor([[0, 5], [9, 1], [10, 2]])
    ignored = torch.tensor([[True, True], [False, False], [True, False]])
    stats = es.token_stats(
        hidden.view(3, 2, 3), weight, targets.masked_fill(ignored, ignore_index), bias,
        moments=True, ignore_index=ignore_index, implementation=implementation, tile=(2, 4),
    )  # fmt: skip
    keep = ~ignored.flatten()
    exact = Exact(logits_of(hidden, weight, bias)[keep], targets.flatten()[keep])
    for field in FIELDS:
        got = getattr(stats, field)
        assert got.shape == (3, 2)
        assert got[ignored].tolist() == [0.0, 0.0, 0.0]
        assert_close(got[~ignored], exact.value(field), **TIGHT)
        dh, dw = grad(got.sum(), (hidden, weight), retain_graph=True)
        dz = exact.gradient(field)
        assert dh[~keep].abs().max().item() == 0
        assert_close(dh[keep], dz @ weight.detach(), **TIGHT)
        assert_close(dw, dz.t() @ hidden.detach()[keep], **TIGHT)


def test_inputs_of_any_layout():
    hidden, weight, bias, targets = problem()
    exact = Exact(logits_of(hidden, weight, bias), targets)
    wide = torch.zeros(22, 5, dtype=torch.float64)
    wide[::2, 1:4] = weight.detach()
    stats = es.token_stats(
        hidden.detach().t().contiguous().t(), wide[::2, 1:4], targets,
        torch.stack([bias.detach(), bias.detach()], 1)[:, 0],
        moments=True, implementation="tiled", tile=(2, 4),
    )  # fmt: skip
    check_values(stats, exact, **TIGHT)
    # and of gradients: that of a sum is one number, expanded
    spread = hidden[:1].expand(7, 3)
    (found,) = grad(
        es.token_stats(spread, weight, targets, implementation="tiled").entropy.mean(), hidden
    )
    once = Exact(logits_of(hidden[:1], weight), targets[:1])
    assert_close(found[0], once.gradient("entropy")[0] @ weight.detach(), **TIGHT)


# ---------------------------------------------------------------------------- dtypes


PAIRS = [
    (torch.bfloat16, torch.bfloat16),
    (torch.float16, torch.float16),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.float32),
    (torch.float64, torch.float64),
]
UNIT = {torch.bfloat16: 2**-8, torch.float16: 2**-11, torch.float32: 2**-23, torch.float64: 2**-52}


@pytest.mark.parametrize("implementation", ["tiled", "plain"])
@pytest.mark.parametrize(("one", "other"), PAIRS, ids=str)
def test_dtypes(implementation, one, other):
    # products of halves are exact in float32, sums are float32; only gradients round to the halves,
    # once: also that of a bias, which is a sum over 200 rows of tiles
    hidden, weight, bias, targets = problem(N=400, dtype=one)
    weight, bias = (x.detach().to(other).requires_grad_() for x in (weight, bias))
    stats = es.token_stats(
        hidden, weight, targets, bias, moments=True, implementation=implementation, tile=(2, 6)
    )
    best = torch.float64 if one == torch.float64 else torch.float32
    assert {getattr(stats, x).dtype for x in FIELDS} == {best}
    exact = Exact(logits_of(hidden, weight, bias), targets)
    check_values(stats, exact, rtol=8 * UNIT[best], atol=8 * UNIT[best])
    for field in FIELDS:
        dh, dw, db = grad(getattr(stats, field).sum(), (hidden, weight, bias), retain_graph=True)
        dz = exact.gradient(field)
        for x, found, want in (
            (hidden, dh, dz @ weight.detach().double()),
            (weight, dw, dz.t() @ hidden.detach().double()),
            (bias, db, dz.sum(0)),
        ):
            assert found.dtype == x.dtype
            sums = 400 * 8 * UNIT[best] * dz.abs().max().item()
            assert_close(found.double(), want, rtol=1.1 * UNIT[x.dtype], atol=sums + 2**-24)


@pytest.mark.parametrize(
    ("implementation", "backward"),
    # autocast rounds plain operations of a backward pass that runs inside it
    [("tiled", "outside"), ("tiled", "inside"), ("plain", "outside")],
)
def test_autocast(implementation, backward):
    # a bfloat16 body, a float32 head: the statistics and their gradients stay float32
    layer = torch.nn.Linear(3, 3)
    torch.nn.init.normal_(layer.weight, generator=generator(1))
    torch.nn.init.zeros_(layer.bias)
    hidden, weight, bias, targets = problem(dtype=torch.float32)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    with autocast:
        inner = layer(hidden.detach())
        assert inner.dtype == torch.bfloat16
        found = [
            es.token_stats(
                x, weight, targets, bias, moments=True, implementation=implementation, tile=(2, 4)
            )
            for x in (inner, hidden)
        ]
    for x, stats in zip((inner, hidden), found, strict=True):
        assert {getattr(stats, f).dtype for f in FIELDS} == {torch.float32}
        exact = Exact(logits_of(x, weight, bias), targets)
        check_values(stats, exact, rtol=2e-6, atol=2e-6)
        with autocast if backward == "inside" else contextlib.nullcontext():
            dx, dw, db = grad(stats.entropy.sum(), (x, weight, bias), retain_graph=True)
        dz = exact.gradient("entropy")
        assert dx.dtype == x.dtype
        near = UNIT[x.dtype] + 1e-5
        assert_close(dx.double(), dz @ weight.detach().double(), rtol=near, atol=1e-6)
        assert_close(dw.double(), dz.t() @ x.detach().double(), rtol=1e-5, atol=1e-6)
        assert_close(db.double(), dz.sum(0), rtol=1e-5, atol=1e-6)
    found[0].entropy.sum().backward()
    assert layer.weight.grad.abs().min().item() > 0


# ---------------------------------------------------------------------------- gradients wanted


@pytest.mark.parametrize("implementation", ["tiled", "plain"])
def test_a_frozen_head_and_frozen_hidden_states(implementation):
    hidden, weight, bias, targets = problem()
    exact = Exact(logits_of(hidden, weight, bias), targets)
    dz = exact.gradient("entropy")
    by_hand = [dz @ weight.detach(), dz.t() @ hidden.detach(), dz.sum(0)]
    for needed in range(1, 8):
        inputs = [
            x.detach().requires_grad_(bool(needed >> i & 1))
            for i, x in enumerate((hidden, weight, bias))
        ]
        es.token_stats(
            inputs[0], inputs[1], targets, inputs[2], implementation=implementation, tile=(2, 4)
        ).entropy.sum().backward()
        for x, want in zip(inputs, by_hand, strict=True):
            if x.requires_grad:
                assert_close(x.grad, want, **TIGHT)
            else:
                assert x.grad is None
    inputs = [x.detach() for x in (hidden, weight, bias)]
    stats = es.token_stats(inputs[0], inputs[1], targets, inputs[2], implementation=implementation)
    assert not stats.logp.requires_grad
    with torch.inference_mode():
        stats = es.token_stats(hidden, weight, targets, bias, implementation=implementation)
        assert_close(stats.entropy, exact.value("entropy"), **TIGHT)


@pytest.mark.parametrize("implementation", ["tiled", "plain"])
def test_a_head_that_is_the_embedding(implementation):
    _, weight, bias, targets = problem()

    def statistics(w: Tensor) -> tuple[Tensor, ...]:
        hidden = torch.nn.functional.embedding(targets, w).sin()
        stats = es.token_stats(
            hidden, w, targets.roll(1), bias.detach(), moments=True,
            implementation=implementation, tile=(2, 4),
        )  # fmt: skip
        return tuple(getattr(stats, field) for field in FIELDS)

    assert torch.autograd.gradcheck(statistics, (weight,), eps=1e-6, atol=1e-8, rtol=1e-6)


class Work(TorchDispatchMode):
    """Counts multiplications of matrix products, numbers that other operations read or write."""

    def __init__(self) -> None:
        super().__init__()
        self.products, self.numbers, self.largest = 0, {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.rstrip("_")
        tensors = [x for x in (out if isinstance(out, tuple | list) else [out]) if x is not None]
        sizes = [x.numel() for x in tensors if isinstance(x, Tensor)]
        size = max(sizes, default=0)
        if func.is_view:
            return out
        if name in ("mm", "addmm"):
            a, b = args[-2:]
            self.products += a.shape[0] * a.shape[1] * b.shape[1]
        else:
            self.numbers[name] = self.numbers.get(name, 0) + size
        self.largest = max(self.largest, size)
        return out


def measure(fields: tuple[str, ...], needs: tuple[bool, bool, bool], moments: bool) -> tuple:
    """Work of the forward and the backward pass at N, V, D = 6, 40, 3."""
    tensors = problem(6, 40, 3)
    hidden, weight, bias = (
        x.detach().requires_grad_(y) for x, y in zip(tensors[:3], needs, strict=True)
    )
    with Work() as forward:
        stats = es.token_stats(
            hidden, weight, tensors[3], bias, moments=moments, implementation="tiled", tile=(3, 8)
        )
    with Work() as backward:
        if any(needs):
            sum(getattr(stats, field).sum() for field in fields).backward()
    return forward, backward


@pytest.mark.parametrize(
    ("needs", "products"),
    [
        ((False, False, False), 0),
        ((False, False, True), 1),  # the logits again
        ((True, False, False), 2),
        ((False, True, False), 2),
        ((True, True, True), 3),
    ],
)
def test_matrix_products(needs, products):
    forward, backward = measure(("logp",), needs, False)
    assert forward.products == 6 * 40 * 3
    assert backward.products == products * 6 * 40 * 3


def test_what_is_not_asked_for_costs_nothing():
    needs = (True, True, True)
    forward, backward = measure(("logp", "entropy"), needs, False)
    all_forward, all_backward = measure(FIELDS, needs, True)
    # one exponential a logit, moments or not
    for work in (forward, all_forward, backward, all_backward):
        assert 240 <= work.numbers["exp"] <= 300
    assert sum(all_forward.numbers.values()) > sum(forward.numbers.values()) + 2 * 240
    assert sum(all_backward.numbers.values()) > sum(backward.numbers.values()) + 2 * 240
    # moments that the loss does not use are no work in the backward pass
    assert measure(("logp", "entropy"), needs, True)[1].numbers == backward.numbers
    assert measure(("logp",), needs, True)[1].numbers == measure(("logp",), needs, False)[1].numbers
    # nor the entropy
    only = measure(("logp",), needs, False)[1]
    assert sum(only.numbers.values()) < sum(backward.numbers.values())


def test_values_are_the_same_with_and_without_moments():
    hidden, weight, bias, targets = problem(dtype=torch.float32)
    a, b = (
        es.token_stats(hidden, weight, targets, bias, moments=x, implementation="tiled")
        for x in (False, True)
    )
    assert torch.equal(a.logp, b.logp)
    assert torch.equal(a.entropy, b.entropy)


@pytest.mark.parametrize("implementation", ["tiled", "plain"])
@pytest.mark.parametrize("linear", [True, False])
@pytest.mark.parametrize("field", FIELDS)
def test_the_gradient_of_a_gradient_is_an_error(field, linear, implementation):
    # not a gradient that lacks a part in silence, as where the statistic's own gradient is constant
    hidden, weight, bias, targets = problem()
    stats = es.token_stats(
        hidden, weight, targets, bias, moments=True, implementation=implementation
    )
    x = getattr(stats, field)
    with pytest.raises(RuntimeError, match="token_stats cannot be differentiated twice"):  # noqa: PT012
        (first,) = grad((x if linear else x.square()).sum(), hidden, create_graph=True)
        grad((first * hidden).sum(), hidden)


# ---------------------------------------------------------------------------- around it


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("implementation", ["tiled", "plain"])
def test_gradient_checkpointing(implementation, reentrant):
    hidden, weight, bias, targets = problem()
    calls = 0

    def statistics(x: Tensor) -> tuple[Tensor, ...]:
        nonlocal calls
        calls += 1
        stats = es.token_stats(
            x.sin(), weight, targets, bias, moments=True, implementation=implementation, tile=(2, 4)
        )
        return tuple(getattr(stats, field) for field in FIELDS)

    found = checkpoint(statistics, hidden, use_reentrant=reentrant)
    exact = Exact(logits_of(hidden.sin(), weight, bias), targets)
    dz = 0
    for field, got in zip(FIELDS, found, strict=True):
        assert_close(got, exact.value(field), **TIGHT)
        dz = dz + exact.gradient(field)
    sum(x.sum() for x in found).backward()
    assert calls == 2
    assert_close(hidden.grad, hidden.detach().cos() * (dz @ weight.detach()), **TIGHT)
    assert_close(weight.grad, dz.t() @ hidden.detach().sin(), **TIGHT)
    assert_close(bias.grad, dz.sum(0), **TIGHT)


# the compiler looks at the .grad of every tensor
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.long
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("implementation", ["tiled", "plain"])
def test_torch_compile(implementation, backend):
    hidden, weight, bias, targets = problem()

    @torch.compile(backend=backend)
    def loss(x: Tensor, w: Tensor, b: Tensor, ids: Tensor) -> Tensor:
        stats = es.token_stats(
            x.sin(), w, ids, b, 0.8, moments=True, implementation=implementation, tile=(2, 4)
        )
        return (stats.logp + 2 * stats.entropy + 3 * stats.sum_p2 + 4 * stats.sum_p2_logp).sum()

    got = loss(hidden, weight, bias, targets)
    exact = Exact(logits_of(hidden.sin(), weight, bias) / 0.8, targets)
    want = sum(k * exact.value(field).sum() for k, field in enumerate(FIELDS, 1))
    dz = sum(k * exact.gradient(field) for k, field in enumerate(FIELDS, 1)) / 0.8
    assert_close(got, want, **TIGHT)
    got.backward()
    assert_close(hidden.grad, hidden.detach().cos() * (dz @ weight.detach()), **TIGHT)
    assert_close(weight.grad, dz.t() @ hidden.detach().sin(), **TIGHT)
    assert_close(bias.grad, dz.sum(0), **TIGHT)


# ---------------------------------------------------------------------------- memory


MEMORY = """
import torch
import entrostat as es
torch.set_num_threads(1)
g = torch.Generator().manual_seed(0)
hidden = torch.randn(2000, 16, generator=g).requires_grad_()
weight = torch.randn(50_000, 16, generator=g).requires_grad_()
targets = torch.randint(0, 50_000, (2000,), generator=g)

def run(n, implementation):
    stats = es.token_stats(hidden[:n], weight, targets[:n], implementation=implementation)
    (stats.logp + stats.entropy).sum().backward()
    # not ru_maxrss, which starts at the size of the process that started this one
    with open("/proc/self/status") as status:
        return next(int(x.split()[1]) for x in status if x.startswith("VmHWM"))

run(20, "tiled")
before = run(20, "tiled")
tiled = run(2000, "tiled") - before
plain = run(1000, "plain") - before
print(tiled, plain)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_memory_is_far_below_that_of_the_logits(tmp_path):
    # the logits of 2000 tokens alone are 400 MB in float32
    tiled, plain = (1024 * int(x) for x in run_code(MEMORY, tmp_path).split())
    assert tiled < 40e6
    assert plain > 180e6  # half of the tokens, at once: what this test measures is there


@pytest.mark.parametrize("needs_grad", [False, True])
def test_no_tensor_of_the_size_of_the_logits(needs_grad):
    hidden, weight, bias, targets = problem(300, 9001, 2, torch.float32)
    with Work() as work, contextlib.nullcontext() if needs_grad else torch.no_grad():
        stats = es.token_stats(hidden, weight, targets, bias, moments=True)  # auto
        if needs_grad:
            (stats.entropy + stats.sum_p2).sum().backward()
    assert work.largest <= 300 * 2048
    with Work() as work, torch.no_grad():
        es.token_stats(hidden, weight, targets, implementation="tiled", tile=(100, 500))
    assert work.largest <= 100 * 500


def test_auto_takes_logits_at_once_where_they_are_few():
    hidden, weight, _, targets = problem(600, 600, 2)
    with Work() as work:
        es.token_stats(hidden, weight, targets, tile=(2, 2))
    assert work.largest == 600 * 600


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": torch.zeros(4, 3)}, r"hidden is \[\.\.\., 3\], weight \[7, 2\]"),
        ({"weight": torch.zeros(7)}, r"weight \[7\]"),
        ({"targets": torch.zeros(5).long()}, r"targets must be \[4\] .*got \[5\]"),
        ({"targets": torch.tensor([0, 7, 1, 1])}, r"targets must be in 0\.\.6 .*got 0\.\.7"),
        ({"targets": torch.tensor([0, -1, 1, -100])}, r"targets must be in 0\.\.6 .*got -1\.\.1"),
        ({"bias": torch.zeros(6)}, r"bias must be \[7\], got \[6\]"),
        ({"bias": torch.zeros(7, 1)}, r"bias must be \[7\], got \[7, 1\]"),
        ({"temperature": 0.0}, "temperature must be above 0, got 0.0"),
        ({"temperature": math.nan}, "temperature must be above 0, got nan"),
        ({"softcap": 0.0}, "softcap must be above 0, got 0.0"),
        ({"softcap": -2.0}, "softcap must be above 0, got -2.0"),
        ({"scale": 0.0}, "scale must be above 0, got 0.0"),
        ({"scale": -1.0}, "scale must be above 0, got -1.0"),
        ({"tile": (0, 4)}, r"tile must be two numbers above 0, got \(0, 4\)"),
        ({"tile": (4, -1)}, r"tile must be two numbers above 0, got \(4, -1\)"),
        ({"implementation": "fast"}, "implementation must be .*got 'fast'"),
    ],
    ids=str,
)
def test_errors_name_the_argument(change, message):
    arguments = {
        "hidden": torch.zeros(4, 2),
        "weight": torch.zeros(7, 2),
        "targets": torch.zeros(4).long(),
        **change,
    }
    with pytest.raises(ValueError, match=f"token_stats: .*{message}"):
        es.token_stats(**arguments)
