"""Tasks: the verifiers parse, the splits do not meet, bad files say which line."""

from __future__ import annotations

import inspect
import json
import random
import re
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import entrostat as es
from builders import refused
from entrostat.cli import main
from entrostat.cli.flags import apply_open_flags, take_open_flags
from entrostat.grading import final_answer, grade_contains, grade_exact, grade_number
from entrostat.tasks import BUILT_IN, Task, make_task, task_class
from entrostat.tasks.gym import is_arithmetic, is_not_code
from entrostat.tasks.target_sum import TargetSum, demonstration
from scripts import ROOT


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


def test_a_part_of_the_prompts_of_target_sum() -> None:
    task = TargetSum(seed=3, only=12)
    some = {task.example(i, "train").answer for i in range(600)}
    assert len(some) == 12
    assert len({k for _, k in some}) > 1  # of all kinds, not the first
    # other splits ask for all, and without it nothing is as it was not
    whole = TargetSum(seed=3)
    assert [task.example(i, "test") for i in range(50)] == [
        whole.example(i, "test") for i in range(50)
    ]
    assert some != {TargetSum(seed=4, only=12).example(i, "train").answer for i in range(600)}
    every = {TargetSum(only=112).example(i, "train").answer for i in range(4000)}
    assert len(every) == 112
    for wrong in (0, 113):
        with pytest.raises(ValueError, match="only must be 1 to 112"):
            TargetSum(only=wrong)


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
    assert grade_exact(" 42\n", "42") == 1
    assert grade_exact("42.", "42") == 0
    assert grade_contains("it is Paris, I think", "Paris") == 1
    assert grade_contains("it is Paris, I think", " ") == 0  # an empty text is in every answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so <answer>1</answer> no, <answer> 2 </answer> done", "2"),
        ("<answer>1</answer> <answer>2", "1"),
        ("<answer>1</answer> 2</answer>", "1"),
        ("I write <answer> and then <answer>5</answer>", "5"),
        ("</answer>1<answer>", "</answer>1<answer>"),
        (" none\n", "none"),
    ],
)
def test_final_answer(text: str, answer: str) -> None:
    assert final_answer(text) == answer


RIGHT = {
    "42": r"""42|The answer is 42.|= 42|x=42|**42**|**Answer: 42**|$42$|\boxed{42}|so \boxed{ 42 }.
        |#### 42|42 km|$42|42%|(42)|\(42\)|42.0|4.2e1|84/2|`42`|3 apples, 39 pears: 42|+42|42,
        |Answer:42|The total\n42\n|\[ 42 \]|\boxed{42\text{ cm}}|x := 42|41. 42""",
    "0.75": r"\boxed{\frac{3}{4}}|3/4|.75|$\dfrac{3}{4}$|0.750",
    "-42": "-42|\u221242|= -42|-84/2",
    "1234": "1,234|1234|1,234.00",
}
WRONG = {
    # the first two lines are the review's; after them what else is no 42 or none that stands alone
    "42": r"""4,2|4,,2|10-42|3/42|0x42|\u221242|\u201342|\uff0d42|-42|4 2|42 or 43|40 or 42
        |10 - 42|10*42|10 * 42|2**42|10 **42|6^42|\uff14\uff12|\u0664\u0662|42x|42km|x_42|f(42)
        |\sqrt{42}|x^{42}|\frac{3}{42}|(3, 42)|3, 42|!= 42|\u2260 42|x < 42|42\u00b2|42\u00bd|42!
        |1.42|4.2.42|10/12/42|42.5|42e5|42/7|12 + 42|- 42|-$42|\u00b142|\u221a42|42\pi|42_000
        |42,\u00ac|42.\u2212|42.!!no|-\u200b42|4\u200b2|\boxed{41}42|none||42 and \boxed{41}
        |0.42e2x""",
    "2": r"1/2|\u00bd|-2|2/1/1|2/0|1\frac{1}{2}",
    "0.75": r"-\frac{3}{4}|2\frac{3}{4}|\frac{3}{0}|0.7500001",
    "1234": "12,34|1,2345|1234,5|1,,234",
    "12": "12, as in step 3",  # the last number is 3
}


@pytest.mark.parametrize(("accepted", "table"), [(1, RIGHT), (0, WRONG)])
def test_numbers_are_strict(accepted: float, table: dict[str, str]) -> None:
    for answer, texts in table.items():
        for text in texts.split("|"):
            text = re.sub(r"\\u([0-9a-f]{4})|\\n(?!e)", _character, text.removesuffix("\n        "))
            assert grade_number(text, answer) == accepted, (text, answer)
    assert grade_number("9" * 5000, "9") == 0


def _character(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else "\n"


@pytest.mark.parametrize(
    "piece",
    ["<answer>", "</answer>", "<answer>1", "9", "1,", "1/", "\\boxed{", "\\frac{1}{", "-", "*"],
)
def test_graders_are_linear(piece: str) -> None:
    """400 KB per text; what was there before took 75 s for 80 KB of unclosed tags."""
    text = piece * (400_000 // len(piece))
    began = time.process_time()
    for ending in ("", "</answer>", "1"):
        for grader in (grade_exact, grade_contains, grade_number):
            grader(text + ending, "1")
    assert time.process_time() - began < 15


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
        (['[{"prompt": "a", "answer": "b"}]'], {}, "line 1 is a list. Write one object per line"),
        (["[", '{"prompt": "a"}]'], {}, "line 1 is not JSON: .*Write one object per line"),
        ([{"prompt": "a", "answer": ""}], {}, "line 1: grader 'exact' needs a text"),
        ([{"prompt": "a", "answer": "b"}], {"grader": "nmber"}, "Did you mean 'number'"),
        ([{"prompt": "a", "answer": "b"}], {"grader": "number"}, "line 1: grader 'number' needs"),
        ([{"prompt": "a", "answer": "b"}], {"test": 1.0}, r"test must be in \[0, 1\)"),
        ([{"prompt": "a", "answer": "b"}], {"gradr": "exact"}, "Did you mean 'grader'"),
        (
            [{"prompt": "a", "answer": " "}],
            {"grader": "contains"},
            "line 1: grader 'contains'",
        ),
        ([{"prompt": "a", "answer": "4_2"}], {"grader": "number"}, "needs a number, got '4_2'"),
        ([{"q": "a", "answer": "b"}], {}, "its columns: q, answer. Name another .*fields.prompt"),
        (
            [{"prompt": "a", "answer": "b"}],
            {"fields": {"answer": "solution"}},
            "line 1 needs an answer .* under 'solution'; its columns: prompt, answer",
        ),
        ([{"prompt": "a", "answer": "b"}], {"fields": {"anser": "b"}}, "Did you mean 'answer'"),
        ([{"prompt": "a", "answer": "b"}], {"fields": "answer"}, "fields is a table, got 'answer'"),
        ([{"prompt": "a", "answer": "b"}], {"grader": "math:no"}, "math has no function 'no'"),
        (
            [{"prompt": "a", "answer": "b"}],
            {"grader": "math:gamma"},
            r"must take \(response, ",
        ),
        ([{"prompt": [{"role": "system", "content": "a"}], "answer": "b"}], {}, "needs a prompt"),
    ],
)
def test_bad_jsonl(tmp_path: Path, rows: list, params: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        es.make_task(write(tmp_path / "bad.jsonl", *rows), **params)


def test_whole_numbers_are_written_without_decimals(tmp_path: Path) -> None:
    rows = [{"prompt": "a", "answer": answer} for answer in (18.0, 18, 1.5)]
    task = es.make_task(write(tmp_path / "numbers.jsonl", *rows), test=0)
    assert [task.example(i, "train").answer for i in range(3)] == ["18", "18", "1.5"]


def test_jsonl_that_is_not_there_or_not_text(tmp_path: Path) -> None:
    refused(lambda: es.make_task(str(tmp_path / "absent.jsonl")), "cannot read it: No such file")
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe\x00")
    refused(lambda: es.make_task(str(tmp_path / "binary.jsonl")), "UTF-8")


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
        ("json:JSONDecode", r"no class 'JSONDecode'. Did you mean 'JSONDecoder'\?"),
    ],
)
def test_unknown_tasks(name: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        es.make_task(name)


def test_unknown_parameters() -> None:
    refused(lambda: es.make_task("gym:chain_sum", max_term=3), "gym:", "chain_sum", "'max_terms'")
    refused(
        lambda: es.make_task("gym:chain_sum", min_terms=5, max_terms=2), "its configuration says"
    )
    refused(lambda: es.make_task("target_sum", kmax=3), "'k_max'")
    refused(lambda: es.make_task("target_sum", k_max=9), "k_min", "k_max")


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
        (
            "from entrostat.tasks.target_sum import TargetSum\n"
            "class Mine(TargetSum):\n    def __init__(self): raise KeyError('x')",
            "making it raised KeyError",
        ),
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
    refused(
        lambda: es.make_task(write(tmp_path / "bad.jsonl", {"prompt": "a", "answer": "b"}, line)),
        "bad.jsonl",
        "line 2",
    )


def test_an_answer_that_no_number_equals(tmp_path: Path) -> None:
    path = write(tmp_path / "bad.jsonl", {"prompt": "a", "answer": float("nan")})
    refused(lambda: es.make_task(path, grader="number"), "'number'")


def test_nothing_is_called_before_it_is_seen_to_be_a_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A TOML file's `name = "os:system"`, `command = ...` ran the command."""
    (tmp_path / "callable_module.py").write_text(
        "def build(seed=0): open('called', 'w')\n"
        "class Meta(type):\n    def __call__(cls, **k): open('called', 'w')\n"
        "class NoTask(metaclass=Meta):\n    name = 'x'\n    splits = ('train',)\n"
    )
    monkeypatch.chdir(tmp_path)
    for name, match in (
        ("os:system", r"os has no class 'system' \(it is a builtin_function_or_method\)"),
        ("callable_module:build", "has no class 'build'"),
        (
            "subprocess:Popen",
            "has no 'name', 'splits', 'max_new_tokens', 'size', 'example', 'score'",
        ),
        ("callable_module:NoTask", "has no 'max_new_tokens', 'size', 'example', 'score'; see"),
    ):
        with pytest.raises(ValueError, match=match):
            es.make_task(name, command="touch called", args="touch called")
    assert not (tmp_path / "called").exists()


def test_columns_of_other_names_and_graders_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = [
        {
            "prompt": [{"role": "user", "content": f"{i}+1="}],
            "reward_model": {"ground_truth": i + 1, "style": "rule"},
            "solution": str(i + 1),
        }
        for i in range(10)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "sums.parquet")
    (tmp_path / "own_grader.py").write_text(
        "def grade(response, answer): return len(response) == int(answer)\n"
    )
    monkeypatch.chdir(tmp_path)
    for file in (write(tmp_path / "sums.jsonl", *rows), str(tmp_path / "sums.parquet")):
        for column in ("solution", "reward_model.ground_truth"):
            task = es.make_task(file, fields={"answer": column}, grader="number")
            assert (task.size("train"), task.size("test")) == (9, 1)
            assert task.example(3, "train") == es.Example("3+1=", "4")
        with pytest.raises(ValueError, match=r"(line|row) 1 needs an answer .*columns: prompt"):
            es.make_task(file)
        task = es.make_task(file, fields={"answer": "solution"}, grader="own_grader:grade")
        assert task.score("four", task.example(3, "train")) == 1
        assert task.score("three", task.example(3, "train")) == 0
        # a whole table, for a grader that wants to know more than one answer
        task = es.make_task(file, fields={"answer": "reward_model"}, grader="own_grader:grade")
        assert json.loads(task.example(3, "train").answer) == {"ground_truth": 4, "style": "rule"}
        with pytest.raises(ValueError, match=r"(line|row) 1 needs an answer .text or number."):
            es.make_task(file, fields={"answer": "reward_model"}, grader="number")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and no more")
    refused(lambda: es.make_task(str(tmp_path / "bad.parquet")), "bad.parquet")


TRUSTED = """
from entrostat.tasks.target_sum import TargetSum
open("imported", "a").write("x")
class Mine(TargetSum): pass
def grade(response, answer): return 1.0
"""
OWN_METHOD = "[base]\niterations=1\n[[runs]]\nname='a'\nmethod=['grpo', {name='file_code:m'}]\n"


@pytest.mark.parametrize(
    ("words", "file", "text", "key"),
    [
        (["train", "--config"], "c.toml", "task = 'file_code:Mine'", "task"),
        (["train", "--config"], "c.toml", "[task]\nname='file_code:Mine'", "task"),
        (["train", "--config"], "c.toml", "method='file_code:m'", "method"),
        (["train", "--config"], "c.toml", "method=['grpo', 'file_code:m']", "method 2"),
        (
            ["train", "--method.low", "1", "--config"], "c.toml",
            "method=['grpo', {name='file_code:m'}]", "method 2",
        ),
        (
            ["train", "--config"], "c.toml",
            "[task]\nname='a.jsonl'\ngrader='file_code:grade'", "task.grader",
        ),
        (
            ["train", "--task.name", "b.jsonl", "--config"], "c.toml",
            "[task]\nname='a.jsonl'\ngrader='file_code:grade'", "task.grader",
        ),
        (["train", "--resume"], "config.toml", "task='file_code:Mine'", "task"),
        (["study"], "s.toml", "[base]\ntask='file_code:Mine'\n[[runs]]\nname='a'", "task"),
        (["study"], "s.toml", OWN_METHOD, "method 2"),
    ],
)  # fmt: skip
def test_code_that_a_file_names_is_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
    words: list[str], file: str, text: str, key: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file_code.py").write_text(TRUSTED)
    (tmp_path / file).write_text(text)
    assert main([*words, "." if file == "config.toml" else file]) == 2
    error = capsys.readouterr().err
    assert re.search(rf"{key} = 'file_code:\w+' is code outside entrostat", error)
    assert "--trust-code" in error
    assert not (tmp_path / "imported").exists()


def test_a_file_does_not_trust_remote_code(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "c.toml").write_text("host='trl'\n[trl]\ntrust_remote_code=true")
    assert main(["train", "--config", str(tmp_path / "c.toml")]) == 2
    assert "trl.trust_remote_code = 'true' is code" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--trust-code"], "task='file_code:Mine'"),
        (["--task", "file_code:Mine"], "iterations=1"),
        (["--task", "file_code:Mine"], "task='os:system'"),
        (["--task.name", "file_code:Mine"], "[task]\nname='os:system'"),
    ],
)
def test_code_that_the_user_names_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture,
    words: list[str], text: str,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "file_code", raising=False)
    (tmp_path / "file_code.py").write_text(TRUSTED)
    (tmp_path / "c.toml").write_text(text)
    assert main(["train", "--config", "c.toml", *words, "--device", "abacus"]) == 2
    assert "device must be" in capsys.readouterr().err


def test_fields_on_the_command_line() -> None:
    words = ["--task", "a.jsonl", "--task.fields.answer", "solution", "--task.fields.prompt=q"]
    _, flags = take_open_flags(words)
    task = apply_open_flags({}, flags)["task"]
    assert task == {"name": "a.jsonl", "fields": {"answer": "solution", "prompt": "q"}}
    refused(
        lambda: apply_open_flags({"task": {"name": "a", "fields": "x"}}, flags[1:]), "task.fields"
    )


@pytest.mark.parametrize("name", BUILT_IN)
def test_what_every_built_in_task_keeps(name: str) -> None:
    cls = task_class(name)
    about = inspect.getdoc(inspect.getmodule(cls)) or ""
    assert about.startswith(f"`{name}`: "), "the module's docstring: `NAME`: what it asks"
    page = (ROOT / "docs/tasks.md").read_text()
    assert f"`{name}`" in page, f"docs/tasks.md does not name `{name}`"
    try:
        task, again = make_task(name, seed=1), make_task(name, seed=1)
    except ValueError as error:  # an extra that is not installed
        pytest.skip(str(error))
    assert isinstance(task, Task) or hasattr(task, "environment")
    assert task.name == name
    for split in task.splits:
        examples = [task.example(i, split) for i in range(min(3, task.size(split) or 3))]
        assert examples == [again.example(i, split) for i in range(len(examples))], split
        assert task.max_new_tokens(split) > 0
        for junk in ("", "\0", "\ud800", "9" * 5000, "</answer>") if hasattr(task, "score") else ():
            assert task.score(junk, examples[0]) == 0, junk


def test_the_list_of_tasks(capsys: pytest.CaptureFixture) -> None:
    assert main(["tasks"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in ("target_sum", "words", "arithmetic", "gym:NAME", "FILE.jsonl", "MODULE:CLASS"):
        assert name in out
    for option in ("k_max = 6", "operation = 'both'", "test = 0.1", "fields.answer = 'answer'"):
        assert option in out
    assert main(["tasks", "gym:countdown"]) == 0
    assert "max_numbers = 6" in capsys.readouterr().out
    assert main(["tasks", "arithmetik"]) == 2
    assert "Did you mean 'arithmetic'?" in capsys.readouterr().err
    assert main(["train", "--help"]) == 0
    out = capsys.readouterr().out
    assert "entrostat tasks" in out
    assert "--task.fields.answer" in out
    assert "--trust-code" in out
