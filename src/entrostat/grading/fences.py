"""Fenced blocks of Markdown: their positions and languages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

PYTHON = ("python", "py", "python3")
_FENCE = re.compile(
    r"^(?P<indent>[ \t]*(?:(?:[-*+]|\d{1,3}[.)])[ \t]+)?)(?P<fence>`{3,}|~{3,})"
    r"[ \t]*(?P<language>[\w+-]*)[^\n`]*$",
    re.MULTILINE,
)
_DEEPER = 3  # spaces, as in CommonMark
# a line that occurs only in programs
_STATEMENT = re.compile(
    r"^[ \t]*(?:@\w|(?:async )?def \w|class \w|import \w|from \S+ import |print\(|"
    r"(?:for|while|if|with)\b.*:[ \t]*$)",
    re.MULTILINE,
)


class Fenced(NamedTuple):
    """A block: start and end of its content, its language, and whether it has both fences.

    An unclosed block ends where the next one begins, or with the text.
    """

    start: int
    end: int
    language: str  # in lower case, "" if the fence names none
    closed: bool


def fenced(text: str) -> list[Fenced]:
    """The fenced blocks of a text, in order and in linear time.

    A fence indented deeper than the opening one, by more than Markdown allows, is in a docstring
    and does not end the block. The opening fence of the first block may be in the prompt.
    """
    fences = list(_FENCE.finditer(text))
    blocks = _paired(text, fences)
    if all(block.closed for block in blocks) or fences[0]["language"]:
        return blocks
    begins, rest = fences[0].start(), text[fences[0].end() :]
    if rest.strip() and not _STATEMENT.search(text, 0, begins):
        return blocks
    return [Fenced(0, begins, "", False), *_paired(text, fences[1:])]


def programs(text: str) -> list[Fenced]:
    """The closed blocks that are labelled Python or look like it."""
    return [
        block
        for block in fenced(text)
        if block.closed
        and (block.language in PYTHON or _STATEMENT.search(text, block.start, block.end))
    ]


def _paired(text: str, fences: Sequence[re.Match[str]]) -> list[Fenced]:
    blocks: list[Fenced] = []
    opening = None
    for fence in fences:
        if opening is None:
            opening = fence
        elif opening["fence"][0] == fence["fence"][0] and (
            len(fence["indent"]) <= len(opening["indent"]) + _DEEPER
        ):
            blocks.append(_block(opening, fence.start(), not fence["language"]))
            opening = fence if fence["language"] else None
    return [*blocks, _block(opening, len(text), False)] if opening else blocks


def _block(opening: re.Match[str], end: int, closed: bool) -> Fenced:
    return Fenced(opening.end() + 1, end, opening["language"].lower(), closed)
