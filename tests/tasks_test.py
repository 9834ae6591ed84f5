"""Tasks: the verifiers parse, the splits do not meet, bad files say which line."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import entrostat as es
from entrostat.tasks.gym import is_arithmetic, is_not_code
from entrostat.tasks.jsonl import final_answer, grade_contains, grade_exact, grade_number
from entrostat.tasks.target_sum import TargetSum, demonstration


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("7+3+9+4", 1),
        ("4+9+3+7", 1),
        ("7+3+9+3", 0),  # 22
        ("9+9+5", 0),  # 23, but three digits
        ("7+3+9+4+0", 0),
        ("14+9", 0),
        ("7+3+9+4 ", 0),
        ("7+3+9+4\n", 0),
        ("", 0),
        ("+7+3+9+4", 0),
        ("7+3++9+4", 0),
        ("__import__('os')", 0),
    ],
)
def test_target_sum_verifies(completion: str, reward: float) -> None:
    example = es.Example("23/4:", answer=(23, 4))
    assert TargetSum().score(completion, example) == reward


def test_target_sum_prompts() -> None:
    task = TargetSum(seed=1)
    for split, ks in (("train", {3, 4, 5, 6}), ("test", {3, 4, 5, 6}), ("ood", {7, 8})):
        examples = [task.example(i, split) for i in range(300)]
        assert {e.answer[1] for e in examples} == ks
        for e in examples:
            target, k = e.answer
            assert 2 * k <= target <= 8 * k
            assert e.prompt == f"{target}/{k}:"
    assert task.example(5, "train") == TargetSum(seed=1).example(5, "train")
    other = TargetSum(seed=2)
    assert any(task.example(i, "train") != other.example(i, "train") for i in range(5))
    assert all(task.example(i, "test") == other.example(i, "test") for i in range(5))


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.integers(0, 10**6))
def test_demonstrations_are_right_or_one_digit_off(seed: int) -> None:
    task, rng = TargetSum(), random.Random(seed)
    example = task.example(seed, "train")
    right = demonstration(example, rng, wrong=False)
    assert task.score(right, example) == 1
    wrong = demonstration(example, rng, wrong=True)
    assert task.score(wrong, example) == 0
    assert len(wrong) == len(right)
    assert set(wrong) <= set("123456789+")


def test_graders() -> None:
    assert final_answer("so <answer>1</answer> no, <answer> 2 </answer> done") == "2"
    assert grade_exact(" 42\n", "42") == 1
    assert grade_exact("42.", "42") == 0
    assert grade_contains("it is Paris, I think", "Paris") == 1
    assert grade_number("3 apples and 4 pears: 7", "7.0") == 1
    assert grade_number("1,234", "1234") == 1
    assert grade_number("7 or 8", "7") == 0  # the last number counts
    assert grade_number("none", "7") == 0
    assert grade_number("-3", "3") == 0
    assert grade_number("9" * 5000, "9") == 0


def write(path: Path, *rows: object) -> str:
    path.write_text("\n".join(r if isinstance(r, str) else json.dumps(r) for r in rows))
    return str(path)


def test_jsonl_task(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+1=", "answer": i + 1} for i in range(10)]
    task = es.make_task(write(tmp_path / "sums.jsonl", *rows), grader="number", test=0.2)
    assert (task.size("train"), task.size("test")) == (8, 2)
    assert task.example(3, "train").prompt == "3+1="
    assert task.example(0, "test").prompt == "8+1="
    assert task.score("4", task.example(3, "train")) == 1
    assert task.score("5", task.example(3, "train")) == 0


@pytest.mark.parametrize(
    ("rows", "params", "match"),
    [
        ([], {}, "the data set is empty"),
        (["", "  "], {}, "the data set is empty"),
        ([{"prompt": "a", "answer": "b"}, "{not json"], {}, "line 2 is not JSON"),
        ([{"answer": "b"}], {}, "line 1 needs a prompt"),
        ([{"prompt": "a"}], {}, "line 1 needs an answer"),
        (["[1]"], {}, "line 1 needs a prompt"),
        ([{"prompt": "a", "answer": "b"}], {"grader": "nmber"}, "Did you mean 'number'"),
        ([{"prompt": "a", "answer": "b"}], {"grader": "number"}, "line 1: grader 'number' needs"),
        ([{"prompt": "a", "answer": "b"}], {"test": 1.0}, r"test must be in \[0, 1\)"),
        ([{"prompt": "a", "answer": "b"}], {"gradr": "exact"}, "Did you mean 'grader'"),
    ],
)
def test_bad_jsonl(tmp_path: Path, rows: list, params: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        es.make_task(write(tmp_path / "bad.jsonl", *rows), **params)


def test_jsonl_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"cannot read it: No such file"):
        es.make_task(str(tmp_path / "absent.jsonl"))
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match=r"not UTF-8"):
        es.make_task(str(tmp_path / "binary.jsonl"))


def test_gym_scores_with_its_own_scorer_and_parameters() -> None:
    task = es.make_task("gym:chain_sum", seed=3, min_terms=2, max_terms=2, size=50)
    assert task.size("train") == 50
    example = task.example(0, "train")
    assert task.score(f" {example.answer}", example) == 1
    assert task.score(f"let me see <answer>{example.answer}</answer>", example) == 1
    assert task.score("no idea", example) < 0.5
    train = {task.example(i, "train").prompt for i in range(50)}
    assert len(train & {task.example(i, "test").prompt for i in range(50)}) < 5
    assert es.make_task("gym:chain_sum", seed=3, min_terms=2, max_terms=2).example(
        0, "train"
    ).prompt == (example.prompt)


def test_gym_guards_scorers_that_evaluate() -> None:
    """An answer that would run if evaluated scores as none, and does not run."""
    task = es.make_task("gym:countdown")
    example = task.example(0, "train")
    assert task.score(example.answer if isinstance(example.answer, str) else "", example) == 1
    for name in ("countdown", "spiral_matrix", "string_insertion", "polynomial_multiplication"):
        task = es.make_task(f"gym:{name}")
        example = task.example(0, "train")
        assert task.score(str(example.answer), example) == 1, name
        hostile = "[].append(exit()) or __import__('os').abort()"
        assert task.score(hostile, example) < 0.1


@pytest.mark.parametrize(
    "text", ["1+2*3", "-(4 - x)/2", "x**2 + 3*x", "sqrt(2)*exp(x)", "2**x", " 7 ", "x**-1"]
)
def test_arithmetic_passes(text: str) -> None:
    assert is_arithmetic(text)


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('x')", "x.__class__", "open('f')", "[i for i in y]", "lambda: 1",
        "9**9**9", "(9**9)**9", "9**(9*9*9)", "f'{x}'", "x if y else z", "1;2", "x := 2", "'a'*9",
        "exp(x, y=1)", "getattr(x, y)", "", "1 +", "x[0]", "_private", "9" * 2000,
    ],
)  # fmt: skip
def test_code_does_not(text: str) -> None:
    assert not is_arithmetic(text)


def test_literal_lists_are_not_code() -> None:
    assert is_not_code("[[1, 2], ['a', -3]]")
    assert is_not_code("1 2 3")  # does not parse: evaluating it only fails
    assert is_not_code("ABCDE")
    assert not is_not_code("exit()")
    assert not is_not_code("[x for x in y]")
    assert not is_not_code("[1]*10**9")
    assert not is_not_code("a.b")


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("target_sums", r"unknown task 'target_sums'. Did you mean 'target_sum'\?"),
        ("gym:chain_summ", r"Did you mean 'chain_sum'\?"),
        ("no_such_module:Task", "no module 'no_such_module'"),
        ("json:Tusk", "json has no class 'Tusk'"),
    ],
)
def test_unknown_tasks(name: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        es.make_task(name)


def test_unknown_parameters() -> None:
    with pytest.raises(ValueError, match=r"gym:chain_sum.*Did you mean 'max_terms'"):
        es.make_task("gym:chain_sum", max_term=3)
    with pytest.raises(ValueError, match=r"its configuration says"):
        es.make_task("gym:chain_sum", min_terms=5, max_terms=2)
    with pytest.raises(ValueError, match=r"Did you mean 'k_max'"):
        es.make_task("target_sum", kmax=3)
    with pytest.raises(ValueError, match="need 1 <= k_min <= k_max <= 6"):
        es.make_task("target_sum", k_max=9)


def test_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_task_module.py").write_text(
        "from entrostat import Example\n"
        "class Mine:\n"
        "    name = 'mine'\n"
        "    splits = ('train',)\n"
        "    def __init__(self, seed=0, word='a'): self.word = word\n"
        "    def max_new_tokens(self, split): return 4\n"
        "    def size(self, split): return None\n"
        "    def example(self, index, split): return Example('1/1:')\n"
        "    def score(self, completion, example): return float(self.word in completion)\n"
    )
    monkeypatch.chdir(tmp_path)
    task = es.make_task("my_task_module:Mine", word="b")
    assert isinstance(task, es.Task)
    assert task.score("abc", task.example(0, "train")) == 1


@pytest.mark.parametrize(
    ("body", "match"),
    [
        ("class Mine(:", "importing it raised SyntaxError"),
        ("import nothing_of_that_name", "importing it raised ModuleNotFoundError"),
        ("Mine = 3", "has no class 'Mine'"),
        ("class Mine:\n    def __init__(self): raise KeyError('x')", "making it raised KeyError"),
        ("class Mine: pass", "has no 'name'"),
        (
            "from entrostat.tasks.target_sum import TargetSum\n"
            "class Mine(TargetSum): splits = 'train'",
            "splits must be names in a tuple, got 'train'",
        ),
    ],
)
def test_classes_that_cannot_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str, match: str
) -> None:
    module = f"task_module_{abs(hash(body))}"
    (tmp_path / f"{module}.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=match):
        es.make_task(f"{module}:Mine")


def test_jsonl_with_a_byte_order_mark_and_a_line_separator(tmp_path: Path) -> None:
    text = json.dumps({"prompt": "a\u2028b", "answer": "c"}, ensure_ascii=False) + "\n"
    (tmp_path / "t.jsonl").write_text("\ufeff" + text * 2, encoding="utf-8")
    task = es.make_task(str(tmp_path / "t.jsonl"))
    assert task.size("train") == 2
    assert task.splits == ("train",)  # a tenth of two lines is none: nothing to evaluate on
    assert task.example(1, "train").prompt == "a\u2028b"


@pytest.mark.parametrize(
    "line",
    [
        '{"prompt": "\\ud800", "answer": "x"}',
        "[" * 100_000,
        '{"prompt": "a", "answer": ' + "9" * 5000 + "}",
    ],
    ids=["lone surrogate", "deep", "long number"],
)
def test_lines_that_json_chokes_on(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=r"bad.jsonl.*line 2 is not JSON"):
        es.make_task(write(tmp_path / "bad.jsonl", {"prompt": "a", "answer": "b"}, line))


def test_an_answer_that_no_number_equals(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", {"prompt": "a", "answer": float("nan")})
    with pytest.raises(ValueError, match="line 1: grader 'number' needs a number"):
        es.make_task(path, grader="number")
