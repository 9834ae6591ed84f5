"""The entropy alarm as a callback of any GRPOTrainer, TRL's own or ours."""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import CallbackHandler

from ..._text import say
from ...control import Alarm
from ...runs.entropy_monitor import EntropyMonitor
from ...runs.trackers.services import alert_here


class EntropyAlarm(TrainerCallback):
    """Warns when entropy is about to leave a band; adds `alarm/...` to the logged metrics.

    It reads `entropy` (or our `entropy/exact`) of every logged line that has a reward, and a
    controller's target if one is logged. The defaults' detection and false-alarm rates are in
    docs/diagnosis_rules.md. By default training continues; `stop=True` ends it after the step in
    which the alarm is raised.

    Args:
        low: lower end of the band: nats, or "0.5x" of the first entropy.
        high: upper end, likewise.
        stop: whether the alarm ends training.

    Raises:
        ValueError: an end of the band cannot be parsed.

    Example:
        >>> from trl import GRPOTrainer  # doctest: +SKIP
        >>> GRPOTrainer(..., callbacks=[EntropyAlarm(low="0.6x")])  # doctest: +SKIP
    """

    def __init__(self, low: float | str = "0.5x", high: float | str = "1.5x", stop: bool = False):
        self.stop = stop
        self.told: str | None = None
        """The last alarm's sentence; None before one."""
        self._trackers: Collection[str] = ()
        self.sentinel = EntropyMonitor(Alarm(low, high), self._tell)

    def _tell(self, sentence: str) -> None:
        self.told = sentence
        say(sentence)
        alert_here(self._trackers, sentence)

    def on_init_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _to_the_front(self)

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        _to_the_front(self)
        self._trackers = args.report_to or ()

    def on_log(
        self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any
    ) -> None:
        if logs is None or "reward" not in logs:
            return
        entropy = logs.get("entropy/exact", logs.get("entropy"))
        row = {"entropy/exact": entropy, "control/target": logs.get("control/target")}
        found = {k: v for k, v in self.sentinel.line(row).items() if k.startswith("alarm/")}
        logs |= found
        history = getattr(state, "log_history", None)
        if history and history[-1].get("reward") == logs["reward"]:  # added before callbacks ran
            history[-1] |= found
        if self.stop and self.sentinel.alarm.raised:
            control.should_training_stop = True


def _to_the_front(callback: TrainerCallback) -> None:
    """Move a callback to the front of the handler that is calling it.

    Otherwise trackers of `report_to`, which log the line as they receive it, would run before the
    user's callbacks. transformers passes a callback everything except the handler's list.
    """
    handler = sys._getframe(2).f_locals.get("self")
    if isinstance(handler, CallbackHandler) and callback in handler.callbacks:
        handler.callbacks.remove(callback)
        handler.callbacks.insert(0, callback)
