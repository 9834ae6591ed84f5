"""A name is the algorithm of its paper: value and gradient of the printed objectives (findings A).

The references are written from the papers' formulas, sequence by sequence, in float64 and share no
code with the library. REPO section 2: J_PPO = E[1/|tau| sum_t min(A w_t, A clip(w_t))], J_GSPO =
E[min(A w, A clip(w))], w = (pi_new(tau) / pi_old(tau))^(1/|tau|).
"""

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat.cli import main

LENGTHS = (5, 2, 4, 1, 3, 5)
REWARDS = (1.0, 0.0, 1.0, 0.0, 0.0, 1.0)
K, V = 3, 7


@pytest.fixture
def ragged():
    """Logits [B, T, V] of the policy, those it began with, tokens, and the batch they make."""
    g = torch.Generator().manual_seed(3)
    B, T = len(LENGTHS), max(LENGTHS)
    old = torch.randn(B, T, V, generator=g, dtype=torch.float64)
    logits = (old + 0.3 * torch.randn(B, T, V, generator=g, dtype=torch.float64)).requires_grad_()
    tokens = torch.randint(V, (B, T), generator=g)
    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]

    def batch(new: torch.Tensor) -> es.TokenBatch:
        lp, lp0 = (x.log_softmax(-1).gather(-1, tokens[..., None])[..., 0] for x in (new, old))
        H, H0 = (-(x.softmax(-1) * x.log_softmax(-1)).sum(-1) for x in (new, old))
        return es.TokenBatch(
            lp, lp0, mask, rewards=torch.tensor(REWARDS, dtype=torch.float64),
            group=torch.tensor([0, 0, 0, 1, 1, 1]), entropy=H, old_entropy=H0,
        )  # fmt: skip

    return logits, batch


def leave_one_out(i: int) -> float:
    start = i // K * K
    others = [REWARDS[j] for j in range(start, start + K) if j != i]
    return REWARDS[i] - sum(others) / (K - 1)


def normalised(i: int) -> float:
    own = REWARDS[i // K * K : i // K * K + K]
    mean = sum(own) / K
    std = (sum((r - mean) ** 2 for r in own) / (K - 1)) ** 0.5
    return (REWARDS[i] - mean) / (std + 1e-6)


def clip(x, low, high):
    return torch.minimum(torch.maximum(x, x * 0 + 1 - low), x * 0 + 1 + high)


def sequences(batch):
    """(i, lp [n], lp0 [n]) of each sequence, its own tokens only."""
    for i, n in enumerate(LENGTHS):
        yield i, batch.logp[i, :n], batch.old_logp[i, :n]


def j_ppo(batch, advantage, low, high):
    total = 0.0
    for i, lp, lp0 in sequences(batch):
        w, A = (lp - lp0).exp(), advantage(i)
        total = total + torch.minimum(A * w, A * clip(w, low, high)).sum() / len(lp)
    return total / len(LENGTHS)


def j_gspo(batch, advantage, low, high):
    total = 0.0
    for i, lp, lp0 in sequences(batch):
        w, A = ((lp - lp0).sum() / len(lp)).exp(), advantage(i)
        total = total + torch.minimum(A * w, A * clip(w, low, high))
    return total / len(LENGTHS)


def j_reinforce(batch, advantage):
    total = 0.0
    for i, lp, _ in sequences(batch):
        total = total + advantage(i) * lp.sum() / len(lp)
    return total / len(LENGTHS)


def token_mean(batch, advantage, low, high):
    """STEER Eq. 1, PAR Eq. 6: all tokens of the batch alike."""
    total = 0.0
    for i, lp, lp0 in sequences(batch):
        w, A = (lp - lp0).exp(), advantage(i)
        total = total + torch.minimum(A * w, A * clip(w, low, high)).sum()
    return total / sum(LENGTHS)


PRINTED = {
    "rloo": lambda b: j_reinforce(b, leave_one_out),
    "loop": lambda b: j_ppo(b, leave_one_out, 0.2, 0.2),
    "loop_tight": lambda b: j_ppo(b, leave_one_out, 0.1, 0.1),
    "dapo": lambda b: j_ppo(b, leave_one_out, 0.2, 0.28),
    "grpo": lambda b: j_ppo(b, normalised, 0.2, 0.2),
    "adapo": lambda b: j_ppo(b, leave_one_out, 0.2, 0.28),
    "gspo": lambda b: j_gspo(b, leave_one_out, 3e-4, 4e-4),
    "gspo_adapo": lambda b: j_gspo(b, leave_one_out, 3e-4, 4e-4),
    "grpo_token": lambda b: token_mean(b, normalised, 0.2, 0.2),
    "clip_higher": lambda b: token_mean(b, normalised, 0.2, 0.28),
    "clip_wide": lambda b: token_mean(b, normalised, 1.0, 1.0),
}


def value_and_gradient(objective, ragged):
    logits, batch = ragged
    loss = objective.loss(objective.prepare(batch(logits))).loss
    return loss.detach(), torch.autograd.grad(loss, logits)[0]


@pytest.mark.parametrize("name", PRINTED)
def test_bare_name_is_the_papers_objective(name, ragged):
    logits, batch = ragged
    printed = -PRINTED[name](batch(logits))
    value, gradient = value_and_gradient(es.make_objective(name), ragged)
    assert abs(value - printed.detach()) < 1e-10
    torch.testing.assert_close(
        gradient, torch.autograd.grad(printed, logits)[0], atol=1e-10, rtol=0
    )


@pytest.mark.parametrize(("names", "low", "high"), [
    ("gspo_adapo", 3e-4, 4e-4 * 1.01),
    (["gspo", "adapo"], 3e-4, 4e-4 * 1.01),
    ([{"name": "gspo", "low": 0.02, "high": 0.03}, "adapo"], 0.02, 0.03 * 1.01),
    (
        [{"name": "gspo", "low": 0.02},
         {"name": "adapo", "high": 0.05, "high_min": 0.04, "high_max": 0.1}],
        0.02, 0.05 * 1.01,
    ),
])  # fmt: skip
def test_adapo_moves_gspos_clip(names, low, high, ragged):
    """Entropy below the target opens the upper bound by 1.01 (REPO App. B)."""
    logits, batch = ragged
    objective = es.make_objective(names)
    objective.observe(entropy=1.0)  # becomes the target
    objective.observe(entropy=0.9)
    printed = -j_gspo(batch(logits), leave_one_out, low, high)
    value, gradient = value_and_gradient(objective, ragged)
    assert abs(value - printed.detach()) < 1e-10
    torch.testing.assert_close(
        gradient, torch.autograd.grad(printed, logits)[0], atol=1e-10, rtol=0
    )


def test_adapo_over_gspo_stays_in_a_range_as_wide_in_proportion_as_over_dapo():
    objective = es.make_objective("gspo_adapo", target=1.0)
    for entropy, bound in ((0.5, 4e-4 * 0.3 / 0.28), (2.0, 4e-4 * 0.2 / 0.28)):
        for _ in range(200):
            objective.observe(entropy=entropy)
        assert objective.metrics()["control/clip_high"] == pytest.approx(bound, rel=1e-12)
    assert repr(es.make_objective(["gspo", "adapo"])) == repr(es.make_objective("gspo_adapo"))


def test_gspo_repo_r_weighs_each_token_of_the_sequence_ratio(ragged):
    """A_t = A - zeta max(A, 0) (lp0 + H0); gradient 1/|tau| sum_t 1[inside] A_t s d lp_t."""
    zeta, low, high = 0.05, 0.2, 0.2
    logits, batch = ragged
    b = batch(logits)
    value, surrogate = 0.0, 0.0
    for i, lp, lp0 in sequences(b):
        s = ((lp - lp0).detach().sum() / len(lp)).exp()
        for t in range(len(lp)):
            A = leave_one_out(i)
            A = A - zeta * max(A, 0.0) * float(lp0[t] + b.old_entropy[i, t])
            inside = float(min(A * s, A * clip(s, low, high)))
            acts = inside == float(A * s)
            value -= inside / len(lp) / len(LENGTHS)
            if acts:
                surrogate = surrogate - A * s * lp[t] / len(lp) / len(LENGTHS)
    mine, gradient = value_and_gradient(
        es.make_objective([
            "rloo", {"name": "gspo", "low": low, "high": high},
            {"name": "repo_r", "zeta": zeta, "controller": "none"},
        ]), ragged,
    )  # fmt: skip
    assert abs(float(mine) - value) < 1e-10
    torch.testing.assert_close(
        gradient, torch.autograd.grad(surrogate, logits)[0], atol=1e-10, rtol=0
    )


@pytest.mark.parametrize(("spec", "advantage", "aggregation"), [
    # the algorithms of REPO section 4
    ("rloo", "rloo", "seq_mean_token_mean"),
    ("repo_r", "rloo", "seq_mean_token_mean"),
    ("h_bonus", "rloo", "seq_mean_token_mean"),
    (["gspo", "repo_r"], "rloo", "seq_mean_token_mean"),
    (["grpo", "ppo", "repo_r"], "grpo", "seq_mean_token_mean"),
    # COV, OPEFO, STEER, PAR: the mean over tokens
    ("clip_cov", "grpo", "token_mean"),
    ("opefo", "grpo", "token_mean"),
    ("steer", "grpo", "token_mean"),
    ("pos_adv", "grpo", "token_mean"),
    (["rloo", "clip_cov"], "rloo", "token_mean"),
    # the recipe in a list decides over what its methods would sit on
    (["dapo", "clip_cov"], "rloo", "seq_mean_token_mean"),
    # in a list an estimator's name is the estimator alone
    (["grpo", "ppo"], "grpo", "token_mean"),
    (["rloo", "reinforce"], "rloo", "token_mean"),
    ("dr_grpo", "dr_grpo", "seq_mean_token_sum_norm"),
])  # fmt: skip
def test_estimator_and_aggregation_of_a_spec(spec, advantage, aggregation):
    objective = es.make_objective(spec)
    assert (objective.advantage, objective.aggregation) == (advantage, aggregation)


def test_what_the_user_says_wins():
    objective = es.make_objective("dapo", advantage="grpo", aggregation="token_mean")
    assert (objective.advantage, objective.aggregation) == ("grpo", "token_mean")


def test_rloo_alone_is_strictly_on_policy():
    assert es.make_objective("rloo").names == ("reinforce",)
    refused(lambda: es.make_objective("rloo", updates=2), "strictly on-policy")
    # beside others it is the estimator
    assert es.make_objective(["rloo", "ppo"]).names == ("ppo",)


def test_every_method_names_a_baseline_that_exists_and_differs_in_it_alone():
    known = es.methods()
    for name, info in known.items():
        if not info.baseline:
            continue
        with_it, without = es.make_objective(name), es.make_objective(info.baseline)
        assert (with_it.advantage, with_it.aggregation) == (without.advantage, without.aggregation)
        if info.kind == "intervention":
            rest = [m for m in with_it.methods if m.kind == "surrogate"]
            assert rest == list(without.methods), name


def test_methods_prints_the_chain_and_the_baseline(capsys):
    main(["methods", "gspo_repo_r"])
    out = capsys.readouterr().out
    assert "rloo | Gspo(low=0.0003, high=0.0004, dual=None), RepoR(" in out
    assert "seq_mean_token_mean" in out
    assert "fair baseline: gspo" in out
