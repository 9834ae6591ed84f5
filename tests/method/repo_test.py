"""REPO-D and ADAPO by hand; what REPO-R reads."""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.method.repo import centred_logp

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NAN = math.nan


# Rows of 2 and 3 tokens, A = 2 and -1. H0 is chosen such that L = lp0 + H0 is a round number.
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])
P0 = f64([[0.5, 0.25, 0.9], [0.5, 0.1, 0.25]])
L = f64([[0.5, -1.0, 70.0], [1.0, -2.0, 0.4]])


def batch(**more) -> es.TokenBatch:
    """The batch; the current policy is another one, masked entries are junk."""
    old = P0.log()
    junk = torch.full_like(old, -0.03)
    given = {"old_entropy": L - old, "entropy": 5 + junk} | more
    return es.TokenBatch(junk, old, MASK, f64([2.0, -1.0]), **given)


# ---------------------------------------------------------------------------- REPO-D

# A L p0: 2*.5*.5 = .5, 2*(-1)*.25 = -.5 | -1*1*.5 = -.5, -1*(-2)*.1 = .2, -1*.4*.25 = -.1
# their mean over 5 tokens: -.4/5 = -.08, so dH = .08


def test_repo_d_by_hand_with_one_beta_for_the_batch():
    # zeta = .5: beta = -.5 * .08 = -.04; A - beta L = A + .04 L
    A = es.make_objective("repo_d", zeta=0.5).prepare(batch()).advantages
    assert_close(A, f64([[2.02, 1.96, 0.0], [-0.96, -1.08, -0.984]]), **EXACT)


def test_repo_d_by_hand_with_a_beta_for_each_token():
    # beta = -zeta dH = .5 A L p0: .25, -.25 | -.25, .1, -.05
    # beta L: .125, .25 | -.25, -.2, -.02
    A = es.make_objective("repo_d", zeta=0.5, scope="token").prepare(batch()).advantages
    assert_close(A, f64([[1.875, 1.75, 0.0], [-0.75, -0.8, -0.98]]), **EXACT)


# masked mean of lp0 = (-1 - 3 - 2 - 4 - 2.5)/5 = -2.5; L = 1.5, -.5 | .5, -1.5, 0
OLD = f64([[-1.0, -3.0, -50.0], [-2.0, -4.0, -2.5]])
E1, E2, E3, E4 = (math.exp(-k) for k in (1, 2, 3, 4))


def test_repo_d_by_hand_with_the_batch_centre():
    # A L p0: 3 e^-1, -e^-3 | -.5 e^-2, 1.5 e^-4, 0; beta = zeta times their mean
    given = es.TokenBatch(torch.zeros(2, 3).double(), OLD, MASK, f64([2.0, -1.0]))
    beta = 0.5 * (3 * E1 - E3 - 0.5 * E2 + 1.5 * E4) / 5
    expected = f64(
        [
            [2 - 1.5 * beta, 2 + 0.5 * beta, 0.0],
            [-1 - 0.5 * beta, -1 + 1.5 * beta, -1.0],
        ]
    )
    A = es.make_objective("repo_d", zeta=0.5, center="batch").prepare(given).advantages
    assert_close(A, expected, **EXACT)


def test_repo_d_by_hand_with_the_batch_centre_and_a_beta_for_each_token():
    # beta L = .5 A L^2 p0: .5*2*2.25 e^-1, .5*2*.25 e^-3 | -.5*.25 e^-2, -.5*2.25 e^-4, 0
    given = es.TokenBatch(torch.zeros(2, 3).double(), OLD, MASK, f64([2.0, -1.0]))
    objective = es.make_objective("repo_d", zeta=0.5, center="batch", scope="token")
    expected = f64([[2 - 2.25 * E1, 2 - 0.25 * E3, 0.0], [-1 + 0.125 * E2, -1 + 1.125 * E4, -1.0]])
    assert_close(objective.prepare(given).advantages, expected, **EXACT)


def test_repo_d_by_hand_with_advantages_a_token():
    # A = 2, 0 | 4, -1, 1: A L p0 = .5, 0 | 2, .2, .1; beta = .5 * 2.8/5 = .28
    given = batch().replace(advantages=f64([[2.0, 0.0, NAN], [4.0, -1.0, 1.0]]))
    A = es.make_objective("repo_d", zeta=0.5).prepare(given).advantages
    expected = f64([[2 - 0.14, 0.28, 0.0], [4 - 0.28, -1 + 0.56, 1 - 0.112]])
    assert_close(A, expected, **EXACT)


def test_repo_d_does_nothing_where_no_change_is_expected():
    given = batch().replace(advantages=f64([0.0, 0.0]))
    for scope in ("batch", "token"):
        A = es.make_objective("repo_d", zeta=0.5, scope=scope).prepare(given).advantages
        assert A.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_repo_d_uses_the_zeta_of_its_controller_and_its_range():
    # the same controller as repo_r in [1e-3, 10]
    objective = es.make_objective("repo_d", target=1.0)
    assert objective.metrics() == {"control/zeta": 1e-3, "control/target": 1.0}
    for entropy, zeta in ((2.0, 1e-3), (0.5, 2e-3), (0.9, 4e-3), (1.0, 4e-3), (1.1, 2e-3)):
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/zeta": zeta, "control/target": 1.0}
    A = objective.prepare(batch()).advantages  # beta = -2e-3 * .08
    assert_close(A[0], f64([2 + 8e-5, 2 - 16e-5, 0.0]), **EXACT)
    for _ in range(13):  # 2e-3 * 2^13 = 16.384
        objective.observe(entropy=0.0)
    assert objective.metrics()["control/zeta"] == 10.0


def test_repo_d_targets_the_first_entropy_it_sees():
    objective = es.make_objective("repo_d")
    assert objective.metrics() == {"control/zeta": 1e-3}
    for entropy, zeta in ((0.5, 1e-3), (0.49, 2e-3), (0.51, 1e-3)):
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/zeta": zeta, "control/target": 0.5}


def test_repo_d_with_a_fixed_zeta():
    objective = es.make_objective("repo_d", controller="none", zeta=0.5)
    objective.observe(entropy=0.1)
    assert objective.metrics()["control/zeta"] == 0.5
    A = objective.prepare(batch()).advantages
    assert_close(A[0], f64([2.02, 1.96, 0.0]), **EXACT)


# ---------------------------------------------------------------------------- both


def test_the_centre_is_the_papers_over_the_vocabulary():
    # REPO's L(s, a) = log pi(a|s) - E_a[log pi(a|s)], summed over 6 actions at each of 5 states
    logits = torch.randn(1, 5, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    pi = logits.softmax(-1)
    mean = sum(pi[..., a] * pi[..., a].log() for a in range(6))
    action = torch.tensor([[0, 5, 2, 2, 4]])
    old = pi.gather(-1, action[..., None])[..., 0].log()
    given = es.TokenBatch(old, old, torch.ones(1, 5), f64([1.0]), old_entropy=-mean)
    assert_close(centred_logp(given, "state"), old - mean, **EXACT)


def test_repo_r_flips_at_once_or_gradually():
    more = {"bidirectional": True, "zeta": 0.25, "zeta_min": 0.125, "zeta_max": 0.5, "target": 1.0}
    runs = {
        # above five times, below twice
        "immediate": [-0.125, -0.25, -0.5, -0.5, -0.5, 0.25, 0.5],
        "gradual": [0.125, -0.125, -0.25, -0.5, -0.5, -0.25, -0.125],
    }
    for flip, expected in runs.items():
        objective = es.make_objective("repo_r", flip=flip, **more)
        for entropy, zeta in zip([2.0] * 5 + [0.5] * 2, expected, strict=True):
            objective.observe(entropy=entropy)
            assert objective.metrics()["control/zeta"] == zeta
    assert repr(es.make_objective("repo_r", **more)) == repr(objective)  # gradual by default


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({}, "repo_r: flip='immediate' has no effect with bidirectional=False"),
        (
            {"bidirectional": True, "controller": "none"},
            "repo_r: flip='immediate' has no effect with controller='none'",
        ),
    ],
)
def test_a_flip_that_cannot_be_is_said(more, words):
    with pytest.warns(UserWarning, match=words):
        es.make_objective("repo_r", flip="immediate", **more)


def test_repo_r_reads_the_old_policy_alone():
    # A - .1 A L where A > 0: 2 - .2 * (.5, -1); junk in the current policy changes nothing
    A = es.make_objective("repo_r", zeta=0.1).prepare(batch()).advantages
    assert_close(A, f64([[1.9, 2.2, 0.0], [-1, -1, -1]]), **EXACT)
    other = batch().replace(logp=torch.full((2, 3), -40.0).double(), entropy=None)
    assert torch.equal(es.make_objective("repo_r", zeta=0.1).prepare(other).advantages, A)


def test_repo_d_after_repo_r_sees_its_advantages():
    # repo_r (.1): 1.9, 2.2 | -1, -1, -1; A L p0: .475, -.55 | -.5, .2, -.1: sum -.475
    # beta = .5 * -.475/5 = -.0475
    chain = [
        {"name": "repo_r", "zeta": 0.1, "controller": "none"},
        {"name": "repo_d", "zeta": 0.5, "controller": "none"},
    ]
    A = es.make_objective(chain).prepare(batch()).advantages
    b = 0.0475
    expected = f64([[1.9 + 0.5 * b, 2.2 - b, 0.0], [-1 + b, -1 - 2 * b, -1 + 0.4 * b]])
    assert_close(A, expected, **EXACT)
    # the other way round: 2.02, 1.96 and then times 1 - .1 L = .95, 1.1
    A = es.make_objective(chain[::-1]).prepare(batch()).advantages
    assert_close(A, f64([[2.02 * 0.95, 1.96 * 1.1, 0.0], [-0.96, -1.08, -0.984]]), **EXACT)


def test_repo_without_old_entropy_is_an_error_for_the_exact_centre_alone():
    refused(lambda: es.make_objective("repo_d").prepare(batch(old_entropy=None)), "`old_entropy`")
    es.make_objective("repo_d", center="batch").prepare(batch(old_entropy=None))


# ---------------------------------------------------------------------------- ADAPO


def at_ratios(ratios, advantages) -> es.TokenBatch:
    """One sequence, lp0 = -1, lp such that the token ratios are `ratios`."""
    old = torch.full((1, len(ratios)), -1.0, dtype=torch.float64)
    logp = (old + f64([ratios]).log()).requires_grad_()
    return es.TokenBatch(logp, old, torch.ones(1, len(ratios)), f64([advantages]))


def test_adapo_is_ppos_clip_with_a_moving_upper_bound():
    objective = es.make_objective("adapo", target=1.0)
    given = at_ratios([1.5, 1.5, 0.5, 0.5], [2.0, -2.0, 2.0, -2.0])
    # bounds .8 and 1 + high: -min(r A, clip(r) A)
    for entropy, high in ((None, 0.28), (0.5, 0.2828), (1.0, 0.2828), (1.5, 0.28)):
        if entropy is not None:
            objective.observe(entropy=entropy)
        out = objective.loss(given)
        assert_close(out.per_token, f64([[-2 * (1 + high), 3.0, -1.0, 1.6]]), **EXACT)
        slope = torch.autograd.grad(out.per_token.sum(), given.logp)[0]
        assert_close(slope, f64([[0.0, 3.0, -1.0, 0.0]]), **EXACT)
        figures = {"control/clip_high": high, "control/target": 1.0}
        assert objective.metrics() == pytest.approx(figures, rel=1e-12)


def test_adapo_keeps_the_bound_in_its_range():
    objective = es.make_objective("adapo", target=1.0)
    for _ in range(7):  # .28 * 1.01^7 = .3002
        objective.observe(entropy=0.0)
    assert objective.metrics()["control/clip_high"] == 0.3
    for _ in range(41):  # .3 / 1.01^40 = .2015, / 1.01^41 = .1995
        assert objective.metrics()["control/clip_high"] > 0.2
        objective.observe(entropy=2.0)
    assert objective.metrics()["control/clip_high"] == 0.2


def test_adapo_targets_the_first_entropy_it_sees():
    objective = es.make_objective("adapo", factor=2.0, high=0.2, high_min=0.1, high_max=1.0)
    for entropy, high in ((0.5, 0.2), (0.49, 0.4), (0.51, 0.2), (0.6, 0.1)):
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/clip_high": high, "control/target": 0.5}


# ---------------------------------------------------------------------------- names, parameters


@pytest.mark.parametrize(("name", "names"), [("repo_d", ("ppo", "repo_d")), ("adapo", ("adapo",))])
def test_what_they_sit_on(name, names):
    objective = es.make_objective(name)
    assert objective.names == names
    assert objective.advantage == "rloo"
    ones = torch.ones(1, 1).double()
    terms = objective.plan(es.TokenBatch(-ones, -ones, ones, ones, old_entropy=ones))
    assert_close(terms.ratio_min, 0.8 * ones, **EXACT)
    assert_close(terms.ratio_max, 1.28 * ones, **EXACT)


@pytest.mark.parametrize(
    ("name", "defaults"),
    [
        (
            "repo_d",
            {
                "zeta": 1e-3,
                "zeta_min": 1e-3,
                "zeta_max": 10.0,
                "target": None,
                "scope": "batch",
                "center": "state",
                "controller": "doubling",
                "signal": "exact",
            },
        ),
        (
            "adapo",
            {
                "low": 0.2,
                "high": 0.28,
                "high_min": 0.2,
                "high_max": 0.3,
                "factor": 1.01,
                "target": None,
                "ratio": "token",
                "signal": "exact",
            },
        ),
    ],
)
def test_defaults(name, defaults):
    assert dict(es.methods()[name].parameters) == defaults


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("repo_d", {"scope": "row"}, "repo_d: scope must be 'batch' or 'token', got 'row'"),
        ("repo_d", {"center": "mean"}, "repo_d: center must be 'state' or 'batch', got 'mean'"),
        ("repo_d", {"controller": "x"}, "repo_d: controller must be 'doubling', .* or 'none'"),
        ("repo_d", {"zeta_min": 11.0}, "repo_d: zeta's .*0 <= low <= high"),
        ("repo_d", {"target": -0.1}, "repo_d: zeta's .*target must be an entropy"),
        ("repo_d", {"zeta": NAN}, "repo_d: zeta's .*start must be a number"),
        ("repo_d", {"zeta": -1.0}, "repo_d: zeta's .*start must be >= 0, got -1"),
        ("repo_d", {"bidirectional": True}, "repo_d: unknown parameter 'bidirectional'"),
        ("repo_r", {"flip": "now"}, "repo_r: flip must be 'gradual' or 'immediate', got 'now'"),
        ("adapo", {"low": -0.1}, "adapo: low must be at least 0.*got -0.1"),
        ("adapo", {"high": -0.1}, "adapo: high must be at least 0.*got -0.1"),
        ("adapo", {"high_max": 0.1}, "adapo: high's .*0 <= low <= high"),
        ("adapo", {"factor": 1.0}, "adapo: high's .*factor must be above 1, got 1.0"),
        ("adapo", {"target": -1.0}, "adapo: high's .*target must be an entropy"),
    ],
)
def test_errors_name_the_parameter(name, given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(name, **given)


def test_adapo_takes_no_second_surrogate():
    refused(lambda: es.make_objective(["adapo", "reinforce"]), "two surrogates")


# ---------------------------------------------------------------------------- entropy followed


@pytest.mark.parametrize(
    ("spec", "coefficient", "factor"),
    [
        ("repo_r", "zeta", 2.0), ("repo_d", "zeta", 2.0), ("adapo", "clip_high", 1.01),
        ({"name": "entropy_bonus", "controller": "doubling"}, "entropy_coef", 2.0),
    ],
)  # fmt: skip
def test_the_mean_over_responses_is_an_option(spec, coefficient, factor):
    # tokens: 1.0, then 1.1, above; responses (REPO's mean): 1.2, then 1.1, below
    table = spec if isinstance(spec, dict) else {"name": spec}
    start = {"zeta": 0.01} if coefficient == "zeta" else {}
    start |= {"coef": 0.01} if coefficient == "entropy_coef" else {}
    found = []
    for signal in ("exact", "response_mean"):
        objective = es.make_objective([table | start | {"signal": signal}])
        for exact, responses in ((1.0, 1.2), (1.1, 1.1)):
            figures = {
                "entropy/exact": exact, "entropy/response_mean": responses, "rollout/tokens": 9,
            }  # fmt: skip
            objective.observe_figures(figures)
        found.append(objective.metrics()[f"control/{coefficient}"])
        target = {"exact": 1.0, "response_mean": 1.2}[signal]
        assert objective.metrics()["control/target"] == target
    assert found[1] / found[0] == pytest.approx(factor**2)
    with pytest.raises(ValueError, match="needs `response_mean`"):
        objective.observe(entropy=1.0)
