"""The checks, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ...config import TrainConfig
from ...logs.run import Run
from . import acting, knobs, numbers, recorded, settings, tokens
from .finding import Finding, Result, skipped
from .subject import Subject


@dataclass(frozen=True)
class Check:
    """One fault that is looked for.

    Attributes:
        name: of it.
        title: the same in words.
        source: where it is shown to matter.
        measured: looks at a policy and its rollouts.
        recorded: looks at what a run left.
        planned: looks at the settings alone, and says what is wrong or nothing.
    """

    name: str
    title: str
    source: str
    measured: Callable[[Any], Result]
    recorded: Callable[[recorded.Record], Result]
    planned: Callable[[settings.Plan], Result | None] | None = None

    def says(self, result: Result) -> Finding:
        """The result under this check's name."""
        return Finding(
            result.level, result.evidence, result.fix, self.name, self.title, self.source
        )


CHECKS = (
    Check("rounding", "log-prob rounding", "REPO App. A.1", numbers.rounding,
          recorded.rounding, settings.rounding),
    Check("cancellation", "entropy cancellation", "docs/numerics.md", numbers.cancellation,
          recorded.cancellation),
    Check("mismatch", "sampler and trainer", "REPO App. A.2, Fig. 6", numbers.mismatch,
          recorded.mismatch),
    Check("temperature", "temperature", "REPO 2: entropy of the policy that samples",
          numbers.temperature, recorded.temperature),
    Check("padding", "padding in the mean", "OPEFO Eq. 5: means over a response's tokens",
          tokens.padding, recorded.padding),
    Check("eos", "eos trained", "DAPO, arXiv 2503.14476, 3.4: truncated responses", tokens.eos,
          recorded.eos),
    Check("group", "group size", "RLOO, arXiv 2402.14740", tokens.group, recorded.group,
          settings.group),
    Check("zero_advantage", "groups with a signal", "DAPO, arXiv 2503.14476, 3.2",
          tokens.zero_advantage, recorded.zero_advantage),
    Check("ratio", "ratio", "OPEFO 3: strictly on-policy, no ratio leaves 1", acting.ratio,
          recorded.ratio, settings.ratio),
    Check("selection", "selection and micro-batches", "COV 4.1: over the batch; docs/parity.md",
          acting.selection, recorded.selection),
    Check("gate", "gates", "PAR 3.2", acting.gate, recorded.gate, settings.gate),
    Check("authority", "authority over the target", "docs/thermostat.md", knobs.authority,
          recorded.authority, settings.authority),
    Check("penalties", "methods that act", "COV 4.1: the penalty is flat at ratio 1",
          acting.penalties, recorded.penalties, settings.penalties),
)  # fmt: skip

_REFUSED = ("group",)  # by every host, before it begins
_SAID_BY_TRL = ("ratio", "penalties")  # by EntropyGRPOTrainer as it is made


def preflight(config: TrainConfig) -> list[Finding]:
    """What the settings alone show to be wrong, in milliseconds: for the start of a run.

    Empty where the objective cannot be built, which the run itself refuses.
    """
    try:
        plan = settings.plan_of(config)
    except ValueError:
        return []
    said = _REFUSED + (_SAID_BY_TRL if config.host == "trl" else ())
    found = [(check, _planned(check, plan)) for check in CHECKS if check.name not in said]
    return [check.says(result) for check, result in found if result is not None]


def _planned(check: Check, plan: settings.Plan) -> Result | None:
    return None if check.planned is None else check.planned(plan)


def examine_subject(
    config: TrainConfig, rehearse: Callable[[], AbstractContextManager[Subject]]
) -> list[Finding]:
    """Every check, on a policy, its configuration and a few rollouts.

    Args:
        config: of a run.
        rehearse: loads the policy and samples; entered only if the settings alone leave something
            to measure.

    Returns:
        One finding a check, in the order of `CHECKS`.
    """
    plan = settings.plan_of(config)
    found = {check.name: _planned(check, plan) for check in CHECKS}
    known = {name: result for name, result in found.items() if result is not None}
    if "group" in known:  # there are no advantages to go on with
        rest = skipped("there is nothing to train on before the group is mended")
        return [check.says(known.get(check.name, rest)) for check in CHECKS]
    with rehearse() as subject:
        return [
            check.says(known[check.name] if check.name in known else check.measured(subject))
            for check in CHECKS
        ]


def examine_run(run: Run) -> list[Finding]:
    """Every check, on what a run left: ours or another trainer's."""
    record = recorded.Record(run)
    return [check.says(check.recorded(record)) for check in CHECKS]


def lines(findings: Sequence[Finding]) -> list[str]:
    """A line a finding, two more for one that is wrong, and a sentence at the end."""
    words = {"ok": "ok", "wrong": "WRONG", "skipped": "-"}
    width = max((len(f.title) for f in findings), default=0)
    out = []
    for f in findings:
        out.append(f"{words[f.level]:<6} {f.title:<{width}}  {f.evidence}")
        if f.wrong:
            out.append(f"{'':<6} {'':<{width}}  mend: {f.fix}")
            out.append(f"{'':<6} {'':<{width}}  see: {f.source}")
    return [*out, "", summary(findings)]


def summary(findings: Sequence[Finding]) -> str:
    """How many checks found what."""
    bad = [f.title for f in findings if f.wrong]
    asked = sum(f.level != "skipped" for f in findings)
    if bad:
        return f"{len(bad)} of {asked} checks found something wrong: {', '.join(bad)}."
    rest = len(findings) - asked
    return f"{asked} checks, nothing wrong" + (f"; {rest} do not apply." if rest else ".")
