"""What a page that is served has beside what is written to a file."""

from __future__ import annotations

from dataclasses import dataclass

from ..scripts import Script, single


@dataclass(frozen=True)
class Live:
    """A live page's own parts.

    Attributes:
        version: names the page; another name is another page.
        refresh: seconds after which a browser without JavaScript asks again.
        script: live.js.
        problem: why nothing could be read; empty where something was.
    """

    version: str
    refresh: int
    script: Script
    problem: str = ""


def live_part(version: str, every: float, problem: str = "") -> Live:
    """The parts of a page that is made at most every `every` seconds."""
    return Live(version, max(10, round(every)), single("live/live.js"), problem)
