"""What every method must keep, whatever it computes; one run over all of `entrostat.methods()`.

A new method is held to these by its name alone. The rules are those of `entrostat.testing`, which
an author's own tests call. What a method by its own definition does otherwise stands in a table
with the reason; the rules hold each entry to be true as well.

A property is one case per method: what else it must hold for (aggregations, kinds of junk, dtypes)
is walked through inside.
"""

import functools

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from entrostat.testing import RULES, Added, Allowed, Subject, contract_data, keep
from entrostat.testing.advantages import added_gradients
from entrostat.testing.data import AGGREGATIONS, MASK
from entrostat.testing.findings import CLOSE

SPECS = {name: name for name in es.methods()} | {
    # settings that take another path through their method
    "ppo, dual": {"name": "ppo", "dual": 1.5},
    "ppo, one-sided": {"name": "ppo", "low": None},
    "repo_r, batch centre": {"name": "repo_r", "center": "batch"},
    "repo_r, bidirectional": {"name": "repo_r", "bidirectional": True, "target": 0.2},
    "repo_r, immediate": {
        "name": "repo_r", "bidirectional": True, "target": 0.2, "flip": "immediate",
    },
    "repo_r, pi": {"name": "repo_r", "controller": "pi", "target": 0.35},
    "repo_d, token": {"name": "repo_d", "scope": "token", "zeta": 1.0},
    "repo_d, batch centre": {"name": "repo_d", "center": "batch", "controller": "none"},
    # of 18 tokens their shares would be none: at least one
    "clip_cov": {"name": "clip_cov", "at_least": 1},
    "kl_cov": {"name": "kl_cov", "at_least": 1},
    "rand_pos_clip": {"name": "rand_pos_clip", "at_least": 1},
    "quadrant": {"name": "quadrant", "share": 0.25},  # 1 of its 4 tokens
    "clip_cov, wide": {"name": "clip_cov", "low": 0.2, "ratio": 0.12, "at_least": 1},  # 2 of 18
    "kl_cov, k3": {"name": "kl_cov", "penalty": "k3", "frac": 0.2, "at_least": 1},  # 3 of 18
    "kl_cov, many": {"name": "kl_cov", "frac": 0.2, "at_least": 1},
    "opefo, static": {"name": "opefo", "mode": "static", "lam": 0.3},
    "opefo, plus_only": {"name": "opefo", "mode": "plus_only"},
    "opefo, minus_only": {"name": "opefo", "mode": "minus_only"},
    "steer, linear": {"name": "steer", "mapping": "linear"},
    "steer, binary": {"name": "steer", "mapping": "binary"},
    "steer, linear and signed": {"name": "steer", "mapping": "linear", "signed": True},
    "steer, binary and signed": {"name": "steer", "mapping": "binary", "signed": True},
    "stare": {"name": "stare", "target": 0.45},  # its gate is open at .3
    "stare, C2": {"name": "stare", "target": 0.45, "variant": "C2", "top": 0.4, "alpha": 0.1},
    "pos_adv, moved": {"name": "pos_adv", "weight": 0.5, "target": 0.35},
    "pos_adv, stage": {"name": "pos_adv", "schedule": "stage"},
    "pos_adv, epoch": {"name": "pos_adv", "schedule": "epoch"},
    "quadrant I, half": {"name": "quadrant", "share": 0.5},
    "quadrant II": {"name": "quadrant", "which": "II", "action": "double", "share": 1 / 3},
    "quadrant III": {"name": "quadrant", "which": "III", "share": 0.5},
    "quadrant IV": {"name": "quadrant", "which": "IV", "action": "double", "share": 0.5},
    "entropy_bonus, doubling": {"name": "entropy_bonus", "controller": "doubling", "target": 0.6},
    "entropy_bonus, dual": {"name": "entropy_bonus", "controller": "dual", "target": 0.6},
    "adaptive_entropy, open": {"name": "adaptive_entropy", "target": 0.45},
    "adaptive_entropy, closed": {"name": "adaptive_entropy", "coef": 1e-3},  # not in ADDED
    "adaptive_entropy, nll": {"name": "adaptive_entropy", "target": 0.95, "signal": "nll"},
    "prime, as printed": {"name": "prime", "norm": "none", "whiten": False, "gamma": 0.9},
    "kl_ref, k1": {"name": "kl_ref", "form": "k1"},
    "kl_ref, k2": {"name": "kl_ref", "form": "k2", "coef": 0.5},
    "kl_ref, unbiased": {"name": "kl_ref", "unbiased": True, "coef": 0.5},
    # a bound that some tokens pass
    "cispo, both bounds": {"name": "cispo", "low": 0.3, "high": 0.4},
    "dppo, kl": {"name": "dppo", "divergence": "kl", "low": 0.02, "high": 0.02},
    "icepop, narrow": {"name": "icepop", "low": 0.7, "high": 1.4},
    "m2po, loose": {"name": "m2po", "threshold": 0.1},
    "gmpo, narrow": {"name": "gmpo", "low": 0.2, "high": 0.2},
    "off_policy_mask, tight": {"name": "off_policy_mask", "delta": 0.05},
    # several interventions at once
    "chain, papers": [
        "dapo", "repo_r", {"name": "steer", "mapping": "linear"},
        {"name": "pos_adv", "weight": 0.5},
    ],
    "chain, shapes": [
        "rloo", "adapo", "unlikeliness", "gtpo", "entropy_adv", "edge_grpo", "ppl_adv",
        "position_adv", "forking_tokens",
    ],
    "chain, penalties": [
        "gspo", {"name": "rand_pos_clip", "ratio": 0.12, "at_least": 1},
        {"name": "entropy_bonus", "coef": 0.02}, {"name": "kl_ref", "form": "k2", "coef": 0.1},
    ],
}  # fmt: skip

# choose fewer tokens than they may, with the generator: spec -> the setting that chooses all
RANDOM = {
    "rand_pos_clip": {"ratio": 1.0},
    "clip_cov, wide": {"ratio": 1.0},
    "quadrant": {"share": 1.0},
    "quadrant I, half": {"share": 1.0},
    "quadrant II": {"share": 1.0},
    "quadrant III": {"share": 1.0},
    "quadrant IV": {"share": 1.0},
    "chain, penalties": None,  # its rand_pos_clip is tested alone
}
# terms added to the loss, which no advantage scales; `moved` shows .5, .4, .3 nats (nll .6 above)
ADDED = {
    "entropy_bonus": Added(entropy=1e-3),
    "entropy_bonus, doubling": Added(entropy=8e-3),  # below .6 three times: doubled three times
    "entropy_bonus, dual": Added(entropy=0.1),  # .1 * (1/6 + 2/6 + 3/6)
    "h_bonus": Added(entropy=4e-3),  # the first is its target, then below twice
    "adaptive_entropy, open": Added(entropy=2e-4),  # above .45 once (kept at 0), below twice
    "adaptive_entropy, nll": Added(entropy=1e-4),  # 1.1, 1.0, .9: below .95 once
    "kl_ref": Added(ref_kl=1e-3),
    "kl_ref, k1": Added(ref_kl=1e-3, form="k1"),
    "kl_ref, k2": Added(ref_kl=0.5, form="k2"),
    "chain, penalties": Added(entropy=0.02, ref_kl=0.1, form="k2"),
}
# equal rewards other than 0 teach something: the likelier of equally right answers earns less, and
# so does one that drifted further from the reference
UNEQUAL = {"unlikeliness": True, "chain, shapes": True, "kl_reward": "always"}
# (spec, sign of the advantage) whose single token gets no policy gradient
ONE_TOKEN = {
    ("gtpo", 1): "normalised over the group's tokens, of which it is the only one",
    ("gtpo", -1): "the same",
    ("chain, shapes", 1): "its gtpo",
    ("chain, shapes", -1): "its gtpo",
    ("prime", 1): "whitened, and it is itself the mean",
    ("prime", -1): "the same",
    # here lp + H > 0: A > 0 lowers entropy, so lam = 1 and the weight is 1 - lam = 0; A < 0 raises
    # it, so lam = -1 and the weight is 1 + lam = 0
    ("opefo", 1): "nothing balances its flow",
    ("opefo", -1): "nothing balances its flow",
    ("influence_flow", 1): "the same, as its influence is negative",
    ("opefo, plus_only", -1): "the same; this mode leaves the tokens that lower entropy alone",
    ("opefo, minus_only", 1): "the same; this mode leaves the tokens that raise entropy alone",
    ("pos_only", -1): "left out by definition",
    ("neg_only", 1): "left out by definition",
    ("rand_pos_clip", 1): "at least one token is chosen",
    ("chain, penalties", 1): "its rand_pos_clip",
}


@functools.cache
def subject(name: str) -> Subject:
    """A spec with what the tables allow it; its undisturbed passes are made once."""
    signs = tuple(sign for which, sign in ONE_TOKEN if which == name)
    allowed = Allowed(
        random=name in RANDOM,
        all_of=RANDOM.get(name),
        added=ADDED.get(name),
        equal_rewards_teach=UNEQUAL.get(name, False),
        no_gradient_alone=signs,
    )
    return Subject(SPECS[name], allowed=allowed)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", sorted(SPECS))
def test_the_contract(name, rule):
    keep(subject(name), RULES[rule])


def test_tables_name_what_there_is():
    assert {*RANDOM, *ADDED, *UNEQUAL, *(name for name, _ in ONE_TOKEN)} <= {*SPECS}


@pytest.mark.parametrize("name", ["rand_pos_clip", "clip_cov, wide", "chain, penalties"])
def test_frozen_tokens_give_only_the_gradient_of_added_terms_and_count_in_the_loss(name):
    counted = False
    for seed in range(8):
        result = subject(name).run(contract_data(), seed=seed)
        frozen = result.terms.frozen
        assert frozen.any()
        theirs = added_gradients(ADDED.get(name, Added()), "token_mean")
        for mine, expected in zip(result.gradients, theirs, strict=True):
            assert_close(mine[frozen], expected[frozen], **CLOSE)
        if name not in ADDED:
            # ppo's loss: -min(r A, clip(r) A)
            r = (result.batch.logp - result.batch.old_logp).detach().exp()
            A = result.batch.advantages
            bound = 1.0 if name == "clip_cov, wide" else 0.2
            by_hand = -torch.minimum(r * A, r.clamp(1 - bound, 1 + bound) * A)
            assert_close(result.out.per_token[frozen].detach(), by_hand[frozen], **CLOSE)
            counted |= bool(by_hand[frozen].any())
    assert counted or name in ADDED


# those that clip a ratio and weight nothing, so that at ratio 1 only A lp is left
UNWEIGHTED = """ppo gspo adapo dcpo grpo loop loop_tight dapo clip_higher clip_lower clip_tighter
    clip_free clip_wide extreme repo_r repo_d gspo_repo_r gspo_repo_d kl_cov unlikeliness
    entropy_adv gtpo edge_grpo ppl_adv position_adv prime loop_token""".split()


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_the_first_update_on_policy_is_reinforce(name):
    data = contract_data()
    data["logp"] = data["old_logp"]
    for aggregation in AGGREGATIONS:
        result = subject(name).run(data, aggregation)
        # the same prepared advantages under -A lp
        reinforce = es.make_objective("reinforce", aggregation=aggregation)
        leaf = data["logp"].clone().requires_grad_()
        batch = es.TokenBatch(leaf, data["old_logp"], MASK, result.batch.advantages)
        reinforce.loss(batch).loss.backward()
        assert_close(result.gradients[0], leaf.grad, **CLOSE)
        assert leaf.grad.any()
