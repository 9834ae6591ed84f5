"""Training in veRL's own classes: driver and worker, without Ray and vLLM.

The trainer is ours over veRL's `PPOTrainerSync`, built from veRL's composed configuration; the
worker is a real `TrainingWorker` with FSDP2 on gloo. Two things stand in: a dictionary for the
TransferQueue, and a loop that samples from the worker's model for vLLM.
"""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from configuration import compose
from harness import gradients, make_worker, plain_model, rollouts_td, statistics
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from transformers import AutoTokenizer
from verl.trainer.ppo.v1 import trainer_base
from verl.utils import tensordict_utils as tu

from entrostat.control import Multiplicative
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.verl.trainer import FILE, EntropyTrainer

HERE = Path(__file__).parent
PROMPTS, ROLLOUTS, STEPS = 16, 8, 20
TASK = TargetSum(seed=0, k_min=3, k_max=4)


class MemoryQueue:
    """What the trainer uses of `transfer_queue`, as a dictionary of rows."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}

    def kv_batch_put(self, keys, partition_id, fields=None, tags=None) -> KVBatchMeta:
        for name in fields.keys() if fields is not None else ():
            values = fields[name]
            values = values.unbind() if isinstance(values, torch.Tensor) else list(values)
            for key, value in zip(keys, values, strict=True):
                self.rows.setdefault(key, {})[name] = value
        known = sorted(set.intersection(*(set(self.rows[key]) for key in keys)))
        return KVBatchMeta(
            keys=list(keys), tags=[{}] * len(keys), partition_id=partition_id, fields=known
        )

    def kv_batch_get(self, keys, partition_id, select_fields=None) -> TensorDict:
        fields: dict[str, Any] = {}
        for name in select_fields or self.rows[keys[0]]:
            values = [self.rows[key].get(name) for key in keys]
            if any(value is None for value in values):
                continue  # as the real one leaves out what nobody wrote
            if not isinstance(values[0], torch.Tensor):
                fields[name] = values
            elif values[0].ndim:
                fields[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
            else:
                fields[name] = torch.stack(values)
        return tu.get_tensordict(fields)

    def data_of(self, meta: KVBatchMeta) -> TensorDict:
        data = self.kv_batch_get(meta.keys, meta.partition_id, meta.fields)
        for key, value in meta.extra_info.items():
            tu.assign_non_tensor_data(data, key, value)
        return data


class Workers:
    """A worker group of one, called in this process."""

    def __init__(self, worker: Any, queue: MemoryQueue) -> None:
        self.worker, self.queue = worker, queue

    def compute_log_prob(self, meta: KVBatchMeta) -> KVBatchMeta:
        out = self.worker.infer_batch(self.queue.data_of(meta))
        put = self.queue.kv_batch_put(
            meta.keys, meta.partition_id, out.select("log_probs", "entropy")
        )
        put.tags = meta.tags
        return put

    def update_actor(self, meta: KVBatchMeta) -> TensorDict:
        return self.worker.train_mini_batch(self.queue.data_of(meta))

    def save_checkpoint(self, path, *args: Any, **kwargs: Any) -> None:
        Path(path).mkdir(parents=True, exist_ok=True)

    def load_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        return None


def overrides(method: str, folder: Path, *more: str) -> list[str]:
    loss = "actor_rollout_ref.actor.policy_loss"
    return [
        "algorithm.adv_estimator=grpo",
        "trainer.v1.trainer_mode=entrostat",
        f"trainer.default_local_dir={folder}",
        f"trainer.total_training_steps={STEPS}",
        f"data.train_batch_size={PROMPTS}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={PROMPTS // 2}",
        "actor_rollout_ref.actor.strategy=fsdp2",
        "actor_rollout_ref.actor.use_dynamic_bsz=true",
        "actor_rollout_ref.actor.calculate_entropy=true",
        "actor_rollout_ref.rollout.name=vllm",
        "actor_rollout_ref.rollout.calculate_log_probs=false",
        f"actor_rollout_ref.rollout.n={ROLLOUTS}",
        f"{loss}._target_=entrostat.trainers.verl.settings.PolicyLoss",
        f"{loss}.loss_mode=entrostat",
        f"+{loss}.method={method}",
        *more,
    ]


def make_trainer(method: str, folder: Path, monkeypatch: Any, *more: str) -> EntropyTrainer:
    trainer = EntropyTrainer(compose(overrides(method, folder, *more)))
    queue = MemoryQueue()
    monkeypatch.setattr(trainer_base, "tq", queue)
    worker = make_worker(trainer.settings, lr=3e-4, micro=32)
    trainer.queue = queue
    trainer.actor_rollout_wg = Workers(worker, queue)
    trainer.distillation_config = None
    trainer.total_training_steps = STEPS
    trainer.global_steps = 0
    return trainer


TOKENIZER = AutoTokenizer.from_pretrained(Path(plain_model().config._name_or_path))


@torch.no_grad()
def sample(worker: Any, prompts: list[torch.Tensor], g: torch.Generator) -> list[torch.Tensor]:
    """One answer to each prompt, from the worker's sharded model, at temperature 1."""
    module = worker.engine.module.eval()
    width = max(len(prompt) for prompt in prompts)
    ids = torch.stack([torch.nn.functional.pad(p, (width - len(p), 0)) for p in prompts])
    mask = torch.stack([torch.arange(width) >= width - len(p) for p in prompts]).long()
    for _ in range(9):
        positions = (mask.cumsum(-1) - 1).clamp(min=0)
        out = module(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False)
        chosen = torch.multinomial(out.logits[:, -1].softmax(-1), 1, generator=g)
        ids = torch.cat([ids, chosen], 1)
        mask = torch.cat([mask, torch.ones_like(chosen)], 1)
    answers = []
    for row in ids[:, width:]:
        ends = (row == TOKENIZER.eos_token_id).nonzero()
        answers.append(row[: int(ends[0]) + 1] if len(ends) else row)
    return answers


def rollout(trainer: EntropyTrainer, step: int) -> KVBatchMeta:
    """A batch in the queue as veRL's agent loop leaves it, with one synthetic padding row."""
    g = torch.Generator().manual_seed(1000 + step)
    examples = [TASK.example(step * PROMPTS + i, "train") for i in range(PROMPTS)]
    of_row = [example for example in examples for _ in range(ROLLOUTS)]
    prompts = [torch.tensor(TOKENIZER(example.prompt).input_ids) for example in of_row]
    answers = sample(trainer.actor_rollout_wg.worker, prompts, g)
    texts = [
        TOKENIZER.decode(answer, skip_special_tokens=True).replace(" ", "") for answer in answers
    ]
    scores = [TASK.score(t, example) for t, example in zip(texts, of_row, strict=True)]
    keys = [f"p{step}x{i // ROLLOUTS}_{i % ROLLOUTS}_0" for i in range(len(of_row))]
    uids = [key.rsplit("_", 2)[0] for key in keys]
    tags: list[dict[str, Any]] = [{} for _ in keys]
    masks = [torch.ones(len(answer), dtype=torch.int64) for answer in answers]
    # veRL's padding_utils: one token, mask 0, a uid of its own; here it takes the last row's place
    keys[-1], uids[-1], tags[-1] = f"pad{step}_0_0", f"pad{step}", {"is_padding": True}
    answers[-1], masks[-1], scores[-1] = answers[-1][:1], torch.zeros(1, dtype=torch.int64), 0.0
    fields = rollouts_td(prompts, answers)
    rewards = [torch.zeros(len(answer)) for answer in answers]
    for reward, score in zip(rewards, scores, strict=True):
        reward[-1] = score
    for name, rows in (("response_mask", masks), ("loss_mask", masks), ("rm_scores", rewards)):
        fields[name] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
    meta = trainer.queue.kv_batch_put(keys, "train", tu.get_tensordict({**fields, "uid": uids}))
    meta.tags = tags
    return meta


def iterate(trainer: EntropyTrainer, step: int) -> dict[str, Any]:
    """An iteration in the order of veRL's `_step_once`."""
    trainer.global_steps, metrics = step, {}
    batch = rollout(trainer, step)
    tags = batch.tags
    for stage in (trainer._compute_old_log_prob, trainer._compute_advantage, trainer._update_actor):
        batch = stage(batch, metrics)
        batch.tags = tags  # the real queue keeps them
    return metrics


@pytest.mark.parametrize(
    "method",
    [
        "[dapo,repo_r]",
        "[clip_wide,{name:clip_cov,at_least:1}]",
        "[clip_higher,steer]",
        "thermostat",
    ],
)
def test_twenty_steps(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(method, tmp_path, monkeypatch)
    log = []
    for step in range(1, STEPS + 1):
        if step == STEPS:  # what is logged of the last step, by another way
            weights = whole_weights(trainer)
        log.append(iterate(trainer, step))
    for metrics in log:
        for key, value in metrics.items():
            assert math.isfinite(float(value)), (key, value)
    wanted = {"entropy/exact", "entropy/nll", "reward/mean", "rollout/zero_advantage_groups",
              "reward/std_in_group", "reward/best_in_group", "rollout/length_max", "rollout/tokens",
              "loss/policy", "clip/high", "clip/low", "kl/old_new", "plan/tokens",
              "plan/passes", "terms/weight", "actor/grad_norm"}  # fmt: skip
    assert wanted <= log[0].keys(), wanted - log[0].keys()
    # two updates an iteration: the second is off-policy, and planned after a pass of its own
    # where the method reads the current policy
    assert all(m["kl/old_new"] > 0 for m in log)
    assert log[0]["plan/passes"] == (0.5 if "clip_cov" in method or "steer" in method else 0.0)
    entropy = [m["entropy/exact"] for m in log]
    reward = [m["reward/mean"] for m in log]
    assert abs(log[-1]["entropy/exact"] - entropy_of(trainer, weights, STEPS)) < 1e-5
    # it learns, and entropy neither vanishes nor explodes on the way
    assert sum(reward[-5:]) > sum(reward[:5])
    assert 0.5 * entropy[0] < entropy[-1] < 1.3 * entropy[0]
    if "repo_r" in method:
        # the doubling controller, replayed from the entropies that were logged
        controller = Multiplicative(1e-3, 1e-5, 1e-1)
        state = controller.init()
        for metrics in log:
            state = controller.update(state, metrics["entropy/exact"])
            assert metrics["control/zeta"] == state.value
            assert metrics["control/target"] == state.target
        assert log[-1]["control/zeta"] > 1e-3
    if method == "thermostat":
        # the driver's state is what the workers left: foretold change and multiplier move
        # (of the first iteration no change is wanted, so that its own may be 0)
        assert all(m["thermostat/foretold"] != 0 for m in log[2:])
        assert all(m["control/multiplier"] != 0 for m in log[1:])
        late = sum(entropy[-5:]) / 5
        assert abs(late / entropy[0] - 1) < 0.1
    if "clip_cov" in method:
        assert any(m["terms/frozen"] > 0 for m in log)
    if "steer" in method:
        assert all(0.7 <= m["terms/weight"] < 1 for m in log)


def whole_weights(trainer: EntropyTrainer) -> dict[str, torch.Tensor]:
    module = trainer.actor_rollout_wg.worker.engine.module
    return {k: v.full_tensor().clone() for k, v in module.state_dict().items()}


def entropy_of(trainer: EntropyTrainer, weights: Any, step: int) -> float:
    """Mean entropy of a step's answers under given weights, without veRL."""
    model = plain_model()
    model.load_state_dict(weights)
    rows = [row for key, row in trainer.queue.rows.items() if key.startswith(f"p{step}x")]
    with torch.no_grad():
        _, H = statistics(
            model, [row["prompts"] for row in rows], [row["responses"] for row in rows]
        )
    return float(H.sum() / sum(len(row["responses"]) for row in rows))


def test_padding_rows_and_groups_without_signal_do_not_train(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("grpo", tmp_path, monkeypatch)
    trainer.global_steps, metrics = 1, {}
    batch = rollout(trainer, 1)
    rows = trainer.queue.rows
    for key in batch.keys[:ROLLOUTS]:  # a group in which everyone failed
        rows[key]["rm_scores"] = torch.zeros_like(rows[key]["rm_scores"])
    tags = batch.tags
    batch = trainer._compute_old_log_prob(batch, metrics)
    batch.tags = tags
    trainer._compute_advantage(batch, metrics)
    for key in [*batch.keys[:ROLLOUTS], batch.keys[-1]]:
        assert rows[key]["advantages"].abs().sum() == 0
    # of the one the tokens are there, for penalties; of the other nothing
    assert all(rows[k]["entrostat_idle"] and rows[k]["entrostat_mask"].sum() for k in
               batch.keys[:ROLLOUTS])  # fmt: skip
    assert rows[batch.keys[-1]]["entrostat_mask"].sum() == 0
    trained = [k for k in batch.keys[:-1] if not rows[k]["entrostat_idle"]]
    assert trained
    # GRPO by hand: (R - mean) / (std + 1e-6) over the group's rollouts
    group = [k for k in batch.keys if k.rsplit("_", 2)[0] == trained[0].rsplit("_", 2)[0]]
    R = torch.stack([rows[k]["rm_scores"].sum() for k in group])
    A = (R - R.mean()) / (R.std() + 1e-6)
    for k, a in zip(group, A, strict=True):
        assert torch.allclose(rows[k]["advantages"], a.expand(len(rows[k]["responses"])), atol=1e-5)
    assert metrics["rollout/groups"] == PROMPTS
    assert metrics["rollout/zero_advantage_groups"] >= 1


def test_sessions_of_several_outputs_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("grpo", tmp_path, monkeypatch)
    trainer.global_steps = 1
    batch = rollout(trainer, 1)
    tags = batch.tags
    batch = trainer._compute_old_log_prob(batch, {})
    batch.tags = tags
    trainer.queue.rows["p1x0_0_1"] = trainer.queue.rows[batch.keys[1]]
    batch.keys[1] = "p1x0_0_1"
    with pytest.raises(ValueError, match="rollout p1x0_0 has several outputs"):
        trainer._compute_advantage(batch, {})


def test_controllers_are_saved_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("[dapo,repo_r]", tmp_path, monkeypatch)
    trainer.train_dataloader = SimpleNamespace(state_dict=dict, load_state_dict=lambda state: None)
    iterate(trainer, 1)
    iterate(trainer, 2)
    state = copy.deepcopy(trainer.objective.state_dict())
    trainer._save_checkpoint()
    assert (tmp_path / "global_step_2" / FILE).is_file()
    resumed = make_trainer("[dapo,repo_r]", tmp_path, monkeypatch)
    resumed.train_dataloader = trainer.train_dataloader
    resumed._load_checkpoint()
    assert resumed.global_steps == 2
    assert resumed.objective.state_dict() == state
    assert state["states"][1]["value"] != 1e-3  # it had moved
    # another objective, or a checkpoint of another trainer, is refused
    other = make_trainer("[dapo,repo_d]", tmp_path, monkeypatch)
    other.train_dataloader = trainer.train_dataloader
    with pytest.raises(ValueError, match="belongs to"):
        other._load_checkpoint()
    (tmp_path / "global_step_2" / FILE).unlink()
    with pytest.raises(ValueError, match=f"no readable {FILE}"):
        resumed._load_checkpoint()


def test_a_worker_under_another_trainer_refuses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer("grpo", tmp_path, monkeypatch)
    trainer.global_steps = 1
    batch = rollout(trainer, 1)
    with pytest.raises(ValueError, match=r"another trainer; set trainer.v1.trainer_mode=entrostat"):
        trainer.actor_rollout_wg.update_actor(batch)


def test_two_ranks_do_what_one_does(tmp_path: Path) -> None:
    outputs = []
    for world in (1, 2):
        folder = tmp_path / str(world)
        folder.mkdir()
        ranks = [
            subprocess.Popen(
                [sys.executable, "-X", "faulthandler", str(HERE / "rank_main.py"), str(rank),
                 str(world), str(folder)],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            )
            for rank in range(world)
        ]  # fmt: skip
        for process in ranks:
            text, _ = process.communicate(timeout=400)
            assert process.returncode == 0, text[-3000:]
        outputs.append(torch.load(folder / "rank0.pt", weights_only=True))
    one, two = outputs
    assert one.keys() == two.keys()
    for name in one:
        for a, b in zip(one[name]["gradients"], two[name]["gradients"], strict=True):
            assert torch.allclose(a, b, rtol=1e-4, atol=1e-6), name
        for key, value in one[name]["metrics"].items():
            near = 1e-3 if name == "thermostat" else 1e-5  # of three steps of AdamW from rest
            assert two[name]["metrics"][key] == pytest.approx(value, rel=near, abs=1e-7), key


def test_the_note_is_plain_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer("[dapo,repo_r]", tmp_path, monkeypatch)
    iterate(trainer, 1)
    assert json.loads(json.dumps(trainer.objective.state_dict()))["states"][1]["value"] > 0
    assert gradients(trainer.actor_rollout_wg.worker) == []  # zeroed after the step
