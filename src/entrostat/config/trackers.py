"""The settings of experiment trackers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

# the keys of `SERVICES` in runs/trackers/services.py, which has how to add one
Tracker = Literal["wandb", "trackio", "tensorboard", "mlflow"]


@dataclass
class Trackers:
    """Where figures go beside metrics.jsonl, which has them always (docs/trackers.md)."""

    to: tuple[Tracker, ...] = ()
    """Trackers, each an extra of its name; `--log wandb tensorboard` for short."""
    project: str = "entrostat"
    """Name of the project (of the experiment, in MLflow)."""
    name: str = ""
    """Name of the run in it; "" takes that of the run's directory."""

    def check(self, trl: Mapping[str, Any]) -> None:
        """Refuse what cannot be meant, beside a table of TRL's own arguments."""
        twice = [name for place, name in enumerate(self.to) if name in self.to[:place]]
        if twice:
            raise ValueError(f"log.to names {twice[0]!r} twice; name each tracker once")
        for key, text in (("project", self.project), ("name", self.name)):
            if any(ord(c) < 32 for c in text) or len(text) > 128 or "/" in text:
                raise ValueError(
                    f"log.{key} is {text!r:.60}; trackers take names of one line, of at most 128 "
                    "characters, without a slash"
                )
        if not self.project.strip():
            raise ValueError("log.project is empty; name one")
        if self.to and "report_to" in trl:
            raise ValueError(
                f"trl.report_to is {trl['report_to']!r} and log.to names {', '.join(self.to)}; "
                "log.to says it in every host alike: drop trl.report_to"
            )
