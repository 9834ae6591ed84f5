"""Dynamic sampling in TRL."""

import pytest
import torch

from builders import refused

trl = pytest.importorskip("trl", reason="trl is an extra")
from trl_runs import MARKS, TEMPERATURE, K, logged, logits_of, make, model_of, weights  # noqa: E402  # noqa: E402

pytestmark = MARKS
PROMPTS = [f"{i}:" for i in range(10, 42)]


def half(prompts, completion_ids, **_):
    """Of every other prompt no rollout is right."""
    right = [float(ids[0] % 2) for ids in completion_ids]
    return [r if int(p[:-1]) % 2 else 0.0 for p, r in zip(prompts, right, strict=True)]


def build(folder, redraws, **more):
    from entrostat.trainers.trl import EntropyGRPOTrainer

    def cls(*args, **kwargs):
        return EntropyGRPOTrainer(*args, redraws=redraws, **kwargs)

    return make(
        cls, folder, reward=half, prompts=PROMPTS, objective="grpo_token",
        model=model_of(0.05, seed=1), **{"max_steps": 4, **more},
    )  # fmt: skip


def test_groups_without_a_signal_give_way(tmp_path):
    plain, often = (build(tmp_path / str(n), n) for n in (0, 6))
    for trainer in (plain, often):
        trainer.train()
    idle = [logged(t, "rollout/zero_advantage_groups") for t in (plain, often)]
    assert sum(idle[1]) < sum(idle[0])
    # the first generation is the same, before anything is drawn again
    assert logged(often, "reward/drawn_mean")[0] == pytest.approx(logged(plain, "reward/mean")[0])
    assert min(logged(often, "rollout/redraws")) >= 1
    assert logged(often, "rollout/redrawn")[0] >= idle[0][0]
    assert all(n > 0 for n in logged(often, "rollout/redrawn_tokens"))


def test_what_is_trained_on_is_what_was_drawn(tmp_path):
    """Rewards, prompts, completions and log-probs of each row belong together."""
    trainer = build(tmp_path, 6)
    trainer.state.max_steps = 4
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.model.train()
    rows = [{"prompt": p} for p in PROMPTS[:4] for _ in range(K)]
    output = trainer._generate_and_score_completions(rows)
    scores, scored = trainer._scored
    prompts = trainer.processing_class.batch_decode(output["prompt_ids"], skip_special_tokens=True)
    prompts = [text.replace(" ", "") for text in prompts]
    ids = [row[m.bool()].tolist() for row, m in zip(
        output["completion_ids"], output["completion_mask"], strict=True)]  # fmt: skip
    assert ids == [list(one.ids) for one in scored]
    assert prompts == [one.row["prompt"] for one in scored]
    assert scores[:, 0].tolist() == half(prompts, ids)
    assert prompts != [row["prompt"] for row in rows]  # some gave way
    assert int(output["num_items_in_batch"]) == sum(map(len, ids))
    logits = logits_of(trainer.model, output) / TEMPERATURE
    own = logits.log_softmax(-1).gather(-1, output["completion_ids"][..., None])[..., 0]
    mask = output["completion_mask"].bool()
    torch.testing.assert_close(own[mask], output["entrostat_old_logp"][mask], rtol=0, atol=1e-4)


@pytest.mark.long
def test_it_is_exact_under_resume(tmp_path):
    more = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    whole = build(tmp_path / "a", 3, **more)
    whole.train()
    part = build(tmp_path / "b", 3, **more)
    part.train(resume_from_checkpoint=str(tmp_path / "a" / "checkpoint-2"))
    for one, other in zip(weights(whole), weights(part), strict=True):
        assert torch.equal(one, other)
    assert logged(whole, "rollout/redrawn")[-2:] == logged(part, "rollout/redrawn")[-2:]


def test_what_cannot_be_drawn_again(tmp_path):
    refused(lambda: build(tmp_path, -1), "redraws=-1")
