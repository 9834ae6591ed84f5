"""A place in a list of tokens."""

from __future__ import annotations

from .tree import RELATIONS, Token, Unreadable


class Cursor:
    """What a parser has read, what it reads next, and signs that are several tokens."""

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

    def _relation_sign(self) -> str | None:
        token = self._peek()
        if token is None or token.kind not in ("sign", "command"):
            return None
        sign = RELATIONS.get(str(token.value))
        if sign is None:
            return None
        self._at += 1
        if sign in "<>" and self._take("sign", "="):
            sign += "="
        return sign

    def _plus_minus(self) -> str | None:
        for name in ("pm", "mp"):
            if self._take("command", name):
                return f"\\{name}"
        return None

    def _subscript(self) -> str:
        if not self._take("sign", "{"):
            token = self._next()
            if token.kind not in ("number", "word") or len(str(token.value)) > 2:
                raise Unreadable
            return str(token.value)
        said = ""
        while not self._take("sign", "}"):
            token = self._next()
            if token.kind not in ("number", "word", "text") and token.value != ",":
                raise Unreadable
            said += str(token.value)
        return said
