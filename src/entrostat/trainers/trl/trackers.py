"""TRL's own trackers (`report_to`) in a recipe's run: they resume, and cannot end the run.

They are transformers callbacks in the training process. A tracker that raises is dropped with a
warning; one that hangs, hangs the run. Their step is TRL's optimizer step.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import (
    MLflowCallback,
    TensorBoardCallback,
    TrackioCallback,
    WandbCallback,
)

from ...config import TrainConfig
from ...runs.trackers.services import (
    FOLDER,
    environment,
    logged_in,
    read_seal,
    warn_of,
    write_seal,
)

_KINDS = {
    WandbCallback: "wandb", TrackioCallback: "trackio", TensorBoardCallback: "tensorboard",
    MLflowCallback: "mlflow",
}  # fmt: skip


@contextmanager
def told(config: TrainConfig, path: Path) -> Iterator[None]:
    """Set the trackers' environment variables within the context; the user's values stay."""
    before = dict(os.environ)
    for key, value in environment(config, path).items():
        os.environ.setdefault(key, value)
    if "wandb" in config.log.to:
        import wandb

        os.environ.setdefault("WANDB_SILENT", "true")
        os.environ.setdefault("WANDB_CONSOLE", "off")  # the run owns the terminal
        if "WANDB_MODE" not in os.environ:
            if not logged_in():
                os.environ["WANDB_MODE"] = "offline"
            wandb.teardown()  # W&B has already read the environment and would not read it again
    try:
        yield
    finally:
        for key in set(os.environ) - set(before):
            if key.startswith(("WANDB_", "MLFLOW_", "TENSORBOARD_")):
                del os.environ[key]


def guard(trainer: Any, path: Path) -> None:
    """Wrap a trainer's trackers: skip steps already logged, drop trackers that raise."""
    callbacks = trainer.callback_handler.callbacks
    for place, callback in enumerate(callbacks):
        if type(callback) in _KINDS:
            callbacks[place] = Guarded(callback, _KINDS[type(callback)], path / FOLDER)


class Guarded(TrainerCallback):
    """Wrapper of a transformers tracker under our name; its seal is in `folder`."""

    def __init__(self, tracker: TrainerCallback, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self._tracker: TrainerCallback | None = tracker
        self._before = read_seal(folder, name)["logged"]
        for event in dir(TrainerCallback):
            if event.startswith("on_"):
                setattr(self, event, partial(self._hand_on, event))

    def _hand_on(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if self._tracker is None or (event == "on_log" and step <= self._before):
            return
        try:
            if event == "on_log" and state.is_world_process_zero:
                self._seal(step)
            getattr(self._tracker, event)(args, state, control, **kwargs)
            if event == "on_train_begin" and state.is_world_process_zero:
                self._seal(self._before)
        except Exception as error:
            self._tracker = None
            warn_of(self.name, error)

    def _seal(self, step: int) -> None:
        """Store the id by which the tracker resumes, and the step that it is about to log."""
        known = read_seal(self.folder, self.name)["id"]
        if self.name == "mlflow":
            import mlflow

            run = mlflow.active_run()
            known = known if run is None else run.info.run_id
        write_seal(self.folder, self.name, {"id": known, "logged": step, "place": ""})
