"""A place in a list of tokens."""

from __future__ import annotations

from .tree import Token, Unreadable


class Cursor:
    """What a parser has read, and what it reads next."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    def ended(self) -> bool:
        """Whether all has been read."""
        return self._at == len(self._tokens)

    def _peek(self) -> Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> Token:
        token = self._peek()
        if token is None:
            raise Unreadable
        self._at += 1
        return token

    def _take(self, kind: str, value: str) -> bool:
        taken = self._peek() == Token(kind, value)
        self._at += taken
        return taken

    def _expect(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            raise Unreadable

    def _follows(self, kind: str, value: str | None = None) -> bool:
        token = self._peek()
        return token is not None and token.kind == kind and value in (None, token.value)
