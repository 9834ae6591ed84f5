"""Rows of programming problems: what is asked, and tests in the form that grader "code" takes."""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from ..sandbox import unit_tests
from .convert import LeftOut, Problem, Row, text_of

_LARGEST = 1 << 28  # bytes of a problem's tests
# the opcodes of a pickle that is one text; whatever else there is would build something
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"})


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
    tests = text_of(row["tests"])
    try:
        unit_tests.check(tests)
    except ValueError as reason:
        raise LeftOut(str(reason)) from None
    return Problem(prompt, asserts([tests]))


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


def pickled_text(data: bytes) -> str:
    """The text that a pickle of one text holds. Its bytes are read; nothing is unpickled."""
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
