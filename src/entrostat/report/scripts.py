"""The one script of every page, and the policy that lets a browser run that text and no other.

It is uPlot (`vendor/`, as published) and the files of `js/`, one after another: the files share a
scope, and each leaves one name in it. A page carries no data in it, so that all pages have the same
script, and a page that is renewed while it is open needs no other.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

# in this order: a file uses the names of those before it
FILES = (
    "text", "numbers", "state",
    "curves_data", "curves_chart", "curves_readout", "curves",
    "tokens_data", "tokens_find", "tokens_rows", "tokens_tip", "tokens",
    "pictures", "mount",
)  # fmt: skip


@dataclass(frozen=True)
class Script:
    text: str
    policy: str  # the source expression that lets a Content-Security-Policy run `text` alone
    style: str = ""  # what uPlot wants of a style sheet


@cache
def script() -> Script:
    ours = "\n".join(read_file(f"js/{name}.js") for name in FILES)
    text = (
        f"/*\n{read_file('vendor/uPlot.LICENSE').strip()}\n*/\n{read_file('vendor/uPlot.iife.min.js')}"
        f'(() => {{\n"use strict";\n{ours}}})();'
    )
    return Script(text, _policy(text), read_file("vendor/uPlot.min.css").strip())


@dataclass(frozen=True)
class Live:
    """What a page that is served has beside what is written to a file."""

    version: str  # names the page; another name is another page
    refresh: int  # seconds after which a browser without JavaScript asks again
    script: Script  # live.js
    problem: str = ""  # why nothing could be read; empty where something was


def live_part(version: str, every: float, problem: str = "") -> Live:
    text = read_file("live/live.js")
    return Live(version, max(10, round(every)), Script(text, _policy(text)), problem)


def _policy(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def read_file(name: str) -> str:
    """A file of this package, with line breaks as HTML reads them: the hash is of what it reads."""
    package = resources.files(__name__.rpartition(".")[0])
    text = package.joinpath(name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
