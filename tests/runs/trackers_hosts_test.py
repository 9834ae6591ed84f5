"""`--log` under `--host trl` and `--host verl`: their own trackers, told of the same run.

A recipe in TRL is followed by transformers' TensorBoard callback, stopped and resumed; what its
files have is held against the run's metrics.jsonl. veRL is given overrides; `tests/verl_env` has
what is looked at in its own environment.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch

from builders import json_lines, refused
from entrostat.config import TrainConfig, from_dict
from entrostat.logs.importers import read
from entrostat.runs.trackers import services as outside
from entrostat.trainers import trains
from entrostat.trainers.verl import recipe as verl_recipe
from entrostat.trainers.verl.recipe import unseen
from stopping import Stop, StopAfter

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # transformers' own, of TRL's arguments
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def config_of(output: Path, host: str, log: Any, **more: Any) -> TrainConfig:
    data = {
        "method": "grpo", "iterations": 4, "output": str(output), "host": host, "log": log,
        "sampling": {"prompts": 4, "rollouts": 4, "max_new_tokens": 8}, "eval": {"prompts": 0},
        "optim": {"epochs": 1, "minibatches": 2, "lr": 1e-4},
    }  # fmt: skip
    return from_dict(data | more)


# --- TRL ---


def test_what_trl_is_told(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("trl")
    from entrostat.trainers.trl.arguments import arguments, refuse

    log = {"to": ["wandb", "tensorboard"], "project": "p", "name": "n"}
    config = config_of(tmp_path / "run", "trl", log)
    made = arguments(config, 8)
    wanted = {"report_to": ["wandb", "tensorboard"], "run_name": "n", "project": "p"}
    assert {key: made[key] for key in wanted} == wanted
    assert made["logging_steps"] == 2  # a line an iteration
    own = config_of(tmp_path / "run", "trl", log, trl={"logging_steps": 1})
    assert arguments(own, 8)["logging_steps"] == 1
    assert arguments(config_of(tmp_path / "run", "trl", []), 8)["report_to"] == "none"
    theirs = config_of(tmp_path / "run", "trl", [], trl={"report_to": "comet_ml"})
    assert arguments(theirs, 8)["report_to"] == "comet_ml"
    monkeypatch.setattr(outside.util, "find_spec", lambda module: None)
    refused(lambda: refuse(config), "'entrostat[wandb]'")


def test_the_environment_is_told_and_left_as_it_was(tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("trl")
    pytest.importorskip("wandb")
    from entrostat.trainers.trl.trackers import told

    monkeypatch.setenv("WANDB_PROJECT", "mine")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = config_of(tmp_path / "run", "trl", ["wandb", "tensorboard", "mlflow"])
    (tmp_path / "run").mkdir()
    folder = outside.open_folder(config, tmp_path / "run", False)
    outside.write_seal(folder, "mlflow", {"id": "m7", "logged": 3, "place": ""})
    before = dict(os.environ)
    with told(config, tmp_path / "run"):
        assert os.environ["WANDB_PROJECT"] == "mine"  # what the user says stays
        assert os.environ["WANDB_RUN_ID"] == outside.read_seal(folder, "wandb")["id"] != ""
        assert os.environ["WANDB_RESUME"] == "allow"
        assert os.environ["MLFLOW_RUN_ID"] == "m7"
        assert os.environ["MLFLOW_EXPERIMENT_NAME"] == "entrostat"
        assert os.environ["TENSORBOARD_LOGGING_DIR"] == str(folder / "tensorboard")
    assert dict(os.environ) == before


@pytest.fixture(scope="module")
def followed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe in TRL with TensorBoard, stopped after its third iteration and resumed."""
    pytest.importorskip("trl")
    pytest.importorskip("tensorboard")
    folder = tmp_path_factory.mktemp("trl")
    config = config_of(folder / "run", "trl", "tensorboard", save={"checkpoint_every": 2})
    with pytest.raises(Stop):
        trains("trl")(config, progress=StopAfter(3))
    run = trains("trl")(config, resume=True)
    torch.set_num_threads(1)
    return run


def test_a_recipe_in_trl_is_in_tensorboard_once(followed: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    metrics = json_lines(followed / "metrics.jsonl")
    found = EventAccumulator(str(followed / "trackers/tensorboard"), {"scalars": 0})
    found.Reload()
    events = found.Scalars("train/entropy/exact")
    assert [event.step for event in events] == [2, 4, 6, 8]  # optimizer steps, two an iteration
    assert [event.value for event in events] == pytest.approx(
        [row["entropy/exact"] for row in metrics], rel=1e-6
    )
    assert len(list((followed / "trackers/tensorboard").iterdir())) == 2


def test_what_trl_wrote_is_read_as_trl(followed: Path) -> None:
    run = read(followed / "trackers/tensorboard")
    assert run.source == "TRL through TensorBoard"
    assert "EntropyGRPOTrainer" in run.entropy_is
    assert run.problems == ()
    own = read(followed).series("entropy/exact")[1]
    assert run.series("entropy/exact")[1] == pytest.approx(own, rel=1e-6)


class Broken:
    """As a tracker of transformers' that fails at its second step."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, int]] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append(("begin", state.global_step))

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 4:
            raise ConnectionError("gone")
        self.heard.append(("log", state.global_step))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.heard.append(("end", state.global_step))


def test_one_of_trls_that_raises_is_dropped_and_had_steps_are_left_out(tmp_path: Path) -> None:
    pytest.importorskip("trl")
    from entrostat.trainers.trl.trackers import Guarded

    def state(step: int) -> SimpleNamespace:
        return SimpleNamespace(global_step=step, is_world_process_zero=True)

    outside.write_seal(tmp_path, "wandb", {"id": "w1", "logged": 2, "place": ""})
    tracker: Any = Broken()
    guarded: Any = Guarded(tracker, "wandb", tmp_path)
    guarded.on_train_begin(None, state(2), None)
    for step in (1, 2, 3):
        guarded.on_log(None, state(step), None, logs={})
    guarded.on_log(None, state(3), None, logs={})  # the end's summary, at the same step
    with pytest.warns(UserWarning, match="W&B raised ConnectionError: gone. The run goes on"):
        guarded.on_log(None, state(4), None, logs={})
    guarded.on_log(None, state(5), None, logs={})
    guarded.on_train_end(None, state(5), None)
    assert tracker.heard == [("begin", 2), ("log", 3), ("log", 3)]
    assert outside.read_seal(tmp_path, "wandb") == {"id": "w1", "logged": 4, "place": ""}


# --- veRL ---


def test_what_verl_is_told(tmp_path: Path) -> None:
    log = {"to": ["wandb", "tensorboard"], "project": "p", "name": "n"}
    config = config_of(tmp_path / "run", "verl", log, model="tiny")
    (tmp_path / "run").mkdir()
    folder = outside.open_folder(config, tmp_path / "run", False)
    told = verl_recipe.settings(config, unseen(config))
    assert told["trainer.logger"] == ["console", "wandb", "tensorboard", "file"]
    assert (told["trainer.project_name"], told["trainer.experiment_name"]) == ("p", "n")
    prefix = "+ray_kwargs.ray_init.runtime_env.env_vars."
    given = {key.removeprefix(prefix): v for key, v in told.items() if key.startswith(prefix)}
    assert given["WANDB_RUN_ID"] == outside.read_seal(folder, "wandb")["id"] != ""
    assert given["WANDB_RESUME"] == "allow"
    assert given["TENSORBOARD_DIR"] == str(folder / "tensorboard")
    # a run that goes on is the same one; a new one is not
    assert outside.open_folder(config, tmp_path / "run", True) == folder
    again = verl_recipe.settings(config, unseen(config))
    assert again == told
    outside.open_folder(config, tmp_path / "run", False)
    assert verl_recipe.settings(config, unseen(config)) != told


def test_without_trackers_verl_is_told_nothing_new(tmp_path: Path) -> None:
    config = config_of(tmp_path / "run", "verl", [], model="tiny")
    told = verl_recipe.settings(config, unseen(config))
    assert told["trainer.logger"] == ["console", "file"]
    assert told["trainer.project_name"] == "entrostat"
    assert not any("WANDB" in key or "TENSORBOARD" in key for key in told)
    more = config_of(
        tmp_path / "run", "verl", "wandb", model="tiny", verl={"trainer.logger": ["swanlab"]}
    )
    told = verl_recipe.settings(more, unseen(more))
    assert told["trainer.logger"] == ["swanlab", "wandb", "file"]
