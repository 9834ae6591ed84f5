"""Methods of STEER's table 6, which shape rewards, advantages or weights, by hand."""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused

EXACT = {"rtol": 1e-12, "atol": 1e-12}
NAN = math.nan


def rollouts(mask, old, **fields) -> es.TokenBatch:
    """A batch whose current policy is junk: what prepares reads the old one."""
    old = f64(old)
    return es.TokenBatch(
        torch.full_like(old, -0.01), old, torch.tensor(mask), entropy=9 + old, **fields
    )


# ---------------------------------------------------------------------------- unlikeliness


# group 7: sums of lp0 over trained tokens -3, -2, -4, -1 (means -1, -2, -2, -1): ranks 3, 2, 4, 1
# group 2, in between: sums -5 and -6 (means -5, -2): ranks 1 and 2
UNLIKELY = {
    "mask": [[1, 1, 1], [1, 0, 0], [1, 0, 0], [0, 1, 1], [1, 1, 1], [0, 1, 0]],
    "old": [
        [-1, -1, -1],
        [-2, -9, -9],
        [-5, -9, NAN],  # group 2
        [-9, -1.5, -2.5],
        [-2, -2, -2],  # group 2
        [0, -1, -9],
    ],
}
GROUP = torch.tensor([7, 7, 2, 7, 2, 7])


def unlikely(rewards, **more) -> es.TokenBatch:
    return rollouts(**UNLIKELY, rewards=f64(rewards), group=GROUP, **more)


def test_unlikeliness_by_hand():
    # beta .25, K = 4: R (1 - .25 (4 - rank)/4): rank 3 .9375, 2 .875, 4 1, 1 .8125
    # K = 2: rank 1 .875, rank 2 1. Rewards 1, 1, 1, 0, 2, 1
    objective = es.make_objective("unlikeliness", advantage="dr_grpo")
    shaped = objective.outcome_advantages(unlikely([1.0, 1.0, 1.0, 0.0, 2.0, 1.0]))
    R = [0.9375, 0.875, 0.875, 0.0, 2.0, 0.8125]
    assert_close(shaped.rewards, f64(R), **EXACT)
    # means (.9375 + .875 + 0 + .8125)/4 = .65625 and 1.4375
    A = [0.28125, 0.21875, -0.5625, -0.65625, 0.5625, 0.15625]
    assert_close(shaped.advantages, f64(A), **EXACT)


def test_unlikeliness_through_prepare_is_shaped_once():
    # beta 1, K = 4: factors rank/4 = .75, .5, 1, .25; K = 2: .5, 1. rloo
    objective = es.make_objective("unlikeliness", beta=1.0, advantage="rloo")
    given = unlikely([4.0, 4.0, 2.0, 0.0, 2.0, 4.0])
    # R: 3, 2, 1 | 0, 2 | 1. Group 7: others' means 1, 4/3, 2, 5/3; group 2: 1 - 2, 2 - 1
    A = f64([2.0, 2 / 3, -1.0, -2.0, 1.0, -2 / 3])
    mask = torch.tensor(UNLIKELY["mask"])
    assert_close(objective.prepare(given).advantages, A[:, None] * mask, **EXACT)
    # a host that drops groups goes through outcome_advantages first: the same
    shaped = objective.outcome_advantages(given)
    assert_close(objective.prepare(shaped).advantages, A[:, None] * mask, **EXACT)
    assert given.rewards.tolist() == [4.0, 4.0, 2.0, 0.0, 2.0, 4.0]


def test_unlikeliness_shares_the_better_rank():
    # lp0 -1, -1, -2, -3: ranks 1, 1, 3, 4 of 4, beta 1
    given = rollouts(
        [[1]] * 4, [[-1], [-1], [-2], [-3]], rewards=f64([1] * 4), group=torch.zeros(4).long()
    )
    objective = es.make_objective("unlikeliness", beta=1.0)
    assert_close(objective.outcome_advantages(given).rewards, f64([0.25, 0.25, 0.75, 1]), **EXACT)


def test_unlikeliness_of_three_in_float64():
    # ranks 1, 2, 3 of 3, beta .25: 1 - .25 * (2, 1, 0)/3
    given = rollouts(
        [[1]] * 3, [[-1], [-2], [-3]], rewards=f64([1] * 3), group=torch.zeros(3).long()
    )
    rewards = es.make_objective("unlikeliness").outcome_advantages(given).rewards
    assert_close(rewards, f64([1 - 0.5 / 3, 1 - 0.25 / 3, 1]), **EXACT)


def test_unlikeliness_leaves_wrong_answers_below_0():
    # ranks 1 to 4 of 4, beta .25: right 1 - .25 * 3/4 and 1 - .25 * 1/4; a likely wrong one -1
    given = rollouts(
        [[1]] * 4, [[-1], [-2], [-3], [-4]], rewards=f64([1, -1, 1, -1]),
        group=torch.zeros(4).long(),
    )  # fmt: skip
    rewards = es.make_objective("unlikeliness").outcome_advantages(given).rewards
    assert_close(rewards, f64([0.8125, -1, 0.9375, -1]), **EXACT)


def test_unlikeliness_gives_a_signal_where_all_are_right():
    # rewards 1, 1 become .875 and 1: grpo -1/sqrt 2 and 1/sqrt 2 (std = .125/sqrt 2)
    given = rollouts([[1], [1]], [[-1], [-2]], rewards=f64([1, 1]), group=torch.tensor([0, 0]))
    A = es.make_objective("unlikeliness").prepare(given).advantages
    a = 0.0625 / (0.125 / math.sqrt(2) + 1e-6)
    assert_close(A, f64([[-a], [a]]), **EXACT)


def test_unlikeliness_leaves_given_advantages():
    given = unlikely([1.0] * 6, advantages=f64([1, 2, 3, 4, 5, 6]))
    A = es.make_objective("unlikeliness").prepare(given).advantages
    assert A[:, 1].tolist() == [1, 0, 0, 4, 5, 6]


# ---------------------------------------------------------------------------- entropy_adv


def test_entropy_adv_by_hand():
    # A + min(.4 H0, |A|/2). A = 2, H0 = 1, 5: + .4, + 1; A = -1, H0 = 1, 2, .5: + .4, + .5, + .2
    given = rollouts(
        [[1, 1, 0], [1, 1, 1], [1, 0, 0]],
        [[-1, -1, -1]] * 3,
        advantages=f64([2, -1, 0]),
        old_entropy=f64([[1, 5, NAN], [1, 2, 0.5], [3, 3, 3]]),
    )
    A = es.make_objective("entropy_adv").prepare(given).advantages
    assert_close(A, f64([[2.4, 3, 0], [-0.6, -0.5, -0.8], [0, 0, 0]]), **EXACT)
    # alpha .1, kappa 4: A = 2: .1, .5; A = -1: .1, .2, .05
    A = es.make_objective("entropy_adv", alpha=0.1, kappa=4.0).prepare(given).advantages
    assert_close(A, f64([[2.1, 2.5, 0], [-0.9, -0.8, -0.95], [0, 0, 0]]), **EXACT)


# ---------------------------------------------------------------------------- gtpo


def normal(rows, ddof: int = 1):
    """(x - mean)/(std + 1e-6) over all entries that are numbers, 0 elsewhere; plain Python."""
    flat = [x for row in rows for x in row if x is not None]
    mean = sum(flat) / len(flat)
    std = math.sqrt(sum((x - mean) ** 2 for x in flat) / (len(flat) - ddof))
    return f64([[0.0 if x is None else (x - mean) / (std + 1e-6) for x in row] for row in rows])


# group 1: two right rollouts of 3 and 2 tokens, the first with a hole, and a wrong one
# group 0, between them: equal rewards, so its outcome advantages are 0
GTPO = {
    "mask": [[1, 0, 1, 1], [1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1], [1, 1, 0, 0]],
    "old": [[-1.0] * 4] * 5,
}
GTPO_H0 = [[1, 60, 2, 3], [5, 6, 7, 8], [3, 6, 70, 70], [80, 9, 9, 9], [4, 4, 4, 4]]


def gtpo_batch(rewards, **more) -> es.TokenBatch:
    given = {"group": torch.tensor([1, 0, 1, 1, 0]), "old_entropy": f64(GTPO_H0)} | more
    return rollouts(**GTPO, rewards=f64(rewards), **given)


def test_gtpo_by_hand():
    # positions count trained tokens: H0 of the right ones 1, 2, 3 | 3, 6; means 2, 4, 3
    # shares .5, .5, 1 | 1.5, 1.5; alpha .5: rewards 1.25, 1.25, 1.5 | 1.75, 1.75; the wrong one 0
    # mean 7.5/8 = .9375; deviations .3125 twice, .5625, .8125 twice, -.9375 three times
    # squares: .1953125 + .31640625 + 1.3203125 + 2.63671875 = 4.46875; std = sqrt(4.46875/7)
    A = es.make_objective("gtpo", alpha=0.5).prepare(gtpo_batch([1, 1, 1, 0, 1])).advantages
    std = math.sqrt(4.46875 / 7) + 1e-6
    expected = [
        [0.3125, 0, 0.3125, 0.5625],
        [0, 0, 0, 0],
        [0.8125, 0.8125, 0, 0],
        [0, -0.9375, -0.9375, -0.9375],
        [0, 0, 0, 0],
    ]
    assert_close(A, f64(expected) / std, **EXACT)


def test_gtpo_by_default():
    # alpha .1: 1.05, 1.05, 1.1 | 1.15, 1.15 | 0, 0, 0
    A = es.make_objective("gtpo").prepare(gtpo_batch([1, 1, 1, 0, 1])).advantages
    rows = [[1.05, None, 1.05, 1.1], [1.15, 1.15, None, None], [None, 0, 0, 0]]
    assert_close(A[[0, 2, 3]], normal(rows), **EXACT)


def test_gtpo_with_rewards_of_any_size():
    # R = 2, -1, 0: only the first is rewarded, so each share is 1: 2.5 thrice
    # group 0 with R = 3, 1: positions 1 and 2 mean (5 + 4)/2 and (6 + 4)/2; 3 and 4 alone
    A = es.make_objective("gtpo", alpha=0.5).prepare(gtpo_batch([2, 3, -1, 0, 1])).advantages
    rows = [[2.5, None, 2.5, 2.5], [-1, -1, None, None], [None, 0, 0, 0]]
    assert_close(A[[0, 2, 3]], normal(rows), **EXACT)
    rows = [[3 + 2.5 / 4.5, 3.6, 3.5, 3.5], [1 + 2 / 4.5, 1.4, None, None]]
    assert_close(A[[1, 4]], normal(rows), **EXACT)


def test_gtpo_takes_its_rewards_as_shaped():
    # unlikeliness (beta 1) with lp0 -3, -2 | -3 (sums over 3, 2, 3 tokens): ranks 2, 1, 2 of 3
    # R: 2/3, 1/3, 0
    chain = [{"name": "unlikeliness", "beta": 1.0}, {"name": "gtpo", "alpha": 0.5}]
    A = es.make_objective(chain).prepare(gtpo_batch([1, 0, 1, 0, 0])).advantages
    a, b = 2 / 3, 1 / 3
    rows = [
        [a + 0.25, None, a + 0.25, a + 0.5],
        [b + 0.75, b + 0.75, None, None],
        [None, 0, 0, 0],
    ]
    assert_close(A[[0, 2, 3]], normal(rows), **EXACT)


def test_gtpo_of_zero_entropies_is_finite():
    given = gtpo_batch([1, 1, 1, 0, 0], old_entropy=torch.zeros(5, 4).double())
    A = es.make_objective("gtpo").prepare(given).advantages
    assert A.isfinite().all()
    assert (A[[0, 2]] >= 0).all()
    assert (A[3] <= 0).all()


def test_gtpo_after_another_edit_is_an_error():
    refused(lambda: es.make_objective(["repo_r", "gtpo"]), "repo_r")
    assert es.make_objective(["gtpo", "repo_r"]).names == ("ppo", "gtpo", "repo_r")


# ---------------------------------------------------------------------------- edge_grpo


def test_edge_grpo_by_hand():
    # group 3: rollouts' mean H0 1.5 (of 1, 2) and .5: mean 1, h = 1.5, .5 (over tokens it were 7/6)
    # group 8: 4 and 1 and 1: mean 2, h = 2, .5, .5
    given = rollouts(
        [[1, 1, 0], [1, 1, 0], [1, 0, 0], [0, 0, 1], [1, 1, 1]],
        [[-1, -1, -1]] * 5,
        advantages=f64([3, 1, -1, -2, 5]),
        group=torch.tensor([3, 8, 3, 8, 8]),
        old_entropy=f64([[1, 2, 60], [3, 5, 60], [0.5, 60, NAN], [60, 60, 1], [0.5, 1.5, 1]]),
    )
    A = es.make_objective("edge_grpo").prepare(given).advantages
    expected = [[2, 2, 0], [0.5, 0.5, 0], [-2, 0, 0], [0, 0, -4], [10, 10, 10]]
    assert_close(A, f64(expected), **EXACT)


def test_edge_grpo_leaves_out_rollouts_without_tokens():
    # mean H0 1 and 3 of the two that have any: mean 2
    given = rollouts(
        [[1], [0], [1]],
        [[-1]] * 3,
        advantages=f64([1, 1, -3]),
        group=torch.tensor([0, 0, 0]),
        old_entropy=f64([[1], [9], [3]]),
    )
    A = es.make_objective("edge_grpo").prepare(given).advantages
    assert_close(A, f64([[2], [0], [-2]]), **EXACT)


def test_edge_grpo_of_zero_entropies_is_finite():
    given = rollouts(
        [[1], [1]],
        [[-1]] * 2,
        advantages=f64([1, -1]),
        group=torch.tensor([0, 0]),
        old_entropy=f64([[0], [0]]),
    )
    A = es.make_objective("edge_grpo").prepare(given).advantages
    assert_close(A, f64([[1], [-1]]), **EXACT)
    A = es.make_objective("edge_grpo").prepare(given.replace(old_entropy=f64([[0], [2]])))
    # h = 0/1, taken for 1e-6, and 2/1
    assert_close(A.advantages, f64([[1e6], [-0.5]]), **EXACT)


# ---------------------------------------------------------------------------- ppl, position


def test_ppl_adv_by_hand():
    # log PPL = 2 (of -1, -3) and .5; A (1 - .01 log PPL): 2 * .98, -1 * .995
    given = rollouts([[1, 0, 1], [0, 1, 0]], [[-1, -80, -3], [NAN, -0.5, -80]])
    given = given.replace(advantages=f64([2, -1]))
    A = es.make_objective("ppl_adv").prepare(given).advantages
    assert_close(A, f64([[1.96, 0, 1.96], [0, -0.995, 0]]), **EXACT)
    A = es.make_objective("ppl_adv", alpha=0.5).prepare(given).advantages
    assert_close(A, f64([[0, 0, 0], [0, -0.75, 0]]), **EXACT)


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def test_position_adv_by_hand():
    # t/len over trained tokens: 1/2, 1 (a hole between) | 1/4, 2/4, 3/4, 1 | A = 0 stays
    given = rollouts([[1, 0, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]], [[-1.0] * 4] * 3)
    given = given.replace(advantages=f64([2, -1, 0]))
    for more, gamma in (({}, 0.1), ({"gamma": 0.5}, 0.5)):
        A = es.make_objective("position_adv", **more).prepare(given).advantages
        expected = [
            [2 + gamma * sigmoid(0.5), 0, 2 + gamma * sigmoid(1), 0],
            [-1 - gamma * sigmoid(t / 4) for t in (1, 2, 3, 4)],
            [0, 0, 0, 0],
        ]
        assert_close(A, f64(expected), **EXACT)


# ---------------------------------------------------------------------------- weights


def update(H=((0.1, 0.9, 7.0), (0.5, 0.6, 0.2)), A=((2.0, -3.0, 9.0), (0.0, 4.0, -1.0))):
    """N = 5, ratios 1; the old entropies order the tokens the other way round."""
    logp = torch.full((2, 3), -1.0).double().requires_grad_()
    mask = torch.tensor([[1, 1, 0], [1, 1, 1]])
    entropy = f64(H).requires_grad_()
    return es.TokenBatch(
        logp, logp.detach(), mask, f64(A), entropy=entropy, old_entropy=1 - entropy.detach()
    )


@pytest.mark.parametrize(("given", "lam"), [({}, 0.1), ({"lam": 0.25}, 0.25), ({"lam": 2.0}, 2.0)])
def test_w_reinforce_by_hand(given, lam):
    batch = update()
    out = es.make_objective("w_reinforce", **given).loss(batch)
    assert_close(out.per_token, f64([[-2 * lam, 3, 0], [0, -4 * lam, 1]]), **EXACT)
    assert_close(out.loss, f64((4 - 6 * lam) / 5), **EXACT)
    assert out.terms.weight[1].tolist() == [1, lam, 1]


@pytest.mark.parametrize(
    ("top", "weights"),
    [
        # the max(1, floor(top * 5)) largest of .1, .9 | .5, .6, .2
        (None, [[0, 1, 0], [0, 0, 0]]),
        (0.1, [[0, 1, 0], [0, 0, 0]]),
        (0.39, [[0, 1, 0], [0, 0, 0]]),
        (0.4, [[0, 1, 0], [0, 1, 0]]),
        (0.6, [[0, 1, 0], [1, 1, 0]]),
        (0.99, [[0, 1, 0], [1, 1, 1]]),
        (1.0, [[1, 1, 0], [1, 1, 1]]),
    ],
)
def test_forking_tokens_by_hand(top, weights):
    batch = update()
    out = es.make_objective("forking_tokens", **({} if top is None else {"top": top})).loss(batch)
    assert out.terms.weight[batch.mask].tolist() == f64(weights)[batch.mask].tolist()
    losses = f64([[-2, 3, 0], [0, -4, 1]]) * f64(weights)
    assert_close(out.per_token, losses, **EXACT)
    assert_close(out.loss, losses.sum() / 5, **EXACT)  # N counts those left out
    assert torch.autograd.grad(out.loss, batch.entropy, allow_unused=True)[0] is None


def test_group_mean_is_eq_1_of_steer():
    # groups of 2 + 1 and 3 + 3 tokens, a third idle; ratios are 1, so losses are -A: the mean over
    # a group's tokens is -(2 a + b)/3 and -(3 c + 3 d)/6, then over the two groups
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 0]])
    a, b, c, d = 1.0, -2.0, 0.5, -3.0
    logp = torch.full((5, 3), -1.0).double().requires_grad_()
    given = es.TokenBatch(
        logp, logp.detach(), mask, f64([a, b, c, d, 0.0]), group=torch.tensor([7, 7, 2, 2, 4]),
        idle=torch.tensor([False, False, False, False, True]),
    )  # fmt: skip
    out = es.make_objective(["grpo_token", "group_mean"]).loss(given)
    expected = (-(2 * a + b) / 3 - (3 * c + 3 * d) / 6) / 2
    assert_close(out.loss, f64(expected), **EXACT)
    slope = torch.autograd.grad(out.loss, logp)[0]
    assert_close(slope[1], f64([-b / 6, 0, 0]), **EXACT)
    assert_close(slope[2], f64([-c / 12] * 3), **EXACT)
    assert not slope[4].any()
    plain = es.make_objective("grpo_token").loss(given)
    assert_close(plain.loss, f64(-(2 * a + b + 3 * c + 3 * d) / 9), **EXACT)


def test_forking_tokens_of_equal_entropies_are_as_many():
    batch = update(H=((1.0,) * 3,) * 2)
    weight = es.make_objective("forking_tokens", top=0.4).plan(batch).weight
    assert weight[batch.mask].sum() == 2


def test_forking_tokens_of_no_entropy_are_trained_ones():
    # masked entries, blanked to 0, come first and tie with all the others
    zeros = torch.zeros(2, 8).double()
    mask = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 0, 0, 0, 1, 1, 1]])
    batch = es.TokenBatch(zeros, zeros, mask, f64([1.0, 2.0]), entropy=zeros)
    weight = es.make_objective("forking_tokens", top=0.8).plan(batch).weight
    assert weight[batch.mask].sum() == 4


# ---------------------------------------------------------------------------- chains


def test_edits_of_advantages_follow_the_order_written():
    # A = 2, H0 = 10, lp0 = -1 (log PPL 1), one token (t/len = 1)
    given = rollouts([[1]], [[-1]], advantages=f64([2.0]), old_entropy=f64([[10.0]]))
    parts = [
        {"name": "entropy_adv"},  # + |A|/2
        {"name": "ppl_adv", "alpha": 0.5},  # times .5
        {"name": "position_adv", "gamma": 1.0},  # + sigmoid(1)
    ]
    s = sigmoid(1)
    for order, expected in (
        ((0, 1, 2), 1.5 + s),
        ((2, 0, 1), (2 + s) * 1.5 / 2),
        ((1, 2, 0), (1 + s) * 1.5),
    ):
        A = es.make_objective([parts[i] for i in order]).prepare(given).advantages
        assert_close(A, f64([[expected]]), **EXACT)


def test_weights_of_one_sign_multiply():
    chain = [{"name": "w_reinforce", "lam": 0.5}, {"name": "pos_adv", "weight": 0.25}]
    weight = es.make_objective(chain).plan(update()).weight
    assert_close(weight[1], f64([1.0, 0.125, 1.0]), **EXACT)


# ---------------------------------------------------------------------------- names, parameters


DEFAULTS = {
    "unlikeliness": {"beta": 0.25},
    "entropy_adv": {"alpha": 0.4, "kappa": 2.0},
    "gtpo": {"alpha": 0.1},
    "edge_grpo": {},
    "ppl_adv": {"alpha": 0.01},
    "position_adv": {"gamma": 0.1},
    "w_reinforce": {"lam": 0.1},
    "forking_tokens": {"top": 0.2, "threshold": "count"},
    "group_mean": {},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_they_sit_on_and_their_defaults(name):
    objective = es.make_objective(name)
    assert objective.names == ("ppo", name)
    assert objective.advantage == "grpo"
    terms = objective.plan(update().replace(rewards=f64([1, 0]), group=torch.tensor([0, 0])))
    assert (terms.ratio_min[0, 0].item(), terms.ratio_max[0, 0].item()) == (0.8, 1.2)
    assert dict(es.methods()[name].parameters) == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("entropy_adv", "old_entropy"),
        ("gtpo", "old_entropy"),
        ("edge_grpo", "old_entropy"),
        ("forking_tokens", "entropy"),
    ],
)
def test_what_they_need(name, missing):
    given = update().replace(rewards=f64([1, 0]), group=torch.tensor([0, 0]))
    objective = es.make_objective(name)
    call = objective.plan if missing == "entropy" else objective.prepare
    call(given)
    refused(lambda: call(given.replace(**{missing: None})), f"`{name}`", f"`{missing}`")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("unlikeliness", {"beta": -0.1}, "unlikeliness: beta must be at least 0 and at most 1"),
        ("unlikeliness", {"beta": 1.1}, "unlikeliness: beta .*got 1.1"),
        ("entropy_adv", {"alpha": -1.0}, "entropy_adv: alpha must be at least 0, got -1"),
        ("entropy_adv", {"kappa": 0.9}, "entropy_adv: kappa must be at least 1, got 0.9"),
        ("gtpo", {"alpha": -1.0}, "gtpo: alpha must be at least 0, got -1"),
        ("gtpo", {"alpha": NAN}, "gtpo: alpha .*got nan"),
        ("edge_grpo", {"alpha": 1.0}, "edge_grpo: unknown parameter 'alpha'"),
        ("ppl_adv", {"alpha": -1.0}, "ppl_adv: alpha must be at least 0, got -1"),
        ("position_adv", {"gamma": -1.0}, "position_adv: gamma must be at least 0, got -1"),
        ("w_reinforce", {"lam": -0.1}, "w_reinforce: lam must be at least 0, got -0.1"),
        ("w_reinforce", {"lam": math.inf}, "w_reinforce: lam .*got inf"),
        ("forking_tokens", {"top": 0.0}, "forking_tokens: top must be above 0 and at most 1"),
        ("forking_tokens", {"top": 1.1}, "forking_tokens: top .*got 1.1"),
    ],
)
def test_errors_name_the_parameter(name, given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(name, **given)
