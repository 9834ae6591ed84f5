"""EntroPIC by hand."""

import json
import math

import pytest
import torch
from torch.testing import assert_close

import entrostat as es


def batch() -> es.TokenBatch:
    p = torch.tensor([[0.99, 0.5], [0.97, 0.96], [0.94, 0.2]], dtype=torch.float64)
    A = torch.tensor([[1.0, 1.0], [-2.0, -2.0], [1.0, 1.0]], dtype=torch.float64)
    return es.TokenBatch(p.log(), p.log(), torch.ones(3, 2), A)


def test_weights_by_hand():
    objective = es.make_objective("entropic", target=0.5, kp=0.4, ki=0.1)
    objective.observe(entropy=1.0)  # e = .5, nothing before it
    assert objective.metrics() == {"control/alpha": pytest.approx(0.2), "control/target": 0.5}
    weight = objective.plan(batch()).weight
    wanted = torch.tensor([[1.2, 1.0], [0.8, 0.8], [1.0, 1.0]], dtype=torch.float64)
    assert_close(weight, wanted)
    objective.observe(entropy=0.25)  # e = -.25; the sum before it is .5
    assert objective.metrics()["control/alpha"] == pytest.approx(-0.4 * 0.25 + 0.1 * 0.5)
    for _ in range(20):
        objective.observe(entropy=3.0)
    assert objective.metrics()["control/alpha"] == 1  # likely wrong tokens count for nothing
    assert_close(objective.plan(batch()).weight[1], torch.zeros(2, dtype=torch.float64))


def test_the_first_entropy_is_the_target_and_a_state_goes_on_from_its_json():
    objective = es.make_objective("entropic")
    assert "control/target" not in objective.metrics()
    objective.observe(entropy=0.8)
    objective.observe(entropy=0.6)
    assert objective.metrics() == {
        "control/alpha": pytest.approx(-0.2), "control/target": 0.8,
    }  # fmt: skip
    again = es.make_objective("entropic")
    again.load_state_dict(json.loads(json.dumps(objective.state_dict())))
    for each in (objective, again):
        each.observe(entropy=0.7)
    assert again.metrics() == objective.metrics()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"threshold": 1.5}, "entropic: threshold must be at least 0 and at most 1, got 1.5"),
        ({"kp": -1.0}, "entropic: kp must be at least 0"),
        ({"ki": math.nan}, "entropic: ki must be at least 0"),
        ({"target": "linear 1x 0.5x"}, "entropic: target .* for the thermostat"),
    ],
)
def test_errors_name_the_parameter(given, words):
    with pytest.raises(ValueError, match=words):
        es.make_objective("entropic", **given)
