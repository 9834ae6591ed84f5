"""`train --forecast`: what is foretold is the mathematics, what came is true, nothing changes."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import entrostat as es
from builders import json_lines, refused
from entrostat.config import from_dict
from entrostat.core.stats import TokenStats
from entrostat.data.prompts import drawn, fresh
from entrostat.logs.run import read_run
from entrostat.report.panels import run_panels
from entrostat.runs.resolve import check_host
from entrostat.tasks import Example
from entrostat.trainers.lab import forecast

SMALL: dict[str, Any] = {
    "iterations": 3, "sampling": {"prompts": 8, "rollouts": 6}, "eval": {"prompts": 0}, "seed": 1,
    "optim": {"epochs": 1, "minibatches": 1, "micro_batch": 48},
    "save": {"rollouts_every": 0, "checkpoints": 0},
}  # fmt: skip


def run(path: Path, **settings: Any) -> Path:
    return es.train(from_dict(SMALL | {"output": str(path)} | settings))


def metrics(path: Path) -> list[dict[str, Any]]:
    return json_lines(path / "metrics.jsonl")


@pytest.mark.long
def test_weights_and_figures_are_the_same_with_and_without(tmp_path: Path) -> None:
    one = run(tmp_path / "with", forecast={"every": 2, "prompts": 4, "rollouts": 4})
    other = run(tmp_path / "without")
    weights = [(path / "final/model.safetensors").read_bytes() for path in (one, other)]
    assert weights[0] == weights[1]

    def own(path: Path) -> list[dict[str, Any]]:
        return [
            {k: v for k, v in row.items() if not k.startswith(("time/", "forecast/"))}
            for row in metrics(path)
        ]

    assert own(one) == own(other)
    assert ["forecast/change" in row for row in metrics(one)] == [True, True, False]


def test_in_sample_is_the_sum_of_the_analysis_influences(tmp_path: Path) -> None:
    """Two ways to <grad H, -P g>: `analysis` differentiates along P grad H, forecasts by halves."""
    path = run(
        tmp_path / "run", analyze={"every": 1}, iterations=2,
        forecast={"every": 1, "prompts": 2, "rollouts": 2},
    )  # fmt: skip
    for row in metrics(path):
        assert row["forecast/in_sample"] == pytest.approx(row["influence/sum"], rel=1e-3, abs=1e-6)


@pytest.mark.long
def test_a_forecast_comes_true_where_the_batch_is_large(tmp_path: Path) -> None:
    """Small steps, so that the first order is enough, on a batch that says what the mean is."""
    path = run(
        tmp_path / "run", iterations=14, sampling={"prompts": 64, "rollouts": 8},
        optim=SMALL["optim"] | {"lr": 1e-4, "micro_batch": 512}, forecast={"every": 1},
    )  # fmt: skip
    rows = metrics(path)[3:]  # AdamW's first steps are signs

    def series(name: str) -> Tensor:
        return torch.tensor([row[f"forecast/{name}"] for row in rows]).double()

    both = torch.stack([series("step"), series("change")])
    assert float(torch.corrcoef(both)[0, 1]) > 0.7
    slope = float((both[0] * both[1]).sum() / both[0].square().sum())
    assert 0.6 < slope < 1.5
    # the step without what is in motion is not the step that is made
    assert (series("step") - series("change")).abs().mean() < (
        series("crossed") - series("change")
    ).abs().mean()


def test_the_page_draws_forecasts_beside_what_came(tmp_path: Path) -> None:
    rows = [
        {"iteration": i, "forecast/step": x, "forecast/change": y, "forecast/crossed": 0.0}
        for i, (x, y) in enumerate([(9, -9), (1, 2), (2, 4), (3, 6), (4, 9)] * 3, 1)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (panel,) = [p for p in run_panels(read_run(tmp_path)) if p.title == "Forecast"]
    assert [curve.label for curve in panel.curves] == ["influences", "step", "what came"]
    # of 15 the first is left out
    pairs = torch.tensor([(r["forecast/step"], r["forecast/change"]) for r in rows[1:]]).double()
    assert f"r = {float(torch.corrcoef(pairs.T)[0, 1]):.2f} " in panel.caption


def test_of_one_prompt_nothing_is_crossed(tmp_path: Path) -> None:
    path = run(
        tmp_path / "run", sampling={"prompts": 1, "rollouts": 8},
        forecast={"every": 1, "prompts": 2, "rollouts": 2},
    )  # fmt: skip
    found = [row for row in metrics(path) if "forecast/change" in row]
    assert found
    for row in found:
        assert "forecast/in_sample" in row
        assert "forecast/crossed" not in row


@pytest.mark.parametrize("K", [1, 3])
@pytest.mark.parametrize("before", [0, 4])
def test_motion_is_what_adamw_does(before: int, K: int) -> None:
    """eps far above sqrt(v), so that P is lr / eps at every step, as the forecast takes it."""
    torch.manual_seed(0)
    w = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    lr, eps, decay = 1e-3, 1e6, 1e-5
    optimizer = torch.optim.AdamW([w], lr=lr, eps=eps, betas=(0.9, 0.95), weight_decay=decay)
    for _ in range(before):
        w.grad = torch.randn(5, dtype=torch.float64)
        optimizer.step()
    state = SimpleNamespace(
        optimizer=optimizer, policy=SimpleNamespace(trained=lambda: {"w": w})
    )  # fmt: skip
    P, g = {"w": torch.full_like(w, lr / eps)}, torch.randn(5, dtype=torch.float64)
    current, drift = forecast._motion(state, P, lr, K)  # pyrefly: ignore[bad-argument-type]
    expected = drift["w"] - current * P["w"] * g
    start = w.detach().clone()
    for _ in range(K):
        w.grad = g.clone()
        optimizer.step()
    torch.testing.assert_close(w.detach() - start, expected, rtol=1e-5, atol=1e-16)


# every sequence of two tokens as often as the policy says it: p(0) = 3/4; after 0 a fair coin,
# after 1 p(0) = 3/4; the first token 2 would end a sequence, but is never said
ROWS = [(0, 0)] * 6 + [(0, 1)] * 6 + [(1, 0)] * 3 + [(1, 1)]


def table(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """log-probs and entropies [16, 2] of the rows, from logits [2] and [2, 2]."""
    logs = [first.log_softmax(-1), second.log_softmax(-1)]
    entropy = [-(x.exp() * x).sum(-1) for x in logs]
    logp = torch.stack([torch.stack([logs[0][a], logs[1][a, b]]) for a, b in ROWS])
    return logp, torch.stack([torch.stack([entropy[0], entropy[1][a]]) for a, b in ROWS])


def logits() -> tuple[Tensor, Tensor]:
    first = torch.tensor([0.75, 0.25], dtype=torch.float64).log()
    second = torch.tensor([[0.5, 0.5], [0.75, 0.25]], dtype=torch.float64).log()
    return first.requires_grad_(), second.requires_grad_()


def met(first: Tensor, second: Tensor) -> Tensor:
    """Mean entropy a token of the policy's own sequences, all of two tokens: exactly."""
    p = first.softmax(-1)
    entropy = [-(x.softmax(-1) * x.log_softmax(-1)).sum(-1) for x in (first, second)]
    return (entropy[0] + p @ entropy[1]) / 2


def test_the_gradient_of_the_entropy_that_is_met_by_enumeration() -> None:
    first, second = logits()
    expected = torch.autograd.grad(met(first, second), (first, second))
    logp, entropy = table(first, second)
    mask = torch.ones_like(logp, dtype=torch.bool)
    worth = forecast._worth(entropy.detach(), mask)
    found = torch.autograd.grad((entropy + worth * logp).sum() / mask.sum(), (first, second))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_the_entropy_that_another_policy_meets_by_enumeration() -> None:
    first, second = logits()
    before, _ = table(first, second)
    torch.manual_seed(1)
    first, second = (x.detach() + torch.randn_like(x) for x in (first, second))
    mask = torch.ones_like(before, dtype=torch.bool)
    found = forecast.visited(before.detach(), TokenStats(*table(first, second)), mask)
    assert found == pytest.approx(float(met(first, second)), rel=1e-12)


class Endless:
    name = "endless"
    splits = ("train",)

    def size(self, split: str) -> int | None:
        return None

    def example(self, index: int, split: str) -> Example:
        return Example(str(index), None)


class Five(Endless):
    def size(self, split: str) -> int | None:
        return 5


def test_fresh_prompts_are_drawn_apart() -> None:
    config = from_dict({"sampling": {"prompts": 4}})
    seen = {i for iteration in range(1, 200) for i in drawn(Endless(), config, iteration)}  # pyrefly: ignore
    new = [one.prompt for i in (1, 2) for one in fresh(Endless(), config, i, 8)]  # pyrefly: ignore
    assert len(set(new)) == 16
    assert seen.isdisjoint(map(int, new))
    # of five prompts seven: all of them, some twice
    few = [one.prompt for one in fresh(Five(), config, 1, 7)]  # pyrefly: ignore
    assert len(few) == 7
    assert set(few) == set("01234")


@pytest.mark.parametrize("host", ["trl", "verl"])
def test_other_hosts_say_that_they_cannot(host: str) -> None:
    config = from_dict({"host": host, "forecast": {"every": 5}})
    refused(lambda: check_host(config, host), f"'{host}'", "forecast.every", "is 5")
