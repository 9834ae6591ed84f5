"""What goes together: every advantage x surrogate x intervention, what is refused, what sits where.

The tables are those of the specification (papers and defaults), not of the code.
"""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.core.advantages import ESTIMATORS

EXACT = {"rtol": 1e-12, "atol": 1e-12}
ADVANTAGES = ("grpo", "rloo", "dr_grpo", "reinforce_pp", "reinforce_pp_baseline", "opo")
SURROGATES = ("reinforce", "ppo", "gspo", "adapo", "dcpo")
# intervention -> (advantage, surrogate, low, high) that it sits on alone, and the fields it needs
INTERVENTIONS = {
    "repo_r": (("rloo", "ppo", 0.2, 0.28), {"old_entropy"}),
    "repo_d": (("rloo", "ppo", 0.2, 0.28), {"old_entropy"}),
    "entropy_bonus": (("grpo", "ppo", 0.2, 0.2), {"entropy"}),
    "adaptive_entropy": (("grpo", "ppo", 0.2, 0.2), {"entropy"}),
    "kl_ref": (("grpo", "ppo", 0.2, 0.2), {"ref_logp"}),
    "clip_cov": (("grpo", "ppo", 1.0, 1.0), set()),
    "kl_cov": (("grpo", "ppo", math.inf, math.inf), set()),
    "prime": (("rloo", "ppo", 0.2, 0.2), {"process_rewards", "group"}),
    "opefo": (("grpo", "reinforce", math.inf, math.inf), {"entropy"}),
    "steer": (("grpo", "ppo", 0.2, 0.28), {"entropy"}),
    "pos_adv": (("grpo", "ppo", 0.2, 0.2), set()),
    "pos_only": (("grpo", "ppo", 0.2, 0.2), set()),
    "neg_only": (("grpo", "ppo", 0.2, 0.2), set()),
    "rand_pos_clip": (("grpo", "ppo", 0.2, 0.2), set()),
    "w_reinforce": (("grpo", "ppo", 0.2, 0.2), set()),
    "unlikeliness": (("grpo", "ppo", 0.2, 0.2), {"rewards", "group"}),
    "entropy_adv": (("grpo", "ppo", 0.2, 0.2), {"old_entropy"}),
    "gtpo": (("grpo", "ppo", 0.2, 0.2), {"old_entropy", "rewards", "group"}),
    "edge_grpo": (("grpo", "ppo", 0.2, 0.2), {"old_entropy", "group"}),
    "ppl_adv": (("grpo", "ppo", 0.2, 0.2), set()),
    "position_adv": (("grpo", "ppo", 0.2, 0.2), set()),
    "forking_tokens": (("grpo", "ppo", 0.2, 0.2), {"entropy"}),
    "group_mean": (("grpo", "ppo", 0.2, 0.2), {"group"}),
    "quadrant": (("grpo", "ppo", 0.2, 0.2), set()),
}
ALONE = {
    "reinforce": ("grpo", "reinforce", math.inf, math.inf),
    "ppo": ("grpo", "ppo", 0.2, 0.2),
    "gspo": ("rloo", "gspo", 3e-4, 4e-4),
    "adapo": ("rloo", "adapo", 0.2, 0.28),
} | {name: base for name, (base, _) in INTERVENTIONS.items()}
RECIPES = {
    "rloo": ("rloo", "reinforce", math.inf, math.inf),
    "grpo": ("grpo", "ppo", 0.2, 0.2),
    "grpo_token": ("grpo", "ppo", 0.2, 0.2),
    "dr_grpo": ("dr_grpo", "ppo", 0.2, 0.2),
    "loop": ("rloo", "ppo", 0.2, 0.2),
    "loop_tight": ("rloo", "ppo", 0.1, 0.1),
    "dapo": ("rloo", "ppo", 0.2, 0.28),
    "clip_higher": ("grpo", "ppo", 0.2, 0.28),
    "clip_lower": ("grpo", "ppo", 0.28, 0.2),
    "clip_tighter": ("grpo", "ppo", 0.12, 0.2),
    "clip_free": ("grpo", "ppo", math.inf, math.inf),
    "clip_wide": ("grpo", "ppo", 1.0, 1.0),
    "extreme": ("grpo", "ppo", 0.99, 5.0),
    "gspo_repo_r": ("rloo", "gspo", 3e-4, 4e-4),
    "gspo_repo_d": ("rloo", "gspo", 3e-4, 4e-4),
    "h_bonus": ("rloo", "ppo", 0.2, 0.28),
    "loop_token": ("rloo", "ppo", 0.2, 0.2),
    "gspo_adapo": ("rloo", "adapo", 3e-4, 4e-4),
}
MORE = {  # what a recipe has beside its surrogate: names, fields
    "gspo_repo_r": (("repo_r",), {"old_entropy"}),
    "gspo_repo_d": (("repo_d",), {"old_entropy"}),
    "h_bonus": (("entropy_bonus",), {"entropy"}),
}


def fields() -> dict[str, torch.Tensor]:
    """All that a `TokenBatch` can hold but advantages; two prompts, B = 4, T = 3."""
    g = torch.Generator().manual_seed(0)
    old, new, H, H0, ref = torch.rand(5, 4, 3, generator=g, dtype=torch.float64)
    return {
        "logp": -0.1 - new,
        "old_logp": -0.1 - old,
        "mask": torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 0, 0]]),
        "rewards": f64([1.0, 0.0, 0.5, 0.25]),
        "group": torch.tensor([0, 0, 1, 1]),
        "entropy": H + 0.1,
        "old_entropy": H0 + 0.1,
        "ref_logp": -0.1 - ref,
        "process_rewards": ref - H,
    }


def run(objective: es.Objective, data: dict[str, torch.Tensor]) -> es.LossOutput:
    objective.observe(entropy=0.5, nll=0.5, progress=0.0)
    batch = objective.prepare(es.TokenBatch(**data))
    terms = objective.plan(batch, torch.Generator().manual_seed(0))
    return objective.loss(batch, terms)


# ---------------------------------------------------------------------------- what there is


def test_every_method_of_the_papers_is_there():
    kinds = {name: info.kind for name, info in es.methods().items()}
    assert {n for n, kind in kinds.items() if kind == "surrogate"} >= {*SURROGATES}
    assert {n for n, kind in kinds.items() if kind == "intervention"} >= {*INTERVENTIONS}
    assert {n for n, kind in kinds.items() if kind == "recipe"} >= {*RECIPES}


@pytest.mark.parametrize("name", [*ALONE, *RECIPES])
def test_each_says_what_it_is(name):
    info = es.methods()[name]
    assert info.summary
    assert info.paper
    assert info.hosts == (("lab",) if name == "prime" else ("lab", "trl", "verl"))
    expected = INTERVENTIONS.get(name, (None, set()))[1]
    assert set(info.needs) == MORE.get(name, ((), expected))[1]


@pytest.mark.parametrize(("name", "base"), [*ALONE.items(), *RECIPES.items()])
def test_what_it_sits_on_alone(name, base):
    advantage, surrogate, low, high = base
    objective = es.make_objective(name)
    assert objective.advantage == advantage
    rest = (name,) if name in INTERVENTIONS else MORE.get(name, ((), set()))[0]
    assert objective.names == (surrogate, *rest)
    terms = run(objective, fields()).terms
    assert terms.ratio == (
        "sequence" if "gspo" in name else {"reinforce": "none"}.get(surrogate, "token")
    )
    assert (terms.ratio_min == 1 - low).all()
    assert (terms.ratio_max == 1 + high).all()
    if name in INTERVENTIONS:
        said = es.methods()[name].sits_on
        assert advantage in said
        assert surrogate in said


@pytest.mark.parametrize("name", [*ALONE, *RECIPES])
def test_its_needs_are_enough(name):
    A = f64([1.0, -1.0, 0.5, -0.5])
    wanted = {"logp", "old_logp", "mask", *es.methods()[name].needs}
    data = {key: value for key, value in fields().items() if key in wanted}
    assert torch.isfinite(run(es.make_objective(name), data | {"advantages": A}).loss)


@pytest.mark.parametrize(
    ("name", "need"),
    [(n, need) for n, (_, needs) in INTERVENTIONS.items() for need in sorted(needs)]
    + [("gspo_repo_r", "old_entropy"), ("gspo_repo_d", "old_entropy")],
)
def test_without_what_it_needs_the_error_names_the_field(name, need):
    data = {key: value for key, value in fields().items() if key != need}
    if name != "unlikeliness":  # given advantages it has nothing to shape
        data["advantages"] = f64([1.0, -1.0, 0.5, -0.5])
    with pytest.raises(ValueError, match=f"`{name.removeprefix('gspo_')}`.*`{need}`|needs.*{need}"):
        run(es.make_objective(name), data)


def test_a_host_is_refused_what_it_lacks():
    for name, (_, needs) in INTERVENTIONS.items():
        objective = es.make_objective(name)
        objective.check_host("lab", fields())
        for need in needs if name != "unlikeliness" else ():
            with pytest.raises(ValueError, match=f"`{name}` needs `{need}`; lab does not"):
                objective.check_host("lab", {*fields()} - {need})


# ---------------------------------------------------------------------------- what goes together


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("advantage", ADVANTAGES)
def test_any_advantage_surrogate_and_intervention(advantage, surrogate):
    for intervention in INTERVENTIONS:
        objective = es.make_objective([intervention, surrogate], advantage=advantage)
        if advantage != "grpo":  # in a list that name is the recipe, with its own surrogate
            listed = es.make_objective([advantage, intervention, surrogate])
            assert repr(listed) == repr(objective)
        assert objective.names == (surrogate, intervention)  # whatever the order written
        assert objective.advantage == advantage
        data = fields()
        leaves = [data[key].requires_grad_() for key in ("logp", "entropy")]
        loss = run(objective, data).loss
        assert torch.isfinite(loss), intervention
        found = torch.autograd.grad(loss, leaves, allow_unused=True)
        gradients = [g for g in found if g is not None]
        assert all(torch.isfinite(g).all() for g in gradients), intervention
        # quadrants, adaptive_entropy's gate and pos_adv's side leave the rest alone: no
        # combination of two leaves nothing to learn
        assert any(g.any() for g in gradients), intervention


EDITS = ("prime", "repo_r", "repo_d", "entropy_adv", "gtpo", "edge_grpo", "ppl_adv", "position_adv")


@pytest.mark.parametrize("first", INTERVENTIONS)
def test_any_two_interventions_go_together_or_are_refused(first):
    for second in INTERVENTIONS:
        fight = [
            first == second,
            {first, second} == {"repo_r", "repo_d"},
            {first, second} == {"pos_only", "neg_only"},
            second == "gtpo" and first in EDITS,
        ]
        spec = ["ppo", first, second]
        if any(fight):
            with pytest.raises(ValueError, match=f"make_objective.*{second}"):
                es.make_objective(spec)
        else:
            objective = es.make_objective(spec)
            assert objective.names == ("ppo", first, second)
            assert torch.isfinite(run(objective, fields()).loss), second


PRESETS = [name for name, base in RECIPES.items() if base[1] == "ppo" and name not in ESTIMATORS]


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("surrogate", ["gspo", "reinforce", "adapo"])
@pytest.mark.parametrize("flip", [False, True])
def test_a_clip_preset_goes_with_no_other_surrogate(preset, surrogate, flip):
    spec = [preset, surrogate][:: -1 if flip else 1]
    why = "leaves 1 by some 1e-4" if surrogate == "gspo" else "one ratio and one clip"
    with pytest.raises(ValueError, match=f"two surrogates .*{surrogate}.*{why}.*Keep one"):
        es.make_objective(spec)


ENTROPY = "both control the entropy coefficient.*would fight; keep one, or fix"


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            ["adaptive_entropy", {"name": "entropy_bonus", "controller": "doubling"}],
            f"adaptive_entropy and entropy_bonus {ENTROPY}",
        ),
        (
            [{"name": "entropy_bonus", "controller": "doubling"}, "adaptive_entropy"],
            f"entropy_bonus and adaptive_entropy {ENTROPY}",
        ),
        (
            ["repo_r", "repo_d"],
            "repo_r and repo_d both control zeta.*would fight; keep one, or fix",
        ),
        (["gspo_repo_r", "repo_d"], "repo_r and repo_d both control zeta"),
        (["ppl_adv", "gtpo"], "gtpo computes .* anew from the rewards.*list ppl_adv after gtpo"),
        (["repo_r", "pos_only", "gtpo"], "repo_r's edits before it would be lost"),
        (["pos_only", "neg_only"], "pos_only and neg_only together leave no token"),
        (["neg_only", "steer", "pos_only"], "pos_only and neg_only together leave no token"),
        (["ipo", "kl_cov"], "kl_cov and ipo both set the distance to the old policy; keep one"),
        (["steer", "ppo", "steer"], "'steer' stands twice in ppo, steer, steer"),
        (["adapo", "gspo", "kl_ref", "kl_ref"], "'kl_ref' stands twice"),
        (["gspo", "gspo", "adapo"], "surrogates"),
        (["adapo", {"name": "gspo", "high": "linear 4e-4 1e-3"}], "surrogates"),
        (["gspo_repo_r", "repo_r"], "twice in .*; gspo_repo_r is repo_r with settings of its own"),
        (
            [{"name": "thermostat", "knob": "zeta"}, "repo_r"],
            "twice in .*; thermostat is repo_r with settings of its own",
        ),
        (["kl_ref", {"name": "kl_ref", "coef": 1.0}], "'kl_ref' stands twice"),
        (["ppo", "ppo"], r"two surrogates \(ppo, ppo\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(spec, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(spec)


@pytest.mark.parametrize(
    "spec",
    [
        ["entropy_bonus", "adaptive_entropy"],  # the first is fixed
        [{"name": "repo_r", "controller": "none"}, "repo_d"],
        ["repo_r", {"name": "repo_d", "controller": "none"}],
        ["gtpo", "ppl_adv"],
        ["unlikeliness", "gtpo"],  # the first edits the rewards, which the second reads
        ["adapo", "repo_r", "adaptive_entropy", "pos_adv"],  # four controllers of four things
    ],
)
def test_what_can_be_meant_is_not(spec):
    assert torch.isfinite(run(es.make_objective(spec), fields()).loss)


@pytest.mark.parametrize("spec", ["opefo", "reinforce", ["opefo", "ppo"], ["repo_r", "reinforce"]])
def test_strictly_on_policy_methods_take_one_update(spec):
    who = "`opefo`" if "opefo" in spec else "`reinforce`"
    words = f"{who}: strictly on-policy, so one update per rollout batch, not 2.*minibatches to 1"
    with pytest.raises(ValueError, match=words):
        es.make_objective(spec, updates=2)
    objective = es.make_objective(spec, updates=1)
    assert objective.strictly_on_policy
    objective.check_updates(1)
    objective.check_host("lab", fields(), updates=1)
    with pytest.raises(ValueError, match=words):
        objective.check_updates(2)
    with pytest.raises(ValueError, match=words):
        objective.check_host("lab", fields(), updates=2)


def test_both_culprits_are_named():
    refused(lambda: es.make_objective("opefo", updates=4), "`reinforce`", "`opefo`")


@pytest.mark.parametrize("name", sorted({*ALONE, *RECIPES} - {"reinforce", "rloo", "opefo"}))
def test_the_others_take_several(name):
    objective = es.make_objective(name, updates=4)
    assert not objective.strictly_on_policy
    objective.check_host("lab", fields(), updates=4)


# ---------------------------------------------------------------------------- order


def test_interventions_edit_in_the_order_written():
    # one token, A = 1, H0 = 4, t/len = 1. entropy_adv: A + min(.4 * 4, A/2) = A + A/2;
    # position_adv: A + .1 sigmoid(1)
    one = torch.ones(1, 1, dtype=torch.float64)
    batch = es.TokenBatch(-one, -one, one, f64([1.0]), old_entropy=4 * one)
    late = 0.1 / (1 + math.exp(-1))
    for spec, expected in (
        (["entropy_adv", "position_adv"], 1.5 + late),
        (["position_adv", "entropy_adv"], (1 + late) * 1.5),
    ):
        A = es.make_objective(spec).prepare(batch).advantages
        assert_close(A, f64([[expected]]), **EXACT)


def test_rewards_are_shaped_before_any_advantage():
    # beta = .5, K = 2: the likelier rollout (rank 1) earns 1 (1 - .5/2) = .75, the other 1;
    # rloo: .75 - 1 = -.25 and .25. entropy_adv adds min(.4 * 4, |A|/2), wherever it is written
    two = torch.ones(2, 1, dtype=torch.float64)
    batch = es.TokenBatch(
        f64([[-1.0], [-2.0]]), f64([[-1.0], [-2.0]]), two, rewards=f64([1.0, 1.0]),
        group=torch.tensor([0, 0]), old_entropy=4 * two,
    )  # fmt: skip
    shape = {"name": "unlikeliness", "beta": 0.5}
    for spec in (["rloo", shape, "entropy_adv"], ["rloo", "entropy_adv", shape]):
        A = es.make_objective(spec).prepare(batch).advantages
        assert_close(A, f64([[-0.125], [0.375]]), **EXACT)


def test_weights_multiply_and_frozen_tokens_unite():
    # A = 1, -1 in two tokens: w_reinforce .1 on the first, pos_adv .5 on it too; rand_pos_clip
    # freezes the only positive token, clip_cov one of covariance in [-1, 0]
    data = {"logp": f64([[-1.0, -1.0]]), "old_logp": f64([[-1.0, -1.0]]), "mask": torch.ones(1, 2)}
    batch = es.TokenBatch(**data, advantages=f64([[1.0, -1.0]]))
    objective = es.make_objective(
        ["w_reinforce", {"name": "pos_adv", "weight": 0.5},
         {"name": "rand_pos_clip", "ratio": 0.5},
         {"name": "clip_cov", "low": -1.0, "high": 0.0, "ratio": 1.0}]
    )  # fmt: skip
    terms = objective.plan(batch, torch.Generator().manual_seed(0))
    assert_close(terms.weight, f64([[0.05, 1.0]]), **EXACT)
    assert terms.frozen.tolist() == [[True, True]]  # both covariances are 0


@pytest.mark.parametrize(
    ("spec", "names", "estimator"),
    [
        # "grpo" names an estimator and a recipe; beside a surrogate it is the estimator
        (["grpo", "gspo"], ("gspo",), "grpo"),
        (["grpo", "reinforce", "opefo"], ("reinforce", "opefo"), "grpo"),
        (["grpo", {"name": "ppo", "high": 0.28}, "steer"], ("ppo", "steer"), "grpo"),
        (["adapo", "grpo"], ("adapo",), "grpo"),
        (["grpo", "repo_r"], ("ppo", "repo_r"), "grpo"),  # no surrogate named: the recipe
    ],
)
def test_grpo_beside_a_surrogate_is_the_estimator(spec, names, estimator):
    objective = es.make_objective(spec)
    assert (objective.names, objective.advantage) == (names, estimator)


@pytest.mark.parametrize(
    ("spec", "bounds", "estimator"),
    [
        # the first intervention that asks for something other than plain GRPO has it
        (["entropy_bonus", "clip_cov"], (0.0, 2.0), "grpo"),
        (["clip_cov", "entropy_bonus"], (0.0, 2.0), "grpo"),
        (["w_reinforce", "repo_r", "pos_adv"], (0.8, 1.28), "rloo"),
        (["entropy_bonus", "w_reinforce"], (0.8, 1.2), "grpo"),
    ],
)
def test_a_chain_without_a_surrogate_sits_on_what_one_of_them_asks_for(spec, bounds, estimator):
    objective = es.make_objective(spec)
    zero, one = f64([[0.0]]), torch.ones(1, 1)
    terms = objective.plan(
        es.TokenBatch(zero, zero, one, f64([1.0]), entropy=zero, old_entropy=zero)
    )
    assert (terms.ratio_min.item(), terms.ratio_max.item()) == pytest.approx(bounds)
    assert objective.advantage == estimator


@pytest.mark.parametrize(
    ("spec", "high", "words"),
    [
        (["steer", "clip_cov"], 1.28,
         "steer sits on clip_higher, clip_cov on clip_wide; steer is listed first.*over "
         "clip_higher.*'clip_higher' or 'clip_wide'"),
        (["clip_cov", "steer"], 2.0, "clip_cov sits on clip_wide, steer on clip_higher"),
        (["grpo", "pos_adv", "kl_cov", "repo_r"], math.inf, "kl_cov sits on clip_free, repo_r on"),
    ],
)  # fmt: skip
def test_where_two_ask_for_different_bases_the_first_has_it_and_it_is_said(spec, high, words):
    with pytest.warns(UserWarning, match=words):
        objective = es.make_objective(spec)
    assert run(objective, fields()).terms.ratio_max.max().item() == pytest.approx(high)


@pytest.mark.parametrize(
    "spec",
    [["clip_wide", "steer", "clip_cov"], ["ppo", "clip_cov", "repo_r"],
     ["gspo", "steer", "kl_cov"]],
)  # fmt: skip
def test_a_base_that_is_listed_is_no_surprise(spec):
    es.make_objective(spec)  # a warning is an error here


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "entropy_bonus", "target": 0.7}, "entropy_bonus: target=0.7 has no effect"),
        ({"name": "opefo", "lam": 0.5}, "opefo: lam=0.5 has no effect with mode='adaptive'"),
        (
            {"name": "steer", "quantile": 0.5},
            "steer: quantile=0.5 has no effect with mapping='exp'",
        ),
        (
            {"name": "pos_adv", "schedule": "stage", "weight": 0.5},
            "pos_adv: weight=0.5 has no effect with schedule='stage'",
        ),
        (
            {"name": "repo_r", "controller": "none", "target": 1.0},
            "repo_r: target=1.0 has no effect",
        ),
    ],
)
def test_a_parameter_that_the_mode_does_not_read_is_warned_of(spec, words):
    with pytest.warns(UserWarning, match=words):
        es.make_objective(spec)


@pytest.mark.parametrize(
    ("spec", "bounds"),
    [
        # COV 4.1 and its authors' scripts: clip (1, 1) or none; STEER 5: (.2, .28); GRPO: (.2, .2)
        (["grpo", "clip_cov"], (0.0, 2.0)),
        (["grpo", "steer"], (0.8, 1.28)),
        (["grpo", "ppo", "steer"], (0.8, 1.2)),
        (["grpo", "kl_cov"], (-math.inf, math.inf)),
    ],
)
def test_grpo_beside_an_intervention_leaves_it_its_surrogate(spec, bounds):
    objective = es.make_objective(spec)
    assert objective.advantage == "grpo"
    zero, one = f64([[0.0]]), torch.ones(1, 1)
    terms = objective.plan(es.TokenBatch(zero, zero, one, f64([1.0]), entropy=zero))
    assert (terms.ratio_min.item(), terms.ratio_max.item()) == pytest.approx(bounds)


@pytest.mark.parametrize("value", [None, "none"])
def test_no_clip_survives_a_file(value, tmp_path):
    from entrostat.config import from_dict, load

    config = from_dict({"method": {"name": "ppo", "low": 0.1, "high": value}})
    (tmp_path / "c.toml").write_text(config.to_toml())
    again = from_dict(load(tmp_path / "c.toml"))
    (ppo,) = es.make_objective(again.method).methods
    assert (ppo.low, ppo.high) == (0.1, None)
