"""What a method may ask of the whole minibatch, against brute force, on ranks that are threads.

That nothing any method decides depends on how rows lie: the rule `layout` in contract_test.py. On
gloo's processes: ranks_test.py.
"""

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import entrostat as es
from builders import refused, seed
from entrostat.core import deterministic as exact
from entrostat.core.distributed import Communicator, GlobalBatch, row_sums
from entrostat.core.process_ranks import shared_generator
from entrostat.testing.layouts import B, Threads, cuts, fields, laid_out

ON, OFF = True, False


def over(world: int, values: torch.Tensor, mask: torch.Tensor, ask) -> list:
    """What `ask(whole, values, mask)` gives on each of `world` ranks that share the rows."""
    rows = torch.arange(len(values)).tensor_split(world)

    def work(ranks: Communicator):
        own = rows[ranks.rank]
        return ask(GlobalBatch(mask[own], own, ranks), values[own], mask[own])

    return Threads(world).run(work)


def test_chance_follows_rollouts_and_not_rows():
    # the same rollouts in another order, and half of them alone
    data = fields()
    for rows in (torch.randperm(B, generator=seed(0)), torch.arange(0, B, 2)):
        batch = laid_out(data, rows)
        everyone = laid_out(data, torch.arange(B)).whole
        chosen = batch.whole.pick(batch.mask, int(batch.mask.sum()) // 2, seed(1))
        assert chosen.sum() == batch.mask.sum() // 2
        if len(rows) == B:
            again = everyone.pick(everyone.mask, int(batch.mask.sum()) // 2, seed(1))
            assert torch.equal(chosen, again[rows][:, : chosen.shape[1]])


# ---------------------------------------------------------------------------- sums

numbers = st.floats(-1e6, 1e6, width=32) | st.sampled_from([0.0, -0.0, 1e-30, 1e30, -1e30, 0.1])
tables = st.integers(1, 6).flatmap(
    lambda T: st.lists(st.lists(numbers, min_size=T, max_size=T), min_size=1, max_size=9)
)


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(1, 3), st.booleans(), st.randoms(use_true_random=False))
def test_a_sum_is_that_of_exact_arithmetic_in_any_order(table, world, wide, random):
    dtype = torch.float64 if wide else torch.float32
    values = torch.tensor(table, dtype=dtype)
    mask = torch.tensor([[random.random() < 0.8 for _ in row] for row in table])
    exactly = sum((Fraction(x) for x in values[mask].tolist()), Fraction(0))
    # each term to 2^-38 (2^-67) of the largest at worst, then one rounding to float64
    unit = 2.0 ** -(67 if wide else 38) * float(values[mask].abs().max()) if mask.any() else 0.0
    allowed = len(values[mask]) * unit + 2**-53 * abs(float(exactly))
    order = torch.randperm(len(values), generator=seed(random.randrange(99)))
    found = {
        tuple(GlobalBatch(mask).sum(values)),
        tuple(GlobalBatch(mask[order]).sum(values[order])),
        *map(tuple, over(world, values, mask, lambda whole, x, m: whole.sum(x))),
    }
    assert len(found) == 1
    assert abs(Fraction(found.pop()[0]) - exactly) <= Fraction(allowed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sums_of_rows_do_not_see_padding(dtype):
    values = torch.randn(5, 70_000, generator=seed(0), dtype=torch.float64).exp().to(dtype)
    wider = torch.zeros(5, 70_123, dtype=dtype)
    place = torch.randperm(70_123, generator=seed(1))[:70_000].sort().values
    wider[:, place] = values
    found = row_sums(values)
    assert torch.equal(found, row_sums(wider))
    assert torch.equal(found[2:], row_sums(values[2:]))
    for row, total in zip(values.tolist(), found.tolist(), strict=True):
        assert total == pytest.approx(math.fsum(row), rel=1e-12)
    assert torch.equal(row_sums(values[:, :0]), torch.zeros(5, dtype=torch.float64))


def test_several_at_once_and_of_nothing():
    mask = torch.tensor([[ON, OFF], [ON, ON]])
    x = torch.tensor([[1.0, math.nan], [2.0, 4.0]])
    whole = GlobalBatch(mask)
    assert whole.sum(x, -x, x.double() / 8) == [7.0, -7.0, 0.875]
    assert whole.mean(x) == [7 / 3]
    assert whole.max(x, -x) == [4.0, -1.0]
    assert whole.min(x) == [1.0]
    assert math.isnan(whole.sum(torch.full((2, 2), math.inf))[0])
    none = GlobalBatch(torch.zeros(0, 3, dtype=torch.bool))
    empty = torch.zeros(0, 3)
    assert none.sum(empty) == none.mean(empty) == [0.0]
    assert none.max(empty) == [-math.inf]
    assert math.isnan(none.quantile(empty, 0.5))
    assert not none.largest(empty, none.mask, 2, None).any()


# ---------------------------------------------------------------------------- by size, by chance


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(1, 3), st.integers(0, 60), st.booleans(), st.randoms())
def test_the_largest_are_those_of_a_sort(table, world, count, wide, random):
    values = torch.tensor(table, dtype=torch.float64 if wide else torch.float32)
    mask = torch.tensor([[random.random() < 0.8 for _ in row] for row in table])
    parts = over(world, values, mask, lambda w, x, m: w.largest(x, m, count, seed(count)))
    chosen = torch.cat(parts)
    kept = np.sort(values[mask].numpy())[::-1]
    assert not (chosen & ~mask).any()
    assert np.array_equal(np.sort(values[chosen].numpy())[::-1], kept[:count])  # ties as well
    alone = GlobalBatch(mask, torch.arange(len(mask)))
    assert torch.equal(chosen, alone.largest(values, mask, count, seed(count)))


@settings(max_examples=60, deadline=None)
@given(tables, st.integers(1, 3), st.floats(0, 1), st.booleans())
def test_the_quantile_is_that_of_numpy(table, world, q, wide):
    values = torch.tensor(table, dtype=torch.float64 if wide else torch.float32)
    mask = torch.ones_like(values, dtype=torch.bool)
    found = set(over(world, values, mask, lambda w, x, m: w.quantile(x, q)))
    assert len(found) == 1
    expected = np.quantile(values.double().numpy(), q)
    assert found.pop() == pytest.approx(expected, rel=1e-6, abs=1e-6 * float(values.abs().max()))


def test_largest_by_hand():
    values = torch.tensor([[3.0, 9.0, -1.0], [-5.0, 2.0, 3.0]])
    candidates = torch.tensor([[ON, OFF, ON], [ON, ON, ON]])
    whole = GlobalBatch(candidates)

    def largest(count: int) -> list[list[bool]]:
        return whole.largest(values, candidates, count, seed(0)).tolist()

    assert sum(map(sum, largest(1))) == 1  # one of the two 3s
    assert largest(2) == [[ON, OFF, OFF], [OFF, OFF, ON]]
    assert largest(3) == [[ON, OFF, OFF], [OFF, ON, ON]]
    assert largest(4) == [[ON, OFF, ON], [OFF, ON, ON]]
    assert largest(50) == candidates.tolist()
    assert not any(map(any, largest(0)))
    # a tie is drawn for, and only a tie
    g = seed(3)
    state = g.get_state()
    whole.largest(values, candidates, 2, g)
    assert torch.equal(g.get_state(), state)
    taken = [whole.largest(values, candidates, 1, seed(n))[0, 0].item() for n in range(40)]
    assert {True, False} == set(taken)


def test_pick_by_hand():
    candidates = torch.tensor([[ON, OFF, ON], [OFF, ON, ON]])
    whole = GlobalBatch(candidates)
    for count in range(6):
        chosen = whole.pick(candidates, count, seed(2))
        assert chosen.sum() == min(4, count)
        assert not (chosen & ~candidates).any()
    assert not whole.pick(torch.zeros(2, 3).bool(), 2, seed(2)).any()
    torch.manual_seed(5)  # without a generator the global one decides
    one = whole.pick(candidates, 2, None)
    torch.manual_seed(5)
    assert torch.equal(whole.pick(candidates, 2, None), one)


def test_pick_is_uniform_over_pairs():
    # two of four, 2000 seeds, six pairs: chi-square of 5 degrees; 20.5 has probability .001
    candidates = torch.tensor([[ON, OFF, ON], [OFF, ON, ON]])
    whole = GlobalBatch(candidates)
    chosen = (whole.pick(candidates, 2, seed(n)) for n in range(2000))
    seen = Counter(tuple(each.flatten().tolist()) for each in chosen)
    assert len(seen) == 6
    assert sum((n - 2000 / 6) ** 2 / (2000 / 6) for n in seen.values()) < 20.5


def test_hashes_are_splitmix64():
    # the reference implementation's first outputs for the seed 1234567
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    z = np.uint64(1234567) + np.arange(1, 4, dtype=np.uint64) * exact._GAMMA
    assert exact._mixed(z).tolist() == published


def test_hashes_of_neighbours_share_nothing():
    # 64 rollouts x 64 positions x 2 seeds: every bit is 1 in half of the hashes (5 deviations)
    row, column = (x.ravel() for x in np.indices((64, 64)))
    two = [exact.hashes(s, np.arange(64), row, column) for s in (0, 1)]
    bits = np.concatenate(two)[:, None] >> np.arange(64, dtype=np.uint64) & np.uint64(1)
    assert len(np.unique(np.concatenate(two))) == 2 * 4096
    assert np.abs(bits.mean(0) - 0.5).max() < 5 * 0.5 / math.sqrt(2 * 4096)
    assert abs(np.corrcoef(*(x.astype(float) for x in two))[0, 1]) < 5 / 64


# ---------------------------------------------------------------------------- by rollout


def test_companions_are_the_tokens_of_whole_groups():
    data = fields()
    whole = laid_out(data, torch.arange(B))
    rows = cuts(4, seed=1)

    def work(ranks: Communicator):
        batch = laid_out(data, rows[ranks.rank]).replace(ranks=ranks)
        return batch.whole.companions(batch.group, batch.old_entropy)

    for own, (place, tokens) in zip(rows, Threads(4).run(work), strict=True):
        groups = set(data["group"][own].tolist())
        # `rollout` rises with the row, so that places are rows
        assert place.tolist() == [i for i in range(B) if int(data["group"][i]) in groups]
        for i, line in zip(place.tolist(), tokens, strict=True):
            mine = whole.old_entropy[i][whole.mask[i]]
            assert torch.equal(line[: len(mine)], mine)
            assert not line[len(mine) :].any()


def test_on_several_ranks_rollouts_and_a_generator_are_needed():
    def nameless(ranks: Communicator):
        data = fields() | {"rollout": None}
        batch = es.TokenBatch(**{k: v for k, v in data.items() if v is not None}, ranks=ranks)
        return batch.whole

    refused(lambda: Threads(2).run(nameless), "rollout")
    objective = es.make_objective("clip_cov")

    def careless(ranks: Communicator):
        batch = laid_out(fields(), cuts(2)[ranks.rank]).replace(ranks=ranks)
        return objective.plan(objective.prepare(batch))

    refused(lambda: Threads(2).run(careless), "on several ranks chance needs a generator")


def test_a_copy_on_other_ranks_asks_these():
    batch = laid_out(fields(), torch.arange(B))
    assert batch.whole is batch.replace(logp=batch.old_logp).whole  # counted once
    other = batch.replace(rollout=batch.rollout + 1)
    assert other.whole.rollout is other.rollout
    assert batch[:3].whole.sequences == 3


def test_a_generator_that_is_shared_draws_the_same_everywhere():
    data = fields()
    rows = cuts(2, seed=5)

    def work(ranks: Communicator):
        batch = laid_out(data, rows[ranks.rank]).replace(ranks=ranks)
        generator = shared_generator(5, "select", 3)
        batch.whole.pick(batch.mask, 10, generator)
        return torch.rand(1, generator=generator).item()

    assert len(set(Threads(2).run(work))) == 1


@pytest.mark.parametrize("inference", [False, True])
def test_a_mask_that_is_edited_in_place_is_counted_anew(inference: bool) -> None:
    with torch.inference_mode(inference):
        x = torch.ones(16, 5)
        batch = es.TokenBatch(x, x, torch.ones(16, 5, dtype=torch.int64))
        assert (batch.whole.tokens, batch.whole.sequences) == (80, 16)
        batch.mask[0] = False
        assert (batch.whole.tokens, batch.whole.sequences) == (75, 15)
        batch.mask = batch.mask[:, :3]  # another tensor in its place
        assert batch.whole.tokens == 45


def test_what_was_counted_is_kept() -> None:
    class Counting(Communicator):
        calls = 0

        def sum(self, numbers: np.ndarray) -> np.ndarray:
            Counting.calls += 1
            return numbers

    x = torch.ones(4, 5)
    batch = es.TokenBatch(x, x, x, rollout=torch.arange(4), ranks=Counting())
    for _ in range(3):
        assert batch.whole.tokens == 20
    assert Counting.calls == 1
