"""veRL's rollout correction beside an objective: weights, rejection, bypass.

In veRL's own classes, without Ray and vLLM (`training_verl`): the sampler's log-probs are the
policy's with noise. What is expected is written out by the definitions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from training_verl import iterate, make_trainer, rollout

LOG_PROBS = "actor_rollout_ref.rollout.calculate_log_probs=true"
CORRECTION = "algorithm.rollout_correction"


def noisy(trainer: Any) -> Any:
    """A trainer whose rollouts carry a sampler's log-probs, as vLLM's in another precision."""
    inner = trainer.actor_rollout_wg.compute_log_prob

    def compute_log_prob(meta: Any) -> Any:
        put = inner(meta)
        g = torch.Generator().manual_seed(trainer.global_steps)
        for key in meta.keys:
            row = trainer.queue.rows[key]
            own = row["log_probs"][-len(row["responses"]) - 1 : -1]
            row["rollout_log_probs"] = own + 0.3 * torch.randn(own.shape, generator=g)
        put.fields = [*put.fields, "rollout_log_probs"]
        return put

    trainer.actor_rollout_wg.compute_log_prob = compute_log_prob
    return trainer


def advanced(trainer: Any) -> tuple[Any, dict[str, Any], list[dict[str, Any]]]:
    """An iteration up to its advantages: the batch, metrics and its rows."""
    trainer.global_steps, metrics = 1, {}
    batch = rollout(trainer, 1)
    tags = batch.tags
    for stage in (trainer._compute_old_log_prob, trainer._compute_advantage):
        batch = stage(batch, metrics)
        batch.tags = tags
    return batch, metrics, [trainer.queue.rows[key] for key in batch.keys]


def test_token_weights_multiply_the_policy_term(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (LOG_PROBS, f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_is_threshold=1.2")
    trainer = noisy(make_trainer("[dapo,repo_r]", tmp_path, monkeypatch, *more))
    batch, metrics, rows = advanced(trainer)
    assert {"rollout_corr/rollout_is_mean", "rollout_corr/kl"} <= metrics.keys()
    for row in rows[:-1]:
        ratio = (row["old_log_probs"] - row["rollout_log_probs"]).exp()
        torch.testing.assert_close(row["entrostat_correction"], ratio.clamp(max=1.2))
    # the loss of the update: that of the objective whose every token counts so much
    worker = trainer.actor_rollout_wg.worker
    worker.objective.load_state_dict(trainer.objective.state_dict())
    worker.step, worker.updates, worker.planned, worker.epochs = 1, 0, 1, 1
    data = trainer.queue.data_of(batch)
    plan = worker.plan(data).plan
    one = plan.loss(plan.batch).per_token
    other = plan.loss(plan.batch.replace(correction=None)).per_token
    assert plan.batch.correction is not None
    torch.testing.assert_close(one, other * plan.batch.correction)
    assert not torch.allclose(one, other)


def test_rejected_tokens_do_not_train_and_controllers_see_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (LOG_PROBS, f"{CORRECTION}.rollout_rs=token_k1",
            f"{CORRECTION}.rollout_rs_threshold='0.8_1.2'")  # fmt: skip
    trainer = noisy(make_trainer("grpo", tmp_path, monkeypatch, *more))
    _, metrics, rows = advanced(trainer)
    left = 0
    for row in rows[:-1]:
        # veRL's k1 is of the sampler's probability over the old policy's
        ratio = (row["rollout_log_probs"] - row["old_log_probs"]).exp()
        kept = (ratio >= 0.8) & (ratio <= 1.2)
        assert torch.equal(row["entrostat_mask"].bool(), kept)
        assert "entrostat_correction" not in row
        left += int(kept.sum())
    tokens = sum(len(row["responses"]) for row in rows[:-1])
    assert 0 < left < tokens
    assert metrics["rollout/tokens"] == tokens
    H = torch.cat([row["entropy"] for row in rows[:-1]])
    assert metrics["entropy/exact"] == pytest.approx(float(H.mean()), rel=1e-5)
    assert any(key.startswith("rollout_corr/rollout_rs") for key in metrics)


def test_in_bypass_mode_the_ratio_is_to_the_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    more = (LOG_PROBS, f"{CORRECTION}.bypass_mode=true")
    trainer = noisy(make_trainer("[dapo,repo_r]", tmp_path, monkeypatch, *more))
    _, metrics, rows = advanced(trainer)
    assert trainer.config.algorithm.rollout_correction.bypass_mode is True
    for row in rows[:-1]:
        assert torch.equal(row["old_log_probs"], row["rollout_log_probs"])
        assert (row["entropy"] >= 0).all()
    assert metrics["mismatch/logp_abs_mean"] > 0.1  # of the old policy, before it gave way
    log = iterate(trainer, 2)
    # E[k3] of a log ratio of deviation .3 is about .3^2 / 2; on the first update as well
    assert 0.02 < log["kl/old_new"] < 0.2
    assert log["ratio/mean"] == pytest.approx(1.045, abs=0.1)


@pytest.mark.parametrize("more", [
    (f"{CORRECTION}.rollout_is=sequence",),
    (f"{CORRECTION}.rollout_is=token", f"{CORRECTION}.rollout_rs=seq_mean_k3",
     f"{CORRECTION}.rollout_rs_threshold=0.05"),
])  # fmt: skip
def test_it_trains(more: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = noisy(make_trainer("[dapo,repo_r]", tmp_path, monkeypatch, LOG_PROBS, *more))
    log = [iterate(trainer, step) for step in (1, 2)]
    for metrics in log:
        assert metrics["actor/grad_norm"] > 0
        assert metrics["loss/policy"] == metrics["loss/policy"]  # a number
        assert "rollout_corr/kl" in metrics
