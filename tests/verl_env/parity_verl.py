"""Every method through veRL's worker and through plain torch: the same loss, the same gradient.

One batch: 16 rollouts of 1 to 9 tokens, ragged prompts, 4 groups, rewards. On one side a real
`TrainingWorker` (the tiny policy under FSDP2, float32, micro-batches of 4) takes the batch as the
driver sends it; on the other the same weights without veRL, log-probs and entropies by their
definitions a rollout at a time, and `Objective.loss` on the whole batch, as the lab calls it. The
gradients compared are those of the policy's weights.

ENTROSTAT_PARITY=FILE writes the differences there, as a table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from harness import (
    gradients,
    make_worker,
    perturb,
    plain_model,
    rollouts_td,
    statistics,
    worker_td,
)
from torch import Tensor

import entrostat as es
from entrostat.core.batch import TokenBatch
from entrostat.core.process_ranks import shared_generator
from entrostat.core.rollouts import FIELDS
from entrostat.dynamics import online
from entrostat.method import METHODS
from entrostat.trainers.verl.loss import PREFIX
from entrostat.trainers.verl.settings import PolicyLoss

B, K, TOLERANCE = 16, 4, 1e-5
NAMES = sorted(name for name, info in es.methods().items() if "verl" in info.hosts)
REFUSED = sorted(es.methods().keys() - set(NAMES))


@dataclass
class Case:
    prompts: list[Tensor]
    answers: list[Tensor]
    old: TokenBatch  # statistics of the unperturbed weights


@pytest.fixture(scope="module")
def case() -> Case:
    g = torch.Generator().manual_seed(3)

    def tokens(low: int, high: int) -> Tensor:
        n = int(torch.randint(low, high + 1, (1,), generator=g))
        return torch.randint(2, 15, (n,), generator=g)

    prompts = [tokens(2, 6) for _ in range(B)]
    answers = [tokens(1, 9) for _ in range(B)]
    with torch.no_grad():
        logp, entropy = statistics(plain_model(), prompts, answers)
    mask = torch.arange(logp.shape[1]) < torch.tensor([len(a) for a in answers])[:, None]
    mask[5, 1:2] = False  # a hole, as tool output leaves
    old = TokenBatch(
        logp, logp, mask,
        rewards=torch.rand(B, generator=g), group=torch.arange(B) // K,
        entropy=entropy, old_entropy=entropy,
        ref_logp=logp - 0.3 * torch.rand(logp.shape, generator=g),
    )  # fmt: skip
    return Case(prompts, answers, old)


@pytest.fixture(scope="module")
def pairs() -> dict[str, tuple[Any, Any]]:
    """(veRL's worker, the model without veRL): with the old weights, and after a change."""
    old = make_worker(PolicyLoss(method="grpo"))
    new, reference = make_worker(PolicyLoss(method="grpo")), plain_model()
    perturb(new.engine.module)
    perturb(reference)
    return {"first": (old, plain_model()), "later": (new, reference)}


def prepared(objective: es.Objective, case: Case) -> TokenBatch:
    for _ in range(3):  # controllers away from their start; low enough to open every gate
        objective.observe(entropy=0.1, nll=0.1, progress=0.8)
    return objective.prepare(case.old)


def of_verl(worker: Any, objective: es.Objective, case: Case, batch: TokenBatch, which: str):
    """(loss, gradients, metrics) of the first update or of the second, without a step."""
    seen = []

    def no_step() -> float:
        seen.append(gradients(worker))
        return 0.0

    worker.engine.optimizer_step = no_step
    epochs = 1 if which == "first" else 2
    tokens = rollouts_td(case.prompts, case.answers)
    td = worker_td(tokens, batch, objective, step=7, epochs=epochs)
    metrics = worker.train_mini_batch(td)["metrics"]
    last = {key.removeprefix(PREFIX): float(values[-1]) for key, values in metrics.items()}
    last = online.figures(last)
    return last["loss/total"], seen[-1], last


def of_torch(model: Any, objective: es.Objective, case: Case, batch: TokenBatch, which: str):
    """(loss, size of its parts, gradients) of plain torch."""
    model.zero_grad()
    logp, entropy = statistics(model, case.prompts, case.answers)
    now = batch.replace(logp=logp, entropy=entropy)
    update = 0 if which == "first" else 1
    generator = shared_generator(0, "select", 7, update)
    terms = objective.plan(batch if which == "first" else now, generator)
    if which == "first":
        now = now.replace(old_logp=logp.detach())
    out = objective.loss(now, terms)
    out.loss.backward()
    size = float((out.per_token * terms.scale).detach().abs().sum())
    return float(out.loss.detach()), size, [p.grad.clone() for p in model.parameters()]


def distance(mine: list[Tensor], other: list[Tensor]) -> float:
    """Relative difference of two gradients, in norm."""
    top = sum((a - b).square().sum() for a, b in zip(mine, other, strict=True)).sqrt()
    return float(top / sum(b.square().sum() for b in other).sqrt())


FIGURES: dict[tuple[str, str], tuple[float, float]] = {}


@pytest.mark.parametrize("which", ["first", "later"])
@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradient(name: str, which: str, case: Case, pairs: Any) -> None:
    worker, model = pairs[which]
    settings = PolicyLoss(method=name)
    if which == "later" and settings.objective().strictly_on_policy:
        with pytest.raises(ValueError, match="strictly on-policy"):
            settings.objective(updates=2)
        return
    worker.use_objective(settings)
    objective = settings.objective()
    batch = prepared(objective, case)
    loss, grads, metrics = of_verl(worker, objective, case, batch, which)
    wanted, size, reference = of_torch(model, objective, case, batch, which)
    FIGURES[name, which] = (abs(loss - wanted) / size, distance(grads, reference))
    assert FIGURES[name, which][0] < TOLERANCE
    assert FIGURES[name, which][1] < TOLERANCE
    assert max(float(g.abs().max()) for g in reference) > 1e-4  # there was something to compare
    assert metrics["plan/tokens"] == float(case.old.mask.sum())
    again = which == "later" and objective.reads_current
    assert metrics["plan/passes"] == float(again)


@pytest.mark.parametrize("name", ["clip_cov", "steer", "forking_tokens", "entropy_bonus"])
def test_dynamic_micro_batches(name: str, case: Case, pairs: Any) -> None:
    # cut by tokens, which reorders rollouts
    worker, model = pairs["later"]
    settings = PolicyLoss(method=name)
    worker.use_objective(settings)
    objective = settings.objective()
    batch = prepared(objective, case)
    object.__setattr__(worker.engine_config, "use_dynamic_bsz", True)
    try:
        loss, grads, _ = of_verl(worker, objective, case, batch, "later")
    finally:
        object.__setattr__(worker.engine_config, "use_dynamic_bsz", False)
    wanted, size, reference = of_torch(model, objective, case, batch, "later")
    assert abs(loss - wanted) / size < TOLERANCE
    assert distance(grads, reference) < TOLERANCE


@pytest.mark.parametrize("name", ["clip_cov", "h_bonus", "kl_ref"])
def test_groups_without_a_signal(name: str, case: Case, pairs: Any) -> None:
    """Their tokens are with the worker, where penalties act on them; the policy term does not."""
    worker, model = pairs["later"]
    worker.use_objective(PolicyLoss(method=name))
    objective = PolicyLoss(method=name).objective()
    for _ in range(3):
        objective.observe(entropy=0.1, nll=0.1, progress=0.8)
    idle = torch.arange(B) // K == 1
    batch = objective.prepare(objective.outcome_advantages(case.old).replace(idle=idle))
    loss, grads, metrics = of_verl(worker, objective, case, batch, "later")
    wanted, size, reference = of_torch(model, objective, case, batch, "later")
    assert abs(loss - wanted) / size < TOLERANCE
    assert distance(grads, reference) < TOLERANCE
    assert metrics["plan/tokens"] == float(case.old.mask[~idle].sum())


def test_what_is_compared_depends_on_the_method(case: Case, pairs: Any) -> None:
    # gradients of two methods differ by more than the tolerance, or the tests above show nothing
    worker, model = pairs["later"]
    worker.use_objective(PolicyLoss(method="steer"))
    objective = PolicyLoss(method="steer").objective()
    _, grads, _ = of_verl(worker, objective, case, prepared(objective, case), "later")
    other = PolicyLoss(method="clip_higher").objective()
    _, _, reference = of_torch(model, other, case, prepared(other, case), "later")
    assert distance(grads, reference) > 1e-3


def test_every_method_is_hosted_or_refused_with_a_reason() -> None:
    for name in NAMES:
        objective = es.make_objective(name)
        objective.check_host("verl", FIELDS, 1 if objective.strictly_on_policy else 2)
    for name in REFUSED:
        with pytest.raises(ValueError, match=f"`{name}` does not run in verl; it runs in"):
            es.make_objective(name).check_host("verl", FIELDS)


def test_a_method_that_needs_more_is_refused() -> None:
    @es.register("flow_like")
    @dataclass(frozen=True)
    class FlowLike(es.Method):
        """Needs a moment that veRL's engines do not compute."""

        needs: ClassVar[tuple[str, ...]] = ("sum_p2",)

    try:
        with pytest.raises(ValueError, match="`flow_like` needs `sum_p2`; verl does not supply"):
            es.make_objective("flow_like").check_host("verl", FIELDS)
    finally:
        del METHODS["flow_like"]


def test_zz_write_the_table() -> None:
    path = os.environ.get("ENTROSTAT_PARITY")
    if not path:
        pytest.skip("ENTROSTAT_PARITY is not set")
    lines = ["| method | loss, first update | gradient | loss, second | gradient |"]
    lines.append("| --- | --- | --- | --- | --- |")
    for name in NAMES:
        cells = []
        for which in ("first", "later"):
            found = FIGURES.get((name, which))
            cells += [f"{x:.0e}" for x in found] if found else ["on-policy only", ""]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


def test_grpo_passk_is_verls_own() -> None:
    from verl.trainer.ppo.core_algos import compute_grpo_passk_outcome_advantage

    generator = torch.Generator().manual_seed(0)
    group = torch.arange(12) // 4
    for _ in range(50):
        rewards = torch.randint(0, 4, (12,), generator=generator).double()
        theirs, _ = compute_grpo_passk_outcome_advantage(
            rewards[:, None], torch.ones(12, 1), np.array(group.tolist()),
            config={"norm_adv_by_std_in_grpo": True},
        )  # fmt: skip
        ours = es.advantages("grpo_passk", rewards, group)
        assert torch.allclose(ours, theirs[:, 0], rtol=0, atol=1e-12)
