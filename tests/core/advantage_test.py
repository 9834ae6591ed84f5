"""Group estimators against hand-computed values, explicit loops and their invariants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import entrostat as es
from builders import refused

EXACT = {"rtol": 1e-12, "atol": 1e-12}
COMPARING = ("grpo", "rloo", "dr_grpo", "opo")  # they need two rollouts per group
ALL = (*COMPARING, "reinforce_pp", "reinforce_pp_baseline")
PROPERTY = settings(derandomize=True, deadline=None, max_examples=50)


def f64(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


# ---------------------------------------------------------------------------- by hand


def test_grpo_by_hand():
    # group 5: rewards 1, 0, 0, 1; mean 1/2, squares of the deviations 4 * 1/4, over K - 1 = 3
    # group 2: rewards 4, 0; mean 2, squares 4 + 4, over K - 1 = 1
    rewards = f64(1, 4, 0, 0, 0, 1)
    group = torch.tensor([5, 2, 5, 2, 5, 5])
    a = 0.5 / (math.sqrt(1 / 3) + 1e-6)
    b = 2 / (math.sqrt(8) + 1e-6)
    assert_close(es.advantages("grpo", rewards, group), f64(a, b, -a, -b, -a, a), **EXACT)


def test_rloo_by_hand():
    # 1 - (0 + 0)/2 = 1; 0 - (1 + 0)/2 = -1/2 twice; 3 - 1 = 2; 1 - 3 = -2
    rewards, group = f64(1, 0, 0, 3, 1), torch.tensor([0, 0, 0, 1, 1])
    assert_close(es.advantages("rloo", rewards, group), f64(1, -0.5, -0.5, 2, -2), **EXACT)


def test_dr_grpo_by_hand():
    # means 1/3 and 2
    rewards, group = f64(1, 0, 0, 3, 1), torch.tensor([0, 0, 0, 1, 1])
    expected = f64(2 / 3, -1 / 3, -1 / 3, 1, -1)
    assert_close(es.advantages("dr_grpo", rewards, group), expected, **EXACT)


def test_reinforce_pp_by_hand():
    # mean 3, deviations -2, -1, 0, 3, their squares 14 over B - 1 = 3; groups play no part
    rewards = f64(1, 2, 3, 6)
    scale = math.sqrt(14 / 3) + 1e-6
    expected = f64(-2 / scale, -1 / scale, 0, 3 / scale)
    for group in ([0, 0, 1, 1], [0, 1, 2, 3]):
        got = es.advantages("reinforce_pp", rewards, torch.tensor(group))
        assert_close(got, expected, **EXACT)


def test_reinforce_pp_baseline_by_hand():
    # group means 2 and 2 leave -1, 1, -2, 2; mean 0, squares 10 over B - 1 = 3
    rewards, group = f64(1, 3, 0, 4), torch.tensor([0, 0, 1, 1])
    scale = math.sqrt(10 / 3) + 1e-6
    expected = f64(-1 / scale, 1 / scale, -2 / scale, 2 / scale)
    assert_close(es.advantages("reinforce_pp_baseline", rewards, group), expected, **EXACT)


def test_opo_by_hand():
    # group 0: (2*1 + 1*0 + 1*4) / 4 = 1.5; group 1: (3*1 + 1*5) / 4 = 2
    rewards, group = f64(1, 0, 4, 1, 5), torch.tensor([0, 0, 0, 1, 1])
    lengths = torch.tensor([2, 1, 1, 3, 1])
    expected = f64(-0.5, -1.5, 2.5, -1, 3)
    assert_close(es.advantages("opo", rewards, group, lengths), expected, **EXACT)


def test_maxrl_by_hand():
    # group 0: mean 1/4, so 3/4 and -1/4 over 1/4; group 1: mean 3/2
    rewards, group = f64(1, 0, 0, 0, 1, 2), torch.tensor([0, 0, 0, 0, 1, 1])
    expected = f64(3, -1, -1, -1, -1 / 3, 1 / 3)
    assert_close(es.advantages("maxrl", rewards, group), expected, **EXACT)
    nothing = es.advantages("maxrl", f64(0, 0, 0), torch.tensor([0, 0, 0]))
    assert nothing.tolist() == [0, 0, 0]
    refused(lambda: es.advantages("maxrl", f64(1, -1), torch.tensor([0, 0])), "'maxrl'", "got -1")


@pytest.mark.parametrize("p", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("K", [2, 5, 8])
def test_maxrl_has_the_gradient_of_a_truncated_likelihood(p, K):
    # log p = -sum (1 - p)^k / k, and its gradient is sum_k>=0 (1 - p)^k grad p; K rollouts give the
    # first K - 1 terms without bias (1/mean alone gives K, the baseline takes the last away).
    # A Bernoulli policy with log-odds z: score 1 - p of a right answer, -p of a wrong one
    expected = 0.0
    for right in range(K + 1):
        rewards = f64(*[1.0] * right, *[0.0] * (K - right))
        A = es.advantages("maxrl", rewards, torch.zeros(K, dtype=torch.long))
        score = rewards - p
        chance = math.comb(K, right) * p**right * (1 - p) ** (K - right)
        expected += chance * float((A * score).mean())
    gradient = p * (1 - p)  # of p by z
    terms = sum((1 - p) ** k for k in range(K - 1)) * gradient
    assert expected == pytest.approx(terms, rel=1e-9)


def test_grpo_passk_by_hand():
    # group 0: 3 is best, 1 second, mean 5/4, squares 49 + 1 + 1 + 25 over 16, over K - 1 = 3
    # group 1: two are best, so neither is
    rewards, group = f64(3, 1, 1, 0, 2, 2, 0), torch.tensor([0, 0, 0, 0, 1, 1, 1])
    std = math.sqrt(76 / 16 / 3) + 1e-6
    expected = f64(2 / std, 0, 0, 0, 0, 0, 0)
    assert_close(es.advantages("grpo_passk", rewards, group), expected, **EXACT)


@pytest.mark.parametrize("name", ["maxrl", "grpo_passk"])
def test_they_compare_within_a_group_whatever_its_label(name):
    rewards, group = f64(1, 0, 0, 2, 5, 0, 0), torch.tensor([3, 3, 3, 8, 8, 5, 5])
    got = es.advantages(name, rewards, group)
    order = torch.tensor([4, 0, 6, 2, 3, 1, 5])
    assert_close(es.advantages(name, rewards[order], group[order] * -7), got[order], **EXACT)
    assert got[5:].tolist() == [0, 0]
    refused(lambda: es.advantages(name, f64(1, 0, 1), torch.tensor([0, 0, 1])), f"'{name}'")


def test_opo_of_rollouts_without_tokens_is_finite():
    got = es.advantages("opo", f64(1, 2), torch.tensor([0, 0]), torch.tensor([0, 0]))
    assert torch.isfinite(got).all()


# ---------------------------------------------------------------------------- properties


@st.composite
def groups_of_rewards(draw):
    """Rewards [B], groups [B] and lengths [B] of one to four groups of two to five rollouts."""
    sizes = draw(st.lists(st.integers(2, 5), min_size=1, max_size=4))
    B = sum(sizes)
    reward = st.floats(-10, 10, allow_nan=False, width=32)
    rewards = draw(st.lists(reward, min_size=B, max_size=B))
    lengths = draw(st.lists(st.integers(1, 9), min_size=B, max_size=B))
    group = [g for g, size in enumerate(sizes) for _ in range(size)]
    return f64(*rewards), torch.tensor(group), torch.tensor(lengths)


@PROPERTY
@given(groups_of_rewards())
def test_rloo_is_the_explicit_leave_one_out_mean(case):
    rewards, group, _ = case
    expected = []
    for i, reward in enumerate(rewards.tolist()):
        others = [
            r
            for j, r in enumerate(rewards.tolist())
            if j != i and group[j].item() == group[i].item()
        ]
        expected.append(reward - math.fsum(others) / len(others))
    assert_close(es.advantages("rloo", rewards, group), f64(*expected), rtol=1e-10, atol=1e-10)


@PROPERTY
@given(groups_of_rewards())
def test_advantages_of_a_group_sum_to_zero(case):
    rewards, group, lengths = case
    for name in ("dr_grpo", "rloo", "grpo"):
        A = es.advantages(name, rewards, group)
        for g in group.unique():
            assert abs(A[group == g].sum().item()) < 1e-9
    A = es.advantages("opo", rewards, group, lengths) * lengths  # weighted by length
    for g in group.unique():
        assert abs(A[group == g].sum().item()) < 1e-9


@PROPERTY
@given(groups_of_rewards(), st.randoms(use_true_random=False))
def test_group_labels_and_order_do_not_matter(case, random):
    rewards, group, lengths = case
    labels = random.sample(range(-1000, 1000), int(group.max()) + 1)
    relabelled = torch.tensor(labels)[group]
    order = torch.tensor(random.sample(range(len(rewards)), len(rewards)))  # interleaves groups
    for name in ALL:
        A = es.advantages(name, rewards, group, lengths)
        assert_close(es.advantages(name, rewards, relabelled, lengths), A, rtol=1e-9, atol=1e-9)
        permuted = es.advantages(name, rewards[order], group[order], lengths[order])
        # rewards that differ by rounding alone make grpo's quotient as inexact as its divisor
        assert_close(permuted, A[order], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_equal_rewards_give_exactly_zero(name, dtype):
    for value in (0.1, 0.3, 1 / 3, 0.7, -1.1, 1e8 + 0.1):
        for K in (2, 3, 5, 6, 7, 11):
            rewards = torch.full((K,), value, dtype=dtype)
            lengths = torch.arange(1, K + 1)
            A = es.advantages(name, rewards, torch.zeros(K, dtype=torch.long), lengths)
            assert A.tolist() == [0.0] * K, (value, K)


@pytest.mark.parametrize("name", COMPARING)
def test_a_group_of_equal_rewards_is_zero_beside_one_that_is_not(name):
    rewards = torch.tensor([0.1, 1.0, 0.1, 0.0, 0.1])
    group = torch.tensor([3, 8, 3, 8, 3])
    A = es.advantages(name, rewards, group, torch.tensor([3, 1, 1, 1, 2]))
    assert A[group == 3].tolist() == [0.0, 0.0, 0.0]
    assert A[1] > 0 > A[3]


def test_equal_rewards_in_each_group_are_zero_under_reinforce_pp_baseline():
    # the batch is not equal, its groups are: .1 three times, .7 three times
    rewards = torch.tensor([0.1, 0.7, 0.1, 0.7, 0.1, 0.7])
    A = es.advantages("reinforce_pp_baseline", rewards, torch.tensor([0, 1, 0, 1, 0, 1]))
    assert A.tolist() == [0.0] * 6


# ---------------------------------------------------------------------------- types and edges


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    ("given_dtype", "expected"),
    [
        (torch.int64, torch.float32),
        (torch.bool, torch.float32),
        (torch.float16, torch.float32),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_dtype_and_shape(name, given_dtype, expected):
    rewards = torch.tensor([1, 0, 1, 1]).to(given_dtype)
    A = es.advantages(name, rewards, torch.tensor([0, 0, 1, 1]), torch.tensor([1, 2, 3, 4]))
    assert A.dtype == expected
    assert A.shape == (4,)
    assert A[0] > A[1]


def test_the_result_carries_no_gradient():
    rewards = torch.tensor([1.0, 0.0], requires_grad=True)
    assert not es.advantages("grpo", rewards, torch.tensor([0, 0])).requires_grad


def test_no_rollouts_give_no_advantages():
    empty = torch.empty(0)
    assert es.advantages("grpo", empty, empty.long()).shape == (0,)


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_one_rollout_has_advantage_zero_where_groups_are_not_compared(name):
    assert es.advantages(name, torch.tensor([3.0]), torch.tensor([0])).tolist() == [0.0]


# ---------------------------------------------------------------------------- errors


@pytest.mark.parametrize("name", COMPARING)
def test_a_group_of_one_is_an_error(name):
    rewards, group = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1])
    refused(lambda: es.advantages(name, rewards, group, torch.ones(3)), f"'{name}'", "at least 2")


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])
def test_a_group_of_one_is_no_error_under(name):
    rewards, group = torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0, 0, 1])
    assert torch.isfinite(es.advantages(name, rewards, group)).all()


@pytest.mark.parametrize("name", [*COMPARING, "maxrl", "grpo_passk"])
def test_a_group_of_one_gets_zero_where_it_is_let_in(name):
    rewards, group = f64(1, 0, 0, 1), torch.tensor([0, 0, 0, 1])
    lengths = torch.tensor([2, 3, 4, 5])
    found = es.advantages(name, rewards, group, lengths, lone=True)
    assert found[3] == 0
    without = es.advantages(name, rewards[:3], group[:3], lengths[:3])
    assert_close(found[:3], without, **EXACT)


def test_unknown_estimator_says_the_nearest():
    refused(lambda: es.advantages("rlo", torch.ones(2), torch.zeros(2)), "'rlo'", "'rloo'")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ALL)
def test_a_reward_that_is_no_number_is_an_error(name, bad):
    refused(
        lambda: es.advantages(name, torch.tensor([1.0, bad]), torch.zeros(2), torch.ones(2)),
        f"rewards[1] is {bad}",
    )


def test_a_reward_without_bound_among_several_is_an_error():
    rewards = torch.tensor([[1.0, math.nan], [0.0, math.inf]])
    refused(lambda: es.advantages("gdpo", rewards, torch.zeros(2)), "rewards[1, 1] is inf")


@pytest.mark.parametrize(("rewards", "group"), [((3,), (2,)), ((2, 2), (2, 2)), ((2,), (2, 1))])
def test_wrong_shapes_are_an_error(rewards, group):
    refused(lambda: es.advantages("grpo", torch.ones(rewards), torch.zeros(group)), "[B]")


def test_opo_without_lengths_is_an_error():
    refused(lambda: es.advantages("opo", torch.ones(2), torch.zeros(2)), "'opo'", "lengths")


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 1)])
def test_opo_with_lengths_of_another_shape_is_an_error(shape):
    refused(
        lambda: es.advantages("opo", torch.tensor([1.0, 0, 1]), torch.zeros(3), torch.ones(shape)),
        "lengths",
    )
