"""The alarm as a callback of any GRPOTrainer, TRL's own or ours."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from ..._text import say
from ...control import Alarm
from ..alarm import Sentinel


class EntropyAlarm(TrainerCallback):
    """Warns when entropy is on its way out of a band; adds `alarm/...` to what is logged.

    The figures are in `state.log_history`, on the console and in every tracker of `report_to`. It
    reads the `entropy` (or our `entropy/exact`) of every logged line that has a reward, and a
    controller's target where one is logged. The defaults' detection and false-alarm rates are in
    docs/diagnose.md. Nothing is stopped: where you want that, `stop=True` ends training after the
    step in which the alarm is raised.

    Args:
        low: where the band begins: nats, or "0.5x" of the first entropy.
        high: where it ends, likewise.
        stop: whether training ends with the alarm.

    Raises:
        ValueError: an end of the band cannot be read.

    Example:
        >>> from trl import GRPOTrainer  # doctest: +SKIP
        >>> GRPOTrainer(..., callbacks=[EntropyAlarm(low="0.6x")])  # doctest: +SKIP
    """

    def __init__(self, low: float | str = "0.5x", high: float | str = "1.5x", stop: bool = False):
        self.stop = stop
        self.sentinel = Sentinel(Alarm(low, high), self._tell)

    def _tell(self, sentence: str) -> None:
        self.told = sentence
        say(sentence)

    told: str | None = None
    """The last alarm's sentence; None before one."""

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """The trainer is made."""
        self._come_first(inspect.currentframe())

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Training begins; callbacks may have been added since the trainer was made."""
        self._come_first(inspect.currentframe())

    def _come_first(self, frame: FrameType | None) -> None:
        """Stand before the trackers, which are told of a line in the order of the callbacks.

        transformers puts the trackers first and gives a callback no way to the list: the handler
        that calls it is taken from the caller's frame. Where there is none nothing is moved.
        """
        handler: Any = frame.f_back.f_locals.get("self") if frame and frame.f_back else None
        callbacks = getattr(handler, "callbacks", None)
        if isinstance(callbacks, list) and self in callbacks:
            others = [callback for callback in callbacks if callback is not self]
            handler.callbacks = [self, *others]  # a new list: the caller walks along the old one

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        """One line of the log."""
        if logs is None or "reward" not in logs:
            return
        entropy = logs.get("entropy/exact", logs.get("entropy"))
        row = {"entropy/exact": entropy, "control/target": logs.get("control/target")}
        figures = {k: v for k, v in self.sentinel.line(row).items() if k.startswith("alarm/")}
        logs |= figures
        history = getattr(state, "log_history", None)
        if history and history[-1].get("reward") == logs["reward"]:  # made before callbacks ran
            history[-1] |= figures
        if self.stop and self.sentinel.alarm.raised:
            control.should_training_stop = True
