"""Names, recipes, errors and descriptions of methods; REPO-R by hand."""

import functools
import json
import math
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.method.base import Method
from entrostat.method.surrogates import Ppo
from scripts import ROOT

EXACT = {"rtol": 1e-12, "atol": 1e-12}


def bounds(objective: es.Objective) -> tuple[float, float]:
    """The clip bounds (1 - low, 1 + high) that an objective plans."""
    zeros, ones = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1)
    batch = es.TokenBatch(zeros, zeros, ones, f64([1.0]), old_entropy=zeros)
    terms = objective.plan(batch)
    return terms.ratio_min.item(), terms.ratio_max.item()


SEQUENCES, TOKENS = "seq_mean_token_mean", "token_mean"

# ---------------------------------------------------------------------------- names and recipes


@pytest.mark.parametrize(
    ("name", "estimator", "low", "high", "aggregation"),
    [
        # REPO 2, 4, App. B (sequences); PAR 6, STEER 6 and Eq. 1 (tokens); Dr. GRPO, 2503.20783
        ("rloo", "rloo", math.inf, math.inf, SEQUENCES),
        ("grpo", "grpo", 0.2, 0.2, SEQUENCES),
        ("grpo_token", "grpo", 0.2, 0.2, TOKENS),
        ("dr_grpo", "dr_grpo", 0.2, 0.2, "seq_mean_token_sum_norm"),
        ("clip_higher", "grpo", 0.2, 0.28, TOKENS),
        ("clip_lower", "grpo", 0.28, 0.2, TOKENS),
        ("clip_tighter", "grpo", 0.12, 0.2, TOKENS),
        ("clip_free", "grpo", math.inf, math.inf, TOKENS),
        ("extreme", "grpo", 0.99, 5.0, TOKENS),
        ("loop", "rloo", 0.2, 0.2, SEQUENCES),
        ("loop_tight", "rloo", 0.1, 0.1, SEQUENCES),
        ("dapo", "rloo", 0.2, 0.28, SEQUENCES),
        ("gspo_repo_r", "rloo", 3e-4, 4e-4, SEQUENCES),
        ("gspo_adapo", "rloo", 3e-4, 4e-4, SEQUENCES),
        ("gspo", "rloo", 3e-4, 4e-4, SEQUENCES),
        ("ppo", "grpo", 0.2, 0.2, TOKENS),
        ("reinforce", "grpo", math.inf, math.inf, TOKENS),
        ("repo_r", "rloo", 0.2, 0.28, SEQUENCES),
    ],
)
def test_recipes_are_those_of_the_papers(name, estimator, low, high, aggregation):
    objective = es.make_objective(name)
    assert objective.advantage == estimator
    assert objective.aggregation == aggregation
    assert bounds(objective) == pytest.approx((1 - low, 1 + high), rel=1e-12)


@pytest.mark.parametrize(
    ("spec", "names", "estimator"),
    [
        ("reinforce", ("reinforce",), "grpo"),
        ("repo_r", ("ppo", "repo_r"), "rloo"),
        ("gspo_repo_r", ("gspo", "repo_r"), "rloo"),
        (["rloo", "gspo", "repo_r"], ("gspo", "repo_r"), "rloo"),
        (["repo_r", "gspo"], ("gspo", "repo_r"), "rloo"),  # the surrogate comes first
        (["repo_r", {"name": "gspo", "low": 3e-4}], ("gspo", "repo_r"), "rloo"),
        (["dr_grpo", "repo_r", "ppo"], ("ppo", "repo_r"), "dr_grpo"),
        (["loop", "repo_r"], ("ppo", "repo_r"), "rloo"),
        (["loop", "rloo"], ("ppo",), "rloo"),  # the same estimator twice is no conflict
        ("opo", ("ppo",), "opo"),
        (["reinforce_pp_baseline", "reinforce"], ("reinforce",), "reinforce_pp_baseline"),
        (("gspo",), ("gspo",), "rloo"),
        ({"name": "repo_r", "zeta": 0.01}, ("ppo", "repo_r"), "rloo"),
    ],
)
def test_chains(spec, names, estimator):
    objective = es.make_objective(spec)
    assert objective.names == names
    assert objective.advantage == estimator


def test_the_advantage_argument_overrides_the_recipe():
    assert es.make_objective("dapo", advantage="grpo").advantage == "grpo"
    assert es.make_objective(["rloo", "ppo"], advantage="opo").advantage == "opo"


def test_parameters_reach_their_method():
    assert bounds(es.make_objective("ppo", low=0.5, high=None)) == (0.5, math.inf)
    assert bounds(es.make_objective("dapo", high=0.5)) == pytest.approx((0.8, 1.5))
    assert bounds(es.make_objective({"name": "gspo", "low": 0.5})) == pytest.approx((0.5, 1.0004))
    both = es.make_objective("gspo_repo_r", zeta=0.02, high=0.25)
    assert bounds(both) == pytest.approx((0.9997, 1.25))
    assert both.metrics() == {"control/zeta": 0.02}


def test_an_objective_says_what_it_is():
    text = repr(es.make_objective("dapo", aggregation="seq_mean_token_mean"))
    for word in ("rloo", "low=0.2", "high=0.28", "seq_mean_token_mean"):
        assert word in text


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: es.make_objective("gsppo"), "unknown method 'gsppo'.*Did you mean 'gspo'"),
        (lambda: es.make_objective("zzzz"), "'zzzz'. `entrostat methods` lists them"),
        (lambda: es.make_objective(["repo-r", "ppo"]), "'repo-r'.*Did you mean 'repo_r'"),
        (
            lambda: es.make_objective("repo_r", zetta=1),
            "repo_r: unknown parameter 'zetta'.*Did you mean 'zeta'",
        ),
        (lambda: es.make_objective("dapo", hihg=1), "dapo: .*'hihg'.*Did you mean 'high'"),
        (
            lambda: es.make_objective([{"name": "ppo", "lw": 1}]),
            "ppo: unknown parameter 'lw'.*Did you mean 'low'",
        ),
        (lambda: es.make_objective("dapo", target=1), "dapo: .*'target'.*thermostat have 'target'"),
        (
            lambda: es.make_objective("ppo", advantage="rlo"),
            "unknown advantage estimator 'rlo'.*Did you mean 'rloo'",
        ),
        (
            lambda: es.make_objective("ppo", aggregation="token_meen"),
            "unknown aggregation 'token_meen'.*Did you mean 'token_mean'",
        ),
        (lambda: es.make_objective(["ppo", "gspo"]), r"two surrogates \(ppo, gspo\)"),
        (lambda: es.make_objective(["dapo", "gspo"]), r"two surrogates \(ppo, gspo\)"),
        (lambda: es.make_objective(["rloo", "opo"]), r"two advantage estimators \(rloo, opo\)"),
        (lambda: es.make_objective(["loop", "opo"]), r"two advantage estimators \(rloo, opo\)"),
        (
            lambda: es.make_objective(["ppo", "repo_r"], zeta=1e-2),
            r"parameters beside a list are ambiguous \(zeta\); write them inside",
        ),
        (lambda: es.make_objective([]), "list of methods is empty"),
        (lambda: es.make_objective([3]), "a name or a table with a 'name', got 3"),
        (lambda: es.make_objective({"low": 0.1}), "a name or a table with a 'name'"),
        (lambda: es.make_objective("opo", low=0.1), "opo: .* takes no parameters"),
        (lambda: es.make_objective("ppo", max_length=0), "max_length must be at least 1, got 0"),
        (lambda: es.make_objective("ppo", low=-0.1), "ppo: low must be at least 0.*got -0.1"),
        (lambda: es.make_objective("ppo", high=math.nan), "ppo: high must be at least 0.*got nan"),
        (
            lambda: es.make_objective("gspo", high=math.inf),
            "gspo: high must be at least 0.*got inf",
        ),
        (lambda: es.make_objective("gspo", low=-1), "gspo: low must be at least 0.*got -1"),
        (lambda: es.make_objective("dapo", low=-1), "low must be at least 0.*got -1"),
        (lambda: es.make_objective("ppo", low="x"), "ppo: low must be a number, got 'x'"),
        (lambda: es.make_objective("ppo", low=True), "ppo: low must be a number, got True"),
        (lambda: es.make_objective("ppo", dual=1.0), "ppo: dual must be above 1.*got 1.0"),
        (lambda: es.make_objective("ppo", dual=math.nan), "ppo: dual must be above 1.*got nan"),
        (lambda: es.make_objective("repo_r", zeta=None), "repo_r: zeta must be a number, got None"),
        (
            lambda: es.make_objective("repo_r", bidirectional=1),
            "repo_r: bidirectional must be true or false, got 1",
        ),
        (lambda: es.make_objective("repo_r", center=1), "repo_r: center must be a word, got 1"),
        (
            lambda: es.make_objective("repo_r", center="mean"),
            "repo_r: center must be 'state' or 'batch', got 'mean'",
        ),
        (
            lambda: es.make_objective("repo_r", controller="pid"),
            "repo_r: controller must be 'doubling', 'pi', .* or 'none', got 'pid'",
        ),
        (lambda: es.make_objective("repo_r", zeta_min=1.0), "repo_r: .*0 <= low <= high"),
        (lambda: es.make_objective("repo_r", target=-1.0), "repo_r: .*target must be an entropy"),
        (
            lambda: es.make_objective("repo_r", zeta_min=0.0, bidirectional=True),
            "repo_r: .*bidirectional needs low > 0",
        ),
    ],
)
def test_errors_name_what_was_given_and_what_exists(call, words):
    with pytest.raises(ValueError, match=words):
        call()


# ---------------------------------------------------------------------------- hosts


def test_reinforce_takes_one_update_a_rollout_batch():
    objective = es.make_objective("reinforce")
    objective.check_host("lab", (), updates=1)
    refused(lambda: objective.check_host("lab", (), updates=4), "`reinforce`", "not 4")
    es.make_objective("ppo").check_host("lab", (), updates=4)


def test_a_host_without_old_entropy_is_refused_for_the_exact_centre_alone():
    refused(lambda: es.make_objective("repo_r").check_host("lab", ("rewards", "group")), "`repo_r`")
    es.make_objective("repo_r").check_host("lab", ("old_entropy",))
    es.make_objective("repo_r", center="batch").check_host("lab", ())


def test_a_method_is_refused_where_it_does_not_run():
    @dataclass(frozen=True)
    class Elsewhere(Method):
        hosts: ClassVar[tuple[str, ...]] = ("there", "yonder")

    objective = es.Objective((Ppo(), Elsewhere()), ("ppo", "elsewhere"), "grpo")
    refused(lambda: objective.check_host("lab", ()), "`elsewhere`", "there, yonder")
    refused(lambda: objective.check_host("there", ()), "`ppo`")


# ---------------------------------------------------------------------------- MethodInfo


@functools.cache
def pages() -> list[str]:
    return [path.read_text() for path in (ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("name", sorted(es.methods()))
def test_method_info_is_complete_and_true(name):
    info = es.methods()[name]
    assert info.name == name
    assert info.kind in ("surrogate", "intervention", "recipe")
    assert info.summary.strip() == info.summary != ""
    assert "\n" not in info.summary
    assert info.paper, "the class attribute `paper`: where it is from"
    assert any(f"`{name}`" in page for page in pages()), f"no page of docs/ has `{name}`"
    assert info.summary in info.doc
    assert info.hosts
    assert set(info.hosts) <= {"lab", "trl", "verl"}
    assert set(info.needs) <= set(es.TokenBatch.__dataclass_fields__)
    # the defaults are what an objective is built with
    assert repr(es.make_objective(name, **info.parameters)) == repr(es.make_objective(name))
    json.dumps(dict(info.parameters))


def test_method_info_by_hand():
    found = es.methods()
    assert {"reinforce", "ppo", "gspo", "repo_r", "grpo", "loop", "dapo", "gspo_repo_r"} <= {*found}
    assert found["ppo"].kind == "surrogate"
    assert dict(found["ppo"].parameters) == {"low": 0.2, "high": 0.2, "dual": None}
    assert found["repo_r"].kind == "intervention"
    assert found["repo_r"].needs == ("old_entropy",)
    assert dict(found["repo_r"].parameters) == {
        "zeta": 1e-3,
        "zeta_min": 1e-5,
        "zeta_max": 1e-1,
        "target": None,
        "bidirectional": False,
        "flip": "gradual",
        "center": "state",
        "controller": "doubling",
        "signal": "exact",
    }
    assert found["gspo_repo_r"].kind == "recipe"
    assert found["gspo_repo_r"].needs == ("old_entropy",)
    assert dict(found["gspo_repo_r"].parameters) == {
        "low": 3e-4,
        "high": 4e-4,
        "dual": None,
        **found["repo_r"].parameters,
    }
    assert found["extreme"].parameters["high"] == 5.0


# ---------------------------------------------------------------------------- REPO-R


def repo_batch(dtype: torch.dtype = torch.float64, **more) -> es.TokenBatch:
    old = torch.tensor([[-0.5, -2.0, -9.0], [-1.0, -3.0, -0.25]], dtype=dtype)
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    return es.TokenBatch(old, old, mask, torch.tensor([2.0, -1.0], dtype=dtype), **more)


H0 = [[1.0, 0.5, 7.0], [0.75, 1.0, 0.25]]


def test_repo_r_by_hand_with_the_exact_centre():
    # L = lp0 + H0 = .5, -1.5; A = 2 > 0: 2 - .1 * 2 * L = 1.9, 2.3. A = -1 < 0 stays
    objective = es.make_objective("repo_r", zeta=0.1)
    A = objective.prepare(repo_batch(old_entropy=f64(H0))).advantages
    assert_close(A, f64([[1.9, 2.3, 0.0], [-1, -1, -1]]), **EXACT)


def test_repo_r_by_hand_with_the_batch_centre():
    # masked mean of lp0 = (-.5 - 2 - 1 - 3 - .25)/5 = -1.35; L = .85, -.65
    objective = es.make_objective("repo_r", zeta=0.1, center="batch")
    A = objective.prepare(repo_batch()).advantages
    assert_close(A, f64([[2 - 0.2 * 0.85, 2 + 0.2 * 0.65, 0.0], [-1, -1, -1]]), **EXACT)


def test_repo_r_edits_per_token_advantages():
    given = f64([[2.0, -2.0, 5.0], [0.0, 4.0, 1.0]])
    batch = repo_batch(old_entropy=f64(H0)).replace(advantages=given)
    # L = (.5, -1.5), (-.25, -2, 0)
    A = es.make_objective("repo_r", zeta=0.1).prepare(batch).advantages
    assert_close(A, f64([[1.9, -2.0, 0.0], [0.0, 4 + 0.4 * 2, 1.0]]), **EXACT)


def test_repo_r_uses_the_zeta_of_its_controller():
    objective = es.make_objective("repo_r", target=1.0)
    assert objective.metrics() == {"control/zeta": 1e-3, "control/target": 1.0}
    for entropy, zeta in ((0.5, 2e-3), (0.9, 4e-3), (1.0, 4e-3), (1.5, 2e-3), (0.0, 4e-3)):
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/zeta": zeta, "control/target": 1.0}
    A = objective.prepare(repo_batch(old_entropy=f64(H0))).advantages
    assert_close(A[0], f64([2 - 4e-3, 2 + 1.5 * 8e-3, 0.0]), **EXACT)  # 2 - 4e-3 * 2 * (.5, -1.5)


def test_repo_r_targets_the_first_entropy_it_sees():
    objective = es.make_objective("repo_r")
    assert objective.metrics() == {"control/zeta": 1e-3}
    for entropy, zeta in ((0.5, 1e-3), (0.49, 2e-3), (0.51, 1e-3), (0.5, 1e-3)):
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/zeta": zeta, "control/target": 0.5}


def test_repo_r_keeps_zeta_in_its_range():
    objective = es.make_objective("repo_r", target=1.0)
    for _ in range(7):  # 1e-3 * 2^7 = .128
        objective.observe(entropy=0.0)
    assert objective.metrics()["control/zeta"] == 1e-1
    for _ in range(14):  # 1e-1 / 2^14 = 6.1e-6
        objective.observe(entropy=2.0)
    assert objective.metrics()["control/zeta"] == 1e-5


def test_repo_r_with_a_fixed_zeta():
    objective = es.make_objective("repo_r", controller="none", zeta=0.1)
    for entropy in (0.1, 5.0):
        objective.observe(entropy=entropy)
    assert objective.metrics()["control/zeta"] == 0.1
    A = objective.prepare(repo_batch(old_entropy=f64(H0))).advantages
    assert_close(A[0], f64([1.9, 2.3, 0.0]), **EXACT)


def test_repo_r_bidirectional_by_hand():
    objective = es.make_objective(
        "repo_r", bidirectional=True, zeta=0.25, zeta_min=0.125, zeta_max=0.5, target=1.0
    )
    expected = [0.125, -0.125, -0.25, -0.5, -0.5, -0.25, -0.125, 0.125, 0.25]
    for entropy, zeta in zip([2.0] * 5 + [0.5] * 4, expected, strict=True):
        objective.observe(entropy=entropy)
        assert objective.metrics()["control/zeta"] == zeta
    for entropy in (2.0, 2.0):  # .125, -.125
        objective.observe(entropy=entropy)
    A = objective.prepare(repo_batch(old_entropy=f64(H0))).advantages
    # A - zeta A L with zeta = -.125: 2 + .25 * (.5, -1.5)
    assert_close(A[0], f64([2.125, 1.625, 0.0]), **EXACT)
    assert_close(A[1], f64([-1.0, -1.0, -1.0]), **EXACT)


def test_repo_r_without_old_entropy_is_an_error():
    refused(lambda: es.make_objective("repo_r").prepare(repo_batch()), "`repo_r`", "`old_entropy`")


def test_repo_r_raises_the_share_of_rare_right_tokens():
    # what the method is for: among right tokens the rarer one gains, the common one loses
    objective = es.make_objective("repo_r", zeta=0.05)
    old = f64([[-0.01, -4.0]])
    batch = es.TokenBatch(old, old, torch.ones(1, 2), f64([1.0]), old_entropy=f64([[0.5, 0.5]]))
    common, rare = objective.prepare(batch).advantages[0].tolist()
    assert common < 1 < rare
