"""Losses that neither TRL nor veRL has: against their formulas, differentiated by torch."""

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from entrostat.testing import contract_data

LOSSES = ["cispo", "sapo", "vespo", "gmpo", "up", "dppo", "ipo", "icepop", "m2po",
          "off_policy_mask"]  # fmt: skip
A = torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0, 0.3], dtype=torch.float64)


def loss_and_gradient(spec):
    """Of the token mean over the contract's batch, from given advantages."""
    data = contract_data()
    logp = data["logp"].clone().requires_grad_()
    objective = es.make_objective(spec, aggregation="token_mean")
    batch = objective.prepare(es.TokenBatch(**data | {"logp": logp, "advantages": A}))
    out = objective.loss(batch, generator=torch.Generator().manual_seed(0))
    (gradient,) = torch.autograd.grad(out.loss, logp)
    return out.loss.detach(), gradient


def by_formula(per_token):
    """The same of a formula over (log-probs with gradient, old ones, advantages [B, T])."""
    data = contract_data()
    lp, mask = data["logp"].clone().requires_grad_(), data["mask"].bool()
    each = per_token(lp, data["old_logp"], A[:, None].expand(6, 5))
    loss = torch.where(mask, each, 0).sum() / mask.sum()
    (gradient,) = torch.autograd.grad(loss, lp)
    return loss.detach(), torch.where(mask, gradient, 0)


def up(lp, old, A):
    """Eq. 15: the ratio to the policy itself where A > 0, else PPO's with the dual clip at 3."""
    anchored = (lp - lp.detach()).exp()
    r = (lp - old).exp()
    clipped = torch.max(-A * r, -A * r.clamp(0.8, 1.2)).minimum(-3 * A)
    return torch.where(A > 0, -anchored * A, clipped)


def ipo(lp, old, A):
    keep = (lp.exp() - old.exp()).detach().abs() <= 0.1
    return -A * (lp - old).exp() * keep + 1e-3 * (lp - old).square() * (A != 0)


def icepop(lp, old, A):
    r = (lp - old).exp().detach()
    return -A * torch.where((r >= 0.7) & (r <= 1.4), r, 0) * lp


def m2po(lp, old, A):
    """Largest first; the first place from which on the mean of the rest is below .1."""
    mask = contract_data()["mask"].bool()
    m = (lp - old).detach().square()
    ordered = m[mask].sort(descending=True).values
    means = [float(ordered[k:].mean()) for k in range(len(ordered))]
    out = next(k for k, mean in enumerate(means) if mean < 0.1)
    assert 0 < out < len(ordered) - 1
    return -A * (lp - old).exp() * (m < ordered[out - 1])


@pytest.mark.parametrize(
    ("spec", "formula"),
    [
        ("up", up),
        ("ipo", ipo),
        ({"name": "icepop", "low": 0.7, "high": 1.4}, icepop),
        ({"name": "m2po", "threshold": 0.1}, m2po),
    ],
)
def test_loss_is_its_formula(spec, formula):
    (loss, gradient), (expected, slope) = loss_and_gradient(spec), by_formula(formula)
    assert_close(loss, expected)
    assert_close(gradient, slope)


def test_m2po_leaves_all_in_below_its_threshold_and_keeps_one_above():
    plain = loss_and_gradient("clip_free")
    for mine, theirs in zip(loss_and_gradient({"name": "m2po", "threshold": 1.0}), plain,
                            strict=True):  # fmt: skip
        assert_close(mine, theirs)
    _, gradient = loss_and_gradient({"name": "m2po", "threshold": 1e-12})
    assert int((gradient != 0).sum()) <= 1


@pytest.mark.parametrize("name", LOSSES)
def test_a_thermostat_stands_on_top(name):
    objective = es.make_objective([name, {"name": "thermostat", "target": "0.8x"}])
    assert objective.names[-1] == "thermostat"
    objective.observe(entropy=0.5)
    assert objective.metrics()["control/target"] == pytest.approx(0.4)


def test_a_weight_follows_the_policy_within_a_minibatch_without_a_pass_before_it():
    """The plan is that of the old policy; the weights are the current one's, slice by slice."""
    objective = es.make_objective("cispo")
    assert not objective.reads_current
    data = contract_data() | {"advantages": A}
    old = objective.prepare(es.TokenBatch(**data | {"logp": data["old_logp"]}))
    terms = objective.plan(old)
    now = objective.prepare(es.TokenBatch(**data))
    ratio = (data["logp"] - data["old_logp"]).exp()
    out = objective.loss(now[2:4], terms[2:4])
    mask = data["mask"].bool()
    assert_close(out.terms.weight[mask[2:4]], ratio[2:4][mask[2:4]])  # none above the bound of 5


def test_the_ratio_of_a_loss_without_one_is_reported():
    """It weights the log-probs; tokens outside the band are counted as clipped."""
    data, mask = contract_data(), contract_data()["mask"].bool()
    objective = es.make_objective({"name": "icepop", "low": 0.7, "high": 1.4})
    found = objective.loss(objective.prepare(es.TokenBatch(**data | {"advantages": A}))).metrics
    r, a = (data["logp"] - data["old_logp"]).exp()[mask], A[:, None].expand(6, 5)[mask]
    assert_close(found["ratio/mean"], r.mean())
    for side, outside in {"high": (a > 0) & (r > 1.4), "low": (a < 0) & (r < 0.7)}.items():
        assert outside.any()
        assert_close(found[f"clip/{side}"], outside.double().mean())


def test_the_ratio_of_a_loss_with_one_is_reported_whatever_weights_it():
    """GSPO's is that of a response's mean log-prob; off_policy_mask changes the weights alone."""
    data, mask = contract_data(), contract_data()["mask"].bool()
    objective = es.make_objective(["gspo", {"name": "off_policy_mask", "delta": 0.01}])
    found = objective.loss(objective.prepare(es.TokenBatch(**data | {"advantages": A}))).metrics
    gap = torch.where(mask, data["logp"] - data["old_logp"], 0)
    r = (gap.sum(1) / mask.sum(1)).exp()[:, None].expand(6, 5)
    assert_close(found["ratio/mean"], r[mask].mean())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "cispo", "high": -1.5}, "cispo: high must be at least -1, got -1.5"),
        ({"name": "dppo", "divergence": "js"}, "dppo: divergence must be 'tv' or 'kl', got 'js'"),
        ({"name": "sapo", "tau_pos": 0}, "sapo: tau_pos must be above 0"),
        ({"name": "up", "dual": 0.5}, "up: dual must be above 1"),
        ({"name": "m2po", "threshold": -1}, "m2po: threshold must be above 0"),
        (["cispo", "ppo"], "two surrogates"),
    ],
)
def test_what_cannot_be_meant(spec, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(spec)


def test_off_policy_mask_leaves_out_what_has_drifted_further_than_delta():
    """Mean drifts .5 (not above), .5 + 1e-4, .499, and .75 of which a half is at mask 0."""
    T = 64
    drift = torch.tensor([0.5, 0.5 + 1e-4, 0.499, 0.75])[:, None].repeat(1, T)
    mask = torch.ones(4, T, dtype=torch.bool)
    mask[3, T // 2 :] = False
    batch = es.TokenBatch(
        -1 - drift, torch.full((4, T), -1.0), mask, torch.tensor([-1.0, -1.0, -1.0, -1.0]),
        group=torch.zeros(4, dtype=torch.long), rewards=torch.zeros(4),
    )  # fmt: skip
    objective = es.make_objective(["grpo", "off_policy_mask"])
    terms = objective.plan(objective.prepare(batch))
    assert objective.local(batch, terms).weight[:, 0].tolist() == [1, 0, 1, 0]
