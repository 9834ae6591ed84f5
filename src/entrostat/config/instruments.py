"""What is measured beside training, when a run warns, and where figures go."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import tyro

from .ranges import MOST_PROMPTS, MOST_TOKENS, check_ranges, within

# the keys of `SERVICES` in runs/trackers/services.py, which has how to add one
Tracker = Literal["wandb", "trackio", "tensorboard", "mlflow"]
_TEXT = re.compile(r"(?:(last|first)([1-9]\d*)?|(mean|min|max|all))\s*(<=|>=|<|>)\s*(\S+)")
_FORMS = "'last10 > 0.5': last, lastN, first, firstN, mean, min, max or all; <, <=, > or >="
_COMPARE = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}


class _Repeated:
    every: int

    def due(self, iteration: int) -> bool:
        """Whether an iteration (1, 2, ...) has one."""
        return self.every > 0 and (iteration == 1 or iteration % self.every == 0)


@dataclass
class Analyze(_Repeated):
    """What updates do to entropy, token by token (docs/dynamics.md); weights stay the same."""

    every: int = within(0, 0)
    """Iterations between analyses, the first iteration among them; 0 for none (the lab, TRL)."""


@dataclass
class Forecast(_Repeated):
    """The change of entropy on fresh prompts, foretold before the updates (docs/dynamics.md)."""

    every: int = within(0, 0)
    """Iterations between forecasts, the first iteration among them; 0 for none (the lab)."""
    prompts: int = within(64, 1)
    """Fresh prompts on which entropy is measured before and after."""
    rollouts: int = within(8, 1)
    """Rollouts of each."""


@dataclass
class AlarmBand:
    """What entropy is to stay within; the alarm says when it is on its way out."""

    low: str = "0.5x"
    """Where the band begins: nats, or a share of the first entropy."""
    high: str = "1.5x"
    """Where it ends, likewise."""

    def check(self) -> None:
        from ..control import Alarm  # numpy and scipy, which `--help` does not need

        Alarm(self.low, self.high)


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
        if len(set(self.to)) < len(self.to):
            raise ValueError(f"log.to names a tracker twice: {', '.join(self.to)}; name each once")
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


@dataclass
class EvalSet:
    """Prompts that a policy is measured on, with settings of their own: a table of `[[eval]]`."""

    name: str | None = None
    """What rows and figures call it; None takes the split's name, or another task's."""
    task: dict[str, Any] | None = None
    """Another task than the run's, by name or as a table with its parameters."""
    split: str | None = None
    """None takes the task's second split, or its only one where the task is another."""
    prompts: int | None = within(None, 0, MOST_PROMPTS)
    """None takes `eval.prompts`; 0 leaves the set out."""
    samples: int | None = within(None, 1, MOST_PROMPTS)
    """None takes `eval.samples`; 1 where the temperature is 0."""
    every: int | None = within(None, 0)
    """None takes `eval.every`."""
    temperature: float | None = within(None, 0)
    """None takes `sampling.temperature`; 0 takes the likeliest token (greedy)."""
    top_p: float | None = within(None, 0, 1, above=True)
    """None takes `sampling.top_p`."""
    max_new_tokens: int | None = within(None, 1, MOST_TOKENS)
    """None takes `sampling.max_new_tokens`, of another task what that task says."""

    def check(self, where: str) -> None:
        check_ranges(self, where)
        if self.temperature == 0 and self.samples not in (None, 1):
            raise ValueError(
                f"{where}temperature 0 gives the same answer {self.samples} times; leave samples "
                "out"
            )
        if self.name == "":
            raise ValueError(f"{where}name is empty; leave it out, or give one")
        if self.task is not None and not isinstance(self.task.get("name"), str):
            raise ValueError(f"{where}task needs a name, got {self.task!r:.80}")


@dataclass
class Evaluation:
    """Measuring the policy before, during and after training."""

    prompts: int = within(64, 0, MOST_PROMPTS)
    """Prompts per split; 0 turns evaluation off."""
    samples: int = within(16, 1, MOST_PROMPTS)
    """Samples per prompt, the k of avg@k and pass@k."""
    every: int = within(0, 0)
    """Iterations between evaluations; 0 evaluates only before the first and after the last."""
    sets: tyro.conf.Suppress[list[EvalSet]] = field(default_factory=list)
    """Sets in place of the task's own held-out splits: `[[eval]]` in a file."""

    @property
    def resolved(self) -> list[Evaluation]:
        """Prompts, samples and iterations of each set, the table's own where it has none."""
        found: list[Evaluation] = []
        for one in self.sets or [EvalSet()]:
            own = {key: getattr(one, key) for key in ("prompts", "samples", "every")}
            own |= {"samples": 1} if one.temperature == 0 else {}
            given = {key: value for key, value in own.items() if value is not None}
            found.append(dataclasses.replace(self, **given))
        return found


@dataclass(frozen=True)
class Expectation:
    """What a figure's iterations must show."""

    figure: str  # the metric's name
    text: str  # as written

    def __post_init__(self) -> None:
        self._read()

    def _read(self) -> tuple[str, int, str, float]:
        found = _TEXT.fullmatch(self.text.strip()) if isinstance(self.text, str) else None
        if found is not None:
            ends, count, of_all, sign, bound = found.groups()
            with suppress(ValueError):
                return ends or of_all, int(count or 1), sign, float(bound)
        raise ValueError(f"expect: {self.figure!r} = {self.text!r} is no assertion; write {_FORMS}")

    def broken(self, values: Sequence[float]) -> str | None:
        """Why the iterations' values do not show it, in a sentence; None where they do."""
        kind, count, sign, bound = self._read()
        if not values:
            return f"expected {self.figure} {self.text}, but no iteration has it"
        part = {"last": values[-count:], "first": values[:count]}.get(kind, values)
        seen = {"min": min(part), "max": max(part)}.get(kind, sum(part) / len(part))
        checked = list(part) if kind == "all" else [seen]
        wrong = [value for value in checked if not _COMPARE[sign](value, bound)]
        return f"expected {self.figure} {self.text}, got {wrong[0]:.6g}" if wrong else None
