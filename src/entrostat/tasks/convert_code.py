"""Rows of programming problems: what is asked, and tests in the form that grader "code" takes."""

from __future__ import annotations

import ast
import base64
import binascii
import builtins
import json
import pickletools
import sys
import warnings
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..sandbox.inside.judge import PROGRAM
from .convert import LeftOut, Problem, Row, text_of

_LARGEST = 1 << 28  # bytes of a problem's tests
# the opcodes of a pickle that is one text; whatever else there is would build something
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"})
_KNOWN = sys.stdlib_module_names | {"solution"}  # what tests may import


def own(row: Row) -> Problem:
    """A prompt and tests of the user's own, in the form that grader `code` reads."""
    tests = row["tests"]
    tests = _json(tests, "tests") if isinstance(tests, str) else tests
    if not isinstance(tests, Mapping):
        raise ValueError(f"tests must be a table, got {tests!r:.60}")
    given = {key: value for key, value in tests.items() if value is not None}
    return Problem(text_of(row["prompt"]), json.dumps(given))


def eurus(row: Row) -> Problem:
    """Of Eurus-2-RL: programming problems with inputs and outputs; the system's turn is dropped."""
    if row["ability"] != "code":
        raise LeftOut("mathematics")
    tests = _json(row["answer"], "its tests")
    inputs, outputs = tests["inputs"], tests["outputs"]
    if not inputs or len(inputs) != len(outputs):
        raise LeftOut("no tests, or not as many outputs as inputs")
    prompt, name = text_of(row["prompt"]), tests.get("fn_name")
    if not name:
        return Problem(prompt, stdin(inputs, outputs))
    if all(isinstance(one, list) and len(one) == 1 for one in outputs):
        outputs = [one for (one,) in outputs]  # APPS and TACO have a result in a list
    return Problem(prompt, calls(name, inputs, outputs))


def kodcode(row: Row) -> Problem:
    """Of KodCode: styles `instruct` and `complete` (as COV, footnote 1), tests without pytest."""
    if row["style"] not in ("instruct", "complete"):
        raise LeftOut("style online_judge")
    prompt = text_of(row["prompt"])
    if row["style"] == "instruct":
        declared = [one["function_declaration"] for one in row["info"] or ()]
        if not declared:
            raise LeftOut("the function is not named")
        prompt += "\n\nDeclare it as:\n```python\n" + "\n".join(declared) + "\n```"
    return Problem(prompt, asserts(plain_tests(row["tests"])))


def human_eval(row: Row) -> Problem:
    """Of HumanEval: the start of a function, to be completed, and its tests."""
    tests = f"{row['tests']}\ncheck({row['entry_point']})\n"
    # many tokenizers have a token for a line's end with the spaces of the next: after a prompt that
    # ends in the line's end it cannot come, and a small model ends its program there and then
    return Problem(row["prompt"].rstrip(), asserts([tests], row["prompt"]))


def livecodebench(row: Row) -> Problem:
    """Of LiveCodeBench: public and private tests, on stdin or as calls of a function."""
    how = "Read the input from stdin and write the output to stdout."
    if row["starter"]:
        how = f"Start from this code:\n```python\n{row['starter'].rstrip()}\n```"
    return Problem(f"{text_of(row['prompt'])}\n\n{how}", _livecodebench_tests)


def _livecodebench_tests(row: Row) -> str:
    tests = _json(row["public"], "public tests") + _json(row["private"], "private tests")
    inputs, outputs = [one["input"] for one in tests], [one["output"] for one in tests]
    if tests[0]["testtype"] == "stdin":
        return stdin(inputs, outputs)
    name = _json(row["metadata"], "metadata")["func_name"]
    arguments = [[json.loads(line) for line in text.split("\n")] for text in inputs]
    return calls(name, arguments, [json.loads(text) for text in outputs])


def plain_tests(source: str) -> list[str]:
    """A module of tests as sources that raise, one for each of its functions `test...`.

    What it imports of the program is taken off, so that the tests can run where the program cannot
    reach them, but for functions that Python has by the same name: those are asked for by name.
    Where tests import a class, or the module itself, they stay as they are, in one.

    Raises:
        LeftOut: they need pytest, or a package outside Python's own library, or are none.
    """
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in texts, say
            module = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise LeftOut("tests that are no Python") from None
    if not all(name.partition(".")[0] in _KNOWN for name in _imported(module)):
        raise LeftOut("tests that need pytest or another package")
    tests = [node for node in module.body if getattr(node, "name", "").lower().startswith("test")]
    if not tests or not all(isinstance(t, ast.FunctionDef) and not t.args.args for t in tests):
        raise LeftOut("tests that need pytest or another package")
    ours = [node for node in module.body if not _of_program(node)]
    if "solution" in _imported(ast.Module(ours, [])):
        return [source]
    around = [node for node in ours if node not in tests]
    named = {
        alias.name for node in module.body
        if isinstance(node, ast.ImportFrom) and _of_program(node) for alias in node.names
    }  # fmt: skip
    # by a name that Python has too, a test would find Python's own
    begin = "".join(
        f"{name} = {PROGRAM}({name!r})\n" for name in sorted(named) if hasattr(builtins, name)
    )
    return [
        begin + ast.unparse(ast.Module([*around, test], [])) + f"\n{test.name}()\n"
        for test in tests
        if isinstance(test, ast.FunctionDef)
    ]


def _imported(module: ast.Module) -> list[str]:
    names = []
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


def _of_program(node: ast.stmt) -> bool:
    """Whether a line imports functions of the program by their own names."""
    return (
        isinstance(node, ast.ImportFrom)
        and node.module == "solution"
        and all(alias.asname is None and not alias.name[:1].isupper() for alias in node.names)
    )


def pickled_text(data: bytes) -> str:
    """The text that a pickle of one text holds. Its bytes are read; nothing is unpickled.

    Raises:
        ValueError: it holds anything else.
    """
    found: list[str] = []
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in _TEXTS and isinstance(argument, str):
            found.append(argument)
        elif opcode.name not in _AROUND:
            raise ValueError(f"a pickle of something else than a text ({opcode.name})")
    if len(found) != 1:
        raise ValueError(f"a pickle of {len(found)} texts, not of one")
    return found[0]


def _json(text: Any, what: str) -> Any:
    """A column of JSON; or of JSON pickled, compressed and in base64, as LiveCodeBench has it."""
    if not isinstance(text, str):
        raise ValueError(f"{what} must be JSON, got {text!r:.60}")
    try:
        return json.loads(text)
    except ValueError:
        pass
    try:
        unpacked = zlib.decompressobj()
        data = unpacked.decompress(base64.b64decode(text, validate=True), _LARGEST)
        if unpacked.unconsumed_tail:
            raise ValueError(f"more than {_LARGEST} bytes")
        return json.loads(pickled_text(data))
    except (ValueError, binascii.Error, zlib.error) as error:
        raise ValueError(f"{what} must be JSON ({error})") from None


def stdin(inputs: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Tests of a program that reads stdin and writes stdout."""
    return json.dumps({"kind": "stdin", "inputs": inputs, "outputs": outputs})


def calls(name: str, arguments: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Tests that call a function, or a method of a class `Solution`."""
    return json.dumps({"kind": "calls", "name": name, "inputs": arguments, "outputs": outputs})


def asserts(tests: Sequence[str], prompt: str = "") -> str:
    """Tests that are sources, for an answer that may continue `prompt`."""
    return json.dumps({"kind": "asserts", "tests": tests, "prompt": prompt})
