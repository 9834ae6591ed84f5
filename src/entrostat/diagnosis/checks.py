"""The table of all checks: of settings, of a policy and its rollouts, and of a finished run.

`doctor` checks settings and policy before a run, and the log after it. `diagnose` looks for the
causes of an entropy change. Each fault is one row of the table; each kind of evidence for it is
evaluated in one place.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal

from ..logs.run import Run
from .causes import Cause, Look, Seen, batches, updates
from .events import Event
from .verdict import Judged

Level = Literal["ok", "wrong", "skipped"]
LEAST = 0.1  # causes with a smaller weight are not reported


@dataclass(frozen=True)
class Finding:
    level: Level  # "skipped" if the check does not apply
    evidence: str  # text with its numbers; if skipped, the reason
    fix: str = ""  # what to do if something is wrong
    name: str = ""  # name of the check
    title: str = ""  # title of the check
    source: str = ""  # the paper, or page of entrostat's docs, that shows why it matters

    @property
    def wrong(self) -> bool:
        return self.level == "wrong"

    def to_dict(self) -> dict[str, str]:
        names = ("name", "level", "evidence", "fix", "source")
        return {name: getattr(self, name) for name in names}


def ok(evidence: str) -> Finding:
    return Finding("ok", evidence)


def wrong(evidence: str, fix: str) -> Finding:
    return Finding("wrong", evidence, fix)


def skipped(reason: str) -> Finding:
    return Finding("skipped", reason)


@dataclass(frozen=True)
class Check:
    """One fault to look for. Its functions return a `Finding`, to which `says` adds the name."""

    name: str  # also the name of its functions in the doctor's modules
    title: str
    source: str  # reference that shows why it matters
    module: str = ""  # module of `doctor` that checks policy and rollouts; "" for logs alone
    by_settings: bool = False  # whether settings alone can show the fault
    causes: tuple[Look, ...] = ()  # search a log for causes of an entropy change

    def measured(self, subject: Any) -> Finding:
        return self._look(self.module, subject)

    def recorded(self, record: Any) -> Finding:
        return self._look("recorded", record)

    def planned(self, plan: Any) -> Finding | None:
        """Fault that settings alone show; None if they do not show one."""
        return self._look("settings", plan) if self.by_settings else None

    def says(self, result: Finding) -> Finding:
        return replace(result, name=self.name, title=self.title, source=self.source)

    def _look(self, module: str, at: Any) -> Any:
        # imported late: loads torch and the lab, which logs do not need
        return getattr(import_module(f".doctor.{module}", __package__), self.name)(at)


TABLE = (
    Check("rounding", "log-prob rounding", "REPO App. A.1", "numbers", True),
    Check("cancellation", "entropy cancellation", "docs/numerics.md", "numbers"),
    Check("mismatch", "sampler and trainer", "REPO App. A.2, Fig. 6", "numbers",
          causes=(batches.sampler_mismatch,)),
    Check("temperature", "temperature", "REPO 2: entropy of the policy that samples", "numbers",
          causes=(batches.entropy_definition,)),
    Check("padding", "padding in the mean", "OPEFO Eq. 5: means over a response's tokens",
          "tokens"),
    Check("eos", "eos trained", "DAPO, arXiv 2503.14476, 3.4: truncated responses", "tokens",
          causes=(batches.truncation, batches.length_collapse)),
    Check("group", "group size", "RLOO, arXiv 2402.14740", "tokens", True),
    Check("zero_advantage", "groups with a signal", "DAPO, arXiv 2503.14476, 3.2", "tokens",
          causes=(batches.zero_signal_groups, batches.no_learning_signal,
                  batches.reward_saturated)),
    Check("ratio", "ratio", "OPEFO 3: strictly on-policy, no ratio leaves 1", "acting", True,
          (updates.ratio_one, updates.clip_never, updates.clip_always)),
    Check("selection", "selection and micro-batches", "COV 4.1: over the batch; docs/parity.md",
          "acting"),
    Check("gate", "gates", "PAR 3.2", "acting", True),
    Check("authority", "authority over the target", "docs/thermostat.md", "acting", True,
          (updates.knob_saturated,)),
    Check("penalties", "methods that act", "COV 4.1: the penalty is flat at ratio 1", "acting",
          True, (updates.entropy_bonus,)),
    Check("step", "size of a step", "COV 3.2, REPO 3",
          causes=(updates.learning_rate, updates.policy_gradient)),
    Check("score", "score", "STEER Fig. 8; our study", causes=(batches.score_lost,)),
)  # fmt: skip


def causes_of(run: Run, judged: Judged, events: tuple[Event, ...]) -> tuple[Cause, ...]:
    """Causes of a run's entropy change, the largest weight first.

    If the verdict is "held" or "cannot tell", only causes named like one of the run's events:
    a lost score, a collapsed length, no learning signal.
    """
    seen, looks = Seen(run, judged, events), [look for check in TABLE for look in check.causes]
    if judged.verdict in ("held", "cannot tell"):
        happened = {event.name for event in events}
        looks = [look for look in looks if look.__name__ in happened]
    found = [cause for look in looks if (cause := look(seen)) is not None]
    plain = [cause for cause in found if cause.weight >= LEAST]
    return tuple(sorted(plain, key=lambda cause: -cause.weight))
