"""Surrogates, aggregation, every field of `Terms`, and the objective's hooks, by hand."""

import json
import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.core.loss import aggregation_scale

EXACT = {"rtol": 1e-12, "atol": 1e-12}
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm")
NAN = math.nan


def at_ratios(ratios, advantages, **more) -> es.TokenBatch:
    """One sequence, lp0 = -1, lp such that the token ratios are `ratios`."""
    old = torch.full((1, len(ratios)), -1.0, dtype=torch.float64)
    logp = (old + f64([ratios]).log()).requires_grad_()
    mask = torch.ones(1, len(ratios))
    return es.TokenBatch(logp, old, mask, advantages=f64([advantages]), **more)


def sum_gradient(batch: es.TokenBatch, out: es.LossOutput) -> torch.Tensor:
    """d(sum of per-token losses)/d logp, free of the aggregation."""
    return torch.autograd.grad(out.per_token.sum(), batch.logp, retain_graph=True)[0]


# ---------------------------------------------------------------------------- surrogates


def test_reinforce_by_hand():
    # A = 2: losses 2*1, 2*2; A = -1: loss (-3); mean over 3 tokens: (2 + 4 - 3)/3 = 1
    logp = f64([[-1, -2], [-3, -7]]).requires_grad_()
    batch = es.TokenBatch(logp, f64([[-9, -9], [-9, -9]]), f64([[1, 1], [1, 0]]), f64([2, -1]))
    out = es.make_objective("reinforce").loss(batch)
    assert_close(out.per_token, f64([[2, 4], [-3, 0]]), **EXACT)
    assert_close(out.loss, f64(1.0), **EXACT)
    out.loss.backward()  # -A / N
    assert_close(logp.grad, f64([[-2 / 3, -2 / 3], [1 / 3, 0]]), **EXACT)
    assert "ratio/mean" not in out.metrics


# low .2, high .3: bounds .8 and 1.3. loss = -min(r A, clip(r) A); gradient -r A where r A is chosen
PPO_CASES = {
    "A>0 above: clipped": (1.5, 2.0, -2.6, 0.0),
    "A>0 below: not clipped": (0.5, 2.0, -1.0, -1.0),
    "A<0 above: not clipped": (1.5, -2.0, 3.0, 3.0),
    "A<0 below: clipped": (0.5, -2.0, 1.6, 0.0),
    "A>0 inside": (1.1, 2.0, -2.2, -2.2),
    "A<0 inside": (0.9, -2.0, 1.8, 1.8),
    "A=0 above": (1.5, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("case", PPO_CASES)
def test_ppo_by_hand(case):
    ratio, A, loss, gradient = PPO_CASES[case]
    batch = at_ratios([ratio], [A])
    out = es.make_objective("ppo", low=0.2, high=0.3).loss(batch)
    assert_close(out.loss, f64(loss), **EXACT)
    assert_close(torch.autograd.grad(out.loss, batch.logp)[0], f64([[gradient]]), **EXACT)


@pytest.mark.parametrize(
    ("low", "high", "losses"),
    [
        # r = 1.5 with A = 2, r = .5 with A = -2, each clipped on one side alone
        (None, 0.3, [-2.6, 1.0]),
        (0.2, None, [-3.0, 1.6]),
        (None, None, [-3.0, 1.0]),
        (0.0, 0.0, [-2.0, 2.0]),
    ],
)
def test_ppo_without_a_bound(low, high, losses):
    batch = at_ratios([1.5, 0.5], [2.0, -2.0])
    out = es.make_objective("ppo", low=low, high=high).loss(batch)
    assert_close(out.per_token, f64([losses]), **EXACT)
    # where the loss is the unclipped one its gradient is itself, elsewhere 0
    unclipped = [losses[0] if losses[0] == -3.0 else 0.0, losses[1] if losses[1] == 1.0 else 0.0]
    assert_close(sum_gradient(batch, out), f64([unclipped]), **EXACT)


def test_dual_clip_by_hand():
    # c = 3, A = -2: losses above 6 are capped at 6, flat; A > 0 is never capped
    batch = at_ratios([5.0, 2.5, 0.5, 0.1, 5.0], [-2.0, -2.0, -2.0, 2.0, 2.0])
    out = es.make_objective("ppo", low=0.2, high=0.2, dual=3.0).loss(batch)
    assert_close(out.per_token, f64([[6.0, 5.0, 1.6, -0.2, -2.4]]), **EXACT)
    assert_close(sum_gradient(batch, out), f64([[0.0, 5.0, 0.0, -0.2, 0.0]]), **EXACT)


@pytest.mark.parametrize(("A", "loss"), [(2.0, -2.4), (0.0, 0.0)])
def test_a_ratio_beyond_float32_is_still_clipped(A, loss):
    # exp(100) overflows float32; the token is clipped (or counts nothing), so its gradient is 0
    logp = torch.tensor([[-1.0]], requires_grad=True)
    batch = es.TokenBatch(logp, torch.tensor([[-101.0]]), torch.ones(1, 1), torch.tensor([A]))
    out = es.make_objective("ppo").loss(batch)
    assert out.loss.item() == pytest.approx(loss)
    out.loss.backward()
    assert logp.grad.tolist() == [[0.0]]


def test_ppo_metrics_by_hand():
    # beyond the bound on the side where it bites: 2 of 8 high, 1 of 8 low; where A is 0, nowhere
    ratios, A = [1.5, 1.6, 1.5, 0.5, 0.5, 1.0, 1.5, 0.5], [1.0, 1.0, -1.0, -1.0, 1.0, 1.0, 0.0, 0.0]
    metrics = es.make_objective("ppo").loss(at_ratios(ratios, A)).metrics
    assert_close(metrics["clip/high"], f64(2 / 8), **EXACT)
    assert_close(metrics["clip/low"], f64(1 / 8), **EXACT)
    assert_close(metrics["ratio/mean"], f64(sum(ratios) / 8), **EXACT)
    k3 = sum(r - 1 - math.log(r) for r in ratios) / 8
    assert_close(metrics["kl/old_new"], f64(k3), **EXACT)
    assert not any(value.requires_grad for value in metrics.values())


# Two tokens and a masked one. lp - lp0 = (.2, .4) or (-.4, -.2): s = exp(.3) or exp(-.3) for both
UP, DOWN = math.exp(0.3), math.exp(-0.3)


@pytest.mark.parametrize(
    ("delta", "A", "losses", "gradient"),
    [
        # bounds .9 and 1.1; loss -min(s A, clip(s) A); token-level gradient -s A where not clipped
        ((0.2, 0.4), (1.0, -2.0), (-1.1, 2 * UP), (0.0, 2 * UP)),
        ((-0.4, -0.2), (1.0, -2.0), (-DOWN, 1.8), (-DOWN, 0.0)),
        ((0.2, -0.1), (3.0, -1.0), (-3 * math.exp(0.05), math.exp(0.05)), None),
    ],
)
def test_gspo_by_hand(delta, A, losses, gradient):
    old = f64([[-1, -2, -3]])
    logp = (old + f64([[*delta, 9.0]])).requires_grad_()
    batch = es.TokenBatch(logp, old, f64([[1, 1, 0]]), f64([[*A, 5.0]]))
    out = es.make_objective("gspo", low=0.1, high=0.1).loss(batch)
    assert_close(out.per_token, f64([[*losses, 0.0]]), **EXACT)
    expected = f64([[*(losses if gradient is None else gradient), 0.0]])
    assert_close(torch.autograd.grad(out.per_token.sum(), logp)[0], expected, **EXACT)


def test_gspo_defaults_are_its_papers():
    # bounds 1 - 3e-4 and 1 + 4e-4
    for delta, A, loss in (
        (3.9e-4, 1.0, -math.exp(3.9e-4)),
        (4.1e-4, 1.0, -1.0004),
        (-2.9e-4, -1.0, math.exp(-2.9e-4)),
        (-3.1e-4, -1.0, 0.9997),
    ):
        batch = at_ratios([math.exp(delta)] * 2, [A] * 2)
        out = es.make_objective("gspo").loss(batch)
        assert_close(out.loss, f64(loss), rtol=0, atol=1e-12)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_gspo_gradient_is_that_of_the_sequence_objective(aggregation):
    # with one advantage per sequence the loss is a function of s alone: compare central differences
    g = torch.Generator().manual_seed(3)
    old = -torch.rand(3, 4, generator=g, dtype=torch.float64)
    logp = old + 0.2 * torch.randn(3, 4, generator=g, dtype=torch.float64)
    mask = f64([[1, 1, 1, 1], [1, 1, 0, 0], [0, 1, 1, 1]])
    A = f64([1.0, -2.0, 0.5])
    objective = es.make_objective("gspo", low=None, high=None, aggregation=aggregation)

    def loss(x: torch.Tensor) -> torch.Tensor:
        return objective.loss(es.TokenBatch(x, old, mask, A)).loss

    leaf = logp.clone().requires_grad_()
    gradient = torch.autograd.grad(loss(leaf), leaf)[0]
    assert_close(gradient, central_differences(loss, logp), rtol=1e-7, atol=1e-9)
    assert gradient.abs().sum() > 0.1


# ---------------------------------------------------------------------------- aggregation


# A = 1 under `reinforce`, so a token's loss is -lp: rows (1, 2, 3), (5) and one without tokens
LOSSES = [[1.0, 2.0, 3.0], [5.0, 70.0, 70.0], [70.0, 70.0, 70.0]]
MASK = [[1, 1, 1], [1, 0, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("aggregation", "max_length", "loss", "scale"),
    [
        ("token_mean", None, 11 / 4, [1 / 4, 1 / 4]),
        ("token_mean", 10, 11 / 4, [1 / 4, 1 / 4]),
        ("seq_mean_token_mean", None, (2 + 5) / 2, [1 / 6, 1 / 2]),
        ("seq_mean_token_sum_norm", None, (6 / 3 + 5 / 3) / 2, [1 / 6, 1 / 6]),
        ("seq_mean_token_sum_norm", 10, (6 / 10 + 5 / 10) / 2, [1 / 20, 1 / 20]),
    ],
)
def test_aggregation_by_hand(aggregation, max_length, loss, scale):
    logp = (-f64(LOSSES)).requires_grad_()
    batch = es.TokenBatch(logp, logp.detach(), torch.tensor(MASK), f64([1, 1, 1]))
    objective = es.make_objective("reinforce", aggregation=aggregation, max_length=max_length)
    out = objective.loss(batch)
    assert_close(out.loss, f64(loss), **EXACT)
    out.loss.backward()
    weights = f64([[scale[0]] * 3, [scale[1], 0, 0], [0, 0, 0]])
    assert_close(logp.grad, -weights, **EXACT)
    mask = torch.tensor(MASK).bool()
    assert_close(aggregation_scale(mask, aggregation, torch.float64, max_length), weights, **EXACT)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_batch_without_tokens_has_loss_zero(aggregation):
    logp = f64([[NAN, NAN]]).requires_grad_()
    batch = es.TokenBatch(logp, logp.detach(), torch.zeros(1, 2), f64([1.0]))
    out = es.make_objective("ppo", aggregation=aggregation).loss(batch)
    out.loss.backward()
    assert out.loss.item() == 0
    assert logp.grad.tolist() == [[0.0, 0.0]]
    assert all(value.item() == 0 for value in out.metrics.values())


# ---------------------------------------------------------------------------- fields of Terms


def test_plain_terms_of_ppo():
    batch = at_ratios([1.0, 1.5], [1.0, 2.0])
    terms = es.make_objective("ppo", low=0.2, high=0.3).plan(batch)
    assert terms.ratio == "token"
    assert terms.advantage.tolist() == [[1.0, 2.0]]
    assert terms.weight.tolist() == [[1.0, 1.0]]
    assert_close(terms.ratio_min, f64([[0.8, 0.8]]), **EXACT)
    assert_close(terms.ratio_max, f64([[1.3, 1.3]]), **EXACT)
    assert_close(terms.scale, f64([[0.5, 0.5]]), **EXACT)
    assert terms.count.item() == 2
    assert (terms.frozen, terms.abs_kl, terms.entropy, terms.ref_kl) == (None,) * 4


def with_terms(batch: es.TokenBatch, name: str = "ppo", **fields) -> es.LossOutput:
    objective = es.make_objective(name)
    return objective.loss(batch, objective.plan(batch).replace(**fields))


def test_weight_by_hand():
    # losses -r A = -1.1, -.9, and 1.6 where clipped; times 2, 0 and .5
    batch = at_ratios([1.1, 0.9, 0.5], [1.0, 1.0, -2.0])
    out = with_terms(batch, weight=f64([[2.0, 0.0, 0.5]]))
    assert_close(out.per_token, f64([[-2.2, 0.0, 0.8]]), **EXACT)
    assert_close(sum_gradient(batch, out), f64([[-2.2, 0.0, 0.0]]), **EXACT)
    assert_close(out.loss, f64(-1.4 / 3), **EXACT)  # N does not follow the weights


def test_frozen_keeps_the_value_and_drops_the_gradient():
    batch = at_ratios([1.1, 0.9], [1.0, 1.0])
    out = with_terms(batch, frozen=torch.tensor([[True, False]]))
    assert_close(out.per_token, f64([[-1.1, -0.9]]), **EXACT)
    assert_close(sum_gradient(batch, out), f64([[0.0, -0.9]]), **EXACT)


def test_abs_kl_by_hand():
    # A = 0 and weight 3 leave coef * |log r|, gradient coef * sign(log r), 0 at r = 1
    batch = at_ratios([2.0, 0.5, 1.0, 2.0], [0.0] * 4)
    out = with_terms(
        batch, abs_kl=f64([[1.0, 3.0, 1.0, 0.0]]), weight=torch.full((1, 4), 3.0).double()
    )
    log2 = math.log(2)
    assert_close(out.per_token, f64([[log2, 3 * log2, 0.0, 0.0]]), **EXACT)
    assert_close(sum_gradient(batch, out), f64([[1.0, -3.0, 0.0, 0.0]]), **EXACT)


def test_entropy_coefficient_by_hand():
    # loss - c H: -.5 * 2 and -.25 * 4; the gradient of H is -c
    H = f64([[2.0, 4.0]]).requires_grad_()
    batch = at_ratios([1.0, 1.0], [0.0, 1.0], entropy=H)
    out = with_terms(batch, entropy=f64([[0.5, 0.25]]), weight=f64([[7.0, 2.0]]))
    assert_close(out.per_token, f64([[-1.0, -3.0]]), **EXACT)
    assert_close(torch.autograd.grad(out.per_token.sum(), H)[0], f64([[-0.5, -0.25]]), **EXACT)


@pytest.mark.parametrize(
    ("form", "value", "gradient"),
    [
        # x = log ref - log pi; d/d log pi = -d/dx
        ("k1", lambda x: -x, lambda x: 1.0),
        ("k2", lambda x: x * x / 2, lambda x: -x),
        ("k3", lambda x: math.exp(x) - 1 - x, lambda x: 1 - math.exp(x)),
    ],
)
def test_ref_kl_by_hand(form, value, gradient):
    # log pi = -1 everywhere, log ref = -1.5, -1, -.25: x = -.5, 0, .75
    batch = at_ratios([1.0] * 3, [0.0] * 3, ref_logp=f64([[-1.5, -1.0, -0.25]]))
    out = with_terms(batch, ref_kl=f64([[1.0, 1.0, 2.0]]), ref_kl_form=form)
    xs, coefs = (-0.5, 0.0, 0.75), (1.0, 1.0, 2.0)
    expected = [c * value(x) for c, x in zip(coefs, xs, strict=True)]
    slope = [c * gradient(x) for c, x in zip(coefs, xs, strict=True)]
    assert_close(out.per_token, f64([expected]), **EXACT)
    assert_close(sum_gradient(batch, out), f64([slope]), **EXACT)


@pytest.mark.parametrize(("field", "missing"), [("entropy", "entropy"), ("ref_kl", "ref_logp")])
def test_a_term_that_the_batch_cannot_feed_is_an_error(field, missing):
    refused(lambda: with_terms(at_ratios([1.0], [1.0]), **{field: f64([[1.0]])}), f"`{missing}`")


# ---------------------------------------------------------------------------- gradients


def central_differences(f, x: torch.Tensor, h: float = 1e-6) -> torch.Tensor:
    """df/dx by central differences, x float64 of any shape, f a scalar."""
    out = torch.zeros_like(x)
    for i in range(x.numel()):
        step = torch.zeros_like(x).view(-1)
        step[i] = h
        step = step.view_as(x)
        out.view(-1)[i] = (f(x + step) - f(x - step)) / (2 * h)
    return out


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
@pytest.mark.parametrize(
    ("spec", "fields"),
    [
        ({"name": "reinforce"}, {}),
        ({"name": "ppo"}, {}),
        ({"name": "ppo", "dual": 1.5}, {}),
        ({"name": "ppo"}, {"weight": 0.7}),
        ({"name": "ppo", "low": None, "high": None}, {"abs_kl": 0.3}),
        ({"name": "ppo"}, {"entropy": 0.2}),
        ({"name": "reinforce"}, {"ref_kl": 0.4, "ref_kl_form": "k1"}),
        ({"name": "ppo"}, {"ref_kl": 0.4, "ref_kl_form": "k2"}),
        ({"name": "ppo"}, {"ref_kl": 0.4, "ref_kl_form": "k3", "abs_kl": 0.3, "entropy": 0.2}),
    ],
)
def test_gradients_by_finite_differences(spec, fields, aggregation):
    g = torch.Generator().manual_seed(11)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=g, dtype=torch.float64)

    old, ref, entropy = -2 * rand(4, 3), -2 * rand(4, 3), 2 * rand(4, 3)
    # ratios well away from the kinks at .8, 1 (|lp - lp0|), 1.2 and 1.5 (dual), on every side
    ratios = f64([[0.5, 0.9, 1.1], [1.35, 1.7, 0.6], [1.6, 0.9, 1.3], [1.1, 0.7, 1.8]])
    logp = old + ratios.log()
    mask = torch.tensor([[1, 1, 1], [1, 1, 0], [0, 1, 1], [1, 1, 1]])
    A = f64([1.5, -0.5, -1.0, 0.7])
    objective = es.make_objective(spec, aggregation=aggregation)
    batch = es.TokenBatch(logp, old, mask, A, entropy=entropy, ref_logp=ref)
    terms = objective.plan(batch)
    terms = terms.replace(
        **{
            key: value if isinstance(value, str) else value * (0.5 + rand(4, 3))
            for key, value in fields.items()
        }
    )

    def loss(x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        return objective.loss(es.TokenBatch(x, old, mask, A, entropy=h, ref_logp=ref), terms).loss

    x, h = logp.clone().requires_grad_(), entropy.clone().requires_grad_()
    to_logp, to_entropy = torch.autograd.grad(loss(x, h), (x, h), allow_unused=True)
    expected = central_differences(lambda v: loss(v, entropy), logp)
    assert_close(to_logp, expected, rtol=1e-6, atol=1e-9)
    assert to_logp.abs().sum() > 1e-2
    if "entropy" in fields:
        expected = central_differences(lambda v: loss(logp, v), entropy)
        assert_close(to_entropy, expected, rtol=1e-6, atol=1e-9)
        assert to_entropy.abs().sum() > 1e-2
    else:
        assert to_entropy is None or not to_entropy.any()


def test_no_gradient_reaches_what_decides():
    leaves = {
        name: f64([[-1.0, -2.0]]).requires_grad_()
        for name in ("logp", "old_logp", "ref_logp", "old_entropy")
    }
    A = f64([[1.0, -1.0]]).requires_grad_()
    batch = es.TokenBatch(mask=torch.ones(1, 2), advantages=A, **leaves)
    objective = es.make_objective(["ppo", "repo_r"])
    batch = objective.prepare(batch)
    terms = objective.plan(batch).replace(ref_kl=torch.ones(1, 2).double())
    assert not any(
        value.requires_grad for value in vars(terms).values() if isinstance(value, torch.Tensor)
    )
    objective.loss(batch, terms).loss.backward()
    assert leaves["logp"].grad.abs().sum() > 0
    for name in ("old_logp", "ref_logp", "old_entropy"):
        assert leaves[name].grad is None or not leaves[name].grad.any(), name
    assert A.grad is None or not A.grad.any()


# ---------------------------------------------------------------------------- prepare, plan, loss


def test_prepare_computes_advantages_of_the_groups():
    zeros = torch.zeros(4, 2)
    batch = es.TokenBatch(
        zeros,
        zeros,
        torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]),
        rewards=torch.tensor([1.0, 0.0, 0.0, 3.0]),
        group=torch.tensor([0, 0, 1, 1]),
    )
    prepared = es.make_objective("loop").prepare(batch)  # rloo: 1 - 0, 0 - 1, 0 - 3, 3 - 0
    assert prepared.advantages.tolist() == [[1, 1], [-1, 0], [-3, -3], [3, 3]]
    assert batch.advantages is None


def test_prepare_weights_opo_by_the_trained_tokens():
    # lengths 1 and 3 (from the mask): baseline (1*4 + 3*0)/4 = 1
    zeros = torch.zeros(2, 3)
    batch = es.TokenBatch(
        zeros,
        zeros,
        torch.tensor([[0, 1, 0], [1, 1, 1]]),
        rewards=torch.tensor([4.0, 0.0]),
        group=torch.tensor([9, 9]),
    )
    prepared = es.make_objective("ppo", advantage="opo").prepare(batch)
    assert prepared.advantages.tolist() == [[0, 3, 0], [-1, -1, -1]]


def test_outcome_advantages_are_one_a_rollout_before_any_edit():
    batch = es.TokenBatch(
        torch.zeros(2, 2),
        torch.full((2, 2), -1.0),
        torch.ones(2, 2),
        rewards=torch.tensor([1.0, 0.0]),
        group=torch.tensor([0, 0]),
        old_entropy=torch.zeros(2, 2),
    )
    objective = es.make_objective("repo_r", zeta=0.1)
    assert objective.outcome_advantages(batch).advantages.tolist() == [1.0, -1.0]  # rloo


def test_given_advantages_are_taken_as_they_are():
    zeros, ones = torch.zeros(2, 2), torch.ones(2, 2)
    objective = es.make_objective("grpo")
    for given in (torch.tensor([5.0, -2.0]), torch.tensor([[5.0, 5.0], [-2.0, -2.0]])):
        batch = es.TokenBatch(
            zeros, zeros, ones, given, rewards=torch.tensor([0.0, 1.0]), group=torch.tensor([0, 0])
        )
        assert objective.prepare(batch).advantages.tolist() == [[5, 5], [-2, -2]]


@pytest.mark.parametrize("missing", ["rewards", "group"])
def test_prepare_without_rewards_or_group_is_an_error(missing):
    given = {"rewards": torch.tensor([1.0, 0.0]), "group": torch.tensor([0, 0])}
    given[missing] = None
    batch = es.TokenBatch(torch.zeros(2, 1), torch.zeros(2, 1), torch.ones(2, 1), **given)
    refused(lambda: es.make_objective("ppo").prepare(batch), "'grpo'", "or advantages")


def test_prepare_refuses_a_reward_that_is_no_number():
    batch = es.TokenBatch(
        torch.zeros(2, 1),
        torch.zeros(2, 1),
        torch.ones(2, 1),
        rewards=torch.tensor([NAN, 0.0]),
        group=torch.tensor([0, 0]),
    )
    refused(lambda: es.make_objective("ppo").prepare(batch), "rewards[0]")


def test_plan_without_advantages_is_an_error():
    batch = es.TokenBatch(torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1))
    refused(lambda: es.make_objective("ppo").plan(batch), "no advantages")


def test_loss_plans_where_no_terms_are_given():
    batch = at_ratios([1.5, 0.5, 1.1], [1.0, -1.0, 2.0])
    objective = es.make_objective("ppo")
    out, planned = objective.loss(batch), objective.loss(batch, objective.plan(batch))
    assert torch.equal(out.loss, planned.loss)
    assert torch.equal(out.per_token, planned.per_token)


def test_terms_of_another_shape_are_an_error():
    objective = es.make_objective("ppo")
    batch = at_ratios([1.0, 1.0], [1.0, 1.0])
    other = at_ratios([1.0, 1.0, 1.0], [1.0] * 3)
    refused(lambda: objective.loss(batch, objective.plan(other)), "[1, 3]", "[1, 2]")


# ---------------------------------------------------------------------------- TokenBatch, Terms


@pytest.mark.parametrize(
    ("field", "shape", "wanted"),
    [
        ("logp", (2, 4), r"logp must be \[2, 3\], got \[2, 4\]"),
        ("old_logp", (2,), r"old_logp must be \[2, 3\], got \[2\]"),
        ("advantages", (3,), r"advantages must be \[2\] or \[2, 3\], got \[3\]"),
        ("rewards", (2, 1), r"rewards must be \[2\], got \[2, 1\]"),
        ("group", (2, 3), r"group must be \[2\], got \[2, 3\]"),
        ("entropy", (3, 2), r"entropy must be \[2, 3\]"),
        ("old_entropy", (1, 3), r"old_entropy must be \[2, 3\]"),
        ("ref_logp", (2, 3, 1), r"ref_logp must be \[2, 3\]"),
        ("sum_p2", (2,), r"sum_p2 must be \[2, 3\]"),
        ("sum_p2_logp", (2,), r"sum_p2_logp must be \[2, 3\]"),
        ("reward_parts", (3, 2), r"reward_parts must be \[2, F\], got \[3, 2\]"),
        ("reward_parts", (2,), r"reward_parts must be \[2, F\], got \[2\]"),
        ("mask", (3,), r"mask must be \[B, T\], got shape \[3\]"),
    ],
)
def test_wrong_shapes_are_errors(field, shape, wanted):
    good = {name: torch.zeros(2, 3) for name in ("logp", "old_logp", "mask")}
    with pytest.raises(ValueError, match=f"TokenBatch: .*{wanted}"):
        es.TokenBatch(**good | {field: torch.zeros(shape)})


def test_replace_refuses_an_unknown_field_and_the_mask():
    batch = at_ratios([1.0], [1.0])
    for name in ("mask", "logits"):
        with pytest.raises(TypeError, match=f"cannot change '{name}'"):
            batch.replace(**{name: torch.zeros(1, 1)})


def test_replace_checks_the_shape_and_blanks_masked_entries():
    batch = es.TokenBatch(torch.zeros(1, 2), torch.zeros(1, 2), torch.tensor([[1, 0]]))
    assert batch.replace(entropy=torch.tensor([[1.0, NAN]])).entropy.tolist() == [[1.0, 0.0]]
    refused(lambda: batch.replace(entropy=torch.zeros(2)), "entropy", "[1, 2]")


def test_lengths_and_rows():
    mask = torch.tensor([[1, 0, 1], [0, 0, 0], [1, 1, 1]])
    x = torch.arange(9.0).view(3, 3)
    batch = es.TokenBatch(x, -x, mask, rewards=torch.tensor([3.0, 4.0, 5.0]))
    assert batch.lengths.tolist() == [2, 0, 3]
    assert len(batch) == 3
    for rows in (slice(1, 3), torch.tensor([1, 2]), torch.tensor([False, True, True])):
        part = batch[rows]
        assert part.logp.tolist() == [[0, 0, 0], [6, 7, 8]]
        assert part.old_logp.tolist() == [[0, 0, 0], [-6, -7, -8]]
        assert part.rewards.tolist() == [4.0, 5.0]
        assert part.lengths.tolist() == [0, 3]
        assert part.entropy is None


def test_rows_of_terms_keep_the_count_of_the_whole():
    batch = es.TokenBatch(torch.zeros(2, 2), torch.zeros(2, 2), torch.ones(2, 2), torch.ones(2))
    terms = es.make_objective("ppo").plan(batch)
    part = terms[torch.tensor([1])]
    assert part.advantage.shape == (1, 2)
    assert part.count.item() == 4
    assert part.scale.tolist() == [[0.25, 0.25]]


# ---------------------------------------------------------------------------- observe, state


@pytest.mark.parametrize("bad", [NAN, math.inf, -math.inf])
def test_observe_refuses_what_is_no_number(bad):
    objective = es.make_objective("repo_r")
    refused(lambda: objective.observe(entropy=bad), f"entropy is {bad}")
    assert objective.metrics() == {"control/zeta": 1e-3}  # nothing moved


def test_observe_takes_a_tensor_scalar():
    objective = es.make_objective("repo_r", target=1.0)
    objective.observe(entropy=torch.tensor(0.5))
    assert objective.metrics()["control/zeta"] == 2e-3


def test_the_state_goes_through_json_and_continues_alike():
    one = es.make_objective("repo_r", bidirectional=True)
    for entropy in (0.5, 0.4, 0.3):
        one.observe(entropy=entropy)
    two = es.make_objective("repo_r", bidirectional=True)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert two.metrics() == one.metrics() == {"control/zeta": 4e-3, "control/target": 0.5}
    two.observe(entropy=0.9)
    assert two.metrics()["control/zeta"] == 2e-3
    assert one.metrics()["control/zeta"] == 4e-3  # the two share nothing


def test_the_state_of_other_methods_is_an_error():
    state = es.make_objective("repo_r").state_dict()
    refused(lambda: es.make_objective("ppo").load_state_dict(state), "['ppo', 'repo_r']", "['ppo']")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: es.make_objective("repo_r", target=0.7), "repo_r's target = None, here it is 0.7"),
        (lambda: es.make_objective("repo_r", advantage="grpo"), "advantage = 'rloo', here .*grpo"),
        (lambda: es.make_objective(["loop", "repo_r"]), "ppo's high = 0.28, here it is 0.2"),
        (
            lambda: es.make_objective("repo_r", aggregation="token_mean"),
            "aggregation = 'seq_mean_token_mean', here it is 'token_mean'",
        ),
    ],
)
def test_the_state_of_other_parameters_is_an_error(make, words):
    """A resumed run must not go on with other numbers, where a default has changed, say."""
    state = json.loads(json.dumps(es.make_objective("repo_r").state_dict()))
    es.make_objective("repo_r").load_state_dict(state)
    with pytest.raises(ValueError, match=words):
        make().load_state_dict(state)


def test_describe_says_all_that_decides():
    told = es.make_objective(["dapo", {"name": "kl_cov", "frac": 0.5}], max_length=9).describe()
    assert told == {
        "advantage": "rloo",
        "aggregation": "seq_mean_token_mean",
        "max_length": 9,
        "methods": [
            {"name": "ppo", "low": 0.2, "high": 0.28, "dual": None},
            {"name": "kl_cov", "frac": 0.5, "coef": 1.0, "penalty": "abs", "at_least": 0},
        ],
    }


def test_coefficients_of_one_name_are_told_apart():
    chain = [{"name": "entropy_bonus", "coef": 0.01}, "adaptive_entropy"]
    objective = es.make_objective(chain)
    objective.observe(entropy=0.1)
    assert objective.metrics() == {
        "control/entropy_coef": 0.01,
        "control/adaptive_entropy_entropy_coef": 1e-4,
        "control/target": 0.2,
    }


def test_the_policy_loss_is_logged_apart_from_what_is_added():
    # one token, on policy, A = 2, H = 3: policy loss -2, bonus .5 * 3
    zero, one = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1)
    batch = es.TokenBatch(zero, zero, one, torch.tensor([2.0]).double(), entropy=3 * one.double())
    metrics = es.make_objective("entropy_bonus", coef=0.5).loss(batch).metrics
    assert metrics["loss/policy"].item() == -2
    assert metrics["loss/total"].item() == -3.5


def test_the_dual_clip_is_logged():
    # A < 0 and r = e^2 above c = 1.5
    lp, one = torch.full((1, 2), -1.0), torch.ones(1, 2)
    batch = es.TokenBatch(lp, lp - torch.tensor([[2.0, 0.0]]), one, torch.tensor([-1.0]))
    metrics = es.make_objective("ppo", dual=1.5).loss(batch).metrics
    assert metrics["clip/dual"].item() == 0.5
    assert metrics["clip/low"].item() == metrics["clip/high"].item() == 0


@pytest.mark.parametrize("progress", [-0.1, 1.5, 150])
def test_progress_outside_0_to_1_is_an_error(progress):
    refused(
        lambda: es.make_objective("pos_adv", schedule="stage").observe(
            entropy=0.5, progress=progress
        ),
        "progress",
        "it goes from 0 to 1",
    )


@pytest.mark.parametrize(
    "state", [{}, [1], None, {"objective": {}, "states": []}, {"objective": {"methods": []}},
              {"objective": {"methods": [{"name": "repo_r"}]}, "states": []},
              {"objective": {"methods": [1]}, "states": [None]}],
)  # fmt: skip
def test_what_is_no_state_is_an_error(state):
    refused(lambda: es.make_objective("repo_r").load_state_dict(state), "Objective.state_dict")
