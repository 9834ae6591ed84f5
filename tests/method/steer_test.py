"""STEER and its quadrants by hand; weights in chains."""

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused, seed
from entrostat.method.steer import in_quadrant
from long_cases import keep

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NAN = math.nan


# Om = I A r (1-p) c with r = p/p0, c = lp + H; clip (.2, .28); A = 2 and -1
#   p    .5    .2          (masked)  .5           .75         .25
#   r    1.2   1.5 (cut)   (junk)    1.5 (A<0)    .5 (cut)    1
#   c    .5    3           (junk)    -1.6         9           .4
#   Om   .6    0                     1.2          0           -.3
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])
P = f64([[0.5, 0.2, 0.1], [0.5, 0.75, 0.25]])
R = f64([[1.2, 1.5, 1.1], [1.5, 0.5, 1.0]])
C = f64([[0.5, 3.0, 70.0], [-1.6, 9.0, 0.4]])
A = f64([2.0, -1.0])
# -min(r A, clip(r) A): -2.4, -2.56 | 1.5, .8, 1; without gradient where cut
LOSSES = f64([[-2.4, -2.56, 0.0], [1.5, 0.8, 1.0]])
SLOPES = f64([[-2.4, 0.0, 0.0], [1.5, 0.0, 1.0]])


def batch(advantages=A, p=P, ratio=R, c=C) -> es.TokenBatch:
    logp = p.log().requires_grad_()
    old = logp.detach() - ratio.log()
    return es.TokenBatch(logp, old, MASK, advantages, entropy=(c - p.log()).requires_grad_())


def weights(batch: es.TokenBatch, spec="steer", **given) -> torch.Tensor:
    """The weights planned, 1 at mask 0."""
    terms = es.make_objective(spec, **given).plan(batch, seed(0))
    return torch.where(batch.mask, terms.weight, 1)


# ---------------------------------------------------------------------------- STEER

MAPPED = {
    # x = |Om|/1.2 = .5, 0 | 1, 0, .25
    "exp": (
        {},
        [[0.7**0.5, 1.0, 1.0], [0.7, 1.0, 0.7**0.25]],
    ),
    "exp, another lambda": (
        {"lambda_min": 0.16},
        [[0.4, 1.0, 1.0], [0.16, 1.0, 0.16**0.25]],
    ),
    # 1.2 - .5 x
    "linear": (
        {"mapping": "linear"},
        [[0.95, 1.2, 1.0], [0.7, 1.2, 1.075]],
    ),
    # the .8 quantile of 0, 0, .3, .6, 1.2 is .6 + .2 * .6 = .72
    "binary": (
        {"mapping": "binary"},
        [[1.0, 1.0, 1.0], [0.7, 1.0, 1.0]],
    ),
    # the .65 quantile: place 2.6, .3 + .6 * .3 = .48
    "binary, .65": (
        {"mapping": "binary", "quantile": 0.65, "lambda_min": 0.5},
        [[0.5, 1.0, 1.0], [0.5, 1.0, 1.0]],
    ),
    # the .75 quantile is .6 itself, which is not above
    "binary, .75": (
        {"mapping": "binary", "quantile": 0.75},
        [[1.0, 1.0, 1.0], [0.7, 1.0, 1.0]],
    ),
    "binary, 0": (
        {"mapping": "binary", "quantile": 0.0},
        [[0.7, 1.0, 1.0], [0.7, 1.0, 0.7]],
    ),
    "binary, 1": (
        {"mapping": "binary", "quantile": 1.0},
        [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]],
    ),
    # as App. E.3 prints them, over the paper's Omega = -Om: -.6, 0 | -1.2, 0, .3
    # 1.2 - .5/(.3 + 1.2) (Omega + 1.2)
    "linear, signed": (
        {"mapping": "linear", "signed": True},
        [[1.0, 0.8, 1.0], [1.2, 0.8, 0.7]],
    ),
    # the .8 quantile of -1.2, -.6, 0, 0, .3 is 0 + .2 * .3 = .06
    "binary, signed": (
        {"mapping": "binary", "signed": True},
        [[1.0, 1.0, 1.0], [1.0, 1.0, 0.7]],
    ),
}


@pytest.mark.parametrize("case", MAPPED)
def test_steer_by_hand(case):
    given, expected = MAPPED[case]
    w = f64(expected)
    assert_close(weights(batch(), **given), w, **EXACT)
    b = batch()
    out = es.make_objective("steer", **given).loss(b)
    assert_close(out.per_token, w * LOSSES, **EXACT)
    assert_close(out.loss, (w * LOSSES).sum() / 5, **EXACT)
    slopes = torch.autograd.grad(out.per_token.sum(), b.logp, retain_graph=True)[0]
    assert_close(slopes, w * SLOPES, **EXACT)
    assert torch.autograd.grad(out.loss, b.entropy, allow_unused=True)[0] is None


def test_the_quantile_of_ties_and_of_any_count():
    # p = .5, r = 1, A = 1: |Om| = c/2. The .8 quantile of c_1 <= ... <= c_n lies at place
    # .8 (n - 1), counted from 0, linear in between
    g = torch.Generator().manual_seed(8)
    for n in range(1, 13):
        c = torch.randint(1, 5, (1, n), generator=g).double()
        place = Fraction(4, 5) * (n - 1)
        ranked = [Fraction(x) for x in sorted(c[0].tolist())]
        below, above = ranked[math.floor(place)], ranked[math.ceil(place)]
        threshold = below + (above - below) * (place - math.floor(place))
        half = torch.full_like(c, 0.5).log()
        given = es.TokenBatch(half, half, torch.ones(1, n), f64([1.0]), entropy=c - half)
        expected = [[0.7 if Fraction(x) > threshold else 1.0 for x in c[0].tolist()]]
        assert weights(given, mapping="binary").tolist() == expected, c


def test_steer_without_clipped_tokens():
    # ratios 1: Om = 2*.5*.5 = .5, 2*.8*3 = 4.8 | -.5*-1.6 = .8, -.25*9 = -2.25, -.3
    # |Om| - .3 over 4.5: .2/4.5, 1 | .5/4.5, 1.95/4.5, 0
    w = weights(batch(ratio=torch.ones(2, 3).double()), mapping="linear")
    x = f64([[0.2, 4.5, 0.4 * 4.5], [0.5, 1.95, 0.0]]) / 4.5
    assert_close(w, 1.2 - 0.5 * x, **EXACT)  # 1 at the masked token
    w = weights(batch(ratio=torch.ones(2, 3).double()))
    x = f64([[0.5, 4.8, 0.0], [0.8, 2.25, 0.3]]) / 4.8
    assert_close(w, 0.7**x, **EXACT)


@pytest.mark.parametrize(
    ("advantage", "linear", "binary"),
    [
        # p = .5, r = 1, lp + H = 1 .. 5: Omega = -A c/2. A = 1: -.5, -1 | -1.5, -2, -2.5
        (1.0, [[0.7, 0.825, 1.0], [0.95, 1.075, 1.2]], [[0.7, 1.0, 1.0], [1.0, 1.0, 1.0]]),
        # A = -1: the same above 0, the other way round
        (-1.0, [[1.2, 1.075, 1.0], [0.95, 0.825, 0.7]], [[1.0, 1.0, 1.0], [1.0, 1.0, 0.7]]),
    ],
)
def test_signed_steer_where_all_changes_have_one_sign(advantage, linear, binary):
    half, one = torch.full((2, 3), 0.5).double(), torch.ones(2, 3).double()
    c = f64([[1.0, 2.0, 70.0], [3.0, 4.0, 5.0]])
    given = batch(f64([advantage] * 2), half, one, c)
    assert_close(weights(given, mapping="linear", signed=True), f64(linear), **EXACT)
    assert_close(weights(given, mapping="binary", signed=True), f64(binary), **EXACT)


def test_signed_has_no_effect_on_the_exponential():
    with pytest.warns(UserWarning, match="steer: signed=True has no effect with mapping='exp'"):
        w = weights(batch(), signed=True)
    assert_close(w, f64(MAPPED["exp"][1]), **EXACT)


def test_steer_follows_the_surrogates_clip():
    # without a clip: 2*1.5*.8*3 = 7.2 at the second token, -.5*.25*9 = -1.125 at the fourth
    spec = ["clip_free", "steer"]
    x = f64([[0.6, 7.2, 0.0], [1.2, 1.125, 0.3]]) / 7.2
    assert_close(weights(batch(), spec), 0.7**x, **EXACT)


@pytest.mark.parametrize("mapping", ["exp", "linear", "binary"])
def test_steer_of_nothing(mapping):
    # all Om are 0: nothing stands out
    for given in (batch(f64([0.0, 0.0])), batch(c=torch.zeros(2, 3).double())):
        for signed in (False, mapping != "exp"):
            w = weights(given, mapping=mapping, signed=signed)
            assert w.tolist() == [[1.0] * 3, [1.0] * 3]


@pytest.mark.parametrize(("mapping", "weight"), [("exp", 0.7), ("linear", 1.0), ("binary", 1.0)])
def test_steer_of_equal_changes(mapping, weight):
    # p = .5, r = 1, A = 1: Om = .5 * +-1 everywhere
    half, one = torch.full((2, 3), 0.5).double(), torch.ones(2, 3).double()
    w = weights(batch(f64([1.0, -1.0]), half, one, one), mapping=mapping)
    assert_close(w, torch.where(MASK.bool(), f64(weight), 1.0), **EXACT)


def test_steer_of_a_batch_without_tokens():
    zeros = torch.zeros(1, 2).double()
    empty = es.TokenBatch(zeros, zeros, torch.zeros(1, 2), f64([1.0]), entropy=zeros)
    for mapping in ("exp", "linear", "binary"):
        for signed in (False, mapping != "exp"):
            assert es.make_objective("steer", mapping=mapping, signed=signed).loss(empty).loss == 0


# ---------------------------------------------------------------------------- quadrants

# A:  1 (row 0), -1 (row 1), per token 0 at the end; p .9, .85, .1, .5 | .15, .05, .95, .5
QMASK = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 0, 1]])
QP = f64([[0.9, 0.85, 0.1, 0.5, 0.99, 0.99], [0.15, 0.05, 0.95, 0.5, 0.01, 0.02]])
QA = f64([[1.0, 1.0, 1.0, 1.0, 0.0, 1.0], [-1.0, -1.0, -1.0, -1.0, -1.0, -1.0]])
MEMBERS = {
    "I": [(0, 0), (0, 1)],
    "II": [(0, 2)],
    "III": [(1, 0), (1, 1), (1, 5)],
    "IV": [(1, 2)],
}


def quadrant_batch() -> es.TokenBatch:
    return es.TokenBatch(QP.log(), torch.full_like(QP, -0.7), QMASK, QA)


@pytest.mark.parametrize("which", MEMBERS)
@pytest.mark.parametrize(("action", "factor"), [("mask", 0.0), ("double", 2.0)])
def test_quadrants_by_hand(which, action, factor):
    expected = torch.ones(2, 6).double()
    for place in MEMBERS[which]:
        expected[place] = factor
    spec = {"name": "quadrant", "which": which, "action": action, "share": 1.0}
    assert torch.equal(weights(quadrant_batch(), spec), expected)


def test_the_ends_of_a_quadrant_are_outside():
    p, one = f64([0.8, 0.2]), torch.ones(2).double()
    for which, sign in (("I", 1), ("II", 1), ("III", -1), ("IV", -1)):
        assert not in_quadrant(which, sign * one, p).any()


@pytest.mark.parametrize("share", keep([0.05, 1 / 3, 0.5, 1.0], 0.05, 1 / 3))
def test_the_share_of_a_quadrant(share):
    # of its three tokens, not of the ten: on average `share` of them; 2000 seeds, four standard
    # deviations of the mean
    objective, given = es.make_objective("quadrant", which="III", share=share), quadrant_batch()
    rest, seen = (3 * share) % 1, []
    for n in range(2000):
        chosen = objective.plan(given, seed(n)).weight == 0
        assert {tuple(place) for place in chosen.nonzero().tolist()} <= set(MEMBERS["III"])
        seen.append(int(chosen.sum()))
    assert set(seen) <= {int(3 * share), int(3 * share) + 1}
    assert abs(sum(seen) / 2000 - 3 * share) <= 4 * math.sqrt(rest * (1 - rest) / 2000)


def test_a_quadrant_without_tokens():
    given = quadrant_batch().replace(advantages=f64([0.0, 1.0]))
    for which in ("III", "IV"):
        assert (weights(given, "quadrant", which=which) == 1).all()


def test_the_generator_chooses_within_a_quadrant():
    # one of three, 1500 seeds: chi-square of 2 degrees; 13.8 has probability .001
    objective = es.make_objective("quadrant", which="III", share=1 / 3)
    given = quadrant_batch()
    before = torch.random.get_rng_state()
    draws = [(objective.plan(given, seed(n)).weight == 0).nonzero() for n in range(1500)]
    assert torch.equal(torch.random.get_rng_state(), before)
    seen = Counter(tuple(draw[0].tolist()) for draw in draws)
    assert set(seen) == set(MEMBERS["III"])
    assert sum((n - 500) ** 2 for n in seen.values()) / 500 < 13.8


# ---------------------------------------------------------------------------- chains


def test_steer_with_an_entropy_bonus_by_hand():
    b = batch()
    chain = ["grpo", "ppo", {"name": "steer"}, {"name": "entropy_bonus", "coef": 0.25}]
    out = es.make_objective(chain).loss(b)
    # clip (.2, .2) leaves Om as it is; at the second token the loss is -1.2 * 2
    w = f64(MAPPED["exp"][1])
    losses = f64([[-2.4, -2.4, 0.0], [1.5, 0.8, 1.0]]) * w
    H = (C - P.log()) * MASK
    assert_close(out.loss, losses.sum() / 5 - 0.25 * H.sum() / 5, **EXACT)
    to_logp, to_entropy = torch.autograd.grad(out.loss, (b.logp, b.entropy))
    assert_close(to_logp, w * SLOPES / 5, **EXACT)
    assert_close(to_entropy, -0.05 * MASK.double(), **EXACT)


def test_weights_multiply():
    # steer: .7^.5, 1 | .7, 1, .7^.25; w_reinforce .1 on A > 0; forking tokens: the 2 of largest H
    # H = c - log p: 1.19, 4.61 | -.91, 9.29, 1.79: tokens (0, 1) and (1, 1)
    chain = [
        "clip_higher",
        "steer",
        {"name": "w_reinforce", "lam": 0.1},
        {"name": "forking_tokens", "top": 0.6},  # and (1, 2)
        {"name": "quadrant", "which": "I", "action": "double", "share": 1.0},
    ]
    expected = f64([[0.0, 0.1, 1.0], [0.0, 1.0, 0.7**0.25]])
    given = batch()
    assert_close(weights(given, chain), expected, **EXACT)
    assert_close(weights(given, [chain[0], *chain[:0:-1]]), expected, **EXACT)
    # quadrant II: A > 0 with p < .2. p = .19 at the first: Om = 2*1.2*.81*.5 = .972
    p = f64([[0.19, 0.2, 0.1], [0.5, 0.75, 0.25]])
    chain[-1] = {"name": "quadrant", "which": "II", "action": "double", "share": 1.0}
    del chain[3]
    expected = f64([[2 * 0.1 * 0.7 ** (0.972 / 1.2), 0.1, 1.0], [0.7, 1.0, 0.7**0.25]])
    assert_close(weights(batch(p=p), chain), expected, **EXACT)


# ---------------------------------------------------------------------------- names, parameters


@pytest.mark.parametrize(
    ("name", "bounds", "defaults"),
    [
        (
            "steer",
            (0.8, 1.28),
            {
                "lambda_min": 0.7,
                "mapping": "exp",
                "lambda_max": 1.2,
                "quantile": 0.8,
                "signed": False,
            },
        ),
        ("quadrant", (0.8, 1.2), {"which": "I", "action": "mask", "share": 0.1}),
    ],
)
def test_what_they_sit_on_and_their_defaults(name, bounds, defaults):
    objective = es.make_objective(name)
    assert objective.names == ("ppo", name)
    assert objective.advantage == "grpo"
    terms = objective.plan(batch(), seed(0))
    assert (terms.ratio_min[0, 0].item(), terms.ratio_max[0, 0].item()) == pytest.approx(bounds)
    assert dict(es.methods()[name].parameters) == defaults


def test_steer_needs_the_current_entropy():
    refused(lambda: es.make_objective("steer").plan(batch().replace(entropy=None)), "`entropy`")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("steer", {"mapping": "log"}, "steer: mapping must be 'exp', 'linear' or 'binary'"),
        ("steer", {"lambda_min": 0.0}, "steer: lambda_min must be above 0 and at most 1, got 0"),
        ("steer", {"lambda_min": 1.1}, "steer: lambda_min .*got 1.1"),
        ("steer", {"lambda_max": 0.6}, "steer: lambda_max must be at least 0.7, got 0.6"),
        ("steer", {"quantile": 1.1}, "steer: quantile must be at least 0 and at most 1, got 1.1"),
        ("steer", {"quantile": NAN}, "steer: quantile .*got nan"),
        ("quadrant", {"which": "V"}, "quadrant: which must be 'I', 'II', 'III' or 'IV', got 'V'"),
        ("quadrant", {"action": "drop"}, "quadrant: action must be 'mask' or 'double'"),
        ("quadrant", {"share": 0.0}, "quadrant: share must be above 0 and at most 1, got 0"),
        ("quadrant", {"share": 1.5}, "quadrant: share .*got 1.5"),
    ],
)
def test_errors_name_the_parameter(name, given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(name, **given)
