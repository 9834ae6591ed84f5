"""`functions`: what is asked, that it can be solved, and that splits do not meet."""

from __future__ import annotations

import ast
import json
import sys

import pytest

import entrostat as es
from builders import refused
from entrostat.sandbox import running
from entrostat.tasks import functions
from entrostat.workers import Pool

needs_sandbox = pytest.mark.skipif(
    sys.platform != "linux" or all(map(running._trial, ("namespaces", "seccomp"))),
    reason="no sandbox works here",
)
# written out by hand, one for each kind
SOLUTIONS = {
    "add_{k}": "x + {k}", "subtract_{k}": "x - {k}", "times_{k}": "x * {k}",
    "from_{k}": "{k} - x", "square_plus_{k}": "x ** 2 + {k}", "remainder_{k}": "x % {k}",
    "is_greater_than_{k}": "x > {k}", "is_divisible_by_{k}": "not x % {k}",
    "at_least_{k}": "x if x > {k} else {k}", "sum_plus_{k}": "a + b + {k}",
    "product_plus_{k}": "a * b + {k}", "first_{k}": "[xs[i] for i in range({k})]",
    "without_first_{k}": "xs[{k}:]", "sum_of_list_plus_{k}": "sum(xs) + {k}",
    "count_{k}": "sum(x == {k} for x in xs)", "repeat_{k}": "''.join([s] * {k})",
    "first_{k}_letters": "s[:{k}]", "length_plus_{k}": "len(s) + {k}",
}  # fmt: skip


def test_a_prompt() -> None:
    task = es.make_task("functions")
    example = task.example(0, "test")
    *shown, last = example.prompt.split("\n\n")
    assert len(shown) == 3
    comment, header, rest = last.split("\n")
    assert comment == f"# {example.data['label']}"
    assert header.startswith("def ")
    assert header.endswith("):")
    assert rest == ""
    assert json.loads(example.answer)["prompt"] == f"{header}\n"
    defined = [node.name for node in ast.parse(functions.SHOWN).body]  # type: ignore[attr-defined]
    assert defined == ["add_12", "last_element", "is_less_than_plus_11"]


@needs_sandbox
def test_every_kind_is_solved_by_hand_and_told_from_its_neighbour() -> None:
    """In worker processes, as hosts do it."""
    task = es.make_task("functions")
    calls, right = [], []
    for kind in functions.KINDS:
        k = max(k for k in kind.numbers if functions.split_of(kind, k) == "train")
        example = es.Example("", functions.tests(kind, k))
        for number in (k, k + 1):
            body = f"    return {SOLUTIONS[kind.name].format(k=number)}"
            calls.append(task.remote(body, example))
            right.append(float(number == k))
    with Pool([task.remote_setup()], workers=2) as pool:
        outcomes = pool.map(calls, 60)
    assert [outcome.value for outcome in outcomes] == right


@needs_sandbox
def test_part_of_the_tests() -> None:
    task = es.make_task("functions", reward="share")
    kind = next(kind for kind in functions.KINDS if kind.name == "at_least_{k}")
    example = es.Example("", functions.tests(kind, 50))
    assert task.score("    return x", example) == pytest.approx(3 / 6)  # 50, 99, 100
    refused(lambda: es.make_task("functions", reward="some"), '"all"', '"share"', "got 'some'")


def test_splits_do_not_meet() -> None:
    task = es.make_task("functions", seed=3)
    train = {task.example(i, "train").data["label"] for i in range(2000)}
    test = [task.example(i, "test").data["label"] for i in range(task.size("test"))]
    assert len(set(test)) == len(test) == 128
    assert not train & set(test)
    assert len(train) > 500
    again = es.make_task("functions", seed=4)
    assert [again.example(i, "test").data["label"] for i in range(128)] == test
    assert again.example(0, "train") != task.example(0, "train") or (
        again.example(1, "train") != task.example(1, "train")
    )
