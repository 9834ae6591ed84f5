"""What every method must keep, whatever it computes; one run over all of `entrostat.methods()`.

A new method is held to these by its name alone. The data carry every field that a method may
read, two prompts interleaved, sequences of unequal length with a hole, and controllers that have
already moved.
"""

import json
import math

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
PER_TOKEN = ("logp", "old_logp", "entropy", "old_entropy", "ref_logp", "sum_p2", "sum_p2_logp")

every_method = pytest.mark.parametrize("name", sorted(SPECS))
every_aggregation = pytest.mark.parametrize("aggregation", AGGREGATIONS)


def make_data(dtype: torch.dtype = torch.float64, seed: int = 0) -> dict[str, torch.Tensor]:
    """Arguments of a `TokenBatch` without advantages; B = 6, T = 5."""
    g = torch.Generator().manual_seed(seed)

    def rand() -> torch.Tensor:
        return torch.rand(6, 5, generator=g, dtype=torch.float64)

    old = -0.05 - 3 * rand()
    data = {
        "old_logp": old,
        # ratios from .5 to 2, on both sides of every clip bound, of tokens and of sequences
        "logp": old + (2 * rand() - 1) * math.log(2),
        "entropy": 0.1 + 2 * rand(),
        "old_entropy": 0.1 + 2 * rand(),
        "ref_logp": old + 0.2 * rand(),
        "sum_p2": rand(),
        "sum_p2_logp": -rand(),
        "rewards": torch.tensor([1.0, 0.0, 0.25, 1.0, 0.0, 0.5], dtype=torch.float64),
    }
    data = {key: value.to(dtype) for key, value in data.items()}
    return data | {"mask": MASK, "group": torch.tensor([4, 7, 4, 7, 4, 7])}


def make(name: str, aggregation: str = "token_mean", max_length: int | None = None) -> es.Objective:
    """An objective whose controllers, if any, have a target and have moved."""
    objective = es.make_objective(SPECS[name], aggregation=aggregation, max_length=max_length)
    for entropy in (0.5, 0.4, 0.3):
        objective.observe(entropy=entropy)
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


# ---------------------------------------------------------------------------- masked places


@every_method
@every_aggregation
@pytest.mark.parametrize("junk", [math.nan, math.inf, -math.inf, 1e30])
def test_masked_entries_change_nothing(name, aggregation, junk):
    data = make_data()
    clean = Result(make(name, aggregation), data)
    assert torch.isfinite(clean.loss)
    assert clean.gradients[0][MASK.bool()].any()  # there is something to disturb
    filled = data | {key: torch.where(MASK.bool(), data[key], junk) for key in PER_TOKEN}
    dirty = Result(make(name, aggregation), filled)
    assert torch.equal(dirty.loss, clean.loss)
    for mine, theirs in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(theirs, mine)
        assert (theirs[~MASK.bool()] == 0).all()
    assert (dirty.out.per_token[~MASK.bool()] == 0).all()
    assert all(torch.equal(dirty.out.metrics[k], v) for k, v in clean.out.metrics.items())


@every_method
@pytest.mark.parametrize("junk", [math.nan, math.inf])
def test_masked_entries_of_given_advantages_change_nothing(name, junk):
    data = make_data()
    A = torch.linspace(-1, 2, 30, dtype=torch.float64).view(6, 5)
    clean = Result(make(name), data | {"advantages": A})
    dirty = Result(make(name), data | {"advantages": torch.where(MASK.bool(), A, junk)})
    assert torch.equal(dirty.loss, clean.loss)
    for mine, theirs in zip(clean.gradients, dirty.gradients, strict=True):
        assert torch.equal(theirs, mine)


@every_method
@every_aggregation
@pytest.mark.parametrize("max_length", [None, 8])
def test_padding_changes_nothing(name, aggregation, max_length):
    data = make_data()
    clean = Result(make(name, aggregation, max_length), data)
    padded = {}
    for key, value in data.items():
        if value.ndim == 2:
            junk = 0 if key == "mask" else math.nan
            columns = 0 if aggregation == "seq_mean_token_sum_norm" and not max_length else 3
            # that aggregation's constant is the width unless it is given
            value = torch.nn.functional.pad(value, (0, columns, 0, 2), value=junk)
        else:
            # two more rollouts without tokens, of a prompt of their own, equally rewarded
            value = torch.cat([value, torch.ones(2, dtype=value.dtype)])
        padded[key] = value
    same(clean, Result(make(name, aggregation, max_length), padded), rows=slice(0, 6))


@every_method
@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32, torch.uint8])
def test_any_kind_of_mask_will_do(name, dtype):
    data = make_data()
    clean, other = Result(make(name), data), Result(make(name), data | {"mask": MASK.to(dtype)})
    assert torch.equal(other.loss, clean.loss)
    assert torch.equal(other.gradients[0], clean.gradients[0])


@every_method
@every_aggregation
def test_a_batch_without_tokens_is_zero(name, aggregation):
    data = make_data() | {"mask": torch.zeros(6, 5)}
    result = Result(make(name, aggregation), data)
    assert result.loss.item() == 0
    assert not result.gradients[0].any()
    assert not result.gradients[1].any()
    assert all(torch.isfinite(value) for value in result.out.metrics.values())


# ---------------------------------------------------------------------------- advantages


@every_method
@every_aggregation
def test_zero_advantages_give_zero_gradient(name, aggregation):
    equal = make_data() | {"rewards": torch.full((6,), 0.1, dtype=torch.float64)}
    given = make_data() | {"advantages": torch.zeros(6, dtype=torch.float64)}
    for data in (equal, given):
        result = Result(make(name, aggregation), data)
        assert not result.gradients[0].any()
        assert not result.gradients[1].any()


@every_method
def test_an_advantage_a_rollout_is_that_advantage_at_each_token(name):
    A = torch.tensor([1.0, -0.5, 2.0, 0.0, -1.0, 0.3], dtype=torch.float64)
    one = Result(make(name), make_data() | {"advantages": A})
    each = Result(make(name), make_data() | {"advantages": A[:, None].expand(6, 5)})
    assert torch.equal(one.loss, each.loss)
    assert torch.equal(one.gradients[0], each.gradients[0])
    assert one.gradients[0].any()


@every_method
@every_aggregation
@pytest.mark.parametrize("A", [1.5, -0.5])
def test_one_token(name, aggregation, A):
    one = torch.ones(1, 1, dtype=torch.float64)
    data = dict.fromkeys(PER_TOKEN, -0.5 * one) | {"entropy": one, "old_entropy": 0.75 * one}
    data |= {"mask": one, "advantages": torch.tensor([A], dtype=torch.float64)}
    data |= {"rewards": torch.tensor([A], dtype=torch.float64), "group": torch.tensor([0])}
    result = Result(make(name, aggregation), data)
    assert torch.isfinite(result.loss)
    # on policy every ratio is 1; the loss is one token's, so the gradient opposes its advantage
    gradient = result.gradients[0].item()
    assert math.isfinite(gradient)
    assert gradient * A < 0


# ---------------------------------------------------------------------------- order, repetition


@every_method
@every_aggregation
def test_the_order_of_rollouts_does_not_matter(name, aggregation):
    data, order = make_data(), torch.tensor([3, 0, 5, 1, 4, 2])
    clean = Result(make(name, aggregation), data)
    shuffled = Result(make(name, aggregation), {key: v[order] for key, v in data.items()})
    same(clean, shuffled, rows=order.argsort())


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
    result = Result(make(name), make_data())
    for field, value in vars(result.terms).items():
        assert not (isinstance(value, torch.Tensor) and value.requires_grad), field
    assert not result.batch.advantages.requires_grad
    assert not any(value.requires_grad for value in result.out.metrics.values())
    assert not any(value.ndim for value in result.out.metrics.values())


@every_method
def test_the_state_survives_json(name):
    one = make(name)
    two = es.make_objective(SPECS[name])
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    for entropy in (0.7, 0.1, 0.5):
        assert two.metrics() == one.metrics()
        assert torch.equal(Result(two, make_data()).loss, Result(one, make_data()).loss)
        one.observe(entropy=entropy)
        two.observe(entropy=entropy)
    assert two.state_dict() == one.state_dict()


# ---------------------------------------------------------------------------- micro-batches


SPLITS = {
    "halves": [slice(0, 3), slice(3, 6)],
    "unequal": [slice(0, 1), slice(1, 6)],
    "one by one": [slice(i, i + 1) for i in range(6)],
    "indices": [torch.tensor([5, 0, 2]), torch.tensor([4]), torch.tensor([1, 3])],
    "booleans": [MASK.sum(-1) > 2, MASK.sum(-1) <= 2],
}


@every_method
@every_aggregation
@pytest.mark.parametrize("split", SPLITS)
def test_micro_batches_add_up(name, aggregation, split):
    whole = Result(make(name, aggregation), make_data())
    objective = make(name, aggregation)
    outs = [objective.loss(whole.batch[rows], whole.terms[rows]) for rows in SPLITS[split]]
    assert_close(sum(out.loss.detach() for out in outs), whole.loss, **CLOSE)
    parts = [whole.backward(out.loss) for out in outs]
    for i, mine in enumerate(whole.gradients):
        assert_close(sum(part[i] for part in parts), mine, **CLOSE)
    for key, value in whole.out.metrics.items():
        assert_close(sum(out.metrics[key] for out in outs), value, **CLOSE)
    for rows, out in zip(SPLITS[split], outs, strict=True):
        assert_close(out.per_token, whole.out.per_token[rows], **CLOSE)


# ---------------------------------------------------------------------------- precision


def float_dtypes(result: Result) -> set[torch.dtype]:
    """Of the advantages, every number of the terms, the loss and the metrics."""
    found = [result.batch.advantages, result.loss, result.out.per_token]
    found += [v for v in vars(result.terms).values() if isinstance(v, torch.Tensor)]
    found += result.out.metrics.values()
    return {value.dtype for value in found if value.is_floating_point()}


@every_method
@every_aggregation
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_inputs_are_computed_in_float32(name, aggregation, dtype):
    half = make_data(dtype)
    result = Result(make(name, aggregation), half)
    assert float_dtypes(result) == {torch.float32}
    assert result.gradients[0].dtype == dtype
    widened = {k: v.float() if v.is_floating_point() else v for k, v in half.items()}
    exact = Result(make(name, aggregation), widened)
    assert_close(result.loss, exact.loss, rtol=1e-6, atol=1e-7)
    assert_close(result.gradients[0], exact.gradients[0].to(dtype))


@every_method
@every_aggregation
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_wider_precision_stays(name, aggregation, dtype):
    result = Result(make(name, aggregation), make_data(dtype))
    assert float_dtypes(result) == {dtype}
    assert result.gradients[0].dtype == dtype


@every_method
def test_float32_is_close_to_float64(name):
    narrow = Result(make(name), make_data(torch.float32))
    wide = Result(make(name), make_data(torch.float64))
    assert_close(narrow.loss.double(), wide.loss, rtol=1e-5, atol=1e-6)
    assert_close(narrow.gradients[0].double(), wide.gradients[0], rtol=1e-4, atol=1e-6)


# ---------------------------------------------------------------------------- first update


# those that clip a ratio and weight nothing, so that at ratio 1 only A lp is left
UNWEIGHTED = """ppo gspo grpo loop loop_tight dapo clip_higher clip_lower clip_tighter clip_free
    extreme repo_r gspo_repo_r""".split()


@every_aggregation
@pytest.mark.parametrize("name", UNWEIGHTED)
def test_the_first_update_on_policy_is_reinforce(name, aggregation):
    data = make_data()
    data["logp"] = data["old_logp"]
    result = Result(make(name, aggregation), data)
    # the same prepared advantages under -A lp
    reinforce = es.make_objective("reinforce", aggregation=aggregation)
    leaf = data["logp"].clone().requires_grad_()
    batch = es.TokenBatch(leaf, data["old_logp"], MASK, result.batch.advantages)
    reinforce.loss(batch).loss.backward()
    assert_close(result.gradients[0], leaf.grad, **CLOSE)
    assert leaf.grad.any()
