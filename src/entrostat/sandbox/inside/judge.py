"""Tests in one process, the program in another, which can neither see nor change them.

The program's process is forked before the tests arrive. Arguments and results are sent as JSON, and
tests compare plain values (`values`). So no object of the program can claim to equal everything,
and an early exit does not count as success. Tests import the program, with its classes, as
`solution` (`remote`).
"""

from __future__ import annotations

import builtins
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from . import frames, kernel, nodes
from .bodies import ORDERS, execute, module, say
from .remote import DONE, FREE, Gone, Program
from .remote import module as solution
from .values import decode, encode, same


def judge(source: str, prelude: str, harden: Callable[[], None]) -> NoReturn:
    """Fork the program, then receive tests and report which pass.

    `harden` drops the remaining rights; both processes call it once they need none.
    """
    ours, theirs = socket.socketpair()
    linux = sys.platform == "linux"
    if linux:
        kernel.set_dumpable(False)  # the program's process must not inspect this one
    sys.set_int_max_str_digits(0)  # JSON integers of any length
    if not os.fork():
        os.close(ORDERS)
        ours.close()
        if linux:
            kernel.set_dumpable(True)
        harden()
        _answer(source, prelude, theirs.fileno())
    theirs.close()
    harden()
    tests = frames.receive(ORDERS)
    try:
        passed, error = _test(Program(ours.fileno(), tests["asserts"]), tests)
    except Gone as reason:
        passed, error = [], str(reason)
    os.lseek(ORDERS, 0, os.SEEK_SET)  # the file that contained the tests
    frames.send(ORDERS, {"passed": passed, "error": error[:1000]})
    os._exit(0)


def _test(program: Program, tests: dict[str, Any]) -> tuple[list[bool], str]:
    begun = program.begun
    if "raised" in begun:
        return [], f"{begun['raised'][0]}: {begun['text']}"
    names = {name: program.decoded(value) for name, value in begun["values"]}
    names |= {name: program.decoded(value) for name, value in begun["names"]}
    sys.modules["solution"] = solution(program, names)
    # tests use Python's builtins, even if the program redefines them
    scope = {name: names[name] for name in names if not hasattr(builtins, name)}
    scope |= {"__name__": "tests", "__builtins__": builtins}
    runs: list[Callable[[], Any]] = [
        *(lambda t=t: exec(compile(t, "<test>", "exec", dont_inherit=True), scope)  # noqa: S102
          for t in tests["asserts"]),
        *(lambda t=t: _expect(program, *t) for t in tests["calls"]),
    ]  # fmt: skip
    passed, first = [], ""
    for run in runs:
        try:
            run()
            passed.append(True)
        except Gone as error:
            return passed, first or str(error)
        except BaseException as error:
            passed.append(False)
            first = first or f"{type(error).__name__}: {error}"
            if not tests["all"]:
                break
    return passed, first


def _expect(program: Program, name: str, arguments: list[Any], expected: Any) -> None:
    got = program.ask(f"call {name}", *arguments)
    if not same(got, expected):
        shown = f"{got!r:.200}" if type(got).__module__ == "builtins" else f"a {type(got).__name__}"
        raise AssertionError(f"{name} gave {shown}, expected {expected!r:.200}")


class _Objects:
    """Objects that the tests have a handle of, by number."""

    def __init__(self) -> None:
        self._kept: list[Any] = []
        self._numbers: dict[int, int] = {}

    def handle(self, value: Any, plain: Any) -> list[Any]:
        number = self._numbers.setdefault(id(value), len(self._kept))
        if number == len(self._kept):
            self._kept.append(value)
        error = isinstance(value, type) and issubclass(value, BaseException)
        kind = type(value).__name__ if type(value).__module__ == "solution" else FREE
        return ["o", [number, kind, _names(value) if error else None, plain]]

    def found(self, parts: list[Any]) -> Any:
        return self._kept[parts[0]]


def _answer(source: str, prelude: str, fd: int) -> NoReturn:
    scope, objects = module("solution"), _Objects()
    if prelude:
        fallback: dict[str, Any] = {"__name__": "solution"}
        exec(prelude, fallback)  # noqa: S102 - trusted
        scope["__builtins__"] = fallback | vars(builtins)
    here = os.getpid()
    code = execute(source, "<program>", scope)
    if os.getpid() != here:
        os._exit(code)
    if code:
        frames.send(fd, _raised(SystemExit(f"the program ended with exit code {code}")))
        os._exit(code)
    public = {name: value for name, value in scope.items() if not name.startswith("_")}
    plain, names = [], []
    for name, value in public.items():
        try:
            plain.append((name, encode(value)))
        except (TypeError, RecursionError):
            if callable(value):
                names.append((name, objects.handle(value, None)))
    frames.send(fd, {"names": names, "values": plain})
    while True:
        try:
            order = frames.receive(fd)
        except EOFError:
            os._exit(0)
        try:
            answer = _done(scope, objects, order)
        except BaseException as error:
            say(error)
            answer = _raised(error)
        if os.getpid() != here:
            os._exit(0)
        frames.send(fd, answer)


def _raised(error: BaseException) -> dict[str, Any]:
    return {"raised": _names(type(error)), "text": str(error)[:1000]}


def _names(kind: type) -> list[str]:
    """Names of an exception's class and its bases, up to the first builtin one."""
    names = []
    for one in kind.__mro__:
        names.append(one.__name__)
        if getattr(builtins, one.__name__, None) is one:
            break
    return names


def _done(scope: dict[str, Any], objects: _Objects, order: dict[str, Any]) -> dict[str, Any]:
    do = order["do"]
    arguments = decode(order["arguments"], objects.found)
    named = decode(order["named"], objects.found)
    if do == "plain":
        try:
            return {"value": ["t", [encode(arguments[0])]], "arguments": ["l", [None]]}
        except TypeError:
            return {"value": None, "arguments": ["l", [None]]}
    if do.startswith("call "):
        classes = (
            scope["__builtins__"] | scope if isinstance(scope["__builtins__"], dict) else scope
        )
        value = nodes.called(_function(scope, do.removeprefix("call ")), arguments, classes)
    else:
        value = DONE[do](*arguments, **named)
    return {"value": encode(value, objects.handle), "arguments": encode(arguments, objects.handle)}


def _function(scope: dict[str, Any], name: str) -> Any:
    if hasattr(scope.get("Solution"), name):  # LeetCode's form
        return getattr(scope["Solution"](), name)
    if name not in scope:
        raise NameError(f"name {name!r} is not defined")
    return scope[name]
