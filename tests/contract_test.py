"""What every method must keep, whatever it computes; one run over all of `entrostat.methods()`.

A new method is held to these by its name alone. The data carry every field that a method may
read, two prompts interleaved, sequences of unequal length with a hole, and controllers that have
already moved. What a method by its own definition does otherwise stands in a table with the reason;
each table is held to be true as well.

A property is one case per method: what else it must hold for (aggregations, kinds of junk, dtypes)
is walked through inside.
"""

import functools
import json
import math
from itertools import product

import pytest
import torch
from torch.testing import assert_close

import entrostat as es

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
    "quadrant II": {"name": "quadrant", "which": "II", "action": "double", "share": 0.5},
    "quadrant III": {"name": "quadrant", "which": "III", "share": 0.5},
    "quadrant IV": {"name": "quadrant", "which": "IV", "action": "double", "share": 0.5},
    "entropy_bonus, doubling": {"name": "entropy_bonus", "controller": "doubling", "target": 0.6},
    "adaptive_entropy, open": {"name": "adaptive_entropy", "target": 0.45},
    "adaptive_entropy, closed": {"name": "adaptive_entropy", "coef": 1e-3},  # not in ADDED
    "adaptive_entropy, nll": {"name": "adaptive_entropy", "target": 0.95, "signal": "nll"},
    "prime, as printed": {"name": "prime", "norm": "none", "whiten": False, "gamma": 0.9},
    "kl_ref, k1": {"name": "kl_ref", "form": "k1"},
    "kl_ref, k2": {"name": "kl_ref", "form": "k2", "coef": 0.5},
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
        "gspo", {"name": "rand_pos_clip", "ratio": 0.12},
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
# terms added to the loss, which no advantage scales: spec -> (coefficient on the mean entropy,
# coefficient on the reference KL, its form). `make` shows .5, .4, .3 nats (nll .6 above)
ADDED = {
    "entropy_bonus": (1e-3, 0, "k3"),
    "entropy_bonus, doubling": (8e-3, 0, "k3"),  # below .6 three times: doubled three times
    "h_bonus": (4e-3, 0, "k3"),  # the first is its target, then below twice
    "adaptive_entropy, open": (2e-4, 0, "k3"),  # above .45 once (kept at 0), below twice
    "adaptive_entropy, nll": (1e-4, 0, "k3"),  # 1.1, 1.0, .9: below .95 once
    "kl_ref": (0, 1e-3, "k3"),
    "kl_ref, k1": (0, 1e-3, "k1"),
    "kl_ref, k2": (0, 0.5, "k2"),
    "chain, penalties": (0.02, 0.1, "k2"),
}
# equal rewards other than 0 teach something: the likelier of equally right answers earns less
UNEQUAL = ("unlikeliness", "chain, shapes")
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
AGGREGATIONS = ("token_mean", "seq_mean_token_mean", "seq_mean_token_sum_norm")
CLOSE = {"rtol": 1e-11, "atol": 1e-12}
MASK = torch.tensor(
    [
        [1, 1, 1, 1, 1],
        [1, 1, 0, 0, 0],
        [0, 1, 1, 0, 1],
        [1, 1, 1, 1, 0],
        [1, 0, 0, 0, 0],
        [0, 0, 1, 1, 1],
    ]
)
PER_TOKEN = ("logp", "old_logp", "entropy", "old_entropy", "ref_logp", "sum_p2", "sum_p2_logp",
             "process_rewards", "influence")  # fmt: skip

every_method = pytest.mark.parametrize("name", sorted(SPECS))


def make_data(dtype: torch.dtype = torch.float64, seed: int = 171) -> dict[str, torch.Tensor]:
    """Arguments of a `TokenBatch` without advantages; B = 6, T = 5."""
    g = torch.Generator().manual_seed(seed)

    def rand() -> torch.Tensor:
        return torch.rand(6, 5, generator=g, dtype=torch.float64)

    old = -0.05 - 3 * rand().square()
    data = {
        "old_logp": old,
        # ratios from .5 to 2, on both sides of every clip bound, of tokens and of sequences; two
        # tokens at least in each quadrant of advantage and probability
        "logp": -(old + (2 * rand() - 1) * math.log(2)).abs(),
        "entropy": 0.1 + 2 * rand(),
        "old_entropy": 0.1 + 2 * rand(),
        "ref_logp": old + 0.2 * rand(),
        "sum_p2": rand(),
        "sum_p2_logp": -rand(),
        "process_rewards": rand() - 0.4,
        "influence": rand() - 0.5,
        "rewards": torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0, 0.5], dtype=torch.float64),
    }
    data = {key: value.to(dtype) for key, value in data.items()}
    data["tempered"] = torch.zeros(6, dtype=torch.bool)
    return data | {"mask": MASK, "group": torch.tensor([4, 7, 4, 7, 4, 7])}


def make(name: str, aggregation: str = "token_mean", max_length: int | None = None) -> es.Objective:
    """An objective whose controllers, if any, have a target and have moved."""
    return moved(es.make_objective(SPECS[name], aggregation=aggregation, max_length=max_length))


def moved(objective: es.Objective) -> es.Objective:
    """The objective after three iterations."""
    for entropy, progress in ((0.5, 0.0), (0.4, 0.4), (0.3, 0.7)):
        objective.observe(entropy=entropy, nll=entropy + 0.6, progress=progress)
    return objective


class Result:
    """One pass: prepare, plan, loss; gradients w.r.t. the caller's own logp and entropy."""

    def __init__(self, objective: es.Objective, data: dict[str, torch.Tensor], seed: int = 5):
        self.logp = data["logp"].clone().requires_grad_()
        self.entropy = data["entropy"].clone().requires_grad_()
        batch = es.TokenBatch(**data | {"logp": self.logp, "entropy": self.entropy})
        self.batch = objective.prepare(batch)
        self.terms = objective.plan(self.batch, generator=torch.Generator().manual_seed(seed))
        self.out = objective.loss(self.batch, self.terms)
        self.loss = self.out.loss.detach()
        self.gradients = self.backward(self.out.loss)

    def backward(self, loss: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        leaves = (self.logp, self.entropy)
        got = torch.autograd.grad(loss, leaves, allow_unused=True, retain_graph=True)
        return tuple(
            torch.zeros_like(leaf) if grad is None else grad
            for leaf, grad in zip(leaves, got, strict=True)
        )


@functools.cache
def undisturbed(
    name: str, aggregation: str = "token_mean", max_length: int | None = None
) -> Result:
    """The pass over the data as they are, which the others are held against."""
    return Result(make(name, aggregation, max_length), make_data())


def same(a: Result, b: Result, rows: torch.Tensor | slice = slice(None), **tolerance) -> None:
    """`b`'s rows and columns that `a` has give `a`'s loss and gradients."""
    tolerance = tolerance or CLOSE
    T = a.logp.shape[1]
    assert_close(b.loss, a.loss, **tolerance)
    for mine, theirs in zip(a.gradients, b.gradients, strict=True):
        assert_close(theirs[rows][:, :T], mine, **tolerance)
    assert_close(b.out.per_token[rows][:, :T], a.out.per_token, **tolerance)
    assert b.out.metrics.keys() == a.out.metrics.keys()
    for key, value in a.out.metrics.items():
        assert_close(b.out.metrics[key], value, **tolerance)


def equal_terms(a: es.Terms, b: es.Terms) -> bool:
    return all(
        torch.equal(value, vars(b)[field]) if isinstance(value, torch.Tensor)
        else value == vars(b)[field]
        for field, value in vars(a).items()
    )  # fmt: skip


# ---------------------------------------------------------------------------- masked places


@every_method
def test_masked_entries_change_nothing(name):
    inside = MASK.bool()
    # every field has every kind at some masked place
    kinds = torch.tensor([math.nan, math.inf, -math.inf, 1e30], dtype=torch.float64)
    data = make_data()
    filled = dict(data)
    for i, key in enumerate(PER_TOKEN):
        junk = kinds[(i + torch.arange(30)) % 4].view(6, 5)
        filled[key] = torch.where(inside, data[key], junk)
    for aggregation in AGGREGATIONS:
        clean = undisturbed(name, aggregation)
        assert torch.isfinite(clean.loss)
        assert clean.gradients[0][inside].any()  # there is something to disturb
        dirty = Result(make(name, aggregation), filled)
        assert torch.equal(dirty.loss, clean.loss)
        for mine, theirs in zip(clean.gradients, dirty.gradients, strict=True):
            assert torch.equal(theirs, mine)
            assert (theirs[~inside] == 0).all()
        assert (dirty.out.per_token[~inside] == 0).all()
        assert all(torch.equal(dirty.out.metrics[k], v) for k, v in clean.out.metrics.items())


@every_method
def test_masked_entries_of_given_advantages_change_nothing(name):
    data = make_data()
    A = torch.linspace(-1, 2, 30, dtype=torch.float64).view(6, 5)
    junk = torch.tensor([math.nan, math.inf], dtype=torch.float64)[torch.arange(30) % 2].view(6, 5)
    clean = Result(make(name), data | {"advantages": A})
    dirty = Result(make(name), data | {"advantages": torch.where(MASK.bool(), A, junk)})
    assert torch.equal(dirty.loss, clean.loss)
    for mine, theirs in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(theirs, mine)


@every_method
def test_padding_changes_nothing(name):
    lengths = [(aggregation, None) for aggregation in AGGREGATIONS]
    for aggregation, max_length in (*lengths, ("seq_mean_token_sum_norm", 8)):
        padded = {}
        for key, value in make_data().items():
            if value.ndim == 2:
                junk = 0 if key == "mask" else math.nan
                columns = 0 if aggregation == "seq_mean_token_sum_norm" and not max_length else 3
                # that aggregation's constant is the width unless it is given
                value = torch.nn.functional.pad(value, (0, columns, 0, 2), value=junk)
            else:
                # two more rollouts without tokens, of a prompt of their own, equally rewarded
                value = torch.cat([value, torch.ones(2, dtype=value.dtype)])
            padded[key] = value
        clean = undisturbed(name, aggregation, max_length)
        same(clean, Result(make(name, aggregation, max_length), padded), rows=slice(0, 6))


@every_method
def test_any_kind_of_mask_will_do(name):
    clean = undisturbed(name)  # of int64
    for dtype in (torch.bool, torch.float32, torch.uint8):
        other = Result(make(name), make_data() | {"mask": MASK.to(dtype)})
        assert torch.equal(other.loss, clean.loss)
        assert torch.equal(other.gradients[0], clean.gradients[0])


@every_method
def test_a_batch_without_tokens_is_zero(name):
    for aggregation in AGGREGATIONS:
        result = Result(make(name, aggregation), make_data() | {"mask": torch.zeros(6, 5)})
        assert result.loss.item() == 0
        assert not result.gradients[0].any()
        assert not result.gradients[1].any()
        assert all(torch.isfinite(value) for value in result.out.metrics.values())


# ---------------------------------------------------------------------------- advantages


def shares(aggregation: str) -> torch.Tensor:
    """[6, 5]: what one token counts for; 18 tokens in 6 sequences of up to 5."""
    m = MASK.double()
    return {
        "token_mean": m / 18,
        "seq_mean_token_mean": m / torch.tensor([5, 2, 3, 4, 1, 3])[:, None] / 6,
        "seq_mean_token_sum_norm": m / 5 / 6,
    }[aggregation]


def added_gradients(name: str, aggregation: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Of the terms added to the loss alone, w.r.t. logp and entropy, by hand."""
    bonus, kl, form = ADDED.get(name, (0, 0, "k3"))
    data = make_data()
    d = data["ref_logp"] - data["logp"]
    # of -d, d^2/2 and exp(d) - d - 1, where dd/dlogp = -1
    slope = {"k1": torch.ones_like(d), "k2": -d, "k3": 1 - d.exp()}[form]
    return kl * slope * shares(aggregation), -bonus * MASK.double() / 18


@every_method
def test_zero_advantages_give_no_gradient_but_that_of_added_terms(name):
    reward = 0.0 if name in UNEQUAL else 0.1
    equal = make_data() | {"rewards": torch.full((6,), reward, dtype=torch.float64)}
    given = make_data() | {"advantages": torch.zeros(6, dtype=torch.float64)}
    for data, aggregation in product((equal, given), AGGREGATIONS):
        result = Result(make(name, aggregation), data)
        expected = added_gradients(name, aggregation)
        for mine, theirs in zip(result.gradients, expected, strict=True):
            if name in ADDED:
                assert_close(mine, theirs, **CLOSE)
            else:
                assert not mine.any()


@pytest.mark.parametrize("name", UNEQUAL)
def test_equal_rewards_teach_where_the_table_says_so(name):
    equal = make_data() | {"rewards": torch.full((6,), 0.1, dtype=torch.float64)}
    assert Result(make(name), equal).gradients[0].any()


@every_method
def test_an_advantage_a_rollout_is_that_advantage_at_each_token(name):
    A = torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0, 0.3], dtype=torch.float64)
    one = Result(make(name), make_data() | {"advantages": A})
    each = Result(make(name), make_data() | {"advantages": A[:, None].expand(6, 5)})
    assert torch.equal(one.loss, each.loss)
    assert torch.equal(one.gradients[0], each.gradients[0])
    assert one.gradients[0].any()


@every_method
def test_one_token(name):
    one = torch.ones(1, 1, dtype=torch.float64)
    data = dict.fromkeys(PER_TOKEN, -0.5 * one) | {"entropy": one, "old_entropy": 0.75 * one}
    data |= {"mask": one, "group": torch.tensor([0]), "tempered": torch.tensor([False])}
    for A, aggregation in product((1.5, -0.5), AGGREGATIONS):
        data["advantages"] = data["rewards"] = torch.tensor([A], dtype=torch.float64)
        result = Result(make(name, aggregation), data)
        assert torch.isfinite(result.loss)
        # on policy every ratio is 1; the loss is one token's, so the gradient opposes its
        # advantage. The reference is the policy itself, so that of a KL is 0, save k1's slope of 1
        kl, form = ADDED.get(name, (0, 0, ""))[1:]
        gradient = result.gradients[0].item() - (kl if form == "k1" else 0)
        assert math.isfinite(gradient)
        if (name, math.copysign(1, A)) in ONE_TOKEN:
            assert gradient == 0
        else:
            assert gradient * A < 0


# ---------------------------------------------------------------------------- order, repetition


ORDER = torch.tensor([3, 0, 5, 1, 4, 2])


def reordered(data: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: value[ORDER] for key, value in data.items()}


@pytest.mark.parametrize("name", sorted({*SPECS} - {*RANDOM}))
def test_the_order_of_rollouts_does_not_matter(name):
    for aggregation in AGGREGATIONS:
        shuffled = Result(make(name, aggregation), reordered(make_data()))
        same(undisturbed(name, aggregation), shuffled, rows=ORDER.argsort())


@pytest.mark.parametrize("name", sorted(name for name, all_of in RANDOM.items() if all_of))
def test_the_order_does_not_matter_where_every_candidate_is_chosen(name):
    spec = SPECS[name] if isinstance(SPECS[name], dict) else {"name": SPECS[name]}
    for aggregation in AGGREGATIONS:
        clean, shuffled = (
            Result(moved(es.make_objective(spec | RANDOM[name], aggregation=aggregation)), data)
            for data in (make_data(), reordered(make_data()))
        )
        same(clean, shuffled, rows=ORDER.argsort())
        assert touched(clean) > touched(undisturbed(name))  # some were left before


def touched(result: Result) -> int:
    """How many tokens a random choice fell on."""
    frozen = result.terms.frozen
    chosen = result.terms.weight != 1 if frozen is None else frozen
    return int((chosen & result.batch.mask).sum())


@pytest.mark.parametrize("name", sorted(RANDOM))
def test_a_random_choice_depends_on_the_seed_alone_and_its_size_on_nothing(name):
    results, again = ([Result(make(name), make_data(), s) for s in range(8)] for _ in range(2))
    assert all(equal_terms(a.terms, b.terms) for a, b in zip(results, again, strict=True))
    assert not all(equal_terms(results[0].terms, other.terms) for other in results)
    shuffled = [Result(make(name), reordered(make_data()), seed) for seed in range(8)]
    sizes = {touched(result) for result in (*results, *shuffled)}
    assert len(sizes) == 1
    assert sizes != {0}


@every_method
def test_the_same_inputs_give_the_same_bits_and_touch_nothing_else(name):
    data = make_data()
    before = {key: value.clone() for key, value in data.items()}
    objective = make(name)
    state, noise = objective.state_dict(), torch.random.get_rng_state()
    first, second = Result(objective, data), Result(objective, data)
    assert torch.equal(first.loss, second.loss)
    for mine, theirs in zip(first.gradients, second.gradients, strict=True):
        assert torch.equal(mine, theirs)
    assert objective.state_dict() == state  # only observe moves it
    assert torch.equal(torch.random.get_rng_state(), noise)  # the global generator is not ours
    assert all(torch.equal(data[key], before[key]) for key in data)


@every_method
def test_terms_carry_no_gradient(name):
    result = undisturbed(name)
    for field, value in vars(result.terms).items():
        assert not (isinstance(value, torch.Tensor) and value.requires_grad), field
    assert not result.batch.advantages.requires_grad
    assert not any(value.requires_grad for value in result.out.metrics.values())
    assert not any(value.ndim for value in result.out.metrics.values())


@every_method
def test_the_state_survives_json(name):
    one = make(name)
    two = es.make_objective(SPECS[name], aggregation=one.aggregation)
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for entropy in (0.7, 0.1, 0.5):
        assert two.metrics() == one.metrics()
        assert torch.equal(Result(two, make_data()).loss, Result(one, make_data()).loss)
        for objective in (one, two):
            objective.observe(entropy=entropy, nll=entropy + 0.6, progress=0.8)
    assert two.state_dict() == one.state_dict()


# ---------------------------------------------------------------------------- micro-batches


SPLITS = (
    [slice(i, i + 1) for i in range(6)],
    # a slice, indices and booleans, of unequal size
    [slice(0, 1), torch.tensor([5, 2]), torch.tensor([False, True, False, True, True, False])],
)


@every_method
def test_micro_batches_add_up(name):
    for aggregation, split in product(AGGREGATIONS, SPLITS):
        whole, objective = undisturbed(name, aggregation), make(name, aggregation)
        outs = [objective.loss(whole.batch[rows], whole.terms[rows]) for rows in split]
        assert_close(sum(out.loss.detach() for out in outs), whole.loss, **CLOSE)
        parts = [whole.backward(out.loss) for out in outs]
        for i, mine in enumerate(whole.gradients):
            assert_close(sum(part[i] for part in parts), mine, **CLOSE)
        for key, value in whole.out.metrics.items():
            assert_close(sum(out.metrics[key] for out in outs), value, **CLOSE)
        for rows, out in zip(split, outs, strict=True):
            assert_close(out.per_token, whole.out.per_token[rows], **CLOSE)


# ---------------------------------------------------------------------------- precision


def float_dtypes(result: Result) -> set[torch.dtype]:
    """Of the advantages, every number of the terms, the loss and the metrics."""
    found = [result.batch.advantages, result.loss, result.out.per_token]
    found += [v for v in vars(result.terms).values() if isinstance(v, torch.Tensor)]
    found += result.out.metrics.values()
    return {value.dtype for value in found if value.is_floating_point()}


@every_method
def test_half_precision_inputs_are_computed_in_float32(name):
    dtypes = (torch.bfloat16, torch.float16, torch.bfloat16)
    for aggregation, dtype in zip(AGGREGATIONS, dtypes, strict=True):
        half = make_data(dtype)
        result = Result(make(name, aggregation), half)
        assert float_dtypes(result) == {torch.float32}
        assert result.gradients[0].dtype == dtype
        widened = {k: v.float() if v.is_floating_point() else v for k, v in half.items()}
        exact = Result(make(name, aggregation), widened)
        assert_close(result.loss, exact.loss, rtol=1e-6, atol=1e-7)
        # where two terms of the loss read logp, their gradients meet in the caller's half precision
        added = result.terms.abs_kl is not None or result.terms.ref_kl is not None
        rtol = (3 if added else 1) * torch.finfo(dtype).eps
        assert_close(result.gradients[0], exact.gradients[0].to(dtype), rtol=rtol, atol=1e-7)


@every_method
def test_wider_precision_stays_and_float32_is_close_to_float64(name):
    for aggregation in AGGREGATIONS:
        wide = undisturbed(name, aggregation)
        narrow = Result(make(name, aggregation), make_data(torch.float32))
        for result, dtype in ((wide, torch.float64), (narrow, torch.float32)):
            assert float_dtypes(result) == {dtype}
            assert result.gradients[0].dtype == dtype
        assert_close(narrow.loss.double(), wide.loss, rtol=1e-5, atol=1e-6)
        assert_close(narrow.gradients[0].double(), wide.gradients[0], rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------- empty rollouts


@every_method
def test_rollouts_without_tokens_change_nothing(name):
    data = make_data() | {"advantages": torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0, 0.3]).double()}
    # one before, one between and one after, of the same prompts, with a reward and an advantage
    places = torch.tensor([1, 2, 3, 5, 6, 7])
    wider = {}
    for key, value in data.items():
        junk = {"mask": 0, "group": 4, "rewards": 0.7, "advantages": 3.0}.get(key, math.nan)
        wider[key] = torch.full((9, *value.shape[1:]), junk, dtype=value.dtype)
        wider[key][places] = value
    for aggregation in AGGREGATIONS:
        clean, other = (Result(make(name, aggregation), d) for d in (data, wider))
        same(clean, other, rows=places)


# ---------------------------------------------------------------------------- finite differences


def kinks(batch: es.TokenBatch, terms: es.Terms) -> torch.Tensor:
    """[B, T] bool: tokens within 1e-3 of a place where the loss is not differentiable."""
    delta = batch.logp.detach() - batch.old_logp
    ratio = delta.exp()
    near = ((ratio - terms.ratio_min).abs() < 1e-3) | ((ratio - terms.ratio_max).abs() < 1e-3)
    if terms.dual is not None:
        near |= (ratio - terms.dual).abs() < 1e-3
    if terms.abs_kl is not None and terms.abs_kl_form == "abs":
        near |= delta.abs() < 1e-3
    return near


@every_method
def test_the_gradient_is_that_of_finite_differences(name):
    """Terms held fixed; central differences of the loss w.r.t. every logp and entropy.

    A token's loss reads its own log-prob and entropy alone once the sequence's ratio is written out
    below, so that all are moved at once and each token's loss gives its own difference. Were it
    otherwise, the rows of that derivative would add up to something else than its columns do.
    """
    for aggregation in AGGREGATIONS:
        result, objective = undisturbed(name, aggregation), make(name, aggregation)
        batch, terms = result.batch, result.terms
        logp, entropy = result.logp.detach(), result.entropy.detach()
        if terms.ratio == "sequence":
            # s_t = sg(s) exp(lp - sg(lp)) is a token's ratio to an old log-prob of lp - ln s
            assert terms.abs_kl is None
            log_ratio = (batch.logp.detach() - batch.old_logp).sum(-1, keepdim=True)
            mean = log_ratio / batch.lengths[:, None]
            batch = batch.replace(old_logp=batch.logp.detach() - mean)
            terms = terms.replace(ratio="token")
        if terms.frozen is not None:  # no policy gradient there, as if they weighed nothing
            weight = torch.where(terms.frozen, 0, terms.weight)
            terms = terms.replace(weight=weight, frozen=None)
        smooth = MASK.bool() & ~kinks(batch, terms)
        assert smooth.sum() >= 15
        step = 1e-5
        for i, (up, H) in enumerate(((step, 0.0), (0.0, step))):
            above, below = (
                objective.loss(batch.replace(logp=logp + s * up, entropy=entropy + s * H), terms)
                for s in (1, -1)
            )
            assert_close(above.loss, (above.per_token * terms.scale).sum(), **CLOSE)
            numeric = (above.per_token - below.per_token) * terms.scale / (2 * step)
            mine = result.gradients[i]
            assert_close(mine[smooth], numeric[smooth], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["rand_pos_clip", "clip_cov, wide", "chain, penalties"])
def test_frozen_tokens_give_only_the_gradient_of_added_terms_and_count_in_the_loss(name):
    counted = False
    for seed in range(8):
        result = Result(make(name), make_data(), seed)
        frozen = result.terms.frozen
        assert frozen.any()
        for mine, theirs in zip(result.gradients, added_gradients(name, "token_mean"), strict=True):
            assert_close(mine[frozen], theirs[frozen], **CLOSE)
        if name not in ADDED:
            # ppo's loss: -min(r A, clip(r) A)
            r = (result.batch.logp - result.batch.old_logp).detach().exp()
            A = result.batch.advantages
            bound = 1.0 if name == "clip_cov, wide" else 0.2
            by_hand = -torch.minimum(r * A, r.clamp(1 - bound, 1 + bound) * A)
            assert_close(result.out.per_token[frozen].detach(), by_hand[frozen], **CLOSE)
            counted |= bool(by_hand[frozen].any())
    assert counted or name in ADDED


# ---------------------------------------------------------------------------- what plan reads


def plans(name: str) -> list[es.Terms]:
    """Under the policy of the data and under three others; everything old is the same."""
    objective = make(name)
    batch = objective.prepare(es.TokenBatch(**make_data()))
    g = torch.Generator().manual_seed(0)
    out = []
    for _ in range(4):
        out.append(objective.plan(batch, torch.Generator().manual_seed(5)))
        logp, entropy = (torch.rand(6, 5, generator=g, dtype=torch.float64) for _ in range(2))
        batch = batch.replace(logp=-3 * logp.square(), entropy=2 * entropy)
    return out


@every_method
def test_reads_current_is_true(name):
    first, *others = plans(name)
    same_terms = all(equal_terms(first, other) for other in others)
    assert same_terms != make(name).reads_current


@every_method
def test_prepare_reads_nothing_of_the_current_policy(name):
    objective = make(name)
    data = make_data()
    batch = objective.prepare(es.TokenBatch(**data))
    other = objective.prepare(
        es.TokenBatch(**data | {"logp": data["ref_logp"] - 1, "entropy": 2 * data["entropy"]})
    )
    assert torch.equal(batch.advantages, other.advantages)


# ---------------------------------------------------------------------------- first update


# those that clip a ratio and weight nothing, so that at ratio 1 only A lp is left
UNWEIGHTED = """ppo gspo adapo dcpo grpo loop loop_tight dapo clip_higher clip_lower clip_tighter
    clip_free clip_wide extreme repo_r repo_d gspo_repo_r gspo_repo_d kl_cov unlikeliness
    entropy_adv gtpo edge_grpo ppl_adv position_adv prime loop_token""".split()


@pytest.mark.parametrize("name", UNWEIGHTED)
def test_the_first_update_on_policy_is_reinforce(name):
    data = make_data()
    data["logp"] = data["old_logp"]
    for aggregation in AGGREGATIONS:
        result = Result(make(name, aggregation), data)
        # the same prepared advantages under -A lp
        reinforce = es.make_objective("reinforce", aggregation=aggregation)
        leaf = data["logp"].clone().requires_grad_()
        batch = es.TokenBatch(leaf, data["old_logp"], MASK, result.batch.advantages)
        reinforce.loss(batch).loss.backward()
        assert_close(result.gradients[0], leaf.grad, **CLOSE)
        assert leaf.grad.any()
