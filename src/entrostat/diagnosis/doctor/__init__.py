"""The doctor: finds wrong metrics and methods without effect before a run starts.

settings.py   checks of the settings alone; also run at the start of every `train`
subject.py    what the checks need of a policy and its first rollouts
numbers.py    rounding, cancellation, sampler against trainer, temperature
tokens.py     padding, eos, group sizes, zero-advantage groups
acting.py     ratio, selection, gates, penalties, targets;  cut.py  two ranks
recorded.py   the same checks on a finished run
The checks are rows of `diagnosis.checks`.
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
_REFUSED = ("group",)  # every trainer raises on these before it begins
_SAID_BY_TRL = ("ratio", "penalties")  # EntropyGRPOTrainer reports these when it is constructed


def preflight(config: TrainConfig) -> list[Finding]:
    """Faults that settings alone show, found in milliseconds at the start of a run.

    Empty if the objective cannot be built: the run itself raises then.
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
    """Run all checks, in the order of `CHECKS`, on a policy, its configuration and a few rollouts.

    `rehearse` loads the policy and samples. It is not entered if the settings fail the check of
    the group size.
    """
    plan = settings.plan_of(config)
    found = {check.name: check.planned(plan) for check in CHECKS}
    known = {name: result for name, result in found.items() if result is not None}
    if "group" in known:  # without groups there are no advantages to check
        rest = skipped("there is nothing to train on before the group is mended")
        return [check.says(known.get(check.name, rest)) for check in CHECKS]
    with rehearse() as subject:
        return [
            check.says(known[check.name] if check.name in known else check.measured(subject))
            for check in CHECKS
        ]


def examine_run(run: Run) -> list[Finding]:
    """Run all checks on a finished run, of entrostat or of another trainer."""
    record = recorded.Record(run)
    return [check.says(check.recorded(record)) for check in CHECKS]


def lines(findings: Sequence[Finding]) -> list[str]:
    """One line per finding, two more for a wrong one, and a summary sentence at the end."""
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
    """The rollouts of a file, or the first rollouts of a run: later ones come from other policies.

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
