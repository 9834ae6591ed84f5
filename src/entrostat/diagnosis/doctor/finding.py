"""What a check of the doctor comes to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "wrong", "skipped"]


@dataclass(frozen=True)
class Result:
    """What one check found, before it is known whose it is.

    Attributes:
        level: "ok", "wrong", or "skipped" where the check has nothing to look at.
        evidence: in words, with its numbers; of what is skipped, why.
        fix: what to do; "" where nothing is wrong.
    """

    level: Level
    evidence: str
    fix: str = ""


@dataclass(frozen=True)
class Finding(Result):
    """What one check found.

    Attributes:
        name: of the check.
        title: the same in words.
        source: the paper, or the page of ours, that shows why it matters.
    """

    name: str = ""
    title: str = ""
    source: str = ""

    @property
    def wrong(self) -> bool:
        """Whether something is to be mended."""
        return self.level == "wrong"

    def to_dict(self) -> dict[str, str]:
        """Plain data, for a program."""
        names = ("name", "level", "evidence", "fix", "source")
        return {name: getattr(self, name) for name in names}


def ok(evidence: str) -> Result:
    """Nothing is wrong."""
    return Result("ok", evidence)


def wrong(evidence: str, fix: str) -> Result:
    """Something is."""
    return Result("wrong", evidence, fix)


def skipped(reason: str) -> Result:
    """There is nothing to look at."""
    return Result("skipped", reason)
