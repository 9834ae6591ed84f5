"""The controllers' state in TRL's checkpoints, and out of them again."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from ...core.objective import Objective


class EntropyControl(TrainerCallback, ExportableState):
    """The controllers' state, in every checkpoint's `trainer_state.json`."""

    def __init__(self, objective: Objective | None = None) -> None:
        self.objective = objective
        self.saved: dict[str, Any] | None = None

    def state(self) -> dict[str, Any]:
        saved = self.saved if self.objective is None else self.objective.state_dict()
        return {"args": {}, "attributes": {"saved": saved}}


class Begin(TrainerCallback):
    """Hands a checkpoint's state to the objective, whether or not transformers restores callbacks.

    It does so only with restore_callback_states_from_checkpoint, and then with a new object.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # the checkpoint's trainer state has been read
        self.trainer.begin(state)
