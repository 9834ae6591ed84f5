"""Texts of prompts, completions and tokens, cut to what a page can hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...logs.rollouts import Rollouts

CHARACTERS = 4000  # of one prompt, or of a completion as plain text
PIECE = 200  # characters of one token


def shortened(text: str) -> str:
    """The first characters of a long text, with a word on how many follow."""
    if len(text) <= CHARACTERS:
        return text
    return f"{text[:CHARACTERS]} [... {len(text) - CHARACTERS} more characters]"


def visible(text: str) -> str:
    """Line breaks get a sign before them: a shaded token has to be seen."""
    return text.replace("\n", "↵\n")


def spelled(r: Rollouts, i: int) -> bool:
    """Whether the tokens' texts make up the completion."""
    ids = r.tokens[r.rows(i)].tolist()
    body = ids[:-1] if r.finished[i] else ids
    texts = [r.pieces.get(token, "") for token in body]
    return "".join(texts) == r.completions[i] and max(map(len, texts), default=0) <= PIECE
