"""What a check of the doctor comes to."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Level = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True)
class Finding:
    """What one check found."""

    level: Level  # "skipped" where the check has nothing to look at
    evidence: str  # in words, with its numbers; of what is skipped, why
    fix: str = ""  # what to do, where something is wrong
    name: str = ""  # of the check
    title: str = ""  # the same in words
    source: str = ""  # the paper, or the page of ours, that shows why it matters

    @property
    def wrong(self) -> bool:
        return self.level == "wrong"

    def of(self, name: str, title: str, source: str) -> Finding:
        return replace(self, name=name, title=title, source=source)

    def to_dict(self) -> dict[str, str]:
        names = ("name", "level", "evidence", "fix", "source")
        return {name: getattr(self, name) for name in names}


def ok(evidence: str) -> Finding:
    return Finding("ok", evidence)


def wrong(evidence: str, fix: str) -> Finding:
    return Finding("wrong", evidence, fix)


def skipped(reason: str) -> Finding:
    return Finding("skipped", reason)
