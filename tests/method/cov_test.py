"""Clip-Cov and KL-Cov by hand; how tokens are selected; frozen tokens in chains."""

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, seed
from entrostat.method.rounding import rounded_share, share_of

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NAN = math.nan
ON, OFF = True, False


def slopes(batch: es.TokenBatch, out: es.LossOutput) -> torch.Tensor:
    """d(sum of per-token losses)/d logp."""
    return torch.autograd.grad(out.per_token.sum(), batch.logp, retain_graph=True)[0]


# N = 5. mean lp = (-1 - 2 - 3 - 4 - 5)/5 = -3, mean A = (4 + 4 - 1 - 1 - 1)/5 = 1
# lp - mean: 2, 1 | 0, -1, -2; A - mean: 3, 3 | -2, -2, -2
# cov: 6, 3 | 0, 2, 4
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])
LOGP = [[-1.0, -2.0, -0.5], [-3.0, -4.0, -5.0]]
A = [4.0, -1.0]


def cov_batch(log_ratio=((0.0, 0.0, 0.0), (0.0, 0.0, 0.0)), advantages=A) -> es.TokenBatch:
    """The batch above with lp0 = lp - log_ratio; the masked entry is junk."""
    logp = f64(LOGP).requires_grad_()
    return es.TokenBatch(logp, logp.detach() - f64(log_ratio), MASK, f64(advantages))


# ---------------------------------------------------------------------------- Clip-Cov


@pytest.mark.parametrize(
    ("low", "high", "frozen"),
    [
        (1.0, 5.0, [[OFF, ON, OFF], [OFF, ON, ON]]),  # the defaults
        (2.0, 4.0, [[OFF, ON, OFF], [OFF, ON, ON]]),  # both ends belong to it
        (2.001, 3.999, [[OFF, ON, OFF], [OFF, OFF, OFF]]),
        (3.0, 3.0, [[OFF, ON, OFF], [OFF, OFF, OFF]]),
        (0.0, 0.0, [[OFF, OFF, OFF], [ON, OFF, OFF]]),  # the masked one's cov is no candidate
        (-9.0, 99.0, [[ON, ON, OFF], [ON, ON, ON]]),
        (4.5, 5.5, [[OFF, OFF, OFF], [OFF, OFF, OFF]]),  # none qualifies: none
    ],
)
def test_clip_cov_candidates_by_hand(low, high, frozen):
    objective = es.make_objective("clip_cov", ratio=1.0, low=low, high=high)
    terms = objective.plan(cov_batch(), seed(0))  # ratio 1: every candidate
    assert terms.frozen.tolist() == frozen


def test_clip_cov_reads_the_current_policy_and_per_token_advantages():
    # lp0 would give other covariances; cov with A = 4, -1 | -1, 0, 3 (mean 1):
    # A - mean = 3, -2 | -2, -1, 2; times 2, 1 | 0, -1, -2: 6, -2 | 0, 1, -4
    far = ((0.1, -0.2, 0.0), (0.3, -0.4, 0.2))
    batch = cov_batch(far, [[4.0, -1.0, 50.0], [-1.0, 0.0, 3.0]])
    terms = es.make_objective("clip_cov", ratio=1.0).plan(batch, seed(0))
    assert terms.frozen.tolist() == [[OFF, OFF, OFF], [OFF, ON, OFF]]
    terms = es.make_objective("clip_cov", ratio=1.0, low=-5.0, high=-1.0).plan(batch, seed(0))
    assert terms.frozen.tolist() == [[OFF, ON, OFF], [OFF, OFF, ON]]


def test_clip_cov_leaves_out_what_ppo_has_clipped():
    # bounds 0 and 2: A = 4 at r = 2.5 is clipped; A = -1 is not above, and never below 0
    up, down = math.log(2.5), math.log(0.3)
    batch = cov_batch(((0.0, up, 0.0), (0.0, up, down)))
    terms = es.make_objective("clip_cov", ratio=1.0).plan(batch, seed(0))
    assert terms.frozen.tolist() == [[OFF, OFF, OFF], [OFF, ON, ON]]
    # over a clip of (.2, 2): r = 2.5 is inside, A = -1 at r = .3 is clipped
    narrow = [{"name": "ppo", "low": 0.2, "high": 2.0}, {"name": "clip_cov", "ratio": 1.0}]
    terms = es.make_objective(narrow).plan(batch, seed(0))
    assert terms.frozen.tolist() == [[OFF, ON, OFF], [OFF, ON, OFF]]


@pytest.mark.parametrize(
    ("ratio", "count"), [(2e-4, 1), (0.2, 1), (0.39, 1), (0.4, 2), (0.59, 2), (0.6, 3), (0.9, 3)]
)
def test_clip_cov_counts_over_all_tokens(ratio, count):
    # the authors' floor(ratio * 5), at least 1, at most the three candidates
    terms = es.make_objective("clip_cov", ratio=ratio, at_least=1).plan(cov_batch(), seed(1))
    assert terms.frozen.sum() == count
    assert not (terms.frozen & ~torch.tensor([[OFF, ON, OFF], [OFF, ON, ON]])).any()


def test_clip_cov_removes_the_gradient_and_keeps_the_value():
    # ratios 1, 1.5 | 1, 1, .5 within (0, 2): losses -r A = -4, -6 | 1, 1, .5, slopes the same
    batch = cov_batch(((0.0, math.log(1.5), 0.0), (0.0, 0.0, math.log(0.5))))
    out = es.make_objective("clip_cov", ratio=1.0).loss(batch, generator=seed(0))
    assert_close(out.per_token, f64([[-4, -6, 0], [1, 1, 0.5]]), **EXACT)
    assert_close(out.loss, f64(-7.5 / 5), **EXACT)
    assert_close(slopes(batch, out), f64([[-4, 0, 0], [1, 0, 0]]), **EXACT)


@pytest.mark.parametrize(
    ("name", "share", "figure", "without"),
    [
        ("clip_cov", "ratio", "terms/frozen", "clip_wide"),
        ("kl_cov", "frac", "terms/penalised", "clip_free"),
    ],
)
def test_the_realised_share_is_unbiased_and_always_logged(name, share, figure, without):
    # .3 * 5 = 1.5: one or two of the five, each at half of 400 seeds; four standard deviations of
    # the mean are 4 * .5/5/sqrt(400) = .02
    objective, given = es.make_objective(name, **{share: 0.3}), cov_batch(D)
    seen = [objective.loss(given, generator=seed(n)).metrics[figure].item() for n in range(400)]
    assert set(seen) == {0.2, 0.4}
    assert abs(sum(seen) / 400 - 0.3) < 0.02
    # 2e-4 * 5 = .001: none, which is a share as well; the authors' code takes one of five
    out = es.make_objective(name, **{share: 2e-4}).loss(given, generator=seed(0))
    assert out.metrics[figure].item() == 0
    plain = es.make_objective(without).loss(given)
    assert_close(slopes(given, out), slopes(given, plain), **EXACT)
    out = es.make_objective(name, at_least=1, **{share: 2e-4}).loss(given, generator=seed(0))
    assert out.metrics[figure].item() == 0.2


def test_clip_cov_chooses_by_the_generator_given():
    objective = es.make_objective("clip_cov", at_least=1)
    before = torch.random.get_rng_state()
    chosen = [objective.plan(cov_batch(), seed(n)).frozen for n in range(20)]
    again = [objective.plan(cov_batch(), seed(n)).frozen for n in range(20)]
    assert all(torch.equal(a, b) for a, b in zip(chosen, again, strict=True))
    assert len({tuple(c.flatten().tolist()) for c in chosen}) == 3  # each candidate at times
    assert torch.equal(torch.random.get_rng_state(), before)  # nobody else's numbers are used
    generator = seed(0)
    later = [objective.plan(cov_batch(), generator).frozen for _ in range(20)]
    assert len({tuple(c.flatten().tolist()) for c in later}) == 3  # it goes on, update by update


def chi_square(seen: Counter, cells: int) -> float:
    expected = sum(seen.values()) / cells
    return sum((n - expected) ** 2 for n in seen.values()) / expected + expected * (
        cells - len(seen)
    )


def test_clip_cov_chooses_uniformly():
    # one of three candidates, 1500 seeds: chi-square of 2 degrees; 13.8 has probability .001
    objective = es.make_objective("clip_cov", at_least=1)
    batch = cov_batch()
    places = [objective.plan(batch, seed(n)).frozen.flatten().nonzero() for n in range(1500)]
    seen = Counter(int(place) for place in places)
    assert set(seen) == {1, 4, 5}
    assert chi_square(seen, 3) < 13.8


def test_clip_cov_of_equal_advantages_freezes_nothing():
    terms = es.make_objective("clip_cov", ratio=1.0).plan(cov_batch(advantages=[2.0, 2.0]))
    assert not terms.frozen.any()


# ---------------------------------------------------------------------------- KL-Cov


@pytest.mark.parametrize(
    ("frac", "places"),
    [
        # floor(frac * 5), at least 1, of cov 6, 3 | 0, 2, 4; only cov > 0
        (2e-3, {(0, 0)}),
        (0.39, {(0, 0)}),
        (0.4, {(0, 0), (1, 2)}),
        (0.6, {(0, 0), (1, 2), (0, 1)}),
        (0.8, {(0, 0), (1, 2), (0, 1), (1, 1)}),
        (1.0, {(0, 0), (1, 2), (0, 1), (1, 1)}),
    ],
)
def test_kl_cov_takes_the_largest(frac, places):
    # the old policy is another one: it has no say
    batch = cov_batch(((-3.0, -0.5, 9.0), (2.0, -1.0, 4.0)))
    terms = es.make_objective("kl_cov", frac=frac, coef=0.5, at_least=1).plan(batch)
    expected = torch.zeros(2, 3).double()
    for place in places:
        expected[place] = 0.5
    assert torch.equal(terms.abs_kl, expected)


# tokens (0, 0) and (1, 2) pay; d = lp - lp0
D = ((-0.5, 0.75, 8.0), (1.5, 0.0, 0.25))
DOWN, UP = math.exp(-0.5), math.exp(0.25)


@pytest.mark.parametrize(
    ("penalty", "values", "gradients"),
    [
        # |d| with slope sign(d)
        ("abs", (0.5, 0.25), (-1.0, 1.0)),
        # exp(d) - d - 1 with slope exp(d) - 1
        ("k3", (DOWN - 0.5, UP - 1.25), (DOWN - 1, UP - 1)),
    ],
)
def test_kl_cov_penalty_by_hand(penalty, values, gradients):
    batch = cov_batch(D)
    out = es.make_objective("kl_cov", frac=0.4, coef=0.3, penalty=penalty).loss(batch)
    # no clip at all: -r A with slope the same. r: e^-.5, e^.75 | e^1.5, 1, e^.25
    plain = f64([[-4 * DOWN, -4 * math.exp(0.75), 0.0], [math.exp(1.5), 1.0, UP]])
    paid, slope = plain.clone(), plain.clone()
    for place, value, gradient in zip(((0, 0), (1, 2)), values, gradients, strict=True):
        paid[place] += 0.3 * value
        slope[place] += 0.3 * gradient
    assert_close(out.per_token, paid, **EXACT)
    assert_close(slopes(batch, out), slope, **EXACT)
    assert_close(out.loss, paid.sum() / 5, **EXACT)


def test_k3_over_all_tokens_is_the_kl_of_eq_12_over_the_vocabulary():
    # one state, 4 actions, each as often as the old policy samples it: the mean is exact
    old, z = f64([[0.9, 0.05, 0.03, 0.02]]), f64([[0.0, 0.1, -0.2, 0.3]]).requires_grad_()
    new = z.softmax(-1).detach()
    batch = es.TokenBatch(z.log_softmax(-1), old.log(), torch.ones(1, 4), f64([0.0]))
    terms = es.make_objective("clip_free").plan(batch)
    terms = terms.replace(abs_kl=torch.ones_like(old), abs_kl_form="k3", scale=old)
    loss = es.make_objective("clip_free").loss(batch, terms).loss
    kl = (old * (old / new).log()).sum()
    assert_close(loss, kl, **EXACT)
    assert abs(loss - (new * (new / old).log()).sum()) > 0.1  # not the other direction
    # d KL(old || softmax(z)) / dz = new - old
    assert_close(torch.autograd.grad(loss, z)[0], new - old, **EXACT)


def test_kl_cov_is_the_authors():
    batch = cov_batch(D)
    out = es.make_objective("kl_cov", at_least=1).loss(batch)  # coef 1, abs, one token
    assert_close(out.per_token[0, 0], f64(-4 * DOWN + 0.5), **EXACT)
    assert_close(out.per_token[1, 2], f64(UP), **EXACT)


@pytest.mark.parametrize("penalty", ["abs", "k3"])
def test_kl_cov_is_flat_on_the_first_update(penalty):
    batch = cov_batch()  # lp = lp0
    out = es.make_objective("kl_cov", frac=1.0, coef=100.0, penalty=penalty).loss(batch)
    assert_close(out.per_token, f64([[-4, -4, 0], [1, 1, 1]]), **EXACT)
    assert_close(slopes(batch, out), f64([[-4, -4, 0], [1, 1, 1]]), **EXACT)


def test_kl_cov_has_no_clip():
    batch = cov_batch(((4.0, 0.0, 0.0), (-4.0, 0.0, 0.0)))
    out = es.make_objective("kl_cov", coef=0.0).loss(batch)
    expected = f64([[-4 * math.exp(4), -4, 0], [math.exp(-4), 1, 1]])
    assert_close(out.per_token, expected, **EXACT)
    assert_close(slopes(batch, out), expected, **EXACT)


@pytest.mark.parametrize("advantages", [[0.0, 0.0], [2.0, 2.0]])
def test_kl_cov_picks_nobody_without_a_positive_covariance(advantages):
    batch = cov_batch(D, advantages)
    for frac in (2e-3, 1.0):
        objective = es.make_objective("kl_cov", frac=frac)
        terms = objective.plan(batch)
        assert not terms.abs_kl.any()
        if advantages == [0.0, 0.0]:
            assert not slopes(batch, objective.loss(batch, terms)).any()


def test_kl_cov_of_negative_covariances_alone():
    # one token each: lp = -1, -3 with A = -1, 1: cov = 1 * -1 and -1 * 1
    logp = f64([[-1.0], [-3.0]])
    batch = es.TokenBatch(logp, logp, torch.ones(2, 1), f64([-1.0, 1.0]))
    assert es.make_objective("kl_cov", frac=1.0).plan(batch).abs_kl.tolist() == [[0.0], [0.0]]


# ---------------------------------------------------------------------------- chains


def test_dapo_with_repo_r_and_clip_cov_by_hand():
    # rloo of rewards 1, 0: A = 1, -1. repo_r (.5, L = lp0 + H0 = 1, -2): 1 - .5 L = .5, 2
    # mean A = (.5 + 2 - 3)/5 = -.1; A - mean: .6, 2.1 | -.9 thrice
    # current lp - mean: 2, 1 | 0, -1, -2; cov: 1.2, 2.1 | 0, .9, 1.8
    old = f64([[-1.25, -2.0, -7.0], [-3.0, -4.0, -5.0]])
    H0 = f64([[2.25, 0.0, NAN], [1.0, 1.0, 1.0]])
    logp = f64(LOGP).requires_grad_()
    batch = es.TokenBatch(
        logp, old, MASK, rewards=f64([1.0, 0.0]), group=torch.tensor([4, 4]), old_entropy=H0
    )
    chain = [
        "dapo",
        {"name": "repo_r", "zeta": 0.5},
        {"name": "clip_cov", "ratio": 1.0, "low": 1.5},
    ]
    objective = es.make_objective(chain)
    assert objective.names == ("ppo", "repo_r", "clip_cov")
    assert objective.advantage == "rloo"
    batch = objective.prepare(batch)
    assert_close(batch.advantages, f64([[0.5, 2.0, 0.0], [-1, -1, -1]]), **EXACT)
    out = objective.loss(batch, generator=seed(0))
    assert out.terms.frozen.tolist() == [[OFF, ON, OFF], [OFF, OFF, ON]]
    # r = e^.25 = 1.284 at the first: clipped at 1.28; losses -.64, -2 | 1, 1, 1
    assert_close(out.per_token, f64([[-0.64, -2, 0], [1, 1, 1]]), **EXACT)
    assert_close(slopes(batch, out), f64([[0, 0, 0], [1, 1, 0]]), **EXACT)


def test_frozen_tokens_unite():
    # clip_cov freezes cov in [3.5, 5]: (1, 2); rand_pos_clip all of A > 0: (0, 0), (0, 1)
    chain = [
        {"name": "clip_cov", "ratio": 1.0, "low": 3.5},
        {"name": "rand_pos_clip", "ratio": 1.0},
    ]
    for spec in (chain, chain[::-1]):
        terms = es.make_objective(spec).plan(cov_batch(), seed(0))
        assert terms.frozen.tolist() == [[ON, ON, OFF], [OFF, OFF, ON]]


def test_a_frozen_token_keeps_its_penalties():
    # (1, 2) is frozen by clip_cov and, with (0, 0), paying by kl_cov (coef 1)
    H = torch.ones(2, 3).double().requires_grad_()
    batch = cov_batch(D).replace(entropy=H)
    chain = [
        "clip_free",
        {"name": "clip_cov", "ratio": 1.0, "low": 3.5},
        {"name": "kl_cov", "frac": 0.4},
        {"name": "entropy_bonus", "coef": 0.5},
    ]
    out = es.make_objective(chain).loss(batch, generator=seed(0))
    assert_close(out.per_token[1, 2], f64(UP + 0.25 - 0.5), **EXACT)
    assert_close(slopes(batch, out)[1, 2], f64(1.0), **EXACT)  # sign(d) alone
    assert_close(
        torch.autograd.grad(out.loss, H)[0], -0.1 * MASK.double(), **EXACT
    )  # coef / N, frozen or not


def test_freeze_adds_to_what_is_frozen():
    terms = es.make_objective("ppo").plan(cov_batch())
    one = terms.freeze(torch.tensor([[ON, OFF, OFF], [OFF, OFF, ON]]))
    two = one.freeze(torch.tensor([[ON, ON, OFF], [OFF, OFF, OFF]]))
    assert terms.frozen is None
    assert one.frozen.tolist() == [[ON, OFF, OFF], [OFF, OFF, ON]]
    assert two.frozen.tolist() == [[ON, ON, OFF], [OFF, OFF, ON]]


# ---------------------------------------------------------------------------- selection


@pytest.mark.parametrize(
    ("fraction", "count", "expected"),
    [
        (0.29, 100, 29),  # .29 * 100 = 28.999999999999996
        (0.57, 100, 57),  # 56.99999999999999
        (0.07, 300, 21),  # 21.000000000000004
        (0.1, 9, 1),
        (0.1, 0, 1),
        (2e-4, 4999, 1),
        (2e-4, 9999, 1),
        (2e-4, 10000, 2),
        (2e-4, 14999, 2),
        (2e-4, 15000, 3),
        (0.2, 4, 1),
        (1.0, 7, 7),
        (0.9999, 10, 9),
    ],
)
def test_share_of_by_hand(fraction, count, expected):
    assert share_of(fraction, count) == expected


def test_share_of_is_the_floor_of_the_decimal_product():
    for thousandths in range(1, 1001, 7):
        for count in (*range(1, 120), 999, 1000, 4096, 65536, 131000):
            exact = max(1, math.floor(Fraction(thousandths, 1000) * count))
            assert share_of(thousandths / 1000, count) == exact, (thousandths, count)


def test_a_share_is_rounded_at_random():
    # 4000 seeds; four standard deviations of the mean are 4 sqrt(q (1 - q)/4000)
    before = torch.random.get_rng_state()
    for fraction, count, whole, rest in ((0.3, 9, 2, 0.7), (2e-4, 600, 0, 0.12)):
        seen = [rounded_share(fraction, count, 0, seed(n)) for n in range(4000)]
        assert set(seen) == {whole, whole + 1}
        assert abs(sum(seen) / 4000 - whole - rest) < 4 * math.sqrt(rest * (1 - rest) / 4000)
        again = [rounded_share(fraction, count, 0, seed(n)) for n in range(100)]
        assert again == seen[:100]  # equal generators, on every rank say, give equal numbers
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.manual_seed(5)  # without a generator the global one decides
    one = [rounded_share(0.5, 1, 0, None) for _ in range(20)]
    torch.manual_seed(5)
    assert [rounded_share(0.5, 1, 0, None) for _ in range(20)] == one
    assert set(one) == {0, 1}


def test_a_whole_share_is_that_without_a_draw():
    generator = seed(1)
    before = generator.get_state()
    for fraction, count, expected in ((0.29, 100, 29), (0.07, 300, 21), (0.5, 4, 2), (0.1, 0, 0)):
        assert rounded_share(fraction, count, 0, generator) == expected
    for at_least, expected in ((1, 2), (2, 2), (3, 3)):
        assert rounded_share(0.29, 9, at_least, generator) == expected  # floor(2.61)
    assert torch.equal(generator.get_state(), before)


# ---------------------------------------------------------------------------- names, parameters


@pytest.mark.parametrize(
    ("name", "low", "high"), [("clip_cov", 0.0, 2.0), ("kl_cov", -math.inf, math.inf)]
)
def test_what_they_sit_on(name, low, high):
    objective = es.make_objective(name)
    assert objective.names == ("ppo", name)
    assert objective.advantage == "grpo"
    terms = objective.plan(cov_batch(), seed(0))
    assert {terms.ratio_min[0, 0].item(), terms.ratio_max[0, 0].item()} == {low, high}


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        ("clip_cov", {"ratio": 2e-4, "low": 1.0, "high": 5.0, "at_least": 0}),
        ("kl_cov", {"frac": 2e-3, "coef": 1.0, "penalty": "abs", "at_least": 0}),
    ],
)
def test_defaults(name, defaults):
    assert dict(es.methods()[name].parameters) == defaults


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("clip_cov", {"ratio": 0.0}, "clip_cov: ratio must be above 0 and at most 1, got 0"),
        ("clip_cov", {"ratio": 1.1}, "clip_cov: ratio .*got 1.1"),
        ("clip_cov", {"ratio": NAN}, "clip_cov: ratio .*got nan"),
        ("clip_cov", {"low": 5.1}, r"clip_cov: needs low <= high, got \[5.1, 5.0\]"),
        ("clip_cov", {"high": NAN}, "clip_cov: needs low <= high"),
        ("clip_cov", {"at_least": -1}, "clip_cov: at_least must be at least 0, got -1"),
        ("kl_cov", {"at_least": 0.5}, "kl_cov: at_least must be a whole number, got 0.5"),
        ("kl_cov", {"frac": 0.0}, "kl_cov: frac must be above 0 and at most 1, got 0"),
        ("kl_cov", {"frac": 2.0}, "kl_cov: frac .*got 2"),
        ("kl_cov", {"coef": -1.0}, "kl_cov: coef must be at least 0, got -1"),
        ("kl_cov", {"coef": math.inf}, "kl_cov: coef .*got inf"),
        ("kl_cov", {"penalty": "k2"}, "kl_cov: penalty must be 'abs' or 'k3', got 'k2'"),
    ],
)
def test_errors_name_the_parameter(name, given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(name, **given)
