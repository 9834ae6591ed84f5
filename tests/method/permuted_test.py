"""`permute_weights`: the same weights at other tokens, uniformly, whatever the order of rows."""

from __future__ import annotations

from collections import Counter

import torch
from torch import Tensor

import entrostat as es
from entrostat.core.batch import Terms, TokenBatch
from entrostat.method.permute_weights import PermuteWeights
from entrostat.testing import RULES, Allowed, check_method

MASK = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
WEIGHT = torch.tensor([[1.0, 2, 91], [3, 92, 93], [4, 5, 6]])


def dealt(seed: int, rows: list[int] | None = None, padding: int = 0) -> Tensor:
    """[3, 3 + padding]: the weights dealt anew, of the rows in this order."""
    order = torch.tensor(rows or [0, 1, 2])
    mask = torch.nn.functional.pad(MASK[order], (0, padding))
    weight = torch.nn.functional.pad(WEIGHT[order], (0, padding), value=94.0)
    zeros = torch.zeros(mask.shape)
    batch = TokenBatch(zeros, zeros, mask, advantages=zeros, rollout=order + 7)
    terms = Terms(zeros, zeros, zeros, weight, zeros, zeros)
    generator = torch.Generator().manual_seed(seed)
    return PermuteWeights().plan(batch, terms, None, generator).weight


def test_weights_stay_and_places_change() -> None:
    found = dealt(0)
    assert sorted(found[MASK].tolist()) == [1, 2, 3, 4, 5, 6]
    assert torch.equal(found[~MASK], WEIGHT[~MASK])
    assert not torch.equal(found, WEIGHT)
    assert not torch.equal(dealt(1), found)


def test_the_order_of_rows_and_the_padding_do_not_matter() -> None:
    found = dealt(3)
    assert torch.equal(dealt(3, [2, 0, 1]), found[[2, 0, 1]])
    assert torch.equal(dealt(3, padding=2)[:, :3], found)


def test_every_token_gets_every_weight_as_often() -> None:
    """6 tokens, 3,000 draws: 500 each, with a standard deviation of 20."""
    counts: Counter[tuple[int, float]] = Counter()
    for seed in range(3000):
        counts.update(enumerate(dealt(seed)[MASK].tolist()))
    assert len(counts) == 36
    assert max(abs(n - 500) for n in counts.values()) < 5 * 20.5


def test_it_is_steer_with_its_clip() -> None:
    one, other = (es.make_objective(m) for m in ("steer", ["steer", "permute_weights"]))
    assert (one.advantage, one.aggregation) == (other.advantage, other.aggregation)
    assert other.names == (*one.names, "permute_weights")


def test_it_keeps_the_contract_after_a_method_that_weighs() -> None:
    """Alone it has nothing to deal. On any number of ranks the same tokens get the same weights."""
    # but for the order of rollouts that say not who they are, which decides what chance gives them
    rules = RULES.keys() - {"order"}
    check_method(["steer", "permute_weights"], rules=rules, allowed=Allowed(random=True))


def test_a_batch_without_a_column_has_nothing_to_permute() -> None:
    empty = torch.zeros(2, 0)
    objective = es.make_objective(["steer", "permute_weights"])
    batch = TokenBatch(empty, empty, empty, advantages=torch.ones(2), entropy=empty,
                       old_entropy=empty)  # fmt: skip
    batch = objective.prepare(batch)
    terms = objective.plan(batch, generator=torch.Generator().manual_seed(0))
    assert terms.weight.shape == (2, 0)
