"""CE-GPPO against its printed loss, differentiated by torch."""

import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused

EXACT = {"rtol": 1e-12, "atol": 1e-12}


# ratios .5, .9, 1, 1.1, 1.5 under advantages of either sign
RATIO = f64([[0.5, 0.9, 1.0, 1.1, 1.5], [0.5, 0.9, 1.0, 1.1, 1.5]])
ADVANTAGE = f64([[2.0] * 5, [-2.0] * 5])


def batch(extra: float = 0.0) -> es.TokenBatch:
    old = f64([[-1.0, -0.5, -2.0, -0.3, -1.5]] * 2)
    mask = torch.ones(2, 5, dtype=torch.bool)
    logp = (old + RATIO.log() + extra).requires_grad_()
    return es.TokenBatch(logp, old, mask, ADVANTAGE)


def printed(logp: torch.Tensor, old: torch.Tensor, beta1: float, beta2: float) -> torch.Tensor:
    """The three cases of the text, token by token."""
    ratio = (logp - old).exp()
    rows = []
    for r, A in zip(ratio.flatten(), ADVANTAGE.flatten(), strict=True):
        if A < 0 and r < 0.8:
            rows.append(-beta1 * 0.8 / r.detach() * r * A)
        elif A > 0 and r > 1.2:
            rows.append(-beta2 * 1.2 / r.detach() * r * A)
        else:
            rows.append(-r * A)
    return torch.stack(rows).reshape(2, 5)


@pytest.mark.parametrize(("beta1", "beta2"), [(0.25, 1.0), (0.75, 0.5), (0.0, 0.0)])
def test_loss_and_gradient_are_those_printed(beta1, beta2):
    given = batch()
    out = es.make_objective("ce_gppo", beta1=beta1, beta2=beta2).loss(given)
    (gradient,) = torch.autograd.grad(out.loss, given.logp)
    again = batch()
    wanted = printed(again.logp, again.old_logp, beta1, beta2)
    assert_close(out.per_token, wanted.detach(), **EXACT)
    assert_close(gradient, torch.autograd.grad(wanted.mean(), again.logp)[0], **EXACT)


def test_by_hand():
    given = batch()
    out = es.make_objective("ce_gppo", beta1=0.5, beta2=1.0).loss(given)
    slope = torch.autograd.grad(out.per_token.sum(), given.logp)[0]
    # up: -r A = -2 r, above 1.2 it stays at -1.2 * 2; down: 2 r, below .8 it is .5 * .8 * 2
    assert_close(slope, f64([[-1, -1.8, -2, -2.2, -2.4], [0.8, 1.8, 2, 2.2, 3]]), **EXACT)


def test_without_betas_it_is_the_clip():
    given, again = batch(), batch()
    a = torch.autograd.grad(
        es.make_objective("ce_gppo", beta1=0, beta2=0).loss(given).loss, given.logp
    )
    b = torch.autograd.grad(es.make_objective("grpo_token").loss(again).loss, again.logp)
    assert_close(a, b, **EXACT)


def test_slices_under_the_plan_of_the_whole_add_up():
    objective, given = es.make_objective(["dapo", "ce_gppo"]), batch()
    terms = objective.plan(given)
    parts = [objective.loss(given[rows], terms[rows]).loss for rows in ([0], [1])]
    assert_close(sum(parts), objective.loss(given).loss, **EXACT)


def test_it_sits_on_grpo_with_the_mean_over_tokens():
    objective = es.make_objective("ce_gppo")
    assert objective.names == ("ppo", "ce_gppo")
    assert (objective.advantage, objective.aggregation) == ("grpo", "token_mean")
    assert dict(es.methods()["ce_gppo"].parameters) == {"beta1": 0.5, "beta2": 1.0}
    refused(lambda: es.make_objective("ce_gppo", beta1=-1), "ce_gppo:", "beta1")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_ratio_that_is_0_in_its_precision_gives_numbers(dtype):
    far = torch.tensor([[-20.0, -59.0, -100.0, -1000.0, -1e30]], dtype=dtype)
    old = torch.full_like(far, -0.5)
    for A, beta in ((-2.0, 0.5), (-2.0, 100.0), (2.0, 0.5)):
        given = es.TokenBatch(
            (old + far).requires_grad_(), old, torch.ones(1, 5), torch.tensor([A], dtype=dtype)
        )
        out = es.make_objective("ce_gppo", beta1=beta).loss(given)
        slope = torch.autograd.grad(out.per_token.sum(), given.logp)[0]
        assert out.terms.weight.isfinite().all()
        # -r A if A > 0; else the bound's, .8 beta |A|, down to e^-60, where it ends
        wanted = [0.8 * beta * 2] * 2 if A < 0 else [-2 * math.exp(x) for x in (-20, -59)]
        expected = torch.tensor([[*wanted, 0, 0, 0]], dtype=dtype)
        tolerance = {"rtol": 1e-5, "atol": 1e-12 + 1e-14 * beta}
        assert_close(slope, expected, **tolerance)
        assert_close(out.per_token, expected, **tolerance)
