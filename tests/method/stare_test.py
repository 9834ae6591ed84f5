"""STARE: which tokens it weighs, by hand; its gate and its weights, by hand."""

import warnings

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from entrostat.method.stare import Stare

# surprisals 1 to 10 in the row with A > 0, then 11 to 20 where A < 0
SURPRISAL = torch.arange(1.0, 21.0, dtype=torch.float64).reshape(2, 10)
ADVANTAGE = torch.tensor([2.0, -1.0], dtype=torch.float64)


def planned(entropy: float, mask: torch.Tensor | None = None, **parameters: object) -> torch.Tensor:
    """Weights [2, 10] after an iteration of this entropy."""
    mask = torch.ones(2, 10, dtype=torch.bool) if mask is None else mask
    objective = es.make_objective("stare", **parameters)
    objective.observe(entropy=entropy)
    return objective.plan(es.TokenBatch(-SURPRISAL, -SURPRISAL, mask, ADVANTAGE)).weight


def weights(*changed: tuple[int, int, float]) -> torch.Tensor:
    out = torch.ones(2, 10, dtype=torch.float64)
    for row, column, weight in changed:
        out[row, column] = weight
    return out


def test_the_most_surprising_tokens_of_right_answers_count_more_below_the_target():
    assert_close(planned(0.2), weights((0, 9, 1.1)))  # a tenth of ten tokens
    assert_close(planned(0.2, top=0.11), weights((0, 9, 1.1), (0, 8, 1.1)))  # 1.1, rounded up
    assert_close(planned(0.3), weights())  # not below .3
    assert_close(planned(0.5), weights())


def test_c2_spares_the_most_surprising_wrong_ones_too():
    found = planned(0.2, variant="C2", top=0.2, W=1.2, M=0.7)
    assert_close(found, weights((0, 9, 1.2), (0, 8, 1.2), (1, 9, 0.7), (1, 8, 0.7)))


def test_masked_tokens_are_neither_weighed_nor_counted():
    mask = torch.ones(2, 10, dtype=torch.bool)
    mask[0, 9] = False
    found = planned(0.2, mask)
    assert_close(found[mask], weights((0, 8, 1.1))[mask])


def test_one_token_at_least_and_none_where_there_is_none():
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[0, 3] = True
    assert planned(0.2, mask, top=0.01)[0, 3] == 1.1
    mask = torch.zeros(2, 10, dtype=torch.bool)
    mask[1, 3] = True
    assert_close(planned(0.2, mask)[mask], torch.ones(1, dtype=torch.float64))


def test_adaptive_weights_by_hand():
    objective = es.make_objective(
        "stare", target=1.0, variant="C2", alpha=0.125, W=1.25, M=0.75, most=1.5, least=0.5
    )
    seen = []
    for entropy in (0.9, 0.9, 0.9, 1.0, 1.1, 1.2, 1.2, 1.2, 1.2, 1.2):
        objective.observe(entropy=entropy)
        state = objective.states[1]
        seen.append((state.value, state.damp, state.applies))
    assert seen == [
        (1.375, 0.625, True), (1.5, 0.5, True), (1.5, 0.5, True),  # at their ends
        (1.5, 0.5, False),  # at the target: the gate is shut, nothing moves
        (1.375, 0.625, False), (1.25, 0.75, False), (1.125, 0.875, False),
        (1.0, 1.0, False), (1.0, 1.0, False), (1.0, 1.0, False),
    ]  # fmt: skip


def test_a_share_of_the_first_entropy_is_a_target():
    objective = es.make_objective("stare", target="0.5x")
    for entropy, applies in ((1.0, False), (0.6, False), (0.4, True)):
        objective.observe(entropy=entropy)
        assert objective.states[1].applies is applies
        assert objective.metrics()["control/stare_weight"] == (1.1 if applies else 1.0)
    assert objective.metrics()["control/target"] == 0.5


def test_nothing_is_weighed_before_an_entropy_is_seen():
    batch = es.TokenBatch(-SURPRISAL, -SURPRISAL, torch.ones(2, 10), ADVANTAGE)
    assert_close(es.make_objective("stare").plan(batch).weight, weights())


def test_slices_under_the_plan_of_the_whole_add_up():
    objective = es.make_objective("stare", variant="C2")
    objective.observe(entropy=0.1)
    batch = es.TokenBatch(-SURPRISAL, -SURPRISAL, torch.ones(2, 10), ADVANTAGE)
    terms = objective.plan(batch)
    parts = [objective.loss(batch[rows], terms[rows]).loss for rows in ([0], [1])]
    assert_close(sum(parts), objective.loss(batch).loss)


def test_it_sits_on_clip_higher_and_refuses_what_it_cannot_do():
    objective = es.make_objective("stare")
    assert objective.names == ("ppo", "stare")
    assert (objective.methods[0].low, objective.methods[0].high) == (0.2, 0.28)
    assert Stare().controls() is None
    assert Stare(alpha=0.01).controls() == "the weight of surprising tokens"
    for wrong, words in (
        ({"top": 0.0}, "top must be above 0"),
        ({"variant": "C3"}, "variant must be 'O1' or 'C2'"),
        ({"alpha": 0.1, "W": 2.0}, "W must be in"),
        ({"target": "linear 1x 0.5x"}, "stare: target"),
    ):
        with pytest.raises(ValueError, match=words):
            es.make_objective("stare", **wrong)


@pytest.mark.parametrize(
    ("given", "idle"),
    [
        ({"most": 2.0, "least": 0.25}, ["most=2.0", "least=0.25"]),
        ({"most": 2.0, "alpha": 0.1}, []),
        ({"M": 0.75}, ["M=0.75"]),
        ({"M": 0.75, "variant": "C2"}, []),
    ],
)
def test_parameters_that_have_no_effect_are_warned_of(given, idle):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        es.make_objective("stare", **given)
    found = [str(one.message).removeprefix("stare: ").split()[0] for one in told]
    assert found == idle
