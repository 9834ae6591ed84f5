"""What users of TRL ran into, as they wrote it: each has to give the right thing."""

import warnings

import pytest

import entrostat as es
from builders import refused
from entrostat.trainers.trl import from_grpo_config

trl = pytest.importorskip("trl", reason="trl is an extra")
from transformers import TrainerCallback  # noqa: E402

from entrostat.trainers.trl import EntropyAlarm, EntropyGRPOTrainer  # noqa: E402
from long_cases import keep  # noqa: E402
from trl_runs import (  # noqa: E402
    MARKS,
    PROMPTS,
    entropy_trainer,
    make,
    model_of,
    tiny,
)

pytestmark = MARKS


@pytest.mark.parametrize(
    "settings",
    [
        {"epsilon_high": 0.28, "entropy_coef": 0.01},  # the documented example
        {"top_entropy_quantile": 0.2},
        {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 2e-3},
        {"loss_type": "dr_grpo", "scale_rewards": "none"},
        {"scale_rewards": False},
        {"beta": 0.04},
    ],
    ids=str,
)
def test_the_objective_of_a_config_beside_that_config(tmp_path, settings):
    """With a thermostat appended, as `diagnose` prints it; nothing is refused or warned of."""
    model = tiny() if "beta" in settings else model_of()

    def build(*args, **kwargs):
        own = from_grpo_config(kwargs["args"])
        own["method"].append({"name": "thermostat", "target": "0.7x"})
        return EntropyGRPOTrainer(*args, objective=es.make_objective(**own), **kwargs)

    trainer = make(build, tmp_path, model=model, **settings)
    assert trainer.objective.names[-1] == "thermostat"


def test_adaptive_entropy_and_a_thermostat_are_two_hands_on_one_knob(tmp_path):
    args = trl.GRPOConfig(str(tmp_path), use_cpu=True, use_adaptive_entropy=True, entropy_coef=0.01)
    own = from_grpo_config(args)
    own["method"].append({"name": "thermostat", "target": "0.7x"})
    refused(lambda: es.make_objective(**own), "adaptive_entropy")


class Tracker(TrainerCallback):
    """Stands where W&B's and TensorBoard's stand: before the user's callbacks."""

    def __init__(self):
        self.lines = []

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.lines.append(dict(logs))


@pytest.mark.parametrize("ours", keep([False, True], True))
def test_the_alarms_figures_reach_trackers_and_the_log_history(tmp_path, ours):
    tracker, more = Tracker(), {"objective": "grpo_token"} if ours else {}
    cls = entropy_trainer if ours else lambda *a, **k: make(trl.GRPOTrainer, *a, **k)
    trainer = cls(
        tmp_path, prompts=PROMPTS * 8, max_steps=8, callbacks=[EntropyAlarm()],
        report_to=["tensorboard"], num_iterations=1, **more,
    )  # fmt: skip
    trainer.callback_handler.callbacks.insert(0, tracker)
    trainer.train()
    said = [line for line in trainer.state.log_history if "alarm/probability" in line]
    assert said
    seen = [line for line in tracker.lines if "alarm/probability" in line]
    assert [x["alarm/probability"] for x in said] == [x["alarm/probability"] for x in seen]
    assert tensorboard(tmp_path, "train/alarm/probability") == pytest.approx(
        [x["alarm/probability"] for x in said]
    )
    if ours:
        assert len(tensorboard(tmp_path, "train/entropy/exact")) == 8


def tensorboard(folder, name):
    """The values of a scalar in the event files below a folder."""
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    values = []
    for place in sorted({path.parent for path in folder.rglob("events*")}):
        events = reading.EventAccumulator(str(place))
        events.Reload()
        values += (
            [x.value for x in events.Scalars(name)] if name in events.Tags()["scalars"] else []
        )
    return values


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"top_p": 0.5}, "top_p=0.5 samples from another"),
        ({"top_k": 5, "min_p": 0.1}, "top_k=5, min_p=0.1 samples from another"),
        ({"generation_kwargs": {"top_p": 0.9}}, "top_p=0.9 samples from another"),
        ({"repetition_penalty": 1.5}, "repetition_penalty=1.5 samples from another"),
        ({"generation_kwargs": {"temperature": 0.5}}, "temperature=0.5 samples .* temperature=0.9"),
        ({"generation_kwargs": {"do_sample": False}}, "do_sample=False samples from another"),
        ({"generation_kwargs": {"num_beams": 2}}, "num_beams=2 samples from another"),
    ],
)
def test_truncated_sampling_is_warned_of(tmp_path, settings, words):
    with pytest.warns(UserWarning, match=words):
        entropy_trainer(tmp_path, objective=None, **settings)


def test_temperature_alone_is_not(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        same = {"temperature": 0.6, "do_sample": True, "max_new_tokens": 5}
        entropy_trainer(
            tmp_path, objective=None, temperature=0.6, top_k=0, top_p=1.0, generation_kwargs=same
        )
