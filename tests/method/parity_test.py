"""Losses and advantages beside the public code's, from the golden values in tests/golden.

`tests/golden/make_verl.py` and `make_trl.py` ran veRL's and TRL's own functions on fixed inputs;
here entrostat gets the same inputs. Where the two differ by intent, the test applies the known
conversion and docs/parity.md has the line. Everything is float64; the tolerance of losses,
gradients and advantages is 1e-7, absolute (veRL adds 1e-8 to some denominators, the JSON keeps ten
digits), unless a test says another.
"""

import json
import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import refused
from paths import ROOT, TESTS

GOLDEN = TESTS / "golden"
VERL = json.loads((GOLDEN / "verl.json").read_text())
TRL = json.loads((GOLDEN / "trl.json").read_text())
CLOSE = {"rtol": 0, "atol": 1e-7}
NO_DUAL = 1e6  # veRL's dual clip cannot be switched off; make_verl.py sets it out of reach


def tensor(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def case(golden: dict, name: str, kind: str = "losses") -> dict:
    (found,) = [each for each in golden[kind] if each["name"] == name]
    return found


def cases(golden: dict, *functions: str, key: str = "function"):
    """Parametrises over the cases of these functions, or over all of `losses`."""
    chosen = [c for c in golden["losses"] if not functions or c[key] in functions]
    return pytest.mark.parametrize("case", chosen, ids=[c["name"] for c in chosen])


class Ours:
    """Entrostat's loss on a golden's inputs; gradients w.r.t. logp and entropy."""

    def __init__(self, inputs: dict, spec, aggregation="token_mean", max_length=None, *,
                 advantages="advantages", rows=slice(None), entropies=None):  # fmt: skip
        self.objective = es.make_objective(spec, aggregation=aggregation, max_length=max_length)
        self.inputs = {k: tensor(v)[rows] for k, v in inputs.items()}
        self.mask = self.inputs["mask"].bool()
        if advantages is None:
            self.A = torch.zeros_like(self.inputs["logp"])
        else:
            self.A = self.inputs[advantages]
        for entropy in entropies or ():
            self.objective.observe(entropy=entropy)
        logp = self.inputs["logp"].clone().requires_grad_()
        entropy = self.inputs["entropy"].clone().requires_grad_()
        batch = es.TokenBatch(
            logp, self.inputs["old_logp"], self.mask, self.A,
            entropy=entropy, ref_logp=self.inputs["ref_logp"],
        )  # fmt: skip
        batch = self.objective.prepare(batch)
        out = self.objective.loss(batch, generator=torch.Generator().manual_seed(0))
        self.loss = out.loss.detach()
        self.grad, grad_entropy = torch.autograd.grad(out.loss, (logp, entropy), allow_unused=True)
        self.grad = torch.zeros_like(logp) if self.grad is None else self.grad
        self.grad_entropy = torch.zeros_like(logp) if grad_entropy is None else grad_entropy


def share(mask: torch.Tensor, aggregation: str) -> torch.Tensor:
    """[B, T]: a token's part in the aggregated loss, written out once more; no empty rows."""
    if aggregation == "token_mean":
        return mask / mask.sum()
    if aggregation == "seq_mean_token_mean":
        return mask / mask.sum(-1, keepdim=True) / len(mask)
    return mask / mask.shape[1] / len(mask)


def covariances(inputs: dict) -> torch.Tensor:
    """[B, T], -inf at mask 0: COV's token-wise covariance, written out once more."""
    mask, A, lp = (tensor(inputs[key]) for key in ("mask", "advantages", "logp"))
    mean_A, mean_lp = (A * mask).sum() / mask.sum(), (lp * mask).sum() / mask.sum()
    return torch.where(mask > 0, (A - mean_A) * (lp - mean_lp), -math.inf)


# ---------------------------------------------------------------------------- veRL: losses


def beside_verl(case: dict, spec, **given) -> Ours:
    aggregation = case["aggregation"].replace("-", "_")
    return Ours(
        VERL["inputs"][case["inputs"]], spec, aggregation, case.get("loss_scale_factor"), **given
    )


@cases(VERL, "vanilla")
def test_ppo_is_verls_vanilla(case):
    s = case["settings"]
    spec = {
        "name": "ppo",
        "low": s["clip_ratio_low"],
        "high": s["clip_ratio_high"],
        "dual": None if s["clip_ratio_c"] == NO_DUAL else s["clip_ratio_c"],
    }
    ours = beside_verl(case, spec)
    assert_close(ours.loss, tensor(case["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(case["grad"]), **CLOSE)


@cases(VERL, "gspo")
def test_gspo_is_verls(case):
    s = case["settings"]
    ours = beside_verl(
        case, {"name": "gspo", "low": s["clip_ratio_low"], "high": s["clip_ratio_high"]}
    )
    assert_close(ours.loss, tensor(case["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(case["grad"]), **CLOSE)


def in_our_words(case: dict) -> dict:
    """The method that a loss of veRL's is, with its settings."""
    s = case["settings"]
    if case["function"] == "sapo":
        return {"name": "sapo", **s}
    name, _, divergence = case["function"].partition("_")
    own = {"low": s["clip_ratio_low"], "high": s["clip_ratio_high"]}
    if name == "dppo":
        own |= {"divergence": divergence, "cap": s["clip_ratio_c"]}
    return {"name": {"geo": "gmpo"}.get(name, name), **own}


@cases(VERL, "cispo", "dppo_tv", "dppo_kl", "sapo", "geo_mean")
def test_other_losses_are_verls(case):
    ours = beside_verl(case, in_our_words(case), advantages=case.get("advantages", "advantages"))
    assert_close(ours.loss, tensor(case["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(case["grad"]), **CLOSE)
    plain = beside_verl(case, "ppo", advantages=case.get("advantages", "advantages"))
    assert not torch.allclose(plain.grad, ours.grad, atol=1e-4)


@cases(VERL, "gpg")
def test_reinforce_is_verls_gpg(case):
    ours = beside_verl(case, "reinforce")
    assert_close(ours.loss, tensor(case["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(case["grad"]), **CLOSE)


@cases(VERL, "k1", "k2", "k3")
def test_kl_ref_is_verls_kl_loss(case):
    spec = {"name": "kl_ref", "coef": case["settings"]["coef"], "form": case["function"]}
    ours = beside_verl(case, ["reinforce", spec], advantages=None)
    assert_close(ours.loss, tensor(case["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(case["grad"]), **CLOSE)


@cases(VERL, "entropy")
def test_entropy_bonus_is_verls_under_the_token_mean(case):
    coef, mask = case["settings"]["coef"], tensor(VERL["inputs"]["ragged"]["mask"])
    aggregation = case["aggregation"].replace("-", "_")
    spec = ["reinforce", {"name": "entropy_bonus", "coef": coef}]
    ours, theirs = beside_verl(case, spec, advantages=None), tensor(case["grad"])
    # veRL aggregates the entropy as it does the policy loss; ours is the token mean, as TRL's
    assert_close(theirs, -coef * share(mask, aggregation), **CLOSE)
    assert_close(ours.grad_entropy, -coef * share(mask, "token_mean"), **CLOSE)
    if aggregation == "token_mean":
        assert_close(ours.loss, tensor(case["loss"]), **CLOSE)
        assert_close(ours.grad_entropy, theirs, **CLOSE)


def beside_clip_cov(case: dict) -> Ours:
    s = case["settings"]
    return beside_verl(
        case,
        [
            {"name": "ppo", "low": s["clip_ratio_low"], "high": s["clip_ratio_high"]},
            {
                "name": "clip_cov",
                "ratio": s["clip_cov_ratio"],
                "low": s["clip_cov_lb"],
                "high": s["clip_cov_ub"],
                "at_least": 1,
            },
        ],
    )


def chosen(case: dict, grad: torch.Tensor) -> torch.Tensor:
    """[B, T] bool: tokens without a gradient that PPO has not clipped."""
    inputs, s = VERL["inputs"][case["inputs"]], case["settings"]
    A = tensor(inputs["advantages"])
    ratio = (tensor(inputs["logp"]) - tensor(inputs["old_logp"])).exp()
    clipped = (A > 0) & (ratio > 1 + s["clip_ratio_high"])
    clipped |= (A < 0) & (ratio < 1 - s["clip_ratio_low"])
    return tensor(inputs["mask"]).bool() & (grad == 0) & ~clipped


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("clip_cov every token-mean", 6),
        ("clip_cov every seq-mean-token-mean", 6),
        ("clip_cov every seq-mean-token-sum-norm", 6),
        ("clip_cov every, tight clip", 5),
        ("clip_cov five, tight clip", 5),
        ("clip_cov default ratio, one candidate", 1),
        ("clip_cov nobody", 0),
    ],
)
def test_clip_cov_is_verls_where_nothing_is_random(name, count):
    golden = case(VERL, name)
    theirs = tensor(golden["grad"])
    ours = beside_clip_cov(golden)
    assert chosen(golden, theirs).sum() == count  # one of six is clipped at (.2, .2)
    assert_close(ours.grad, theirs, **CLOSE)
    # veRL multiplies the chosen tokens' loss by 0, so that their value -r A is gone as well
    ratio = (ours.inputs["logp"] - ours.inputs["old_logp"]).exp()
    scale = share(ours.inputs["mask"], golden["aggregation"].replace("-", "_"))
    kept = torch.where(chosen(golden, theirs), -ratio * ours.A * scale, 0).sum()
    assert_close(ours.loss, golden["loss"] + kept, **CLOSE)


def test_clip_cov_chooses_as_many_as_verl_from_the_same_tokens():
    golden, every = case(VERL, "clip_cov random two"), case(VERL, "clip_cov every token-mean")
    theirs, ours = tensor(golden["grad"]), beside_clip_cov(golden)
    candidates = chosen(every, tensor(every["grad"]))
    for grad in (theirs, ours.grad):
        assert chosen(golden, grad).sum() == 2
        assert (candidates | ~chosen(golden, grad)).all()
    either = chosen(golden, theirs) | chosen(golden, ours.grad)
    assert_close(ours.grad[~either], theirs[~either], **CLOSE)


def beside_kl_cov(case: dict) -> Ours:
    s = case["settings"]
    spec = {
        "name": "kl_cov", "frac": s["kl_cov_ratio"], "coef": s["ppo_kl_coef"], "at_least": 1,
    }  # fmt: skip
    return beside_verl(case, ["clip_free", spec])


@pytest.mark.parametrize(
    "name",
    [
        "kl_cov top 1",
        "kl_cov top 5 token-mean",
        "kl_cov top 5 seq-mean-token-mean",
        "kl_cov top 5 seq-mean-token-sum-norm",
        "kl_cov veRL's coefficient",
        "kl_cov on policy",
    ],
)
def test_kl_cov_is_verls(name):
    golden = case(VERL, name)
    ours = beside_kl_cov(golden)
    assert_close(ours.loss, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(golden["grad"]), **CLOSE)


def test_kl_cov_leaves_out_what_has_no_covariance():
    # 27 of 31 tokens: veRL takes 13 whose covariance is not above 0, ours does not
    golden = case(VERL, "kl_cov beyond cov 0")
    ours, cov = beside_kl_cov(golden), covariances(VERL["inputs"]["ragged"])
    top = cov >= cov[ours.mask].sort(descending=True).values[26]
    extra = top & (cov <= 0)
    assert extra.sum() == 13
    delta = ours.inputs["logp"] - ours.inputs["old_logp"]
    penalty = torch.where(extra, delta.abs(), 0).sum() / 31
    assert_close(ours.loss + penalty, tensor(golden["loss"]), **CLOSE)
    slope = torch.where(extra, delta.sign(), 0) / 31
    assert_close(ours.grad + slope, tensor(golden["grad"]), **CLOSE)


# ---------------------------------------------------------------------------- veRL: advantages


@pytest.mark.parametrize(
    ("name", "estimator"),
    [("grpo", "grpo"), ("grpo without std", "dr_grpo"), ("rloo", "rloo"), ("opo", "opo")],
)
def test_group_advantages_are_verls(name, estimator):
    golden = case(VERL, name, "advantages")
    mask = tensor(golden["mask"])
    A = es.advantages(
        estimator, tensor(golden["rewards"]), torch.tensor(golden["group"]), mask.sum(-1)
    )
    assert_close(A[:, None] * mask, tensor(golden["advantages"]), **CLOSE)


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("reinforce_plus_plus", "reinforce_pp"),
        ("reinforce_plus_plus_baseline", "reinforce_pp_baseline"),
    ],
)
def test_whitened_advantages_are_verls_over_tokens(name, estimator):
    """VeRL whitens over tokens, so that long rollouts count more; ours over rollouts.

    Ours, given every rollout once per token, is veRL's, but for veRL's 1e-8 inside the root in
    place of 1e-6 beside it.
    """
    golden = case(VERL, name, "advantages")
    mask, R, group = (tensor(golden[key]) for key in ("mask", "rewards", "group"))
    theirs, lengths = tensor(golden["advantages"]), mask.sum(-1).long()
    if estimator == "reinforce_pp_baseline":
        R = es.advantages("dr_grpo", R, group)  # group means count rollouts in both
    A = es.advantages(
        "reinforce_pp", R.repeat_interleave(lengths), group.repeat_interleave(lengths)
    )
    assert_close(A, theirs[mask.bool()], rtol=0, atol=1e-5)
    std = R.repeat_interleave(lengths).std()
    A = A * (std + 1e-6) / (std**2 + 1e-8).sqrt()
    assert_close(A, theirs[mask.bool()], **CLOSE)
    ours = es.advantages(estimator, tensor(golden["rewards"]), group)
    assert not torch.allclose(ours[:, None] * mask, theirs, atol=1e-2)  # the difference is real


def test_equal_rewards_give_zero_where_verl_gives_rounding():
    golden = case(VERL, "grpo of equal rewards", "advantages")
    rewards = torch.tensor(golden["rewards"], dtype=torch.float32)
    assert golden["dtype"] == "float32"
    assert tensor(golden["advantages"]).abs().min() > 1e-3
    assert (es.advantages("grpo", rewards, torch.tensor(golden["group"])) == 0).all()


@pytest.mark.parametrize(
    ("name", "estimator"),
    [
        ("grpo", "grpo"),
        ("rloo", "rloo"),
        ("opo", "opo"),
        ("reinforce_plus_plus_baseline", "dr_grpo"),
    ],
)
def test_a_group_of_one_is_an_error_where_verl_trains_on_its_reward(name, estimator):
    golden = case(VERL, f"{name} of a group of one", "advantages")
    assert golden["advantages"][0][0] != 0
    refused(
        lambda: es.advantages(
            estimator, tensor(golden["rewards"]), torch.tensor(golden["group"]), torch.ones(3)
        ),
        "group of one",
    )


# ---------------------------------------------------------------------------- TRL: losses

AGGREGATION = {
    "grpo": "seq_mean_token_mean",
    "bnpo": "token_mean",
    "dr_grpo": "seq_mean_token_sum_norm",
    "dapo": "token_mean",
}


def trl_spec(s: dict) -> list:
    """What `make_objective` takes for a GRPOConfig."""
    clip = {"low": s["epsilon"], "high": s.get("epsilon_high", s["epsilon"])}
    if s.get("importance_sampling_level") == "sequence":
        spec: list = [{"name": "gspo", **clip}]
    else:
        spec = [{"name": "ppo", **clip, "dual": s.get("delta")}]
    if "beta" in s:
        spec.append({"name": "kl_ref", "coef": s["beta"], "form": "k3"})
    if "entropy_coef" in s:
        spec.append({"name": "entropy_bonus", "coef": s["entropy_coef"]})
    return spec


def beside_trl(case: dict, **given) -> Ours:
    s = case["settings"]
    return Ours(
        TRL["inputs"][case["inputs"]], given.pop("spec", trl_spec(s)), AGGREGATION[s["loss_type"]],
        TRL["max_completion_length"] if s["loss_type"] == "dr_grpo" else None,
        advantages=case["advantages"], **given,
    )  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "grpo", "bnpo", "dr_grpo", "dapo",
        "grpo kl", "bnpo kl", "dr_grpo kl", "dapo kl",
        # equal shares of rollouts, so that the mean of means is the whole's; dapo's N is global
        "grpo in two micro-batches", "dr_grpo in two micro-batches", "dapo in two micro-batches",
        "bnpo of one empty rollout", "dapo of one empty rollout",
        "dapo symmetric", "dapo two-sided",
        "gspo", "gspo dapo", "gspo wide", "gspo kl",
    ],
)  # fmt: skip
def test_loss_is_trls(name):
    golden = case(TRL, name)
    ours = beside_trl(golden)
    assert_close(ours.loss, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(golden["grad"]), **CLOSE)


# what a GRPOConfig of a loss type with its own numbers means, written out by hand
TRL_LOSSES = {
    "cispo": ([{"name": "cispo", "high": 0.3}], "token_mean", None),
    "sapo": (["sapo"], "seq_mean_token_mean", None),
    "vespo": (["vespo"], "token_mean", None),
    "luspo": ([{"name": "gspo", "low": 0.2, "high": 0.28}], "seq_mean_token_sum_norm", 1),
    "dapo two-sided below the clip": (
        [{"name": "ppo", "low": 0.2, "high": 0.1, "dual": 1.28}], "token_mean", None,
    ),
    "dapo off-policy mask": (
        ["clip_higher", {"name": "off_policy_mask", "delta": 0.05}], "token_mean", None,
    ),
    "dapo kl times ratio": (
        ["clip_higher", {"name": "kl_ref", "coef": 0.04, "unbiased": True}], "token_mean", None,
    ),
    "gspo kl times ratio": (
        ["gspo", {"name": "kl_ref", "coef": 0.04, "unbiased": True}], "seq_mean_token_mean", None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", [*TRL_LOSSES])
def test_other_losses_are_trls(name):
    golden, (spec, aggregation, length) = case(TRL, name), TRL_LOSSES[name]
    inputs = TRL["inputs"][golden["inputs"]]
    ours = Ours(inputs, spec, aggregation, length, advantages=golden["advantages"])
    assert_close(ours.loss, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(golden["grad"]), **CLOSE)
    # it is not the plain clipped loss
    plain = Ours(inputs, "clip_higher", aggregation, length, advantages=golden["advantages"])
    assert not torch.allclose(plain.grad, ours.grad, atol=1e-4)


@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo"])
def test_trl_counts_empty_rollouts(loss_type):
    golden = case(TRL, f"{loss_type} of one empty rollout")
    ours = beside_trl(golden)  # divides by the 7 rollouts that have a token, TRL by all 8
    assert_close(ours.loss * 7 / 8, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad * 7 / 8, tensor(golden["grad"]), **CLOSE)


def test_bnpo_averages_each_micro_batch_on_its_own():
    golden = case(TRL, "bnpo in two micro-batches")
    parts = [beside_trl(golden, rows=slice(*rows)) for rows in golden["rows"]]
    assert_close(sum(part.loss for part in parts) / 2, tensor(golden["loss"]), **CLOSE)
    grad = torch.cat([part.grad for part in parts]) / 2
    assert_close(grad, tensor(golden["grad"]), **CLOSE)
    whole = beside_trl(golden)
    assert not torch.allclose(whole.grad, tensor(golden["grad"]), atol=1e-3)


def test_dapo_divides_by_an_equal_share_of_the_generation_batch():
    golden = case(TRL, "dapo second window")
    ours = beside_trl(golden, rows=slice(4, 8))  # 1 + 4 + 6 + 3 of 31 tokens; TRL divides by 31 / 2
    assert ours.mask.sum() == 14
    assert_close(ours.loss * 14 / 15.5, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad * 14 / 15.5, tensor(golden["grad"])[4:], **CLOSE)


def test_per_token_advantages_under_gspo_differ_within_a_sequence():
    """TRL's ratio carries its gradient through the mean, ours (GSPO-token) token by token."""
    golden = case(TRL, "gspo per-token")
    ours, theirs = beside_trl(golden), tensor(golden["grad"])
    assert_close(ours.loss, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad.sum(-1), theirs.sum(-1), **CLOSE)
    length = ours.inputs["mask"].sum(-1, keepdim=True)
    even = ours.grad.sum(-1, keepdim=True) / length * ours.inputs["mask"]
    assert_close(even, theirs, **CLOSE)
    assert not torch.allclose(ours.grad, theirs, atol=1e-3)


@pytest.mark.parametrize("loss_type", ["grpo", "bnpo", "dr_grpo", "dapo"])
def test_entropy_bonus_is_trls(loss_type):
    golden = case(TRL, f"{loss_type} entropy bonus")
    ours = beside_trl(golden)
    assert_close(ours.loss, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(golden["grad"]), **CLOSE)
    assert_close(ours.grad_entropy, tensor(golden["grad_entropy"]), **CLOSE)


def test_forking_tokens_is_trls_top_entropy_quantile():
    golden = case(TRL, "top entropy")
    # the quantile's neighbour counts: 31 - ceil(.8 * 30) = 7 tokens, where floor(.2 * 31) is 6
    spec = [*trl_spec(golden["settings"]), {"name": "forking_tokens", "top": 7 / 31 + 1e-6}]
    ours = beside_trl(golden, spec=spec)
    assert_close(ours.loss, tensor(golden["loss"]), **CLOSE)
    assert_close(ours.grad, tensor(golden["grad"]), **CLOSE)
    fewer = [*trl_spec(golden["settings"]), {"name": "forking_tokens", "top": 0.2}]
    differs = (beside_trl(golden, spec=fewer).grad - ours.grad).abs() > 1e-7
    assert differs.sum() <= 1


# ---------------------------------------------------------------------------- TRL: controller


def test_adaptive_entropy_is_trls_one_step_late():
    """TRL moves the coefficient after a step, from that step's entropy, and applies it in the next.

    Ours moves it before the step, from the iteration's entropy, and applies it at once. An entropy
    exactly on the target raises TRL's coefficient and lowers ours; here ours sees a hair less.
    """
    golden = TRL["adaptive_entropy"]
    s, entropies = golden["settings"], golden["entropies"]
    spec = {
        "name": "adaptive_entropy",
        "target": s["entropy_target"],
        "delta": s["entropy_coef_delta"],
        "coef": s["entropy_coef"],
        "coef_min": s["entropy_coef_min"],
        "coef_max": s["entropy_coef_max"],
    }
    seen = [H - 1e-9 if s["entropy_target"] == H else H for H in entropies]
    applied = []
    for step in range(len(seen)):
        ours = Ours(TRL["inputs"]["ragged"], ["clip_higher", spec], entropies=seen[: step + 1])
        applied.append(-ours.grad_entropy.sum())
        if seen[step] <= s["entropy_target"]:  # the gate is open and shows the coefficient
            assert_close(applied[-1], tensor(golden["after"][step]), rtol=0, atol=1e-12)
    assert golden["applied"][0] == 0  # TRL's first step has seen no entropy
    assert_close(torch.stack(applied[:-1]), tensor(golden["applied"][1:]), rtol=0, atol=1e-12)
    # it is seen to rise, to stop at its maximum, to be gated and to recover
    assert {round(float(c), 9) for c in applied} >= {0.0, 1e-4, 2e-4, 2.5e-4}


# ---------------------------------------------------------------------------- TRL: advantages


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_advantages_are_trls(scale):
    golden = case(TRL, f"scale_rewards {scale}", "advantages")
    R, group = tensor(golden["rewards"]), torch.tensor(golden["group"])
    theirs = tensor(golden["advantages"])
    name = {"group": "grpo", "batch": "grpo_batch", "none": "dr_grpo"}[scale]
    ours = es.advantages(name, R, group, eps=1e-4)  # TRL adds 1e-4, ours 1e-6 by default
    assert_close(ours, theirs, rtol=0, atol=1e-6)  # TRL's rewards are float32


def test_gdpo_normalizes_each_reward_before_it_adds():
    """TRL's formula of `normalize_then_sum`, a group at a time; NaN: the function said nothing."""
    R = torch.tensor([[1.0, 5.0], [0.0, 3.0], [0.0, math.nan], [1.0, 4.0], [0.5, 2.0], [0.5, 2.0]])
    R, group, weights = R.double(), torch.tensor([0, 0, 0, 1, 1, 2]), (1.0, 0.3)
    group[-1], total = 1, torch.zeros(6, dtype=torch.float64)
    for k, w in enumerate(weights):
        for g in (0, 1):
            rows = ((group == g) & ~R[:, k].isnan()).nonzero()[:, 0]
            x = R[rows, k]
            total[rows] += w * (x - x.mean()) / (x.std() + 1e-4)
    expected = (total - total.mean()) / (total.std() + 1e-4)
    assert_close(es.advantages("gdpo", R, group, weights=weights, eps=1e-4), expected)
    one = es.advantages("gdpo", R[:, 0], group)
    assert_close(one, es.advantages("gdpo", R[:, :1], group))


# ---------------------------------------------------------------------------- the files


def test_the_goldens_are_of_the_pinned_versions():
    pins = (GOLDEN / "verl-requirements.txt").read_text()
    for name in ("torch", "numpy"):
        assert f"\n{name}=={VERL['versions'][name]}\n" in pins
    constraints = (ROOT / "constraints.txt").read_text()
    for name, version in TRL["versions"].items():
        assert f"\n{name}=={version}\n" in constraints
