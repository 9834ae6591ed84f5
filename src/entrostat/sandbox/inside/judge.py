"""Tests in one process, the program in another: it can neither see nor change them.

The program's process is forked before the tests arrive. It gets arguments and gives results, both
as JSON; what a test compares is made of plain values alone, so no object of the program's own can
claim to equal everything, and no early exit can pass for a success.

A "script" is the exception: a test that uses the program's classes runs beside them, and a
program that sets out to can lie about it.
"""

from __future__ import annotations

import builtins
import math
import os
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from typing import Any, NoReturn

from . import frames, kernel
from .bodies import ORDERS, execute, module, say

PROGRAM = "__program__"  # in tests: __program__("pow") is the program's pow, not Python's
_LONGEST = 100_000  # values of an iterator that are looked at


def judge(source: str, harden: Callable[[], None]) -> NoReturn:
    """Fork the program, then receive tests and say which pass.

    Args:
        source: the program.
        harden: what takes the last rights; called in both processes, when they need no more.
    """
    ours, theirs = socket.socketpair()
    linux = sys.platform == "linux"
    if linux:
        kernel.set_dumpable(False)  # the program's process may not look into this one
    sys.set_int_max_str_digits(0)  # JSON's numbers are read as texts
    if not os.fork():
        os.close(ORDERS)
        ours.close()
        if linux:
            kernel.set_dumpable(True)
        harden()
        _answer(source, theirs.fileno())
    theirs.close()
    harden()
    tests = frames.receive(ORDERS)
    try:
        program = _Program(ours.fileno())
        passed, error = program.test(tests)
    except (EOFError, ValueError, OSError) as reason:
        passed, error = [], f"the program ended: {reason}"
    os.lseek(ORDERS, 0, os.SEEK_SET)  # the file that they came in
    frames.send(ORDERS, {"passed": passed, "error": error[:1000]})
    os._exit(0)


class _Program:
    """The program, seen from the tests."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._begun = frames.receive(fd)  # what it defines, or what it raised

    def test(self, tests: dict[str, Any]) -> tuple[list[bool], str]:
        """Which tests pass, and why the first that fails does."""
        match self._begun:
            case {"raised": [str(kind), str(text)]}:
                return [], f"{kind}: {text}"
        scope = {name: decode(value) for name, value in self._begun["values"]}
        scope |= {name: _Remote(self, name) for name in self._begun["names"]}
        # what tests compute with is Python's own, whatever the program calls by that name
        scope = {name: scope[name] for name in scope if not hasattr(builtins, name)}
        scope |= {"__name__": "tests", "__builtins__": builtins}
        scope[PROGRAM] = partial(_Remote, self)
        if "entry" in tests:
            scope["candidate"] = _Remote(self, tests["entry"])
        runs: list[Callable[[], Any]] = [
            *(lambda t=t: _execute(t, scope) for t in tests["asserts"]),
            *(lambda t=t: self._expect(*t) for t in tests["calls"]),
            *(lambda t=t: self.ask({"script": t}) for t in tests["scripts"]),
        ]
        passed, first = [], ""
        for run in runs:
            try:
                run()
                passed.append(True)
            except (EOFError, ConnectionError):
                return passed, first or "the program ended"
            except BaseException as error:
                passed.append(False)
                first = first or f"{type(error).__name__}: {error}"
                if not tests["all"]:
                    break
        return passed, first

    def _expect(self, name: str, arguments: list[Any], expected: Any) -> None:
        got = _Remote(self, name)(*arguments)
        if not same(got, expected):
            raise AssertionError(f"{name} gave {got!r:.200}, expected {expected!r:.200}")

    def ask(self, order: dict[str, Any]) -> dict[str, Any]:
        """What the program answers.

        Raises:
            Exception: the one of Python's that it raised, or derived its own from; else
                RuntimeError.
        """
        frames.send(self._fd, order)
        answer = frames.receive(self._fd)
        match answer:
            case {"raised": [str(kind), str(text)]}:
                found = getattr(builtins, kind, None)
                known = isinstance(found, type) and issubclass(found, Exception)
                try:
                    error = found(text) if known else RuntimeError(f"{kind}: {text}")
                except TypeError:  # UnicodeDecodeError takes more
                    error = RuntimeError(f"{kind}: {text}")
                raise error
        return answer


class _Remote:
    """A function of the program's, called over there."""

    def __init__(self, program: _Program, name: str) -> None:
        self._program, self.__name__ = program, name

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        order = {"call": self.__name__, "arguments": encode(arguments), "named": encode(named)}
        answer = self._program.ask(order)
        for given, now in zip(arguments, decode(answer["arguments"]), strict=True):
            if isinstance(given, list):  # what it changed in place
                given[:] = now
            elif isinstance(given, dict | set):
                given.clear()
                given.update(now)
        return decode(answer["value"])


def _answer(source: str, fd: int) -> NoReturn:
    """The program's process: define, then call as asked."""
    scope = module("solution")
    here = os.getpid()
    code = execute(source, "<program>", scope)
    if os.getpid() != here:
        os._exit(code)
    if code:
        frames.send(fd, {"raised": ["SystemExit", f"the program ended with exit code {code}"]})
        os._exit(code)
    public = {name: value for name, value in scope.items() if not name.startswith("_")}
    plain = []
    for name, value in public.items():
        try:
            plain.append((name, encode(value)))
        except (TypeError, RecursionError):
            continue
    names = [name for name, value in public.items() if callable(value)]
    frames.send(fd, {"names": names, "values": plain})
    while True:
        try:
            order = frames.receive(fd)
        except EOFError:
            os._exit(0)
        try:
            answer = _run_script(order["script"]) if "script" in order else _call(scope, order)
        except BaseException as error:
            say(error)
            answer = {"raised": [_kind(error), str(error)[:1000]]}
        if os.getpid() != here:
            os._exit(0)
        frames.send(fd, answer)


def _kind(error: BaseException) -> str:
    """The name of an error's class; of one of the program's own, which of Python's it is."""
    for kind in type(error).__mro__:
        if kind in (Exception, BaseException):
            break
        if getattr(builtins, kind.__name__, None) is kind:
            return kind.__name__
    return type(error).__name__


def _call(scope: dict[str, Any], order: dict[str, Any]) -> dict[str, Any]:
    name = order["call"]
    if hasattr(scope.get("Solution"), name):  # as LeetCode has it
        function = getattr(scope["Solution"](), name)
    elif name in scope:
        function = scope[name]
    else:
        raise NameError(f"name {name!r} is not defined")
    arguments = decode(order["arguments"])
    value = function(*arguments, **decode(order["named"]))
    return {"value": encode(value), "arguments": encode(arguments)}


def _run_script(text: str) -> dict[str, Any]:
    _execute(text, dict(vars(sys.modules["solution"])))
    return {}


def _execute(text: str, scope: dict[str, Any]) -> None:
    exec(compile(text, "<test>", "exec", dont_inherit=True), scope)  # noqa: S102


# a subclass is told as what it derives from, by that one's own means
_PLAIN: dict[type[Any], Callable[[Any], Any]] = {
    bool: bool, int: int.__int__, float: float.__float__, str: str.__str__,
}  # fmt: skip
_SERIES: dict[str, type[Any]] = {"l": list, "t": tuple, "s": set, "f": frozenset}


def encode(value: Any) -> Any:
    """A value as JSON, what JSON has no word for as [kind, parts].

    Raises:
        TypeError: it is no plain data.
    """
    for kind, exactly in _PLAIN.items():
        if isinstance(value, kind):
            return exactly(value)
    if value is None:
        return None
    for word, series in _SERIES.items():
        if isinstance(value, series):
            return [word, [encode(item) for item in value]]
    if isinstance(value, dict):
        return ["d", [[encode(key), encode(item)] for key, item in value.items()]]
    if isinstance(value, complex):
        return ["c", [value.real, value.imag]]
    if isinstance(value, bytes | bytearray):
        return ["b", bytes(value).hex()]
    if isinstance(value, Iterator):
        return ["l", [encode(item) for item in islice(value, _LONGEST)]]
    raise TypeError(f"a {type(value).__name__} is no plain data")


def decode(value: Any) -> Any:
    """What `encode` encoded, made of Python's own types alone."""
    if not isinstance(value, list):
        return value
    kind, parts = value
    if kind == "d":
        return {decode(key): decode(item) for key, item in parts}
    if kind == "c":
        return complex(*parts)
    if kind == "b":
        return bytes.fromhex(parts)
    return _SERIES[kind](decode(item) for item in parts)


def same(got: Any, expected: Any) -> bool:
    """Whether a result is the expected one.

    A tuple equals a list, floats are equal to 1e-9, and True is not 1.
    """
    if isinstance(got, list | tuple) and isinstance(expected, list | tuple):
        return len(got) == len(expected) and all(map(same, got, expected))
    if isinstance(got, dict) and isinstance(expected, dict):
        return got.keys() == expected.keys() and all(same(got[key], expected[key]) for key in got)
    if isinstance(got, bool) or isinstance(expected, bool):
        return got is expected
    numbers = isinstance(got, int | float) and isinstance(expected, int | float)
    if numbers and float in (type(got), type(expected)):
        return got == expected or math.isclose(got, expected, rel_tol=1e-9, abs_tol=1e-9)
    return type(got) is type(expected) and got == expected
