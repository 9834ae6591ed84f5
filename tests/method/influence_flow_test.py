"""Influence flow: lam by hand; in the lab, whose influences are measured, exactly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import entrostat as es
from builders import f64, refused
from entrostat.control import ThermostatState
from entrostat.trainers.lab import loop, train
from entrostat.trainers.lab.analysis import begin
from lab_runs import lines_of_a_run_that_survives_a_kill, metrics, small

EXACT = {"rtol": 1e-12, "atol": 1e-12}
ONE_UPDATE = {"epochs": 1, "minibatches": 1}


# p = .5 throughout; dH = -A (1-p)^2 (lp + H): its sign is that of -A (lp + H)
LP = f64([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5]]).log()
ABOVE = f64([[0.4, -1.0, 0.3], [2.0, -0.5, 0.0]])  # lp + H
A = f64([2.0, -1.0])  # sides: down, up, masked | up, down, neither
MASK = torch.tensor([[1, 1, 0], [1, 1, 1]])


def planned(c: list[list[float]], want: float, **parameters: Any) -> es.Terms:
    """Terms where the thermostat wants so many nats."""
    objective = es.make_objective("influence_flow", target=2.0, **parameters)
    objective.states[1] = ThermostatState(want / 2, 2.0)
    batch = es.TokenBatch(LP, LP, MASK, A, entropy=ABOVE - LP, influence=f64(c))
    return objective.plan(batch)


def test_lam_by_hand():
    # P = .3 + .1, N = .2 - .1: lam = (.05 + .1 - .4) / .5 = -.5
    terms = planned([[-0.2, 0.3, 9.0], [0.1, 0.1, 7.0]], 0.05)
    weight = torch.where(MASK.bool(), terms.weight, 1)
    assert_close(weight, f64([[1.5, 0.5, 1], [0.5, 1.5, 1]]), **EXACT)
    assert {key: float(x) for key, x in terms.figures.items()} == {
        "influence/up": pytest.approx(0.4), "influence/down": pytest.approx(0.1),
        "influence/balance": pytest.approx(-0.5),
    }  # fmt: skip
    # so weighted, entropy moves by what was wanted
    c = torch.where(MASK.bool(), f64([[-0.2, 0.3, 9.0], [0.1, 0.1, 0.0]]), 0)
    assert float((weight * c).sum()) == pytest.approx(0.05)


def test_lam_stays_in_its_range_and_is_0_without_authority():
    up = planned([[-0.2, 0.3, 0], [0.1, -0.1, 0]], 0.9)  # lam would be 1.14
    assert up.figures["influence/balance"] == 1
    down = planned([[-0.2, 0.3, 0], [0.1, -0.1, 0]], -9.0)
    assert down.figures["influence/balance"] == -1
    against = planned([[0.2, -0.3, 0], [-0.1, 0.1, 0]], 0.5)  # the sides do the opposite
    assert against.figures["influence/balance"] == 0
    assert_close(against.weight, torch.ones(2, 3).double(), **EXACT)


def test_where_influences_are_the_closed_form_and_nothing_is_pulled_it_is_opefo():
    g = torch.Generator().manual_seed(1)
    lp = -3 * torch.rand(6, 5, generator=g, dtype=torch.float64)
    H = 2 * torch.rand(6, 5, generator=g, dtype=torch.float64)
    A = torch.randn(6, generator=g, dtype=torch.float64)
    mask = torch.rand(6, 5, generator=g) > 0.2
    dH = -A[:, None] * (1 - lp.exp()) ** 2 * (lp + H)
    batch = es.TokenBatch(lp, lp, mask, A, entropy=H, influence=dH)
    mine = es.make_objective("influence_flow")  # nothing was seen, so nothing is wanted
    weight, theirs = mine.plan(batch).weight, es.make_objective("opefo").plan(batch).weight
    assert_close(weight[mask], theirs[mask], **EXACT)


def test_it_is_refused_where_influences_cannot_be_had():
    refused(
        lambda: es.make_objective("influence_flow").check_host("verl", ()), "does not run in verl"
    )
    refused(lambda: es.make_objective("influence_flow", updates=2), "one update per rollout batch")
    refused(lambda: es.make_objective("influence_flow", sample=0.0), "sample")
    assert es.make_objective("grpo").influence_sample() is None


@pytest.mark.parametrize("sample", [1.0, 0.5])
def test_influences_are_those_of_some_prompts_without_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample: float
) -> None:
    seen: list[Any] = []
    asked = loop.with_influences

    def spy(state: Any, sampled: Any, selection: Any) -> Any:
        plain = replace(state, objective=es.make_objective("reinforce"))
        rewards = selection.graded.rewards
        wanted = begin(plain, sampled, rewards, selection).influence  # what an analysis says
        seen.extend([wanted[selection.kept], asked(state, sampled, selection)])
        return seen[-1]

    monkeypatch.setattr(loop, "with_influences", spy)
    method = [{"name": "influence_flow", "sample": sample}]
    train(small(tmp_path / "run", method=method, iterations=1, optim=ONE_UPDATE))
    wanted, selection = seen
    group, found = selection.batch.group, selection.batch.influence
    drawn = group[found.any(-1)].unique()
    assert len(drawn) == max(1, int(sample * len(group.unique())))
    assert not found[~torch.isin(group, drawn)].any()
    if sample == 1:
        assert_close(found, wanted)


@pytest.mark.long
def test_a_run_survives_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "lab_runs.small",
        lambda path, **changes: small(path, optim=ONE_UPDATE, **changes),
    )
    lines = lines_of_a_run_that_survives_a_kill(tmp_path, ["influence_flow"])
    assert all(-1 <= line["influence/balance"] <= 1 for line in lines)


@pytest.mark.long
def test_it_brings_entropy_to_a_target_that_its_surrogate_alone_does_not_reach(
    tmp_path: Path,
) -> None:
    shares = []
    for method in ({"name": "influence_flow", "target": "0.75x"}, "reinforce"):
        config = small(
            tmp_path / str(len(shares)), method=[method], iterations=32, optim=ONE_UPDATE,
            sampling={"prompts": 16, "rollouts": 8}, eval={"prompts": 0},
        )  # fmt: skip
        entropies = [line["entropy/exact"] for line in metrics(train(config))]
        shares.append(sum(entropies[-10:]) / 10 / entropies[0])
    assert shares[0] == pytest.approx(0.75, abs=0.09)
    assert shares[1] > 0.85
