"""OPEFO by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NAN = math.nan


# c = lp + H; dH = -A (1-p)^2 c, A = 2 and -1
#   p      .5    .2   (masked)  .5    .8    .9
#   c      .4    -1   (junk)    2     -.5   0
#   dH     -.2   1.28           .5    -.02  0
# P+ = 1.78, N- = .22, lam = (.22 - 1.78)/2 = -.78
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])
P = f64([[0.5, 0.2, 0.01], [0.5, 0.8, 0.9]])
C = f64([[0.4, -1.0, -50.0], [2.0, -0.5, 0.0]])
A = f64([2.0, -1.0])


def batch(advantages=A) -> es.TokenBatch:
    """The batch; the old policy is another one."""
    logp = P.log().requires_grad_()
    old = torch.full((2, 3), -3.0).double()
    H = C - P.log()
    return es.TokenBatch(
        logp, old, MASK, advantages, entropy=H.requires_grad_(), old_entropy=torch.zeros_like(old)
    )


@pytest.mark.parametrize(
    ("given", "up", "down"),
    [
        ({}, 0.22, 1.78),
        ({"mode": "static"}, 1.001, 0.999),
        ({"mode": "static", "lam": 0.25}, 1.25, 0.75),
        ({"mode": "static", "lam": -0.25}, 0.75, 1.25),
        ({"mode": "plus_only"}, 0.22, 1.0),
        ({"mode": "minus_only"}, 1.0, 1.78),
    ],
)
def test_weights_by_hand(given, up, down):
    out = es.make_objective("opefo", **given).loss(batch())
    weight = torch.where(MASK.bool(), out.terms.weight, 1)
    assert_close(weight, f64([[down, up, 1.0], [up, down, 1.0]]), **EXACT)
    # loss: the mean over 5 tokens of -w A lp
    log = P.log()
    losses = f64([[-2 * down, -2 * up, 0.0], [up, down, 1.0]]) * torch.where(MASK.bool(), log, 0)
    assert_close(out.per_token, losses, **EXACT)
    assert_close(out.loss, losses.sum() / 5, **EXACT)


def test_gradient_by_hand():
    given = batch()
    out = es.make_objective("opefo").loss(given)
    gradient = torch.autograd.grad(out.loss, given.logp, retain_graph=True)[0]
    # -w A / N
    expected = f64([[-2 * 1.78, -2 * 0.22, 0.0], [0.22, 1.78, 1.0]]) / 5
    assert_close(gradient, expected, **EXACT)
    assert torch.autograd.grad(out.loss, given.entropy, allow_unused=True)[0] is None


def test_the_weighted_flow_is_balanced():
    # .22 * (1.28 + .5) = 1.78 * (.2 + .02)
    weight = es.make_objective("opefo").plan(batch()).weight
    flow = f64([[-0.2, 1.28, 0.0], [0.5, -0.02, 0.0]])
    assert_close((weight * flow).sum(), f64(0.0), **EXACT)


def test_per_token_advantages():
    # A = 1, -1 | 0, 2, 1: dH = -.1, -.64 | 0, .04, 0; lam = (.74 - .04)/.78
    given = batch(f64([[1.0, -1.0, 60.0], [0.0, 2.0, 1.0]]))
    lam = 0.7 / 0.78
    weight = es.make_objective("opefo").plan(given).weight
    expected = f64([[1 - lam, 1 - lam], [1.0, 1 + lam]])
    assert_close(weight[:, :2], expected, **EXACT)
    assert weight[1, 2] == 1


def test_without_any_flow_the_weights_are_one():
    for mode in ("adaptive", "plus_only", "minus_only", "static"):
        terms = es.make_objective("opefo", mode=mode).plan(batch(f64([0.0, 0.0])))
        assert terms.weight.tolist() == [[1.0] * 3, [1.0] * 3]


@pytest.mark.parametrize(
    ("advantages", "weights"),
    [
        # one side alone cannot be balanced: lam = 1 or -1, and its tokens get weight 0
        ([[1.0, 0.0, 0.0], [-0.0, -1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]),  # dH -.1, -.02
        ([[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]),
    ],
)
def test_flow_on_one_side_alone(advantages, weights):
    weight = es.make_objective("opefo").plan(batch(f64(advantages))).weight
    assert_close(weight[:, :2], f64(weights), **EXACT)


def test_weights_multiply():
    # w_reinforce: .25 where A = 2; opefo's flow is that of the advantages, unweighted
    for chain in (["opefo", {"name": "w_reinforce", "lam": 0.25}], ["w_reinforce", "opefo"]):
        lam = 0.25 if chain[0] == "opefo" else 0.1
        weight = es.make_objective(["reinforce", *chain]).plan(batch()).weight
        assert_close(weight[0, :2], f64([1.78 * lam, 0.22 * lam]), **EXACT)
        assert_close(weight[1], f64([0.22, 1.78, 1.0]), **EXACT)


def test_the_minibatch_decides_for_its_parts():
    objective, given = es.make_objective("opefo"), batch()
    terms = objective.plan(given)
    parts = sum(objective.loss(given[i : i + 1], terms[i : i + 1]).loss for i in range(2))
    assert_close(parts, objective.loss(given).loss, **EXACT)


def test_one_update_a_rollout_batch():
    es.make_objective("opefo", updates=1)
    refused(lambda: es.make_objective(["ppo", "opefo"], updates=2), "`opefo`", "not 2")
    refused(lambda: es.make_objective("opefo", mode="static", updates=8), "`opefo`", "not 8")


def test_it_needs_the_current_entropy():
    refused(lambda: es.make_objective("opefo").plan(batch().replace(entropy=None)), "`entropy`")


def test_what_it_sits_on_and_its_defaults():
    objective = es.make_objective("opefo")
    assert objective.names == ("reinforce", "opefo")
    assert objective.advantage == "grpo"
    assert dict(es.methods()["opefo"].parameters) == {
        "mode": "adaptive",
        "lam": 1e-3,
        "controller": "none",
        "target": None,
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"mode": "both"}, "opefo: mode must be 'adaptive', 'static', .*got 'both'"),
        ({"lam": 1.5}, "opefo: lam must be at least -1 and at most 1, got 1.5"),
        ({"lam": NAN}, "opefo: lam .*got nan"),
    ],
)
def test_errors_name_the_parameter(given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective("opefo", **given)
