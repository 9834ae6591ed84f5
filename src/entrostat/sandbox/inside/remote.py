"""Proxies, for tests, of a program's functions, classes and instances in another process.

Every operation on a proxy runs in the program's process. A program cannot fake three things: that
its object equals or exceeds plain data (the object's plain form is compared here), that a class is
one that the tests name, and that it raised an exception that it did not.
"""

from __future__ import annotations

import ast
import builtins
import operator
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from . import frames
from .values import decode, encode

# operations on an object, by method
_COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")
_ARITHMETIC = "add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift".split()
DONE: dict[str, Callable[..., Any]] = {
    "__call__": lambda f, *arguments, **named: f(*arguments, **named),
    "__getattr__": getattr, "__setattr__": setattr, "__delattr__": delattr, "__dir__": dir,
    "__len__": len, "__iter__": iter, "__next__": next, "__reversed__": reversed,
    "__getitem__": operator.getitem, "__setitem__": operator.setitem,
    "__delitem__": operator.delitem, "__contains__": operator.contains,
    "__bool__": bool, "__str__": str, "__repr__": repr, "__hash__": hash, "__format__": format,
    "__int__": int, "__float__": float, "__index__": operator.index, "__abs__": abs,
    "__neg__": operator.neg, "__pos__": operator.pos, "__invert__": operator.invert,
    "__round__": round,
    "__enter__": lambda x: x.__enter__(), "__exit__": lambda x, *error: x.__exit__(*error),
    "__instancecheck__": lambda kind, x: isinstance(x, kind),
    "__subclasscheck__": lambda kind, x: issubclass(x, kind),
    **{f"__{name}__": getattr(operator, name) for name in _COMPARISONS},
    **{f"__{name.strip('_')}__": getattr(operator, name) for name in _ARITHMETIC},
    **{f"__r{name.strip('_')}__": partial(lambda do, a, b: do(b, a), getattr(operator, name))
       for name in _ARITHMETIC},
}  # fmt: skip

FREE = "*"  # functions, classes, iterators, ...: objects whose class is not the program's own
_OF_FREE = frozenset(
    f"__{name}__"
    for name in "call getattr setattr dir len iter next getitem bool str repr hash "
    "enter exit instancecheck subclasscheck".split()
)


class Gone(BaseException):
    """The program's process has ended."""


class Program:
    """A program, as its tests see it; `tests` are sources, which name the visible classes."""

    def __init__(self, fd: int, tests: list[str]) -> None:
        self._fd = fd
        self._named = frozenset(filter(_is_class, set().union(*map(_names, tests))))
        self._objects: dict[Any, Any] = {}
        self.begun = self._frame()  # the program's definitions, or its exception

    def ask(self, do: str, *arguments: Any, **named: Any) -> Any:
        """Run an operation in the program's process; also updates lists and tables in place.

        Raises:
            Exception: the builtin that the program raised, or that its exception derives from.
            Gone: the program has ended.
        """
        try:
            order = {"do": do, "arguments": _sent(arguments), "named": _sent(named)}
            frames.send(self._fd, order)
        except (OSError, RecursionError) as error:
            raise Gone(str(error)) from None
        answer = self._frame()
        if "raised" in answer:
            raise self._error(answer["raised"], answer["text"])
        for given, now in zip(arguments, self.decoded(answer["arguments"]), strict=True):
            if isinstance(given, list):
                given[:] = now
            elif isinstance(given, dict | set):
                given.clear()
                given.update(now)
        return self.decoded(answer["value"])

    def _frame(self) -> Any:
        try:
            return frames.receive(self._fd)
        except (EOFError, OSError, ValueError) as error:
            raise Gone(f"the program ended: {error}") from None

    def decoded(self, value: Any) -> Any:
        return decode(value, self._found)

    def _found(self, parts: list[Any]) -> Any:
        number, kind, errors, plain = parts
        if errors:
            return self._objects.setdefault(number, self._class(errors))
        if kind == FREE or kind in self._named:
            return self._objects.setdefault(number, Remote(self, number, kind == FREE))
        return decode(["o", parts]) if plain is None else decode(plain)

    def _class(self, names: list[str]) -> type[BaseException]:
        """An exception's class: made here if the tests name it, else its nearest builtin base."""
        name, *bases = names
        ours = getattr(builtins, name, None)
        if isinstance(ours, type) and issubclass(ours, Exception) and ours is not Exception:
            return ours
        base = self._class(bases) if bases else Exception
        if name not in self._named:
            return base
        key = (name, *bases)
        if key not in self._objects:
            self._objects[key] = type(name, (base,), {})
        return self._objects[key]

    def _error(self, names: list[str], text: str) -> BaseException:
        kind = self._class(names)
        try:
            if kind is not Exception or names[0] == "Exception":
                return kind(text)
        except TypeError:  # UnicodeDecodeError takes more arguments
            pass
        return RuntimeError(f"{names[0]}: {text}")


def _names(source: str) -> set[str]:
    """The names in a source, including attributes."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError, RecursionError):
        return set()
    words = (getattr(n, "id", None) or getattr(n, "attr", None) or getattr(n, "name", None)
             for n in nodes)  # fmt: skip
    return {word for word in words if isinstance(word, str)}


def _is_class(name: str) -> bool:
    return name[:1].isupper() and not hasattr(builtins, name)


class Remote:
    """A proxy of the program's object; it is `free` if its class is not the program's own."""

    __slots__ = ("_free", "_number", "_program")
    _free: bool
    _number: int
    _program: Program

    def __init__(self, program: Program, number: int, free: bool) -> None:
        for name, value in (("_program", program), ("_number", number), ("_free", free)):
            object.__setattr__(self, name, value)


def _forward(name: str) -> Callable[..., Any]:
    def method(self: Remote, *arguments: Any, **named: Any) -> Any:
        if self._free and name not in _OF_FREE:
            raise TypeError("an object of no class that the tests name")
        if name == "__iter__":  # also for objects with only __getitem__
            return iter(_items(self))
        if name == "__exit__":
            arguments = (None, None, None)
        return self._program.ask(name, self, *arguments, **named)

    return method


def _items(remote: Remote) -> Any:
    iterator = remote._program.ask("__iter__", remote)
    if not isinstance(iterator, Remote):
        yield from iterator
        return
    while True:
        try:
            item = remote._program.ask("__next__", iterator)
        except StopIteration:
            return
        yield item


def _compare(name: str) -> Callable[..., Any]:
    def method(self: Remote, other: Any) -> Any:
        if isinstance(other, Remote):
            return self._program.ask(name, self, other)
        plain = self._program.ask("plain", self)
        return NotImplemented if plain is None else DONE[name](plain[0], other)

    return method


for _name in DONE:
    _compared = _name[2:-2] in _COMPARISONS
    setattr(Remote, _name, (_compare if _compared else _forward)(_name))


def _sent(value: Any) -> Any:
    """Encode arguments; proxies become the program's numbers."""
    return encode(value, lambda one, plain: ["o", [_number(one), "", None, None]])


def _number(value: Any) -> int:
    if type(value) is not Remote:
        raise TypeError(f"a {type(value).__name__} cannot be handed to the program")
    return value._number


def module(program: Program, names: dict[str, Any]) -> types.ModuleType:
    """The module `solution` of tests, with the program's definitions only."""
    made = types.ModuleType("solution")
    vars(made).update(names)
    return made
