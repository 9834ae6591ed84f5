"""benchmarks/balance_step.py: which way OPEFO's balance points a step."""

from __future__ import annotations

import math
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from entrostat.config import from_dict
from entrostat.trainers.lab.state import build
from scripts import load_script


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("benchmarks/balance_step.py")


def test_where_reward_and_entropy_stand_still(script: ModuleType) -> None:
    gradients = {
        "reward": [1.0, 0.0], "on-policy": [2.0, 0.0], "OPEFO": [1.0, -2.0], "entropy": [1.0, 1.0],
    }  # fmt: skip
    half: Any = SimpleNamespace(
        gradients={name: torch.tensor(each) for name, each in gradients.items()}, lam=0.5
    )
    found = script.compared(half, half)
    # a step goes against its gradient: entropy changes by -2 at lam 0, by -(1 - 2) = 1 at lam .5,
    # by 0 a third of 1 between; the reward's slope by 2 and 1, by 0 at 1
    assert found["lam, entropy still"] == pytest.approx(1 / 3)
    assert found["lam, reward still"] == pytest.approx(1.0)
    assert found["left"] == pytest.approx((2 - 2 / 3) / 2)
    assert found["best"] == pytest.approx(0.5)  # 45 degrees between the gradients
    assert found["reward, on-policy"] == pytest.approx(1.0)
    assert found["reward, OPEFO"] == pytest.approx(5**-0.5)
    assert found["entropy, on-policy"] == pytest.approx(-(2**-0.5))
    assert found["entropy, OPEFO"] == pytest.approx(10**-0.5)


def test_short_steps_change_what_the_slopes_say(script: ModuleType) -> None:
    config = from_dict({
        "method": "rloo", "sampling": {"prompts": 16, "rollouts": 4},
        "optim": {"epochs": 1, "minibatches": 1, "micro_batch": 48},
    })  # fmt: skip
    state = build(config.validate(), None, lambda *said: None)
    before = [p.detach().clone() for p in state.policy.trained().values()]
    one, two = (script.half_of(state, iteration) for iteration in (1, 2))
    length = 1e-6
    found = script.along(state, one, two, [length])
    for name in ("on-policy", "OPEFO"):
        slope = -float(one.gradients[name].sign() @ two.gradients["entropy"])
        changed = found[f"{name} by {length:.1e}: entropy"]
        assert changed == pytest.approx(length * slope, rel=0.03, abs=2e-6)
        assert abs(changed) > 1e-5  # what is compared is more than rounding
    after = state.policy.trained().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_eq_6_to_the_letter(script: ModuleType) -> None:
    """Its mean over the vocabulary is never positive, and by hand that of two actions."""
    config = from_dict({
        "method": "rloo", "sampling": {"prompts": 16, "rollouts": 4},
        "optim": {"epochs": 1, "minibatches": 1, "micro_batch": 48},
    })  # fmt: skip
    state = build(config.validate(), None, lambda *said: None)
    half = script.half_of(state, 1)
    meter = script.evaluator_of(state)
    found = script.vocabulary_mean(meter, half.sequences)[half.sequences.mask]
    assert (found <= 1e-6).all()  # (1 - p)^2 falls with log p
    assert (found < -1e-3).any()
    # of two actions of probability p and q with H = -p log p - q log q: p q^2 (log p + H) + q p^2
    # (log q + H) = p q (q - p) (q log p - q log q) + ... worked out at p = .9
    p, q = 0.9, 0.1
    H = -p * math.log(p) - q * math.log(q)
    by_hand = p * q**2 * (math.log(p) + H) + q * p**2 * (math.log(q) + H)

    class Two:
        def padded(self, sequences: Any) -> torch.Tensor:
            return torch.tensor([[p, q]]).log()

    class Meter:
        policy, temperature = Two(), 1.0

        def pieces(self, sequences: Any) -> tuple[torch.Tensor, ...]:
            return (torch.tensor([0]),)

    class One:
        mask = torch.tensor([[True]])

        def __getitem__(self, rows: torch.Tensor) -> Any:
            return self

    assert float(script.vocabulary_mean(Meter(), One())) == pytest.approx(by_hand, rel=1e-5)


def test_lam_of_joined_answers(script: ModuleType) -> None:
    # one token each, changes .5 and -.25 of an advantage of 1; advantages 1 and -1. Alone: .5 up
    # and .25 up. Two joined, whatever the order: of the second half .5 or -.25 by either sign
    advantage, token = torch.tensor([1.0, -1.0]), torch.tensor([[0.5], [-0.25]])
    mask = torch.tensor([[True], [True]])
    assert script.lam_joined(advantage, token, mask, 1) == pytest.approx(-1.0)
    found = script.lam_joined(advantage, token, mask, 400)
    assert abs(found) < 0.1
    shuffled = script.shuffled_within(torch.arange(6.0), torch.tensor([0, 0, 0, 1, 1, 1]))
    assert sorted(shuffled[:3].tolist()) == [0, 1, 2]
    assert sorted(shuffled[3:].tolist()) == [3, 4, 5]
