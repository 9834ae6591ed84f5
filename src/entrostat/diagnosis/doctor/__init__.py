"""The doctor: what makes a run's figures untrue, or a method idle, found before it starts.

settings.py   by the settings alone: also at the start of every `train`
subject.py    what the checks ask of a policy and its first rollouts
numbers.py    rounding, cancellation, sampler against trainer, temperature
tokens.py     padding, eos, group sizes, groups without a signal
acting.py     ratio, selection, gates, penalties, targets;  cut.py  two ranks
recorded.py   the same by what a run left
The checks themselves are rows of `diagnosis.checks`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ..._moved import moved
from ...config import TrainConfig
from ...logs.files import dump_files
from ...logs.rollouts import Rollouts, load_rollouts
from ...logs.run import Run
from ..checks import TABLE, Finding, skipped
from . import recorded, settings
from .subject import PROMPTS, Subject

__all__ = [
    "CHECKS", "PROMPTS", "Finding", "examine_run", "examine_subject", "lines", "preflight",
    "rollouts_at",
]  # fmt: skip

CHECKS = tuple(check for check in TABLE if check.module)
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
    found = [(check, check.planned(plan)) for check in CHECKS if check.name not in said]
    return [check.says(result) for check, result in found if result is not None]


def examine_subject(
    config: TrainConfig, rehearse: Callable[[], AbstractContextManager[Subject]]
) -> list[Finding]:
    """Every check, in the order of `CHECKS`, on a policy, its configuration and a few rollouts.

    `rehearse` loads the policy and samples; it is entered only if the settings alone leave
    something to measure.
    """
    plan = settings.plan_of(config)
    found = {check.name: check.planned(plan) for check in CHECKS}
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
    bad = [f.title for f in findings if f.wrong]
    asked = sum(f.level != "skipped" for f in findings)
    rest = len(findings) - asked
    end = f"{asked} checks, nothing wrong" + (f"; {rest} do not apply." if rest else ".")
    if bad:
        end = f"{len(bad)} of {asked} checks found something wrong: {', '.join(bad)}."
    return [*out, "", end]


def rollouts_at(path: str | Path) -> Rollouts:
    """The rollouts of a file, or a run's first: its later ones are another policy's.

    Raises:
        ValueError: there are none, or they hold texts without tokens.
    """
    path = Path(path)
    folder = path / "rollouts" if (path / "rollouts").is_dir() else path
    found = load_rollouts(path, min(dump_files(folder), default=None))
    if not len(found.tokens):
        raise ValueError(f"--rollouts {str(path)!r}: it holds texts, but no token ids")
    return found


def __getattr__(name: str) -> Any:
    return moved(__name__, name)
