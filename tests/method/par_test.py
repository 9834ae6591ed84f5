"""Weights by the sign of the advantage, and the terms added to the loss, by hand."""

import json
import math
from collections import Counter

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused, seed

EXACT = {"rtol": 1e-12, "atol": 1e-12}
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm")
NAN = math.nan


# N = 6, three of them positive, one 0; ratios 1 (so losses and slopes are -A)
MASK = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]])
A = f64([[2.0, 3.0, -1.0, 5.0], [1.0, 9.0, 0.0, -4.0]])
H = f64([[1.0, 2.0, 0.5, 40.0], [0.25, 50.0, 1.5, 0.75]])  # mean 6/6 = 1


def batch(**more) -> es.TokenBatch:
    logp = f64([[-1.0, -2.0, -0.5, -9.0], [-1.5, -9.0, -0.25, -3.0]]).requires_grad_()
    given = {"entropy": H.clone().requires_grad_()} | more
    return es.TokenBatch(logp, logp.detach(), MASK, A, **given)


def weights(objective: es.Objective) -> torch.Tensor:
    """The weights planned, 1 at mask 0."""
    given = batch()
    return torch.where(given.mask, objective.plan(given).weight, 1)


def positive(weight: float) -> torch.Tensor:
    return f64([[weight, weight, 1.0, 1.0], [weight, 1.0, 1.0, 1.0]])


# ---------------------------------------------------------------------------- pos_adv


def test_pos_adv_by_entropy_over_a_run():
    # starts at 1; - .01 unless entropy > .2, + .01 where it is; kept in [0, 1]
    objective = es.make_objective("pos_adv")
    assert objective.metrics() == {"control/pos_weight": 1.0, "control/target": 0.2}
    steps = ((0.5, 1.0), (0.1, 0.99), (0.2, 0.98), (0.21, 0.99), (0.0, 0.98), (0.0, 0.97))
    for entropy, lam in steps:
        objective.observe(entropy=entropy)
        assert objective.metrics()["control/pos_weight"] == pytest.approx(lam, rel=1e-12)
        assert_close(weights(objective), positive(lam), **EXACT)


def test_pos_adv_by_entropy_stays_between_0_and_1():
    objective = es.make_objective("pos_adv", weight=0.25, delta=0.5, target=1.0)
    for entropy, lam in ((0.5, 0.0), (0.5, 0.0), (1.5, 0.5), (1.5, 1.0), (1.5, 1.0), (1.0, 0.5)):
        objective.observe(entropy=entropy)
        assert_close(weights(objective), positive(lam), **EXACT)
        assert objective.metrics() == {"control/pos_weight": lam, "control/target": 1.0}


def test_pos_adv_loss_by_hand():
    # -A with A > 0 times .25: -.5, -.75, 1 | -.25, 0, 4
    objective, given = es.make_objective("pos_adv", weight=0.25), batch()
    out = objective.loss(given)
    assert_close(out.loss, f64(3.5 / 6), **EXACT)
    slope = torch.autograd.grad(out.loss, given.logp)[0]
    assert_close(slope, f64([[-0.5, -0.75, 1, 0], [-0.25, 0, 0, 4]]) / 6, **EXACT)


def test_pos_adv_by_stage_over_a_run():
    # 0 for the first half, then 2 progress - 1
    objective = es.make_objective("pos_adv", schedule="stage")
    assert weights(objective).tolist() == positive(0.0).tolist()  # before the first iteration
    for progress, lam in ((0, 0), (0.25, 0), (0.5, 0), (0.625, 0.25), (0.75, 0.5), (1, 1)):
        objective.observe(entropy=9.0, progress=progress)
        assert_close(weights(objective), positive(lam), **EXACT)
        assert objective.metrics() == {"control/pos_weight": lam}


@pytest.mark.parametrize(
    ("epochs", "run"),
    [
        # e = min(E, 1 + floor(progress E)), weight (e - 1)/(E - 1)
        (4, ((0, 0), (0.24, 0), (0.25, 1 / 3), (0.49, 1 / 3), (0.5, 2 / 3), (0.75, 1), (1, 1))),
        (2, ((0, 0), (0.49, 0), (0.5, 1), (1, 1))),
        (None, ((0, 0), (0.15, 1 / 9), (0.55, 5 / 9), (0.9, 1), (1, 1))),  # E = 10
    ],
)
def test_pos_adv_by_epoch_over_a_run(epochs, run):
    more = {} if epochs is None else {"epochs": epochs}
    objective = es.make_objective("pos_adv", schedule="epoch", **more)
    assert weights(objective).tolist() == positive(0.0).tolist()
    for progress, lam in run:
        objective.observe(entropy=9.0, progress=progress)
        assert_close(weights(objective), positive(lam), **EXACT)


@pytest.mark.parametrize("schedule", ["stage", "epoch"])
def test_pos_adv_needs_the_progress_for_two_schedules(schedule):
    refused(
        lambda: es.make_objective("pos_adv", schedule=schedule).observe(entropy=0.1), "`progress`"
    )
    es.make_objective("pos_adv").observe(entropy=0.1)


def test_pos_adv_goes_on_after_a_checkpoint():
    one = es.make_objective("pos_adv", weight=0.5)
    one.observe(entropy=0.1)
    two = es.make_objective("pos_adv", weight=0.5)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    two.observe(entropy=0.1)
    assert two.metrics()["control/pos_weight"] == pytest.approx(0.48, rel=1e-12)


# ---------------------------------------------------------------------------- one side


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("pos_only", [[1, 1, 0, 1], [1, 1, 1, 0]]),
        ("neg_only", [[0, 0, 1, 1], [0, 1, 1, 1]]),
    ],
)
def test_one_side_alone_by_hand(name, expected):
    objective, given = es.make_objective(name), batch()
    assert weights(objective).tolist() == expected
    # losses -A; the mean stays over all six: (-2 - 3 - 1)/6, (1 + 4)/6
    loss = objective.loss(given).loss
    assert_close(loss, f64(-1.0 if name == "pos_only" else 5 / 6), **EXACT)


def test_neither_side_is_an_error():
    refused(lambda: es.make_objective(["grpo", "pos_only", "neg_only"]), "pos_only", "neg_only")


# ---------------------------------------------------------------------------- rand_pos_clip

POSITIVE = {(0, 0), (0, 1), (1, 0)}


def places(mask: torch.Tensor) -> set[tuple[int, int]]:
    return {(int(i), int(j)) for i, j in mask.nonzero()}


@pytest.mark.parametrize(
    ("ratio", "count"), [(2e-4, 1), (0.3, 1), (0.33, 1), (0.34, 2), (0.5, 3), (1.0, 3)]
)
def test_rand_pos_clip_counts_over_all_tokens(ratio, count):
    # floor(ratio * 6), at least 1, at most the three positive ones
    objective = es.make_objective("rand_pos_clip", ratio=ratio, at_least=1)
    chosen = places(objective.plan(batch(), seed(1)).frozen)
    assert len(chosen) == count
    assert chosen <= POSITIVE


@pytest.mark.parametrize("ratio", [2e-4, 0.25, 0.4])
def test_rand_pos_clip_freezes_the_share_that_clip_cov_freezes(ratio):
    # 6 ratio tokens, seed by seed as many as Clip-Cov where every token qualifies; 1000 seeds, four
    # standard deviations of the mean
    mine = es.make_objective("rand_pos_clip", ratio=ratio)
    theirs = es.make_objective("clip_cov", ratio=ratio, low=-1e9, high=1e9)
    given, rest = batch(), (6 * ratio) % 1
    counts = [len(places(mine.plan(given, seed(n)).frozen)) for n in range(1000)]
    assert abs(sum(counts) / 1000 - 6 * ratio) < 4 * math.sqrt(rest * (1 - rest) / 1000)
    theirs = [len(places(theirs.plan(given, seed(n)).frozen)) for n in range(200)]
    assert counts[:200] == theirs


def test_rand_pos_clip_removes_the_gradient_and_keeps_the_value():
    given = batch()
    out = es.make_objective("rand_pos_clip", ratio=1.0).loss(given, generator=seed(0))
    assert_close(out.per_token, f64([[-2, -3, 1, 0], [-1, 0, 0, 4]]), **EXACT)
    slope = torch.autograd.grad(out.per_token.sum(), given.logp)[0]
    assert_close(slope, f64([[0, 0, 1, 0], [0, 0, 0, 4]]), **EXACT)


def test_rand_pos_clip_is_uniform_and_repeats():
    # one of three, 1500 seeds: chi-square of 2 degrees; 13.8 has probability .001
    objective, given = es.make_objective("rand_pos_clip", at_least=1), batch()
    before = torch.random.get_rng_state()
    draws = [places(objective.plan(given, seed(n)).frozen).pop() for n in range(1500)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert draws[:50] == [places(objective.plan(given, seed(n)).frozen).pop() for n in range(50)]
    seen = Counter(draws)
    assert set(seen) == POSITIVE
    assert sum((n - 500) ** 2 for n in seen.values()) / 500 < 13.8


def test_rand_pos_clip_without_a_positive_token():
    given = batch().replace(advantages=f64([-1.0, 0.0]))
    assert not es.make_objective("rand_pos_clip", ratio=1.0).plan(given, seed(0)).frozen.any()


# ---------------------------------------------------------------------------- entropy bonus


@pytest.mark.parametrize("max_length", [None, 10])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_entropy_bonus_is_the_mean_over_tokens_whatever_the_aggregation(aggregation, max_length):
    # rows of 4, 1 and 0 tokens; H: 1 + 2 + 3 + 4 and 10, mean 20/5 = 4
    mask = torch.tensor([[1, 1, 1, 1], [0, 1, 0, 0], [0, 0, 0, 0]])
    entropy = f64([[1, 2, 3, 4], [70, 10, 70, 70], [70] * 4]).requires_grad_()
    logp = -torch.ones(3, 4).double()
    given = es.TokenBatch(logp, logp, mask, f64([1.0, -2.0, 7.0]), entropy=entropy)
    more = {"aggregation": aggregation, "max_length": max_length}
    plain = es.make_objective("grpo", **more).loss(given)
    objective = es.make_objective("entropy_bonus", coef=0.5, **more)
    out = objective.loss(given)
    assert_close(plain.loss - out.loss, f64(0.5 * 4), **EXACT)
    slope = torch.autograd.grad(out.loss, entropy)[0]
    assert_close(slope, -0.1 * mask.double(), **EXACT)  # coef / 5
    terms = objective.plan(given)
    parts = [objective.loss(given[i : i + 1], terms[i : i + 1]).loss for i in range(3)]
    assert_close(sum(parts), out.loss, **EXACT)


def test_entropy_bonus_is_not_weighted_nor_frozen():
    # weight 0 on the policy loss of every token but those with A = 0
    chain = ["grpo", {"name": "entropy_bonus", "coef": 0.5}, "pos_only", {"name": "w_reinforce"}]
    given = batch()
    out = es.make_objective(chain).loss(given)
    # -A of 2, 3, 1 times .1; bonus .5 * mean H = .5
    assert_close(out.loss, f64(-0.1 - 0.5), **EXACT)
    slope = torch.autograd.grad(out.loss, given.entropy)[0]
    assert_close(slope, -0.5 / 6 * MASK.double(), **EXACT)


def test_entropy_bonus_with_its_controller():
    # doubled below the target, halved above, in [1e-3, 10], and the first entropy is the target
    objective = es.make_objective("entropy_bonus", controller="doubling")
    assert objective.metrics() == {"control/entropy_coef": 1e-3}
    steps = ((0.5, 1e-3), (0.4, 2e-3), (0.5, 2e-3), (0.3, 4e-3), (0.6, 2e-3), (9, 1e-3), (9, 1e-3))
    for entropy, coef in steps:
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/entropy_coef": coef, "control/target": 0.5}
        given = batch()
        bonus = es.make_objective("grpo").loss(given).loss - objective.loss(given).loss
        assert_close(bonus, f64(coef), **EXACT)  # mean H = 1
    for _ in range(14):  # 1e-3 * 2^14 = 16.384
        objective.observe(entropy=0.0)
    assert objective.metrics()["control/entropy_coef"] == 10.0


def test_entropy_bonus_is_fixed_by_default():
    objective = es.make_objective("entropy_bonus")
    for entropy in (0.1, 3.0):
        objective.observe(entropy=entropy)
        assert objective.metrics() == {"control/entropy_coef": 1e-3}


# ---------------------------------------------------------------------------- adaptive entropy


def bonus(objective: es.Objective) -> torch.Tensor:
    """What the loss loses to the bonus; the mean entropy is 1, so this is the coefficient."""
    given = batch()
    return es.make_objective("grpo").loss(given).loss - objective.loss(given).loss


def test_adaptive_entropy_over_a_run():
    # c moves first, then the gate looks at the same entropy: applied where entropy <= .2
    objective = es.make_objective("adaptive_entropy", coef=3e-4)
    run = (
        (0.1, 4e-4, True),
        (0.19, 5e-4, True),
        (0.2, 4e-4, True),  # not below, so c falls; at the target the gate is open
        (0.21, 3e-4, False),
        (0.5, 2e-4, False),
        (0.1, 3e-4, True),
        (0.9, 2e-4, False),
        (0.9, 1e-4, False),
        (0.9, 0.0, False),
        (0.9, 0.0, False),
        (0.1, 1e-4, True),
    )
    for entropy, c, applied in run:
        objective.observe(entropy=entropy)
        assert_close(bonus(objective), f64(c if applied else 0.0), **EXACT)
        figures = {"control/entropy_coef": c if applied else 0.0, "control/target": 0.2}
        assert objective.metrics() == pytest.approx(figures, abs=1e-15)


def test_adaptive_entropy_starts_at_zero_and_has_a_ceiling():
    objective = es.make_objective("adaptive_entropy")
    objective.observe(entropy=0.1)
    assert_close(bonus(objective), f64(1e-4), **EXACT)
    for _ in range(60):
        objective.observe(entropy=0.1)
    assert_close(bonus(objective), f64(5e-3), **EXACT)
    given = batch()
    slope = torch.autograd.grad(objective.loss(given).loss, given.entropy)[0]
    assert_close(slope, -5e-3 / 6 * MASK.double(), **EXACT)


@pytest.mark.parametrize(("target", "nats"), [("1x", 0.8), (None, 0.8), ("0.5x", 0.4)])
def test_adaptive_entropy_at_the_entropy_before_training(target, nats):
    # PAR 5.1: the first entropy is the target; c rises while below it, and acts at most there
    objective = es.make_objective("adaptive_entropy", target=target, coef=3e-4)
    assert objective.metrics() == {"control/entropy_coef": 0.0}
    c = 3e-4
    for entropy in (0.8, 0.7, 0.35, 0.9):
        objective.observe(entropy=entropy)
        c += 1e-4 if entropy < nats else -1e-4
        figures = {"control/entropy_coef": c if entropy <= nats else 0.0, "control/target": nats}
        assert objective.metrics() == pytest.approx(figures, abs=1e-15)


def test_adaptive_entropy_has_a_floor():
    objective = es.make_objective("adaptive_entropy", coef=2e-4, coef_min=1.5e-4, target=1.0)
    objective.observe(entropy=1.0)
    assert_close(bonus(objective), f64(1.5e-4), **EXACT)


def test_adaptive_entropy_by_nll():
    objective = es.make_objective("adaptive_entropy", signal="nll")
    objective.observe(entropy=0.9, nll=0.1)
    assert_close(bonus(objective), f64(1e-4), **EXACT)
    objective.observe(entropy=0.1, nll=0.9)
    assert_close(bonus(objective), f64(0.0), **EXACT)
    refused(lambda: objective.observe(entropy=0.1), "adaptive_entropy", "`nll`")
    exact = es.make_objective("adaptive_entropy")
    exact.observe(entropy=0.1, nll=0.9)
    assert_close(bonus(exact), f64(1e-4), **EXACT)


def test_adaptive_entropy_goes_on_after_a_checkpoint():
    one = es.make_objective("adaptive_entropy")
    one.observe(entropy=0.1)
    one.observe(entropy=0.1)
    two = es.make_objective("adaptive_entropy")
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert_close(bonus(two), f64(2e-4), **EXACT)  # the gate, too, is where it was


# ---------------------------------------------------------------------------- reference KL


@pytest.mark.parametrize(
    ("form", "value", "slope"),
    [
        # d = log ref - lp; the estimator itself is differentiated
        ("k1", lambda d: -d, lambda d: 1.0),
        ("k2", lambda d: d * d / 2, lambda d: -d),
        ("k3", lambda d: math.exp(d) - d - 1, lambda d: 1 - math.exp(d)),
    ],
)
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_kl_ref_by_hand(form, value, slope, aggregation):
    # rows of 2 and 1; the old policy is a third one, with A = 0 it leaves the KL alone
    logp = f64([[-1.0, -2.0], [-0.5, -9.0]]).requires_grad_()
    ref = f64([[-1.5, -1.75], [-0.5, NAN]])
    mask = f64([[1, 1], [1, 0]])
    old = torch.full((2, 2), -4.0).double()
    given = es.TokenBatch(logp, old, mask, f64([0.0, 0.0]), ref_logp=ref)
    more = {"aggregation": aggregation}
    out = es.make_objective("kl_ref", coef=0.5, form=form, **more).loss(given)
    scale = {
        "token_mean": [[1 / 3, 1 / 3], [1 / 3, 0]],
        "seq_mean_token_mean": [[1 / 4, 1 / 4], [1 / 2, 0]],
        "seq_mean_token_sum_norm": [[1 / 4, 1 / 4], [1 / 4, 0]],
    }[aggregation]
    d = [-0.5, 0.25, 0.0]
    values = 0.5 * f64([[value(d[0]), value(d[1])], [value(d[2]), 0.0]])
    slopes = 0.5 * f64([[slope(d[0]), slope(d[1])], [slope(d[2]), 0.0]])
    assert_close(out.per_token, values, **EXACT)
    assert_close(out.loss, (f64(scale) * values).sum(), **EXACT)
    gradient = torch.autograd.grad(out.loss, logp)[0]
    assert_close(gradient, f64(scale) * slopes, **EXACT)


@pytest.mark.parametrize(
    ("form", "unbiased", "true"),
    [
        ("k1", False, None), ("k2", False, "reverse"), ("k3", False, "forward"),
        ("k1", True, "reverse"), ("k3", True, "reverse"),
    ],
)  # fmt: skip
def test_the_expected_gradient_of_each_estimator_of_the_reference_kl(form, unbiased, true):
    # a softmax over five actions, each action's token weighted by its probability
    generator = torch.Generator().manual_seed(3)
    z = torch.randn(5, generator=generator, dtype=torch.float64).requires_grad_()
    ref = torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)
    logp = z.log_softmax(0)
    given = es.TokenBatch(
        logp[:, None], logp.detach()[:, None], torch.ones(5, 1), torch.zeros(5).double(),
        ref_logp=ref[:, None],
    )  # fmt: skip
    spec = ["ppo", {"name": "kl_ref", "coef": 1.0, "form": form, "unbiased": unbiased}]
    each = es.make_objective(spec).loss(given).per_token[:, 0]
    mine = torch.autograd.grad((logp.detach().exp() * each).sum(), z, retain_graph=True)[0]
    exact = {
        "reverse": (logp.exp() * (logp - ref)).sum(),  # KL(pi || ref), COV App. E
        "forward": (ref.exp() * (ref - logp)).sum(),  # KL(ref || pi)
    }
    gradients = {
        name: torch.autograd.grad(value, z, retain_graph=True)[0] for name, value in exact.items()
    }
    assert_close(mine, torch.zeros(5).double() if true is None else gradients[true], **EXACT)
    assert torch.cosine_similarity(*gradients.values(), dim=0) < 0.97


def test_kl_ref_is_k3_by_default_and_beside_the_policy_loss():
    ref = torch.full((2, 4), -1.0).double()
    out = es.make_objective("kl_ref").loss(batch(ref_logp=ref))
    # first token: d = 0; second: lp = -2, d = 1: -3 + 1e-3 (e - 2)
    assert_close(out.per_token[0, :2], f64([-2.0, -3 + 1e-3 * (math.e - 2)]), **EXACT)


# ---------------------------------------------------------------------------- chains


def test_entropy_coefficients_add():
    chain = [
        "grpo",
        {"name": "entropy_bonus", "coef": 0.25},
        {"name": "adaptive_entropy", "coef": 0.5, "coef_max": 1.0, "delta": 0.125},
    ]
    for aggregation in AGGREGATIONS:
        objective = es.make_objective(chain, aggregation=aggregation)
        plain = es.make_objective("grpo", aggregation=aggregation)
        given = batch()
        for entropy, coef in ((0.1, 0.25 + 0.625), (0.3, 0.25), (0.2, 0.25 + 0.375)):
            objective.observe(entropy=entropy)
            gain = plain.loss(given).loss - objective.loss(given).loss
            assert_close(gain, f64(coef), **EXACT)


def test_add_entropy_twice_is_the_sum():
    given = batch()
    plain = es.make_objective("grpo", aggregation="seq_mean_token_mean").plan(given)
    one, two = plain.add_entropy(0.25).add_entropy(0.5), plain.add_entropy(0.75)
    assert plain.entropy is None
    assert_close(one.entropy, two.entropy, **EXACT)
    # the mean's share 1/6 over the aggregation's 1/6 (rows of three): the coefficient itself
    assert_close(one.entropy, 0.75 * MASK.double(), **EXACT)


def test_two_controllers_of_one_coefficient_are_refused():
    chain = ["grpo", {"name": "entropy_bonus", "controller": "doubling"}, "adaptive_entropy"]
    refused(lambda: es.make_objective(chain), "both control the entropy coefficient")


def test_a_weight_a_bonus_and_a_reference_by_hand():
    # (0, 1): weight .5 on -3, minus .25 * 2, plus 2 * (lp_ref - lp)^2/2 with d = .5
    chain = [
        "grpo",
        {"name": "pos_adv", "weight": 0.5},
        {"name": "entropy_bonus", "coef": 0.25},
        {"name": "kl_ref", "coef": 2.0, "form": "k2"},
    ]
    given = batch(ref_logp=batch().logp.detach() + 0.5)
    out = es.make_objective(chain).loss(given)
    assert_close(out.per_token[0, 1], f64(-1.5 - 0.5 + 0.25), **EXACT)
    # policy (-1 - 1.5 + 1 - .5 + 0 + 4)/6, bonus .25, KL 2 * .125
    assert_close(out.loss, f64(2 / 6 - 0.25 + 0.25), **EXACT)
    slope = torch.autograd.grad(out.per_token.sum(), given.logp)[0]
    # -w A, and -2 d = -1 each
    assert_close(slope, f64([[-2, -2.5, 0, 0], [-1.5, 0, -1, 3]]), **EXACT)


# ---------------------------------------------------------------------------- names, parameters


DEFAULTS = {
    "pos_adv": {
        "schedule": "entropy",
        "target": 0.2,
        "delta": 0.01,
        "weight": 1.0,
        "epochs": 10,
    },
    "pos_only": {},
    "neg_only": {},
    "rand_pos_clip": {"ratio": 2e-4, "at_least": 0},
    "entropy_bonus": {
        "coef": 1e-3,
        "controller": "none",
        "coef_min": 1e-3,
        "coef_max": 10.0,
        "target": None,
        "rate": 0.1,
        "signal": "exact",
    },
    "adaptive_entropy": {
        "target": 0.2,
        "delta": 1e-4,
        "coef": 0.0,
        "coef_min": 0.0,
        "coef_max": 5e-3,
        "signal": "exact",
        "delayed": False,
    },
    "kl_ref": {"coef": 1e-3, "form": "k3", "unbiased": False},
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_what_they_sit_on_and_their_defaults(name):
    objective = es.make_objective(name)
    assert objective.names == ("ppo", name)
    assert objective.advantage == "grpo"
    terms = objective.plan(batch(ref_logp=H), seed(0))
    assert (terms.ratio_min[0, 0].item(), terms.ratio_max[0, 0].item()) == (0.8, 1.2)
    assert dict(es.methods()[name].parameters) == DEFAULTS[name]


@pytest.mark.parametrize(
    ("name", "missing"),
    [("entropy_bonus", "entropy"), ("adaptive_entropy", "entropy"), ("kl_ref", "ref_logp")],
)
def test_what_they_need(name, missing):
    refused(lambda: es.make_objective(name).plan(batch(entropy=None)), f"`{name}`", f"`{missing}`")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("pos_adv", {"schedule": "x"}, "pos_adv: schedule must be 'entropy', 'stage' or 'epoch'"),
        ("pos_adv", {"weight": 1.1}, "pos_adv: weight must be at least 0 and at most 1, got 1.1"),
        ("pos_adv", {"weight": -0.1}, "pos_adv: weight .*got -0.1"),
        ("pos_adv", {"delta": 0.0}, "pos_adv: .*delta must be above 0, got 0"),
        ("pos_adv", {"target": -1.0}, "pos_adv: .*target must be an entropy"),
        ("pos_adv", {"epochs": 1}, "pos_adv: epochs must be at least 2, got 1"),
        ("pos_adv", {"epochs": 2.5}, "pos_adv: epochs must be a whole number, got 2.5"),
        ("rand_pos_clip", {"ratio": 0.0}, "rand_pos_clip: ratio must be above 0 and at most 1"),
        ("rand_pos_clip", {"ratio": 1.01}, "rand_pos_clip: ratio .*got 1.01"),
        ("rand_pos_clip", {"at_least": -1}, "rand_pos_clip: at_least must be at least 0, got -1"),
        (
            "entropy_bonus",
            {"controller": "pid"},
            "entropy_bonus: controller must be 'none',",
        ),
        ("entropy_bonus", {"coef": NAN}, "entropy_bonus: coef .*got nan"),
        (
            "entropy_bonus",
            {"controller": "doubling", "coef_min": 11.0},
            "entropy_bonus: coef's .*0 <= low <= high",
        ),
        ("adaptive_entropy", {"signal": "x"}, "adaptive_entropy: signal must be 'exact' or 'nll'"),
        ("adaptive_entropy", {"delta": -1e-4}, "adaptive_entropy: .*delta must be above 0"),
        ("adaptive_entropy", {"coef_min": 1.0}, "adaptive_entropy: .*0 <= low <= high"),
        ("adaptive_entropy", {"target": -1.0}, "adaptive_entropy: .*target must be an entropy"),
        ("kl_ref", {"form": "k4"}, "kl_ref: form must be 'k1', 'k2' or 'k3', got 'k4'"),
        ("kl_ref", {"coef": -1.0}, "kl_ref: coef must be at least 0, got -1"),
        ("pos_only", {"ratio": 1.0}, "pos_only: unknown parameter 'ratio'"),
    ],
)
def test_errors_name_the_parameter(name, given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective(name, **given)
