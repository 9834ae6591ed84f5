"""Grader "code": the program in a response, run in the sandbox and tested.

The expected answer is a table of tests, as JSON:

- {"kind": "stdin", "inputs": [...], "outputs": [...]}: the program reads stdin and writes stdout;
  an optional "tolerance" is the error allowed in numbers of the output;
- {"kind": "calls", "name": ..., "inputs": [[argument, ...], ...], "outputs": [...]}: a function, or
  a method of a class `Solution`, returns a value;
- {"kind": "asserts", "tests": ..., "prompt": ...}: source code that raises if the program is wrong,
  or a list of such tests. `prompt` is the start of a program that the response continues.

Tests run in a process that the program cannot reach (`sandbox.judge`), so neither an early exit nor
an object that equals everything passes a test. Tests may import the program as `solution`.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
import time
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from typing import Any

from .. import sandbox
from ..sandbox import unit_tests
from ..sandbox.unit_tests import LEETCODE
from .fences import PYTHON, fenced
from .texts import final_answer

_READS = re.compile(r"\binput\b|\bstdin\b|\bopen\(0")
_FUNCTION = re.compile(r"^(?:async )?def (\w+)", re.MULTILINE)
_DEFINED = re.compile(r"^[ \t]*(?:async )?(def|class) (\w+)", re.MULTILINE)
_KEYS: dict[str, dict[str, type | tuple[type, ...]]] = {
    "stdin": {"inputs": list, "outputs": list},
    "calls": {"name": str, "inputs": list, "outputs": list},
    "asserts": {"tests": (str, list)},
}
REWARDS = ("all", "share")
_DECIMALS = re.compile(r"\.\d{6}|\d[eE]-")
_OUTPUT = 64 * 1024  # most bytes of output, if it is compared
_PRINTED = 1 << 20  # if it is not compared


def grade_code(response: str, answer: str, *, reward: str = "all", seconds: float = 8.0) -> float:
    """1 if the program passes its tests.

    The program is the last block between ``` fences (in the last <answer>, if there is one), or
    without a block the whole response, unchanged.

    Args:
        response: the policy's response.
        answer: the tests, see above.
        reward: "all" for 1 or 0, "share" for the share of tests that pass.
        seconds: wall-clock limit for all tests together; unfinished tests fail.
    """
    tests = _read(answer, reward, seconds)
    source = program(response, tests.get("prompt", ""), _read_by(tests))
    limits = sandbox.Limits(cpu=seconds, wall=seconds, output=_PRINTED)
    passed, count = _ASK[tests["kind"]](source, tests, reward == "share", limits)
    return passed / count if reward == "share" else float(passed == count)


def _read_by(tests: dict[str, Any]) -> re.Pattern[str] | None:
    """Pattern that marks the program's block: it reads input, or defines a function under test."""
    if tests["kind"] == "stdin":
        return _READS
    if tests["kind"] == "calls":
        names = {tests["name"]}
    else:
        text = "\n".join(_sources(tests))
        own = {name for _, name in _DEFINED.findall(text)}
        names = set(re.findall(r"\b[A-Za-z_]\w*", text)) - own
    listed = "|".join(sorted(names))
    return re.compile(
        rf"^[ \t]*(?:(?:async )?(?:def|class) (?:{listed})\b|(?:{listed}) *= *lambda\b)",
        re.MULTILINE,
    )


def check_code(answer: str, *, reward: str = "all", seconds: float = 8.0) -> None:
    """Raise ValueError for invalid tests, and for tests that an empty program passes."""
    tests = _read(answer, reward, seconds)
    if tests["kind"] == "asserts":
        for source in _sources(tests):
            unit_tests.check(source)
    elif not any(output is not None and str(output).strip() for output in tests["outputs"]):
        raise ValueError(f"needs an output that an empty program lacks, got {answer!r:.80}")


def program(response: str, prompt: str = "", reads: re.Pattern[str] | None = None) -> str:
    """The program in a response.

    It continues `prompt`, the start of a program. If it redefines the prompt's last function, only
    the part of the prompt before that function is kept. Blocks that match `reads` are preferred.
    """
    text = final_answer(response)
    begun = _last_function(prompt)
    if begun and reads is None:
        reads = re.compile(rf"^[ \t]*(?:async )?def {begun[1]}\b", re.MULTILINE)
    block = last_block(text, reads)
    if not prompt:
        return text if block is None else textwrap.dedent(block)
    source = response if block is None else block
    for anew in (source, textwrap.dedent(source)):
        if begun and begun[1] in (found[1] for found in _FUNCTION.finditer(anew)):
            return f"{prompt[: begun.start()]}\n{anew}"
    return prompt + source


def _last_function(source: str) -> re.Match[str] | None:
    return next(reversed(list(_FUNCTION.finditer(source))), None)


def last_block(text: str, reads: re.Pattern[str] | None = None) -> str | None:
    """Content of the last fenced Python block; None if there is none.

    A block labelled Python is preferred to an unlabelled one, which may be a program's output. An
    unclosed block counts only if there is no other. Blocks that match `reads` are preferred to all
    others.
    """
    blocks = [block for block in fenced(text) if block.language in ("", *PYTHON)]
    if len(blocks) > 1 and blocks[-1].end == len(text) and not blocks[-1].closed:
        blocks.pop()  # cut off
    said, silent = (
        [text[block.start : block.end] for block in blocks if bool(block.language) == python]
        for python in (True, False)
    )
    holds = [one for one in (*silent, *said) if reads is not None and reads.search(one)]
    return next(reversed(holds or said or silent), None)


def same_output(got: str, expected: str, tolerance: float | None = None) -> bool:
    """Whether two outputs are equal.

    Ignored are whitespace between words and at line ends, empty lines at the end, and how numbers
    are written (1.0 is 1). Numbers may differ by `tolerance`, relative if above 1. Without it only
    numbers that both have six decimals or more may differ, by 1e-6.
    """
    ours, theirs = (list(map(str.split, text.rstrip().splitlines())) for text in (got, expected))
    words = zip(chain(*ours), chain(*theirs), strict=False)
    return list(map(len, ours)) == list(map(len, theirs)) and all(
        a == b or _same_number(a, b, tolerance) for a, b in words
    )


def _same_number(got: str, expected: str, tolerance: float | None) -> bool:
    ours, theirs = _number(got), _number(expected)
    if ours is None or theirs is None:
        return False
    if tolerance is None:  # both are floats with at least six decimals
        tolerance = 1e-6 if all(_DECIMALS.search(word) for word in (got, expected)) else 0
    return abs(ours - theirs) <= Decimal(tolerance) * max(1, abs(theirs))


def _number(word: str) -> Decimal | None:
    try:
        plain = len(word) < 100 and word.isascii() and "_" not in word
        number = Decimal(word) if plain else None
    except InvalidOperation:
        return None
    return number if number is not None and number.is_finite() else None


def _read(answer: str, reward: str, seconds: float) -> dict[str, Any]:
    if reward not in REWARDS:
        raise ValueError(f'has reward "all" or "share", got {reward!r}')
    if not (isinstance(seconds, int | float) and 0 < seconds < math.inf):
        raise ValueError(f"needs seconds above 0, got {seconds!r}")
    try:
        tests = json.loads(answer)
        kind = tests["kind"]
        missing = [
            key
            for key, kinds in _KEYS[kind].items()
            if not (tests.get(key) and isinstance(tests[key], kinds))
        ]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ValueError(
            f'needs tests, {{"kind": "stdin", "calls" or "asserts", ...}}, got {answer!r:.80}'
        ) from None
    if missing:
        raise ValueError(f"needs {missing[0]!r} in tests of kind {kind!r}, got {answer!r:.80}")
    if kind != "asserts" and len(tests["inputs"]) != len(tests["outputs"]):
        raise ValueError(
            f"needs an output for each input, got {len(tests['outputs'])} for "
            f"{len(tests['inputs'])}"
        )
    return tests


def _stdin(
    source: str, tests: dict[str, Any], every: bool, limits: sandbox.Limits
) -> tuple[int, int]:
    """Number of tests that pass, and of all tests; without `every`, stop at the first failure."""
    deadline, passed = time.monotonic() + limits.wall, 0
    pairs = list(zip(tests["inputs"], tests["outputs"], strict=True))
    for given, expected in (map(_text, pair) for pair in pairs):
        left = deadline - time.monotonic()
        if left <= 0:
            break
        room = max(_OUTPUT, 2 * len(expected.encode()))
        bounds = sandbox.Limits(cpu=limits.cpu, wall=left, output=room)
        result = sandbox.run(source, given, bounds)
        good = result.code == 0 and result.failure is None
        right = good and same_output(result.stdout, expected, tests.get("tolerance"))
        passed += right
        if not right and not every:
            break
    return passed, len(pairs)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "\n".join(map(str, value))


def _calls(
    source: str, tests: dict[str, Any], every: bool, limits: sandbox.Limits
) -> tuple[int, int]:
    pairs = zip(tests["inputs"], tests["outputs"], strict=True)
    calls = [(tests["name"], given, expected) for given, expected in pairs]
    verdict = sandbox.judge(source, calls=calls, prelude=LEETCODE, every=every, limits=limits)
    return sum(verdict.passed), len(calls)


def _asserts(
    source: str, tests: dict[str, Any], every: bool, limits: sandbox.Limits
) -> tuple[int, int]:
    sources = [one for source in _sources(tests) for one in unit_tests.split(source)]
    # tests use the prompt's own functions, even if the response redefines them
    prompt = tests.get("prompt", "")
    begun = _last_function(prompt)
    given = [prompt[: begun.start()]] if begun and prompt[: begun.start()].strip() else []
    verdict = sandbox.judge(source, asserts=[*given, *sources], every=every, limits=limits)
    return sum(verdict.passed[len(given) :]), len(sources)


def _sources(tests: dict[str, Any]) -> Sequence[str]:
    return [tests["tests"]] if isinstance(tests["tests"], str) else tests["tests"]


_ASK: dict[str, Callable[..., tuple[int, int]]] = {
    "stdin": _stdin,
    "calls": _calls,
    "asserts": _asserts,
}
