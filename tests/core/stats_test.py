"""Token statistics against decimal arithmetic, closed forms and finite differences."""

import math
from decimal import Decimal, localcontext

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused

HALVES = (torch.bfloat16, torch.float16)
FIELDS = ("logp", "entropy", "sum_p2", "sum_p2_logp")
INF = math.inf


def reference(logits: list[float], target: int, temperature: float = 1.0) -> dict[str, float]:
    """The definitions in 50 decimal digits; the logits are taken as the binary numbers they are."""
    with localcontext() as context:
        context.prec = 50
        z = [Decimal(x) / Decimal(temperature) for x in logits]
        top = max(z)
        weights = [(x - top).exp() for x in z]
        total = sum(weights)
        lp = [x - top - total.ln() for x in z]
        p = [w / total for w in weights]
        return {
            "logp": float(lp[target]),
            "entropy": float(-sum(a * b for a, b in zip(p, lp, strict=True))),
            "sum_p2": float(sum(a * a for a in p)),
            "sum_p2_logp": float(sum(a * a * b for a, b in zip(p, lp, strict=True))),
        }


def check(stats: es.TokenStats, logits: torch.Tensor, targets: torch.Tensor, **tolerance) -> None:
    """Each field of [n] statistics against the reference of [n, V] logits."""
    rows = [
        reference(row, target)
        for row, target in zip(logits.double().tolist(), targets.tolist(), strict=True)
    ]
    for field in FIELDS:
        got = getattr(stats, field)
        assert_close(got.double(), f64([row[field] for row in rows]), **tolerance)


# ---------------------------------------------------------------------------- values


@pytest.mark.parametrize(
    ("dtype", "rtol"), [(torch.float32, 2e-6), (torch.float64, 1e-13)], ids=["f32", "f64"]
)
@pytest.mark.parametrize("spread", [0.1, 1.0, 10.0])
def test_values_against_decimals(dtype, rtol, spread):
    g = torch.Generator().manual_seed(0)
    logits = (spread * torch.randn(5, 17, generator=g, dtype=torch.float64)).to(dtype)
    targets = torch.tensor([0, 4, 16, 9, 2])
    stats = es.token_stats_from_logits(logits, targets, moments=True)
    assert {getattr(stats, field).dtype for field in FIELDS} == {dtype}
    check(stats, logits, targets, rtol=rtol, atol=1e-30)


def test_values_by_hand():
    # p = 1/2, 1/4, 1/4
    p = [0.5, 0.25, 0.25]
    stats = es.token_stats_from_logits(f64(p).log() + 3, torch.tensor(1), moments=True)
    assert stats.logp.item() == pytest.approx(-2 * math.log(2), rel=1e-14)
    assert stats.entropy.item() == pytest.approx(1.5 * math.log(2), rel=1e-14)
    assert stats.sum_p2.item() == pytest.approx(3 / 8, rel=1e-14)
    # -(1/4 log 2 + 2/16 * 2 log 2)
    assert stats.sum_p2_logp.item() == pytest.approx(-0.5 * math.log(2), rel=1e-14)


def nearly_certain(V: int, exponent: int, seed: int) -> torch.Tensor:
    """[V] float32 logits whose largest is 0 with 1 - p_max about 10^-exponent."""
    g = torch.Generator().manual_seed(seed)
    rest = 10.0**-exponent
    tail = torch.randn(V - 1, generator=g, dtype=torch.float64)
    tail = tail - tail.logsumexp(0) + math.log(rest / (1 - rest))
    logits = torch.cat([tail.new_zeros(1), tail])
    return logits[torch.randperm(V, generator=g)].float()


@pytest.mark.parametrize("V", [2, 5, 64])
@pytest.mark.parametrize("exponent", range(1, 13))
def test_entropy_of_a_nearly_certain_policy_keeps_its_relative_accuracy(V, exponent):
    for seed in range(3):
        logits = nearly_certain(V, exponent, seed)
        exact = reference(logits.tolist(), 0)
        stats = es.token_stats_from_logits(logits, logits.argmax())
        assert stats.entropy.dtype == torch.float32
        assert stats.entropy.item() == pytest.approx(exact["entropy"], rel=1e-6, abs=0)
        certain = reference(logits.tolist(), int(logits.argmax()))["logp"]
        assert stats.logp.item() == pytest.approx(certain, rel=1e-6, abs=0)


@pytest.mark.parametrize("V", [2, 5, 64])
@pytest.mark.parametrize("exponent", range(1, 13))
def test_entropy_of_a_nearly_certain_policy_of_large_logits(V, exponent):
    # the difference of two float32 logits of size 16..32 rounds by up to 2^-20 < 1e-6 alone, and
    # that is the relative error of its exponential; so 1e-6 for it and 1e-6 for the rest
    for seed, offset in ((0, 20.3), (1, 27.1), (2, -19.7)):
        logits = nearly_certain(V, exponent, seed) + offset
        exact = reference(logits.tolist(), 0)["entropy"]
        got = es.token_stats_from_logits(logits, torch.tensor(0)).entropy.item()
        assert got == pytest.approx(exact, rel=2e-6, abs=0)


@pytest.mark.parametrize("n", [1, 64, 1024, 32000])
def test_entropy_of_one_likely_token_and_n_equal_ones(n):
    # no averaging of rounding errors over the tail; logits 0 and x, so rest = n e^x and
    # H = log(1 + rest) - rest x / (1 + rest), all terms of one sign
    xs = torch.linspace(math.log(1e-12 / n), math.log(0.1 / n), 100).float()
    logits = torch.cat([torch.zeros(100, 1), xs[:, None].expand(100, n)], dim=-1)
    entropy = es.token_stats_from_logits(logits, torch.zeros(100).long()).entropy
    exact = []
    for x in xs.tolist():
        rest = n * math.exp(x)
        exact.append(math.log1p(rest) - rest * x / (1 + rest))
    assert_close(entropy.double(), f64(exact), rtol=1e-6, atol=0)


def test_entropy_is_never_negative_nor_above_that_of_equal_odds():
    g = torch.Generator().manual_seed(1)
    for scale in (0.0, 1e-3, 1.0, 30.0, 1e4):
        logits = scale * torch.randn(200, 50, generator=g)
        entropy = es.token_stats_from_logits(logits, torch.zeros(200).long()).entropy
        assert (entropy >= 0).all()
        assert (entropy <= math.log(50) * (1 + 1e-6)).all()


@pytest.mark.parametrize("level", [0.0, -1e4, 1e4, 3e38])
def test_equal_logits(level):
    logits = torch.full((1, 8), level, requires_grad=True)
    stats = es.token_stats_from_logits(logits, torch.tensor([3]), moments=True)
    assert stats.logp.item() == pytest.approx(-math.log(8), rel=1e-6)
    assert stats.entropy.item() == pytest.approx(math.log(8), rel=1e-6)
    assert stats.sum_p2.item() == pytest.approx(1 / 8, rel=1e-6)
    assert stats.sum_p2_logp.item() == pytest.approx(-math.log(8) / 8, rel=1e-6)
    (gradient,) = torch.autograd.grad(stats.entropy.sum(), logits, retain_graph=True)
    assert_close(gradient, torch.zeros(1, 8), rtol=0, atol=1e-6)  # the maximum is flat
    (gradient,) = torch.autograd.grad(stats.logp.sum(), logits)
    expected = torch.full((1, 8), -1 / 8)
    expected[0, 3] += 1
    assert_close(gradient, expected, rtol=0, atol=1e-6)


def test_a_tie_at_the_top():
    # two of weight 1 and one of weight 1/2: p = .4, .4, .2
    logits = f64([[7.0, 7.0 - math.log(2), 7.0]])
    stats = es.token_stats_from_logits(logits, torch.tensor([1]), moments=True)
    H = -(0.8 * math.log(0.4) + 0.2 * math.log(0.2))
    assert stats.entropy.item() == pytest.approx(H, rel=1e-13)
    assert stats.logp.item() == pytest.approx(math.log(0.2), rel=1e-13)
    assert stats.sum_p2.item() == pytest.approx(0.36, rel=1e-13)


@pytest.mark.parametrize("gain", [1.0, 10.0, -1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("field", FIELDS)
def test_minus_infinity_is_a_token_that_cannot_be(field, dtype, gain):
    # values and gradients (also times a factor, as in a weighted loss) are those without the token
    values = [0.5, -INF, 1.5, -INF, -2.0]
    keep = [0, 2, 4]
    full = torch.tensor([values], dtype=dtype, requires_grad=True)
    part = torch.tensor([[values[i] for i in keep]], dtype=dtype, requires_grad=True)
    a = getattr(es.token_stats_from_logits(full, torch.tensor([4]), moments=True), field)
    b = getattr(es.token_stats_from_logits(part, torch.tensor([2]), moments=True), field)
    assert math.isfinite(a.item())
    assert_close(a, b)
    (gradient,) = torch.autograd.grad(gain * a.sum(), full)
    (expected,) = torch.autograd.grad(gain * b.sum(), part)
    assert_close(gradient[:, keep], expected)
    assert gradient[0, [1, 3]].tolist() == [0.0, 0.0]


def test_the_log_prob_of_a_token_that_cannot_be_is_minus_infinity():
    logits = torch.tensor([[0.0, -INF]])
    assert es.token_stats_from_logits(logits, torch.tensor([1])).logp.item() == -INF


def test_one_token_left_is_certain():
    stats = es.token_stats_from_logits(
        torch.tensor([[3.0, -INF, -INF]]), torch.tensor([0]), moments=True
    )
    assert [getattr(stats, field).item() for field in FIELDS] == [0.0, 0.0, 1.0, 0.0]


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature(temperature):
    values = [0.3, -1.2, 2.0, 0.1]
    stats = es.token_stats_from_logits(f64([values]), torch.tensor([1]), temperature, moments=True)
    exact = reference(values, 1, temperature)
    for field in FIELDS:
        assert getattr(stats, field).item() == pytest.approx(exact[field], rel=1e-13)


def test_moments_come_only_where_asked_for():
    stats = es.token_stats_from_logits(torch.zeros(2, 3), torch.tensor([0, 1]))
    assert stats.sum_p2 is None
    assert stats.sum_p2_logp is None


@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_shapes(shape):
    stats = es.token_stats_from_logits(torch.zeros(*shape, 7), torch.zeros(shape).long(), 1.0, True)
    assert all(getattr(stats, field).shape == shape for field in FIELDS)


@pytest.mark.parametrize("dtype", HALVES)
def test_half_precision_logits_are_computed_in_float32(dtype):
    g = torch.Generator().manual_seed(2)
    logits = (3 * torch.randn(4, 9, generator=g)).to(dtype)
    targets = torch.tensor([0, 8, 3, 5])
    stats = es.token_stats_from_logits(logits, targets, moments=True)
    assert {getattr(stats, field).dtype for field in FIELDS} == {torch.float32}
    check(stats, logits, targets, rtol=2e-6, atol=1e-30)


# ---------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize(
    "values", [[0.3, -1.2, 2.0, 0.1], [1.0, 1.0, 0.0, 1.0], [0.0, 0.0, 0.0, 0.0], [9.0, -3, 1, -8]]
)
def test_gradients_by_finite_differences(values, temperature):
    logits = f64([values, values[::-1]]).requires_grad_()

    def statistics(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        stats = es.token_stats_from_logits(z, torch.tensor([1, 0]), temperature, moments=True)
        return tuple(getattr(stats, field) for field in FIELDS)

    assert torch.autograd.gradcheck(statistics, (logits,), eps=1e-6, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [
        (torch.float64, {"rtol": 1e-12, "atol": 1e-14}),
        (torch.float32, {"rtol": 2e-6, "atol": 2e-7}),
    ],
    ids=["f64", "f32"],
)
def test_gradient_of_entropy_and_log_prob_in_closed_form(dtype, tolerance):
    g = torch.Generator().manual_seed(4)
    wide = 2 * torch.randn(6, 11, generator=g, dtype=torch.float64)
    logits = wide.to(dtype).requires_grad_()
    targets = torch.arange(6)
    stats = es.token_stats_from_logits(logits, targets)
    lp = logits.detach().double().log_softmax(-1)
    p = lp.exp()
    H = -(p * lp).sum(-1, keepdim=True)
    (gradient,) = torch.autograd.grad(stats.entropy.sum(), logits, retain_graph=True)
    assert_close(gradient.double(), -p * (lp + H), **tolerance)
    (gradient,) = torch.autograd.grad(stats.logp.sum(), logits)
    assert_close(gradient.double(), torch.eye(11).double()[targets] - p, **tolerance)


# ---------------------------------------------------------------------------- from hidden states


def head(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, ...]:
    """hidden [2, 3, 4], weight [7, 4], bias [7], targets [2, 3]."""
    g = torch.Generator().manual_seed(6)
    shapes = ((2, 3, 4), (7, 4), (7,))
    hidden, weight, bias = (
        torch.randn(*shape, generator=g, dtype=torch.float64).to(dtype) for shape in shapes
    )
    return hidden, weight, bias, torch.randint(0, 7, (2, 3), generator=g)


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_token_stats_against_the_definition(with_bias, softcap, temperature):
    hidden, weight, bias, targets = head()
    stats = es.token_stats(
        hidden, weight, targets, bias if with_bias else None, temperature, softcap, moments=True
    )
    for b in range(2):
        for t in range(3):
            logits = [
                math.fsum(x * w for x, w in zip(hidden[b, t].tolist(), row, strict=True))
                + (offset if with_bias else 0)
                for row, offset in zip(weight.tolist(), bias.tolist(), strict=True)
            ]
            if softcap:
                logits = [softcap * math.tanh(x / softcap) for x in logits]
            exact = reference(logits, int(targets[b, t]), temperature)
            for field in FIELDS:
                assert getattr(stats, field)[b, t].item() == pytest.approx(exact[field], rel=1e-12)


@pytest.mark.parametrize("softcap", [None, 1.5])
def test_token_stats_gradients_by_finite_differences(softcap):
    hidden, weight, bias, targets = head()

    def statistics(*inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x, w, b = inputs
        stats = es.token_stats(x, w, targets, b, 0.8, softcap, moments=True)
        return tuple(getattr(stats, field) for field in FIELDS)

    inputs = tuple(x.requires_grad_() for x in (hidden, weight, bias))
    assert torch.autograd.gradcheck(statistics, inputs, eps=1e-6, atol=1e-8, rtol=1e-6)


@pytest.mark.parametrize("dtype", HALVES)
def test_token_stats_of_half_precision_are_float32(dtype):
    hidden, weight, bias, targets = head(dtype)
    stats = es.token_stats(hidden, weight, targets, bias, softcap=2.0, moments=True)
    assert {getattr(stats, field).dtype for field in FIELDS} == {torch.float32}
    exact = es.token_stats(
        hidden.double(), weight.double(), targets, bias.double(), softcap=2.0, moments=True
    )
    # the head's product may round to the inputs' precision: 2^-8 of logits of size up to 6
    assert_close(stats.entropy.double(), exact.entropy, rtol=0.05, atol=0.02)


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize("temperature", [0.0, -1.0, math.nan])
def test_a_temperature_that_is_not_above_zero_is_an_error(temperature):
    refused(
        lambda: es.token_stats_from_logits(torch.zeros(1, 2), torch.tensor([0]), temperature),
        "temperature",
        f"got {temperature}",
    )


@pytest.mark.parametrize("shape", [(3,), (2, 1), (2, 4), ()])
def test_targets_of_another_shape_are_an_error(shape):
    refused(
        lambda: es.token_stats_from_logits(torch.zeros(2, 4), torch.zeros(shape).long()), "targets"
    )


def test_a_head_of_another_width_is_an_error():
    refused(
        lambda: es.token_stats(torch.zeros(2, 4), torch.zeros(7, 5), torch.zeros(2).long()),
        "hidden",
        "[..., 4]",
        "[7, 5]",
    )


@pytest.mark.parametrize("exponent", [1, 3, 5, 7, 9, 12])
def test_gradients_of_a_nearly_certain_policy_keep_their_relative_accuracy(exponent):
    """At the largest logit 1 - p and p - sum p^2 would cancel: against 60 decimal digits."""
    from mpmath import mp, mpf

    mp.dps = 60
    z = torch.tensor([[0.0, -2.3 * exponent, -2.3 * exponent - 1.25, -2.3 * exponent - 0.5]])
    z = z.requires_grad_()
    e = [mp.exp(mpf(x)) for x in z[0].tolist()]
    p = [x / sum(e) for x in e]
    lp = [mp.log(x) for x in p]
    H = -sum(a * b for a, b in zip(p, lp, strict=True))
    S2 = sum(a * a for a in p)
    S2L = sum(a * a * b for a, b in zip(p, lp, strict=True))
    expected = {
        "logp": [(j == 0) - p[j] for j in range(4)],
        "entropy": [-p[j] * (lp[j] + H) for j in range(4)],
        "sum_p2": [2 * p[j] * (p[j] - S2) for j in range(4)],
        "sum_p2_logp": [p[j] * (2 * p[j] * lp[j] + p[j] - 2 * S2L - S2) for j in range(4)],
    }
    for with_head in (False, True):
        for field, values in expected.items():
            if with_head:
                found = es.token_stats(z, torch.eye(4), torch.tensor([0]), moments=True)
            else:
                found = es.token_stats_from_logits(z, torch.tensor([0]), moments=True)
            (gradient,) = torch.autograd.grad(getattr(found, field).sum(), z)
            for got, value in zip(gradient[0].tolist(), values, strict=True):
                assert got == pytest.approx(float(value), rel=1e-5), (field, with_head)


@pytest.mark.parametrize("target", [-100, -1, 3])
def test_a_target_that_no_logit_has_is_an_error(target):
    refused(
        lambda: es.token_stats_from_logits(torch.zeros(1, 3), torch.tensor([target])),
        "targets",
        f"got {target}..{target}",
    )
