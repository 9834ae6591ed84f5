"""Rewards in the lab: what a scorer must give, and what it costs where it does not."""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
from collections.abc import Iterator
from fractions import Fraction
from operator import add, mul, neg, pos, sub, truediv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import entrostat as es
from builders import json_lines, refused
from entrostat.config import Scoring, from_dict
from entrostat.data.scoring import Scorer
from entrostat.errors import RunStopped
from entrostat.runs.progress import Progress
from entrostat.tasks.gym import GymTask
from entrostat.tasks.target_sum import TargetSum
from entrostat.trainers.lab import train
from entrostat.workers import Outcome, Pool
from paths import ROOT

EXAMPLE = es.Example("23/4:", answer=(23, 4))


class Gives(TargetSum):
    """Rewards 1, but `value` for the third completion; an exception is raised."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value, self.calls = value, 0

    def score(self, completion: str, example: es.Example) -> float:
        self.calls += 1
        if self.calls == 3 and isinstance(self.value, BaseException):
            raise self.value
        return self.value if self.calls == 3 else 1.0


class GivesTogether(TargetSum):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def score_batch(self, completions: list[str], examples: list[es.Example]) -> Any:
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value


def rewards(task: Any, failed: int = 0) -> tuple[list[float], list[str]]:
    """Rewards of four completions, and what was said."""
    said: list[str] = []
    with Scorer(task, Scoring(), said.append) as scorer:
        found = scorer(["a", "b", "c", "d"], [EXAMPLE] * 4, 7)
        assert scorer.figures() == {"reward/failed": failed}
    assert found.dtype == torch.float32
    return found.tolist(), said


class Unprintable:
    def __repr__(self) -> str:
        raise KeyError("repr")


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ("1", r"gave no reward \(the reward is '1'; it must be one finite number\)"),
        (b"1", r"gave no reward \(the reward is b'1'"),
        (bytearray(b"1"), r".*the reward is bytearray\(b'1'\)"),
        (3e38, r".*the reward is 3e\+38; it must be one finite number of at most 1e\+18"),
        (-3e38, r".*the reward is -3e\+38"),
        (math.nan, r".*the reward is nan; it must be one finite number\)"),
        (None, ".*the reward is None"),
        (10**400, ".*the reward is 1000"),
        ({"reward": 1}, r".*the reward is \{'reward': 1\}"),
        (Unprintable(), ".*the reward is a Unprintable"),
        (SystemExit("bye"), r"raised \(SystemExit: bye\)"),
        (ZeroDivisionError("no such sum"), r"raised \(ZeroDivisionError: no such sum\)"),
    ],
)
def test_what_is_no_reward_costs_its_rollout_and_is_said(value: Any, match: str) -> None:
    found, said = rewards(Gives(value), failed=1)
    assert found == [1, 1, 0, 1]
    where = r"iteration 7, rollout 2 \(prompt '23/4:', completion 'c'\): the scorer of target_sum "
    (words,) = said
    assert re.match(where + match, words)
    assert words.endswith("Such answers score 0; reward/failed counts them")
    if not isinstance(value, BaseException):
        assert rewards(GivesTogether([1, value, value, 1]), failed=2)[0] == [1, 0, 0, 1]


def test_processes_that_score_together_stop_together() -> None:
    """One whose few answers all fail does not stop the others."""
    task = TargetSum()
    task.score = lambda completion, example: 1 / 0  # type: ignore[method-assign]
    with Scorer(task, Scoring(), lambda words: None) as scorer:
        scorer.everywhere = lambda failed, answers: (failed, answers + 4)  # the other's are fine
        assert scorer(["a", "b"], [EXAMPLE] * 2, 7).tolist() == [0, 0]
        scorer.everywhere = lambda failed, answers: (failed + 4, answers + 4)
        refused(
            lambda: scorer(["a", "b"], [EXAMPLE] * 2, 7),
            "failed at all 6 answers: a bug of the task",
            error=RunStopped,
        )
        counts: list[tuple[int, int]] = []
        del task.score
        scorer.everywhere = lambda *own: counts.append(own) or own
        scorer(["a"], [EXAMPLE], 8)
    assert counts == [(0, 1)]  # asked where nothing failed, too: the others wait for it


def test_failures_are_said_once_and_counted_each_time() -> None:
    said: list[str] = []
    task = Gives(math.nan)
    with Scorer(task, Scoring(), said.append) as scorer:
        for iteration, failed in ((1, 1), (2, 0), (3, 1)):
            task.calls = 0 if failed else 3
            scorer(["a", "b", "c", "d"], [EXAMPLE] * 4, iteration)
            assert scorer.figures() == {"reward/failed": failed}
    assert len(said) == 1
    assert said[0].startswith("iteration 1, rollout 2 ")


class Fails(TargetSum):
    def score(self, completion: str, example: es.Example) -> float:
        raise KeyError("answer")


@pytest.mark.parametrize(
    ("task", "match"),
    [
        (Fails(), r"raised \(KeyError: 'answer'\)"),
        (GivesTogether([math.nan] * 4), "gave no reward"),
    ],
)
def test_a_task_that_fails_at_every_answer_stops_the_run(task: Any, match: str) -> None:
    with pytest.raises(RunStopped, match=rf"rollout 0 .*target_sum {match}.* at all 4 answers"):
        rewards(task)
    with Scorer(Fails(), Scoring(), lambda text: None) as scorer:  # one says nothing of others
        assert scorer(["a"], [EXAMPLE], 7).tolist() == [0]


@pytest.mark.parametrize("value", [0.5, True, np.float32(0.5), torch.tensor([0.5]), Fraction(1, 2)])
def test_what_is_a_reward(value: Any) -> None:
    assert rewards(Gives(value)) == ([1, 1, float(value), 1], [])


@pytest.mark.parametrize(
    ("value", "match"),
    [
        ({1: "a", 2: "b", 3: "c", 4: "d"}, "gave a dict; it must give a list of numbers"),
        ({1, 2, 3, 4}, "gave a set"),
        ("1111", "gave a str"),
        (b"1111", "gave a bytes"),
        ([1, 1, 1], "gave 3 rewards for 4 rollouts; it must give one each"),
        (None, "raised TypeError"),
        (SystemExit(), "raised SystemExit"),
    ],
)
def test_rewards_together_are_a_list(value: Any, match: str) -> None:
    with pytest.raises(RunStopped, match=rf"iteration 7: target_sum.score_batch {match}"):
        rewards(GivesTogether(value))
    assert rewards(GivesTogether([1, 0, 1, 0])) == ([1, 0, 1, 0], [])
    assert rewards(GivesTogether(torch.tensor([1, 0, 1, 0]))) == ([1, 0, 1, 0], [])


class Told(Progress):
    def __init__(self) -> None:
        self.facts: list[str] = []

    def fact(self, text: str) -> None:
        self.facts.append(text)


def test_a_grader_that_raises_hangs_or_errs_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiny policy answers with digits: which of them decides what the grader does."""
    (tmp_path / "unruly_grader.py").write_text(
        "import os\n"
        "def spin():\n"
        "    while True: pass\n"
        "def grade(response, answer):\n"
        "    assert answer == '23'\n"
        "    kinds = {'5': lambda: 1 / 0, '6': lambda: '1', '7': lambda: float('nan'),\n"
        "             '8': lambda: os._exit(1)}\n"
        "    if response.startswith('99'): spin()\n"
        "    return kinds.get(response[:1], lambda: len(response) / 100)()\n"
    )
    lines = [json.dumps({"prompt": "23/4:", "answer": 23})] * 4
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    monkeypatch.chdir(tmp_path)
    config = from_dict(
        {
            "task": {"name": "t.jsonl", "grader": "unruly_grader:grade", "test": 0.5},
            "iterations": 2,
            "output": "run",
            "sampling": {"prompts": 2, "rollouts": 12, "max_new_tokens": 8},
            "eval": {"prompts": 2, "samples": 4},
            "scoring": {"timeout": 3.0, "workers": 2},
        }
    )
    told = Told()
    run = train(config, progress=told)
    lines = json_lines(run / "metrics.jsonl")
    for iteration, line in enumerate(lines, 1):
        rollouts = es.load_rollouts(run, iteration)
        bad = [t.startswith(("5", "6", "7", "8", "99")) for t in rollouts.completions]
        right = [0 if b else len(t) / 100 for t, b in zip(rollouts.completions, bad, strict=True)]
        assert rollouts.rewards.tolist() == pytest.approx(right)
        assert line["reward/failed"] == sum(bad)
    assert sum(line["reward/failed"] for line in lines) > 0
    said = [text for text in told.facts if "Such answers score 0" in text]
    assert len(said) == 1
    assert "the scorer of t raised (" in said[0] or "the scorer of t died (" in said[0]


def test_a_grader_that_always_raises_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_grader.py").write_text("def grade(response, answer): return answer.none\n")
    (tmp_path / "t.jsonl").write_text(json.dumps({"prompt": "23/4:", "answer": 23}) + "\n")
    monkeypatch.chdir(tmp_path)
    task = es.make_task("t.jsonl", grader="broken_grader:grade")
    with Scorer(task, Scoring(workers=1), lambda words: None) as scorer:
        refused(
            lambda: scorer(["a", "b"], [task.example(0, "train")] * 2, 7),
            "AttributeError", "failed at all 2 answers", error=RunStopped,
        )  # fmt: skip


# reasoning-gym: what the review found, by data set. X stands for the item's variable.
RAISED = {
    "prime_factorization": ["abc", "2 x 3", "\u00d7a", "1e5"],
    "boxnet": ["[]", "1", '"a"', "[[]]", '{"a": 1}'],
    "game_of_life": ["1", "null", "true", "{}", "0.5"],
    "coin_flip": ["1e400", "1e5000"],
    "calendar_arithmetic": ["9" * 4000, "-" + "9" * 400],
}
HUNG = {
    "coin_flip": ["1e9999999"],
    "countdown": ["sin(exp(9**20))"],
    "propositional_logic": ["P∧" * 125_000 + "P"],
    "simple_integration": ["(sin(X)+cos(X))**20*(tan(X)+1)**20"],
    "intermediate_integration": ["(sin(X)+cos(X))**20*(tan(X)+1)**20"],
}
GUARDED = (
    "countdown", "puzzle24", "complex_arithmetic", "game_of_life_halting", "game_of_life",
    "prime_factorization", "coin_flip", "propositional_logic",
)  # fmt: skip
NUMPY = ("codeio", "knights_knaves")  # values in their entries


@pytest.fixture(scope="module")
def gym() -> Iterator[tuple[dict[str, GymTask], Pool]]:
    tasks = {name: GymTask(name) for name in {*RAISED, *HUNG, *GUARDED, *NUMPY}}
    with Pool([task.remote_setup() for task in tasks.values()], workers=2) as pool:
        yield tasks, pool


def outcomes(gym: Any, name: str, index: int, answers: list[str], timeout: float) -> list[Outcome]:
    tasks, pool = gym
    example = tasks[name].example(index, "train")
    variable = example.data["entry"]["metadata"].get("variable", "X")
    return pool.map(
        [tasks[name].remote(a.replace("X", variable), example) for a in answers], timeout
    )


@pytest.mark.parametrize("name", RAISED)
def test_a_wrong_answer_never_ends_training(gym: Any, name: str) -> None:
    """Their scorers raise at these; where ours does not look first, that is an outcome."""
    raised = 0
    for index in range(12):
        for outcome in outcomes(gym, name, index, RAISED[name], 10):
            raised += outcome.failure == "raised"
            assert outcome.failure in (None, "raised")
            assert outcome.value is None or outcome.value < 0.1
    assert bool(raised) == (name not in GUARDED)


def test_answers_that_hang_cost_their_time_limit(gym: Any) -> None:
    for name, answers in HUNG.items():
        failure = None if name in GUARDED else "timed out"
        found = outcomes(gym, name, 0, ["", *answers, ""], 1.0)
        assert [o.failure for o in found] == [None, *[failure] * len(answers), None], name


SIGNS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: truediv, ast.USub: neg, ast.UAdd: pos}


def exact(text: str) -> Fraction:
    """An expression's value in fractions, by walking its tree."""

    def value(node: ast.expr) -> Fraction:
        match node:
            case ast.BinOp(left, sign, right):
                return SIGNS[type(sign)](value(left), value(right))
            case ast.UnaryOp(sign, operand):
                return SIGNS[type(sign)](value(operand))
            case ast.Constant(number):
                return Fraction(number)
        raise ValueError(ast.dump(node))

    return value(ast.parse(text, mode="eval").body)


def test_what_wrongly_passed_is_refused_and_what_is_right_still_passes(gym: Any) -> None:
    tasks, _ = gym
    for index in range(12):
        for name in GUARDED:
            task, example = tasks[name], tasks[name].example(index, "train")
            entry = example.data["entry"]
            right = entry["answer"] or entry["metadata"]["example_answer"]
            assert task.score(f"<answer> {right}</answer>", example) == 1, (name, index)
            wrong = list(_wrong(name, entry))
            assert wrong
            for answer in wrong:
                assert task.score(answer, example) < 0.5, (name, answer)


def _wrong(name: str, entry: dict[str, Any]) -> Iterator[str]:
    meta = entry["metadata"]
    if name == "game_of_life_halting":
        yield from ("x", "true", "0", "not " + entry["answer"], str(entry["answer"] != "True"))
    elif name == "complex_arithmetic":
        yield from ("nan", "nan+nanj", "NaN", "nani", "infj", "1_0", "٣")
    elif name == "countdown":
        numbers = "+".join(map(str, meta["numbers"]))
        target = meta["target"]
        yield from (f"0x{target:x}+0x0*({numbers})", f"{target}e0+0e0*({numbers})")
        yield from (f"{target}.0+0.0*({numbers})", f"{target}if 1 else ({numbers})", f"{target}")
    elif name == "game_of_life":
        grid = json.loads(entry["answer"])
        yield from (json.dumps([*grid, [0]]), json.dumps([[*row, 0] for row in grid]), "[]")
    elif name == "prime_factorization":
        yield from (entry["answer"] + "x", f"{math.prod(meta['factors'])}.0", "2 ** 3", "-1")
    elif name == "coin_flip":  # the beginning of the right number was as good as all of it
        digits = f"{float(Fraction(entry['answer'])):.10g}"
        close = float(digits[:4]) if "e" not in digits else 0
        yield from ("0.", "-0", "0e7", f"{digits}0000001" if "e" in digits else f"1{digits}")
        yield from [digits[:4]] if abs(close - float(digits)) > 1e-4 and close not in (0, 1) else []
    elif name == "propositional_logic":
        yield from (
            "x \u2228 \u00acx",
            "(P",
            "P \u2227",
            "P4 \u2228 \u00acP4",
            "P & Q",
            "P Q",
            "P#",
        )
        yield "\u00ac" * 2000 + "P"
    else:
        numbers = "+".join(map(str, meta["numbers"]))
        yield from (f"24e0+0e0*({numbers})", f"0x18+0x0*({numbers})", "24")
        others = ("6*4*1*1", "8*3*1*1", "(7*7)/(2*1)")  # four numbers, or 24.5, but not those asked
        asked = sorted(meta["numbers"])
        used = (sorted(int(c) for c in text if c.isdigit()) for text in others)
        yield from (text for text, given in zip(others, used, strict=True) if given != asked)


def test_near_misses_of_countdown() -> None:
    """Theirs takes 1e-5 of the target for equal: 100000 + 1/3 for 100000."""
    task = GymTask("countdown")
    example = task.example(0, "train")
    meta = {"numbers": [100000, 1, 3], "target": 100000}
    example = es.Example("", "", {"entry": example.data["entry"] | {"metadata": meta}})
    assert exact("100000 + 1/3") != 100000
    assert task.score("100000 + 1/3", example) < 0.1
    assert task.score("100000*1*3", example) == 0.05  # another value: their own grade
    example.data["entry"]["metadata"] = {"numbers": [100000, 3, 3], "target": 100001}
    assert task.score("100000 + 3/3", example) == 1


def test_a_name_is_no_way_to_the_scorers_variables() -> None:
    """`"".join(eval("oracle_answer"))` was the right answer of string_insertion, for a tenth."""
    task = GymTask("string_insertion")
    for index in range(5):
        example = task.example(index, "train")
        for answer in ("oracle_answer", "[oracle_answer]", "(oracle_answer)"):
            assert task.score(answer, example) == 0
        assert task.score(str(list(example.answer)), example) == 0.1
        assert task.score(example.answer, example) == 1


@pytest.mark.parametrize("name", NUMPY)
def test_entries_of_numpy_values_reach_a_worker(gym: Any, name: str) -> None:
    tasks, _ = gym
    for index in range(4):
        answer = str(tasks[name].example(index, "train").answer)
        assert outcomes(gym, name, index, [answer], 60) == [Outcome(1.0)]


@pytest.mark.long
def test_hostile_answers_in_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmarks/hostile_answers.py with its checkers, written apart from the scorers."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import hostile_answers

    tallies = list(hostile_answers.run(count=4000, seed=1, limit=10, workers=2))
    assert [tally.answers for tally in tallies] == [1600, 400, 400, 400] + [120] * 10
    for tally in tallies:
        assert tally.false == [], tally.name
        assert tally.accepted > 5, tally.name  # a scorer that refuses everything is no scorer
        assert tally.hung == 0, tally.name
        if not tally.name.startswith("gym:"):
            assert tally.raised == 0, tally.name


def test_an_eos_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    from entrostat.model_files import tiny_directory

    shutil.copytree(tiny_directory(), tmp_path / "model")
    file = tmp_path / "model/generation_config.json"
    settings = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(settings | {"eos_token_id": [1, 99_999]}))
    config = from_dict({"model": str(tmp_path / "model"), "output": str(tmp_path / "run")})
    refused(lambda: train(config), "99999")
