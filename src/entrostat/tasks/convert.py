"""Conversion of data set rows to problems: a prompt, and an answer in the grader's form.

A reader gets a row under entrostat's field names and returns a `Problem`. A row that cannot be
graded raises `LeftOut` with a reason, and reasons are counted, so no row disappears silently. A row
of another schema raises ValueError.
"""

from __future__ import annotations

import base64
import binascii
import json
import pickletools
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..sandbox import unit_tests

Row = Mapping[str, Any]
LONGEST_ANSWER = 500  # characters; longer answers are proofs or worked solutions
_NO_ANSWER = frozenset({"", "proof", "notfound", "none", "null"})
# texts around each problem of DAPO-Math-17k
DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n"
)
DAPO_AFTER = '\n\nRemember to put your answer on its own line after "Answer:".'
_LARGEST = 1 << 28  # most bytes of a problem's tests
# opcodes of a pickle of one string; any other opcode would build an object
_TEXTS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
_AROUND = frozenset({"PROTO", "FRAME", "MEMOIZE", "BINPUT", "LONG_BINPUT", "STOP"})


class LeftOut(Exception):  # noqa: N818 - not an error: the row is skipped
    """A row that cannot be graded; the message is the reason that is counted."""


class Problem(NamedTuple):
    prompt: str  # without the template
    # for the grader; a function of the row if the answer is too large to keep
    answer: str | Callable[[Row], str]


Reader = Callable[[Row], Problem]


def mathematics(row: Row) -> Problem:
    r"""A problem and its final answer.

    The answer is the content of the last \boxed{} (of several that belong together), else the text
    after the last ####, else the text itself; for a list, all entries, joined by commas.
    """
    prompt = text_of(row["prompt"]).removeprefix(DAPO_BEFORE).removesuffix(DAPO_AFTER)
    answer = final(row["answer"])
    if answer.lower() in _NO_ANSWER:
        raise LeftOut("no answer")
    if len(answer) > LONGEST_ANSWER:
        raise LeftOut(f"an answer of more than {LONGEST_ANSWER} characters")
    return Problem(prompt, answer)


def numina_amc_aime(row: Row) -> Problem:
    """NuminaMath-1.5: problems of AMC and AIME that are valid and have one checkable answer.

    REPO (sec. 4) trains on "a non-overlapping quality-filtered subset" of 563 problems and does not
    specify the filter. This reader keeps the problems that the data set marks as valid.
    """
    if row["source"] != "amc_aime":
        raise LeftOut("not from AMC or AIME")
    if row["synthetic"]:
        raise LeftOut("synthetic")
    if row["question_type"] != "math-word-problem":
        raise LeftOut("multiple choice or proof")
    if (row["problem_is_valid"], row["solution_is_valid"]) != ("Yes", "Yes"):
        raise LeftOut("marked as not valid")
    return mathematics(row)


def olympiad(row: Row) -> Problem:
    """OlympiadBench: the context precedes the question; final answers are joined by commas."""
    context = row.get("context")
    problem = mathematics(row)
    return problem._replace(prompt=f"{context}\n{problem.prompt}") if context else problem


def instructions(row: Row) -> Problem:
    """IFEval: the prompt, and its instructions with arguments in the form of grader `ifeval`."""
    from ..grading.ifeval import needs, pack

    ids, arguments = row["instructions"], row["arguments"]
    lists = all(isinstance(x, Sequence) and not isinstance(x, str) for x in (ids, arguments))
    if not lists or len(ids) != len(arguments):
        raise ValueError("as many arguments as instructions are needed, in two lists")
    missing = needs(ids)
    if missing:
        raise LeftOut(missing)
    return Problem(text_of(row["prompt"]), pack(ids, arguments))


def final(value: Any) -> str:
    r"""The final answer in a column: the last \boxed{}, what follows ####, or all of it.

    Boxes that belong together are a list ("x = \boxed{3} or x = \boxed{5}").
    """
    from ..grading.mathematics import expected_answer

    if isinstance(value, list | tuple):
        return ", ".join(final(one) for one in value)
    if value is None:
        return ""
    return expected_answer(str(value).strip())


def text_of(value: Any) -> str:
    """A prompt's text: the string itself, or the last user turn of a conversation."""
    if isinstance(value, list | tuple):
        turns = [one for one in value if isinstance(one, Mapping) and one.get("role") == "user"]
        value = turns[-1].get("content") if turns else None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the prompt must be a text, got {value!r:.60}")
    return value.strip()


def own(row: Row) -> Problem:
    """A user's own prompt, with tests in the form of grader `code`."""
    tests = row["tests"]
    tests = _json(tests, "tests") if isinstance(tests, str) else tests
    if not isinstance(tests, Mapping):
        raise ValueError(f"tests must be a table, got {tests!r:.60}")
    given = {key: value for key, value in tests.items() if value is not None}
    return Problem(text_of(row["prompt"]), json.dumps(given))


def eurus(row: Row) -> Problem:
    """Eurus-2-RL: programming problems with inputs and outputs, without the system turn."""
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
        outputs = [one for (one,) in outputs]  # APPS and TACO wrap each result in a list
    return Problem(prompt, calls(name, inputs, outputs))


def kodcode(row: Row) -> Problem:
    """KodCode: styles `instruct` and `complete` (as COV, footnote 1), tests that need no pytest."""
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
    """HumanEval: the start of a function to complete, and its tests."""
    tests = f"{row['tests']}\ncheck({row['entry_point']})\n"
    # strip the final newline: many tokenizers have a token for a newline plus indentation, which
    # cannot follow a newline, and a small model then ends its program at once
    return Problem(row["prompt"].rstrip(), asserts([tests], row["prompt"]))


def livecodebench(row: Row) -> Problem:
    """LiveCodeBench: public and private tests, on stdin or as function calls."""
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
    """The string in a pickle of one string, read from its opcodes; nothing is unpickled."""
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
    """Parse JSON, or pickled, compressed and base64-encoded JSON as in LiveCodeBench."""
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
    """Tests, as JSON, of a program that reads stdin and writes stdout."""
    return json.dumps({"kind": "stdin", "inputs": inputs, "outputs": outputs})


def calls(name: str, arguments: Sequence[Any], outputs: Sequence[Any]) -> str:
    """Tests, as JSON, that call a function, or a method of a class `Solution`."""
    return json.dumps({"kind": "calls", "name": name, "inputs": arguments, "outputs": outputs})


def asserts(tests: Sequence[str], prompt: str = "") -> str:
    """Tests, as JSON, that are source code, for an answer that may continue `prompt`."""
    return json.dumps({"kind": "asserts", "tests": tests, "prompt": prompt})
