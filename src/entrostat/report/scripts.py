"""The script of every page, and the policy that lets a browser run only that text.

It consists of uPlot (`vendor/`, unmodified) and the files of `js/`, concatenated: the files share a
scope, and each defines one name in it. The script contains no data, so all pages have the same
script, and a page that is updated while open needs no other.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

# in this order: a file uses names defined before it
FILES = (
    "text", "numbers", "state",
    "curves_data", "curves_chart", "curves_readout", "curves",
    "tokens_data", "tokens_find", "tokens_rows", "tokens_tip", "tokens",
    "pictures", "mount",
)  # fmt: skip


@dataclass(frozen=True)
class Script:
    text: str
    policy: str  # the Content-Security-Policy source that allows only `text`
    style: str = ""  # uPlot's style sheet


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
    """Additions of a served page to a page written to a file."""

    version: str  # identifies the page version
    refresh: int  # seconds after which a browser without JavaScript reloads
    script: Script  # live.js
    problem: str = ""  # why nothing could be read; empty without a problem


def live_part(version: str, every: float, problem: str = "") -> Live:
    text = read_file("live/live.js")
    return Live(version, max(10, round(every)), Script(text, _policy(text)), problem)


def _policy(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"


def read_file(name: str) -> str:
    """Read a file of this package with the line breaks of HTML, over which the hash is computed."""
    package = resources.files(__name__.rpartition(".")[0])
    text = package.joinpath(name).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n").replace("\r", "\n")
