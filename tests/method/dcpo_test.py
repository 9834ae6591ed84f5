"""DCPO's clip by hand, against its definition, and against the figures of its paper."""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.method.dcpo import dynamic_bounds

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NAN = math.nan


@pytest.mark.parametrize(
    ("p0", "lower", "upper"),
    [
        # (1 + sqrt(1 - .64/p0))/2 down to 1/2 at p0 = .64, and (1 + sqrt(1 + .8/p0))/2
        (1.0, 0.8, (1 + math.sqrt(1.8)) / 2),
        (0.64 / 0.75, 0.75, (1 + math.sqrt(1.9375)) / 2),  # sqrt(1/4)
        (0.64, 0.5, 1.25),  # sqrt(2.25)
        (0.1, 0.5, 2.0),  # sqrt(9)
        (1 / 30, 0.5, 3.0),  # sqrt(25)
        (0.8 / 360, 0.5, 10.0),  # sqrt(361)
        (1e-3, 0.5, 10.0),  # (1 + sqrt(801))/2 = 14.65, capped
    ],
)
def test_bounds_by_hand(p0, lower, upper):
    got = dynamic_bounds(f64([[p0]]).log(), 0.16, 0.2, 10.0)
    # near p0 = .64 the root's slope is infinite
    assert_close(got[0], f64([[lower]]), rtol=0, atol=1e-7)
    assert_close(got[1], f64([[upper]]), **EXACT)


def test_bounds_are_those_of_the_papers_table():
    # the least and greatest probability that still has a gradient, of q = .9 and of q = .01
    lower, upper = dynamic_bounds(f64([0.9, 0.01]).log(), 0.16, 0.2, 10.0)
    p0 = f64([0.9, 0.01])
    assert_close(lower * p0, f64([0.69, 0.005]), rtol=0, atol=0.005)
    assert_close(upper * p0, f64([1.06, 0.05]), rtol=0, atol=0.01)


def test_bounds_are_the_ratios_next_to_1_that_keep_to_the_constraint():
    p0 = torch.rand(500, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lower, upper = dynamic_bounds(p0.log(), 0.1, 0.3, 1e9)
    kept = lambda r, eps: (r - 1).abs() * r * p0 <= eps  # noqa: E731 (p = r p0)
    for share in (0.0, 0.5, 0.999):
        assert kept(1 + share * (upper - 1), 0.3).all()
        assert kept(1 - share * (1 - lower), 0.1).all()
    assert not kept(1.001 * upper, 0.3).any()
    bound = p0 > 0.41
    assert bound.any()
    assert not kept(0.999 * lower, 0.1)[bound].any()
    free = p0 < 0.4  # no ratio below 1 breaks it
    assert (lower[free] == 0.5).all()
    assert all(kept(torch.full_like(p0, r / 100), 0.1)[free].all() for r in range(1, 100))


def test_bounds_of_extreme_probabilities_are_finite():
    old = torch.tensor([[-2000.0, -90.0, -1e-9, 0.0]])
    lower, upper = dynamic_bounds(old, 0.16, 0.2, 10.0)
    assert_close(lower, torch.tensor([[0.5, 0.5, 0.8, 0.8]]))
    assert_close(upper, torch.tensor([[10.0, 10.0, 1.170820, 1.170820]]))
    for bound in dynamic_bounds(old, 0.0, 0.0, 10.0):
        assert (bound == 1).all()


# p0 = .1: bounds .5 and 2; p0 = .64/.75: .75 and 1.196; masked: junk
OLD = f64([[0.1, 0.1, 0.64 / 0.75, 0.1], [0.1, 0.64 / 0.75, 0.64 / 0.75, 0.1]]).log()
R = f64([[1.9, 2.1, 1.3, 9.0], [0.4, 0.8, 0.7, 12.0]])
MASK = torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]])


def test_dcpo_by_hand():
    logp = (OLD + R.log()).requires_grad_()
    batch = es.TokenBatch(logp, OLD, MASK, f64([2.0, -3.0]))
    out = es.make_objective("dcpo", aggregation="token_mean").loss(batch)
    top = (1 + math.sqrt(1.9375)) / 2
    # A = 2: -2 min(r, r_max); A = -3: 3 max(r, r_min), at most 3 * 10
    expected = f64([[-3.8, -4.0, -2 * top, 0.0], [1.5, 2.4, 2.25, 30.0]])
    assert_close(out.per_token, expected, **EXACT)
    assert_close(out.loss, expected.sum() / 7, **EXACT)
    slopes = torch.autograd.grad(out.per_token.sum(), logp)[0]
    assert_close(slopes, f64([[-3.8, 0, 0, 0], [0, 2.4, 0, 0]]), **EXACT)
    clips = {key: out.metrics[f"clip/{key}"].item() for key in ("high", "low", "dual")}
    assert clips == pytest.approx({"high": 2 / 7, "low": 2 / 7, "dual": 1 / 7})


def test_dcpo_lets_a_rare_token_rise_where_ppo_does_not():
    old = f64([[0.01]]).log()
    for name, slope in (("ppo", 0.0), ("dcpo", -4.0)):
        logp = (old + math.log(4)).requires_grad_()
        loss = es.make_objective(name).loss(es.TokenBatch(logp, old, torch.ones(1, 1), f64([1.0])))
        assert_close(torch.autograd.grad(loss.loss, logp)[0], f64([[slope]]), **EXACT)


def test_steer_over_dcpo_follows_its_clip():
    # A = 2: r = 1.9 is inside the bound 2; r = 2.1 is cut, so that it moves nothing: weight 1
    logp = OLD[:1, :2] + R[:1, :2].log()
    ones = torch.ones(1, 2)
    batch = es.TokenBatch(logp, OLD[:1, :2], ones, f64([2.0]), entropy=1 - logp)
    weight = es.make_objective(["dcpo", "steer"]).plan(batch).weight
    assert_close(weight, f64([[0.7, 1.0]]), **EXACT)


def test_what_it_is():
    objective = es.make_objective("dcpo")
    assert objective.names == ("dcpo",)
    assert objective.advantage == "grpo"
    assert not objective.needs
    assert not objective.reads_current
    assert dict(es.methods()["dcpo"].parameters) == {"low": 0.16, "high": 0.2, "cap": 10.0}
    assert es.make_objective(["rloo", "dcpo", "clip_cov"]).names == ("dcpo", "clip_cov")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"low": -0.1}, "dcpo: low must be at least 0, got -0.1"),
        ({"high": NAN}, "dcpo: high must be at least 0.*, got nan"),
        ({"cap": 1.0}, "dcpo: cap must be above 1, got 1.0"),
        ({"dual": 3.0}, "dcpo: unknown parameter 'dual'"),
    ],
)
def test_errors_name_the_parameter(given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective("dcpo", **given)


def test_it_takes_no_second_surrogate():
    refused(lambda: es.make_objective(["dcpo", "ppo"]), "two surrogates")
