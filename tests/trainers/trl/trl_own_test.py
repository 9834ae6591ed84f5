"""The TRL host beside TRL's own trainer: what is trained without an objective, what is logged with
one, and the objectives that are equal to a GRPOConfig.
"""

import json

import pytest
import torch
from torch import Tensor

import entrostat as es
from entrostat.config import from_dict, load
from entrostat.logs.importers import read
from entrostat.logs.run import read_run
from entrostat.trainers.trl import from_grpo_config

trl = pytest.importorskip("trl", reason="trl is an extra")
from trl_runs import (  # noqa: E402  # noqa: E402
    MARKS,
    PROMPTS,
    RUN,
    B,
    K,
    by_prompt,
    disturb,
    entropy_trainer,
    feed,
    logged,
    make,
    model_of,
    reward_some,
    scripted,
    tiny,
    weights,
)

pytestmark = MARKS
ONE = {  # one micro-batch, in which TRL's means are those of the whole step
    "per_device_train_batch_size": B, "gradient_accumulation_steps": 1, "steps_per_generation": 1,
}  # fmt: skip
SIGNAL = [1.0, 0.0, 0.0, 0.5, 1.0, 0.0, 1.0, 1.0, 0.0, 0.25, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0]


# ---------------------------------------------------------------------------- no objective


@pytest.fixture
def lora():
    peft = pytest.importorskip("peft")
    return peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.3)


@pytest.mark.long
def test_lora_dropout_without_an_objective_is_trls_bit_for_bit(tmp_path, lora):
    """With one update per generation batch TRL makes no pass that measures the old policy."""
    ends, losses = [], []
    for cls, more in ((trl.GRPOTrainer, {}), (entropy_trainer, {"objective": None})):
        build = (lambda *a, **k: make(trl.GRPOTrainer, *a, **k)) if cls is trl.GRPOTrainer else cls
        trainer = build(
            tmp_path, peft=lora, max_steps=3, num_iterations=1, learning_rate=1e-2,
            prompts=PROMPTS * 3, gradient_accumulation_steps=2, per_device_train_batch_size=8,
            **more,
        )  # fmt: skip
        trainer.train()
        ends.append(weights(trainer))
        losses.append(logged(trainer, "loss"))
    assert losses[0] == losses[1]
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_positional_arguments_are_trls(tmp_path):
    from datasets import Dataset
    from transformers import AutoTokenizer

    from entrostat.trainers.trl import EntropyGRPOTrainer

    args = trl.GRPOConfig(
        str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=2,
        per_device_train_batch_size=2,
    )  # fmt: skip
    data = Dataset.from_dict({"prompt": PROMPTS})
    tokenizer = AutoTokenizer.from_pretrained(tiny())
    trainer = EntropyGRPOTrainer(
        model_of(), reward_some, args, data, None, tokenizer, objective="repo_r"
    )
    assert trainer.train_dataset is data
    assert trainer.objective.names == ("ppo", "repo_r")


# ---------------------------------------------------------------------------- what is logged


def test_trls_own_figures_are_trls_own(tmp_path):
    """Of all rollouts, those without a signal too; a step of which no rollout has one included."""
    found = []
    for objective in (None, "repo_r"):
        more = {} if objective is None else {"objective": objective}
        trainer = make(trl.GRPOTrainer if objective is None else entropy_class(), tmp_path,
                       **RUN | {"max_steps": 1}, **more)  # fmt: skip
        scripted(trainer)
        trainer.train()
        found.append(trainer.state.log_history[0])
    own, ours = found
    assert own["frac_reward_zero_std"] > 0
    shared = own.keys() & ours.keys() - {"loss", "grad_norm"}
    shared = {key for key in shared if "time" not in key and "runtime" not in key}
    assert {"entropy", "clip_ratio/low_mean", "clip_ratio/high_max", "reward"} <= shared
    for key in shared:
        assert ours[key] == own[key], key
    # one policy before the first step, and every micro-batch's tokens: the exact mean, but for
    # the weight of micro-batches
    assert ours["entropy"] == pytest.approx(ours["entropy/exact"], rel=0.1)


def entropy_class():
    from entrostat.trainers.trl import EntropyGRPOTrainer

    return EntropyGRPOTrainer


def test_the_dump_has_masked_rollouts_whole_and_says_what_was_trained(tmp_path):
    trainer = entropy_trainer(
        tmp_path / "out", objective="repo_r", dump=tmp_path / "log", max_steps=2,
        mask_truncated_completions=True, gradient_accumulation_steps=2,
        per_device_train_batch_size=8, num_iterations=1,
    )  # fmt: skip
    tokenizer = trainer.processing_class
    eos = tokenizer.eos_token_id

    def generate(prompts):
        ids = by_prompt(prompts, trainer.state.global_step)
        ids = [row if i % 3 else [*row[:-1], eos] for i, row in enumerate(ids)]
        encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        return encoded, ids, None, tokenizer.batch_decode(ids), None, {}, None, None

    trainer._generate = generate
    trainer.train()
    trainer.save_state()
    rows = by_prompt([p for p in PROMPTS for _ in range(K)], 0)
    r = es.load_rollouts(tmp_path / "log", 1)
    cut = [row if i % 3 else row[:-1] for i, row in enumerate(rows)]
    assert r.completions == tokenizer.batch_decode(cut)
    assert r.finished.tolist() == [i % 3 == 0 for i in range(B)]
    assert r.start.diff().tolist() == [len(row) * (i % 3 == 0) for i, row in enumerate(rows)]
    first = trainer.state.log_history[0]
    lengths = [len(row) for row in rows]
    assert first["rollout/length_mean"] == sum(lengths) / B

    run = read_run(tmp_path / "log")
    assert run.methods == "ppo+repo_r"
    assert run.task == "reward_by_tokens"
    assert (run.planned, run.done) == (2, 2)
    assert run.config["sampling"]["prompts"] == len(PROMPTS)
    assert run.config["trl"]["mask_truncated_completions"] is True
    told = json.loads((tmp_path / "log" / "objective.json").read_text())
    assert told == json.loads(json.dumps(trainer.objective.describe()))


@pytest.mark.parametrize("solve", ["sample", "exact"])
def test_a_first_batch_of_truncated_rollouts_sets_no_target(tmp_path, solve):
    """TRL masks them all: the mean entropy of no token is no target."""
    trainer = entropy_trainer(
        tmp_path / "out", objective={"name": "thermostat", "solve": solve}, max_steps=4,
        mask_truncated_completions=True, num_iterations=2, dump=tmp_path / "log",
    )  # fmt: skip
    tokenizer = trainer.processing_class

    def generate(prompts):
        ids = by_prompt(prompts, trainer.state.global_step)
        if trainer.state.global_step:
            ids = [[*row[:-1], tokenizer.eos_token_id] for row in ids]
        encoded = [tokenizer(prompt)["input_ids"] for prompt in prompts]
        return encoded, ids, None, tokenizer.batch_decode(ids), None, {}, None, None

    trainer._generate = generate
    trainer.train()
    first, later = (trainer.state.log_history[i] for i in (0, 2))
    assert "control/target" not in first
    assert later["control/target"] == later["entropy/exact"] > 0
    assert len(es.load_rollouts(tmp_path / "log", 1).completions) == B
    config = from_dict(load(tmp_path / "log" / "config.toml"))  # as `doctor --config` reads it
    assert config.optim.aggregation == trainer.objective.aggregation


# ---------------------------------------------------------------------------- logs read again


def test_our_own_output_is_read_by_our_own_figures(tmp_path):
    trainer = entropy_trainer(
        tmp_path, objective="repo_r", dump=tmp_path / "log", **RUN | {"save_steps": 4},
        save_strategy="steps",
    )  # fmt: skip
    scripted(trainer)
    trainer.train()
    trainer.save_state()
    exact = read_run(tmp_path / "log").series("entropy/exact")
    assert exact[0] == [1, 2]
    for place in (tmp_path, tmp_path / "checkpoint-4"):
        run = read(place)
        assert run.series("entropy/exact") == exact
        assert list(run.dumps) == [1, 2]
    # without the run directory, of the trainer's state alone
    state = read(tmp_path / "trainer_state.json")
    steps, values = state.series("entropy/exact")
    assert values == pytest.approx(exact[1], rel=1e-12)
    assert steps == exact[0]
    assert (state.planned, state.done) == (2, 2)  # iterations, of two optimizer steps each


# ---------------------------------------------------------------------------- equal objectives


def step_of(trainer, corrected: str | None = None) -> tuple[float, Tensor]:
    """Loss and gradient of the second update on the fixed rollouts, the policy moved since."""
    (piece,) = feed(trainer, SIGNAL)
    if corrected is not None:  # as where vLLM sampled, whose presence TRL's own loss asks for
        token = 0.5 + (piece["completion_ids"] * 7919 % 97) / 97  # of the rollout, wherever it is
        sequence = token.mean(1, keepdim=True)
        piece["importance_sampling_ratio"] = token if corrected == "token" else sequence
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = True
    disturb(trainer.model, 0.02, seed=2)
    trainer.state.global_step = trainer._step = 1
    loss = trainer._compute_loss(trainer.model, piece)
    loss.backward()
    return float(loss.detach()), torch.cat([p.grad.flatten() for p in trainer.model.parameters()])


def both(folder, corrected: str | None = None, **settings):
    """TRL's own loss and gradient, and those of the objective that is equal to its settings."""
    own = make(trl.GRPOTrainer, folder, model=model_of(0.05, seed=1), **ONE, **settings)
    objective = es.make_objective(**from_grpo_config(own.args))
    ours = entropy_trainer(
        folder, model=model_of(0.05, seed=1), objective=objective, **ONE,
    )  # fmt: skip
    return (step_of(trainer, corrected) for trainer in (own, ours))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"epsilon": 0.01, "epsilon_high": 0.02},
        {"epsilon": 0.01, "delta": 1.03},
        {"loss_type": "grpo", "beta": 0.1, "use_bias_correction_kl": False},
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 0.01},
        {"entropy_coef": 0.1, "importance_sampling_level": "sequence"},
        {"entropy_coef": 0.1, "beta": 0.1, "use_bias_correction_kl": False},
    ],
    ids=str,
)
def test_an_equal_objective_has_trls_loss_and_gradient(tmp_path, settings):
    (loss, gradient), (our_loss, our_gradient) = both(tmp_path, **settings)
    # TRL adds 1e-4 to the deviation of rewards, which is .4 and more; 1e-6 here
    near = 1e-5 if settings.get("scale_rewards") == "none" else 5e-4
    assert (our_gradient - gradient).norm() < near * gradient.norm()
    assert our_loss == pytest.approx(loss, rel=near)


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_the_samplers_correction_is_trls(tmp_path, level):
    settings = {"scale_rewards": "none", "beta": 0.1, "use_bias_correction_kl": False}
    (loss, gradient), (our_loss, our_gradient) = both(tmp_path, level, **settings)
    assert (our_gradient - gradient).norm() < 1e-5 * gradient.norm()
    assert our_loss == pytest.approx(loss, rel=1e-5)
    _, plain = step_of(make(trl.GRPOTrainer, tmp_path, model=model_of(0.05, seed=1), **ONE,
                            **settings))  # fmt: skip
    assert (plain - gradient).norm() > 0.1 * gradient.norm()


def test_the_alarms_figures_reach_history_console_and_trackers(tmp_path):
    """With TRL's own trainer, whose trackers are told of a line before the user's callbacks."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import TrainerCallback

    from entrostat.trainers.trl import EntropyAlarm

    told = []

    class Tracker(TrainerCallback):
        """Stands where a tracker's callback does: before the user's."""

        def on_log(self, args, state, control, logs=None, **_):
            told.append("alarm/probability" in logs)

    alarm = EntropyAlarm()
    trainer = make(
        trl.GRPOTrainer, tmp_path, callbacks=[alarm], prompts=PROMPTS * 4, max_steps=8,
        num_iterations=1, learning_rate=1e-5, report_to=["tensorboard"],
    )  # fmt: skip
    trainer.add_callback(Tracker())
    trainer.callback_handler.callbacks.insert(0, trainer.callback_handler.callbacks.pop())
    trainer.train()
    # a forecast needs five values (entrostat.control.Alarm): steps 5 to 8, and the line at the end
    assert told[:8] == [False] * 4 + [True] * 4
    history = ["alarm/probability" in row for row in trainer.state.log_history[:8]]
    assert history == told[:8]
    (file, *_) = tmp_path.rglob("events.out.tfevents*")
    tags = EventAccumulator(str(file.parent)).Reload().Tags()["scalars"]
    assert {"train/alarm/probability", "train/alarm/raised"} <= set(tags)
