"""Agents' worlds: what a scripted policy sees, does and gets in each of them."""

from __future__ import annotations

import itertools
import json
import random
import re
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import entrostat as es
from builders import refused
from entrostat import sandbox
from entrostat.agents import Reply, Worlds, is_multi_turn, play, script
from entrostat.agents.games import GAMES
from entrostat.agents.python_tool import SUBMIT, SUBMITTED, PythonTool, code_in, shown
from entrostat.agents.tool_sum import ToolSum
from entrostat.agents.tools import WORLDS, Tools, may_be_in
from entrostat.agents.tools.world import Instance, checks, is_answer
from entrostat.agents.worlds import in_time
from entrostat.workers import Outcome
from tool_solutions import solution

HERE = threading.get_ident()


def block(code: str) -> str:
    return f"I will see.\n```python\n{code}\n```"


# --- Worlds: one that fails costs its rollout


class Moody:
    """A world that does what its example says."""

    name = "moody"
    splits = ("train", "test")

    def __init__(self) -> None:
        self.closed: list[str] = []

    def turns(self, split: str) -> int:
        return 3

    def environment(self, example: es.Example) -> Any:
        if example.prompt == "unmade":
            raise RuntimeError("no such world")
        task = self

        class World:
            def reply(self, text: str) -> Any:
                match example.prompt:
                    case "raises":
                        raise KeyError("gone")
                    case "hangs":
                        time.sleep(6)
                    case "lies":
                        return "done"
                    case "surrogate":
                        return Reply("a\ud800b")
                return Reply(f"{text}!", done=text == "end")

            def reward(self, training: bool) -> float:
                return float("nan") if example.prompt == "nan" else 0.5 if training else 1.0

            def close(self) -> None:
                task.closed.append(example.prompt)

        return World()


def test_a_world_that_fails_costs_its_rollout() -> None:
    task = Moody()
    kinds = ["good", "unmade", "raises", "hangs", "lies", "surrogate", "nan", "good"]
    with Worlds(task, [es.Example(kind) for kind in kinds], timeout=1.5, at_once=3) as worlds:
        replies = worlds.reply(dict.fromkeys(range(8), "hello"))
        assert replies[0] == replies[6] == replies[7] == Reply("hello!")
        assert replies[1] == replies[2] == replies[3] == replies[4] == Reply(done=True)
        assert replies[5] == Reply("a?b")
        assert worlds.reply({0: "end", 2: "end"}) == {0: Reply("end!", True), 2: Reply(done=True)}
        assert worlds.rewards(training=True) == [0.5, 0, 0, 0, 0, 0.5, 0, 0.5]
        assert worlds.failures == {
            1: "raised (RuntimeError: no such world)",
            2: "raised (KeyError: 'gone')",
            3: "timed out (it took longer than 1.5 s)",
            4: "raised (TypeError: reply must give an entrostat.agents.Reply with a text, not "
            "'done')",
            6: "raised (ValueError: the reward is nan; it must be one finite number)",
        }
    assert sorted(task.closed) == sorted(kind for kind in kinds if kind != "unmade")


def test_play_ends_with_the_world_or_with_the_turns() -> None:
    task = Moody()
    ended = play(task, es.Example("good"), script("a", "end", "never said"))
    assert (ended.turns, ended.done, ended.reward) == ((("a", "a!"), ("end", "end!")), True, 0.5)
    endless = play(task, es.Example("good"), script(), split="test")
    assert (endless.turns, endless.done, endless.reward) == ((("", "!"),) * 3, False, 1.0)
    failed = play(task, es.Example("raises"), script("a"))
    assert (failed.turns, failed.reward) == ((("a", ""),), 0.0)
    assert failed.failure == "raised (KeyError: 'gone')"


def test_calls_are_made_at_once_and_in_order() -> None:
    all_there = threading.Barrier(8)  # passed by eight at once only

    def call(n: int) -> tuple[int, bool]:
        all_there.wait(60)
        return n, threading.get_ident() != HERE

    calls = [partial(call, n) for n in range(8)]
    assert in_time(calls, 120.0, at_once=8) == [Outcome((n, True)) for n in range(8)]


# --- tool_sum


@pytest.mark.parametrize(
    ("call", "answer", "said", "training", "evaluation"),
    [
        ("9+9+8+1+1", "8+1", ["9/2:", ""], 1, 1),
        ("8+8+8+2+2", "4+5", ["9/2:", ""], 1, 1),
        ("9+9+8+1+1", "9+1", ["9/2:", ""], 0.5, 0),
        ("9+9+8+1+1", "9", ["9/2:", ""], 0.5, 0),
        ("9+9+8+1+1", "", ["9/2:", ""], 0.5, 0),
        ("9+9+8+2", "8+1", [""], 0, 0),  # 28, with four digits
        ("", "8+1", [""], 0, 0),
        ("8+1", "8+1", [""], 0, 0),  # what is hidden, guessed without the call
    ],
)
def test_tool_sum(
    call: str, answer: str, said: list[str], training: float, evaluation: float
) -> None:
    task = es.make_task("tool_sum", seed=1, k_max=6, digits=2)
    example = task.example(0, "train")
    assert (example.prompt, example.data["wanted"]) == ("28/5:", [[28, 5], [9, 2]])
    assert "9/2" not in example.prompt
    for split, reward in (("train", training), ("test", evaluation)):
        episode = play(task, example, script(call, answer), split)
        assert [observation for _, observation in episode.turns] == said
        assert (episode.done, episode.reward) == (True, reward)


def test_tool_sum_prompts() -> None:
    task = ToolSum(seed=3, k_min=4, k_max=4, digits=3)
    assert is_multi_turn(task)
    assert not is_multi_turn(es.make_task("target_sum"))
    wanted = [task.example(i, "train").data["wanted"] for i in range(200)]
    assert all(k == 4 and 8 <= t <= 32 and m == 3 and 6 <= a <= 24 for (t, k), (a, m) in wanted)
    # what is hidden cannot be told from what is asked
    calls, hidden = zip(*[(call[0], answer[0]) for call, answer in wanted], strict=True)
    assert len({*hidden}) == 19
    assert abs(_correlation(calls, hidden)) < 0.2
    assert wanted != [ToolSum(seed=4, k_min=4, k_max=4, digits=3).example(i, "train").data["wanted"]
                      for i in range(200)]  # fmt: skip
    tests = [ToolSum(seed=seed).example(5, "test") for seed in (1, 2)]
    assert tests[0] == tests[1]
    refused(lambda: ToolSum(digits=7), "got 7")


def _correlation(x: Any, y: Any) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    over = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    return over / (sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y)) ** 0.5


# --- the notebook


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("So:\n```py\nx = 1\n```\nand\n```Python\ny = 2\n```\nDone.", "x = 1\n\ny = 2\n"),
        ("```python\nx = 1", "x = 1"),  # the fence was the stop string
        ("```json\n{}\n```\n```python\nx = 1\n```", "x = 1\n"),
        ("x = 1", None),
        ("```\nx = 1\n```", None),
        ("`python` x", None),
        ("", None),
        ("<think>\n```python\nx = 1\n```\n</think>\n```python3\ny = 2\n```", "y = 2\n"),
        ("<think>\n```python\nx = 1\n```", None),
        ("1. a\n   ```python\n   if x:\n       y = 2\n   ```", "if x:\n    y = 2\n"),
        ("```python\nx = '</s>'\n```", "x = '</s>'\n"),
    ],
)
def test_code_in_a_turn(text: str, code: str | None) -> None:
    assert code_in(text) == code


def test_an_observation_is_cut_in_the_middle() -> None:
    assert shown("\na\n", 10) == "Output:\na\n"
    text = "".join(map(str, range(10))) * 10
    assert shown(text, 20) == "Output:\n0123456789\n[... 80 characters ...]\n0123456789\n"


@pytest.mark.long
def test_fences_cost_linear_time() -> None:
    # in quadratic time hours, in linear time a second or so
    for text in ("```python\n", "```", "```python ", " \t"):
        code_in(text * 400_000)


def tool(setup: str = "", judged: list[bool] | None = None, wall: float = 20.0) -> PythonTool:
    limits = sandbox.Limits(wall=wall)
    return PythonTool(
        lambda: sandbox.Session(limits, SUBMIT + setup),
        lambda notebook, answer: judged if judged is not None else [answer == 42],
        longest=200,
    )


@pytest.fixture
def isolated() -> None:
    try:
        sandbox.isolation()
    except ValueError as error:
        pytest.skip(str(error))


@pytest.mark.usefixtures("isolated")
def test_a_notebook_keeps_its_state_until_it_submits() -> None:
    world = tool("y = 40")
    try:
        assert world.reply(block("x = y + 2\nprint(x)")) == Reply("Output:\n42\n")
        trace = world.reply(block("x / 0"))
        assert "ZeroDivisionError: division by zero" in trace.observation
        assert not trace.done
        assert world.reply("No code.").observation.startswith("Output:\nNothing was run")
        assert world.reward(True) == 0  # nothing submitted
        assert world.reply(block("import os\nos.mkdir('a')\nos.chdir('a')\nsubmit(x)")).done
        assert world.reward(True) == world.reward(False) == 1
    finally:
        world.close()


@pytest.mark.long
@pytest.mark.usefixtures("isolated")
def test_a_notebook_that_dies_starts_anew() -> None:
    world = tool("y = 1", judged=[True, False, True], wall=4.0)
    try:
        world.reply(block("y = 2"))
        # submitted, but in an interpreter that is gone
        died = world.reply(block("submit(42)\nwhile True: pass"))
        assert "[timed out: it took longer than 4 s. The notebook" in died.observation
        assert "The notebook has started anew" in died.observation
        assert not died.done
        assert world.reply(block("print(y)")) == Reply("Output:\n1\n")
        assert world.reply(block("submit()")) == Reply("Output:\n\n", done=True)
        assert world.reward(True) == pytest.approx(2 / 3)
        assert world.reward(False) == 0
    finally:
        world.close()


# --- tools: the instances


@pytest.mark.parametrize("split", ["train", "test", "unseen"])
def test_doing_nothing_passes_no_check(split: str) -> None:
    for _, _, instance in Tools(seed=2).instances(split):
        assert instance.after is None or instance.after != instance.before
        results = checks(instance, instance.before, None)
        assert results
        assert not any(results)
        # nor does destroying everything and submitting something
        assert not any(any(checks(instance, {}, a)) for a in ("", [], True, None, {}, "none", -1))


def test_instances_are_many_and_splits_share_none() -> None:
    task = Tools(seed=1)
    asked = {s: [i.ask for _, _, i in task.instances(s)] for s in task.splits}
    assert {s: len(a) for s, a in asked.items()} == {"train": 240, "test": 60, "unseen": 60}
    everything = [ask for asks in asked.values() for ask in asks]
    assert len(set(everything)) == len(everything)
    assert all(may_be_in("train", ask) for ask in asked["train"])
    assert not any(may_be_in("train", ask) for ask in asked["test"])
    templates = {s: {(k, t) for k, t, _ in task.instances(s)} for s in task.splits}
    assert templates["train"] == templates["test"]
    assert templates["train"].isdisjoint(templates["unseen"])
    assert len(templates["train"]) == 22
    assert len(templates["unseen"]) == 6
    # deterministic; train alone depends on the seed; no seed of train asks what test does
    again, other = Tools(seed=1), Tools(seed=2)
    assert again.example(7, "train") == task.example(7, "train")
    assert other.example(7, "train") != task.example(7, "train")
    assert other.example(7, "test") == task.example(7, "test")
    assert {i.ask for _, _, i in other.instances("train")}.isdisjoint(asked["test"])


def test_tools_options() -> None:
    task = es.make_task("tools", kinds="calendar", difficulty=1, size=40, turns=3)
    assert {k for k, _, _ in task.instances("train")} == {"calendar"}  # type: ignore[attr-defined]
    assert {t for _, t, _ in task.instances("train")} == {"who", "cancel", "add"}  # type: ignore[attr-defined]
    assert (task.size("train"), task.size("test"), task.turns("train")) == (40, 10, 3)  # type: ignore[attr-defined]
    assert "You have 3 turns" in task.example(0, "train").prompt
    for params, words in (
        ({"kinds": "files,mail"}, "unknown kind 'mail'"),
        ({"difficulty": 4}, "difficulty must be from 1 to 3, got 4"),
        ({"size": 0}, "size must be from 1 to 6000"),
        ({"kinds": "database", "difficulty": 1, "size": 2000}, "lower --task.size, now 2000"),
    ):
        with pytest.raises(ValueError, match=words):
            es.make_task("tools", **params).instances("train")  # type: ignore[attr-defined]
    assert Tools(difficulty=1).splits == ("train", "test")
    unseen = {template for _, template, _ in Tools(difficulty=2).instances("unseen")}
    assert unseen == {"largest", "cancel_order", "clear"}


@pytest.mark.parametrize(
    ("given", "expected", "right"),
    [
        (3, 3, True), (3.0, 3, True), ("3", 3, True), (" 3 ", 3, True), (4, 3, False),
        (True, 1, False), (["Ada"], "Ada", False), (None, 0, False),
        ("", 0, False), ("nan", 3, False), ("x", 3, False),
        ([3], 3, False), (10**400, 3, False), ("1" * 10_000, 3, False),
        ("Ada", "Ada", True), (" ada", "Ada", True), ("Ada.", "Ada", False),
        (["Ada", "Bo"], ["Ada", "Bo"], True), (["Bo", "Ada"], ["Ada", "Bo"], False),
        ("Ada", ["A", "d", "a"], False), ([], ["Ada"], False), ({"Ada": 1}, ["Ada"], False),
    ],
)  # fmt: skip
def test_answers(given: Any, expected: Any, right: bool) -> None:
    assert is_answer(given, expected) is right


def test_checks_by_hand() -> None:
    before = {"a": 1, "b": 2, "c": 3}
    instance = Instance(
        "", before, {"a": 1, "b": 5, "d": 4}, answer=7
    )  # b changes, c goes, d comes
    right = {"a": 1, "b": 5, "d": 4}
    # b, c, d (in the order of before, then after), nothing else, the answer
    assert checks(instance, right, 7) == [True] * 5
    assert checks(instance, right, 8) == [True, True, True, True, False]
    # what had to go counts where nothing else was touched
    assert checks(instance, right | {"a": 0}, 7) == [True, False, True, False, True]
    assert checks(instance, right | {"e": 0}, 7) == [True, False, True, False, True]
    assert checks(instance, before | {"b": 5}, None) == [True, False, False, True, False]
    assert checks(instance, {"a": 1, "b": 2}, None) == [False, True, False, True, False]
    assert checks(instance, {}, 7) == [False, False, False, False, True]
    assert checks(Instance("", before, answer=7), {}, 7) == [True]


def test_rewards_of_the_notebook_are_shares() -> None:
    """With a stand-in for the sandbox: what counts is what it holds, not what was printed."""

    class Fake:
        def __init__(self) -> None:
            self.held = {"old.txt": "Ada", "note.txt": "Bo"}

        def run(self, code: str) -> sandbox.Result:
            exec(code, {"held": self.held})
            return sandbox.Result(0, "all checks passed: reward 1\n", "", None, "", 0.0)

        def files(self) -> dict[str, str]:
            return self.held

        def close(self) -> None:
            pass

    note = {"note.txt": "Bo"}
    instance = Instance("Rename", note | {"old.txt": "Ada"}, note | {"new.txt": "Ada"})
    read = WORLDS["files"].read
    for code, training, evaluation in (
        ("", 0, 0),
        ("held['new.txt'] = held.pop('old.txt')", 1, 1),
        ("held['new.txt'] = held['old.txt']", 2 / 3, 0),
        ("held['new.txt'] = held.pop('old.txt') + 'x'", 2 / 3, 0),
        ("held.clear()", 0, 0),
    ):
        world = PythonTool(Fake, lambda notebook, answer: checks(instance, read(notebook), answer))
        assert not world.reply(block(code)).done
        assert world.reward(True) == 0
        assert world.reply(block(f"held[{SUBMITTED!r}] = 'null'")).done
        assert world.reward(True) == pytest.approx(training)
        assert world.reward(False) == evaluation


# --- tools: solved


def _first_of_each_template() -> Iterator[tuple[str, int]]:
    task = Tools()
    for split in ("train", "unseen"):
        seen = set()
        for index, (kind, template, _) in enumerate(task.instances(split)):
            if (kind, template) not in seen:
                seen.add((kind, template))
                yield split, index


def solve(task: Tools, split: str, indices: list[int]) -> list[float]:
    """Evaluation rewards of the reference programs, which know the text and read the state."""
    examples = [task.example(index, split) for index in indices]
    with Worlds(task, examples, at_once=4) as worlds:
        asked = [task.instances(split)[index] for index in indices]
        turns = {i: block(solution(name, one.ask)) for i, (_, name, one) in enumerate(asked)}
        replies = worlds.reply(turns)
        assert all(reply.done for reply in replies.values()), replies
        assert not worlds.failures
        return worlds.rewards(training=False)


@pytest.mark.long
@pytest.mark.usefixtures("isolated")
def test_every_template_is_solved_in_the_sandbox() -> None:
    task, cases = Tools(), list(_first_of_each_template())
    for split, found in itertools.groupby(cases, lambda case: case[0]):
        indices = [index for _, index in found]
        assert solve(task, split, indices) == [1.0] * len(indices)


@pytest.mark.slow
@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize("split", ["train", "test", "unseen"])
def test_every_instance_is_solved_in_the_sandbox(split: str) -> None:
    task = Tools(seed=3)
    indices = list(range(task.size(split) or 0))
    assert solve(task, split, indices) == [1.0] * len(indices)


@pytest.mark.long
def test_every_instance_is_solved_in_plain_python(tmp_path: Path) -> None:
    """By their reference programs, in one interpreter without a sandbox."""
    task = Tools(seed=7)
    jobs = [
        (name, instance, WORLDS[kind], f"{split}{number}")
        for split in task.splits
        for number, (kind, name, instance) in enumerate(task.instances(split))
    ]
    programs = {
        where: SUBMIT + world.setup(one.before) + "\n" + solution(name, one.ask)
        for name, one, world, where in jobs
    }
    (tmp_path / "programs.json").write_text(json.dumps(programs))
    runner = textwrap.dedent("""
        import json, os
        for where, code in json.load(open("programs.json")).items():
            os.mkdir(where)
            os.chdir(where)
            exec(code, {})
            os.chdir("..")
    """)
    subprocess.run([sys.executable, "-c", runner], cwd=tmp_path, check=True, timeout=480)
    for _, instance, world, where in jobs:
        notebook = _Left(tmp_path / where)
        submitted = json.loads(notebook.files()[SUBMITTED])
        assert all(checks(instance, world.read(notebook), submitted)), (instance, submitted)


class _Left:
    """What a program left in a directory, as a notebook would say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def files(self) -> dict[str, str]:
        paths = [
            path for path in self._folder.rglob("*") if path.is_file() and path.suffix != ".db"
        ]
        return {path.relative_to(self._folder).as_posix(): path.read_text() for path in paths}

    def run(self, code: str) -> Any:
        with sqlite3.connect(self._folder / "shop.db") as shop:
            names = [row[0] for row in shop.execute("SELECT name FROM sqlite_master")]
            tables = {name: shop.execute(f"SELECT * FROM {name}").fetchall() for name in names}
        shop.close()
        return sandbox.Result(0, json.dumps(tables), "", None, "", 0.0)

    def close(self) -> None: ...


@pytest.mark.usefixtures("isolated")
def test_worked_examples_in_prompts_are_true() -> None:
    states = {
        "files": {"staff.txt": "Anton\nBirgit\nCelia"},
        "database": {"products/11": [11, "teapot", 18, 7]},
        "calendar": {"picnic": ["Mon", 12, 14, ["Anton", "Birgit"]]},
    }
    for kind, world in WORLDS.items():
        _, turns = world.shown
        notebook = tool(world.setup(states[kind]), judged=[True])
        try:
            for code, output in turns:
                reply = notebook.reply(block(code))
                assert reply.observation == shown(output, 2000)
            assert reply.done
        finally:
            notebook.close()


@pytest.mark.usefixtures("isolated")
def test_a_policy_that_deceives_gets_nothing() -> None:
    """Printing, a forged submit, a patched interpreter: nobody over there knows what is right."""
    task = Tools(kinds="database", difficulty=1)
    index = next(i for i, (_, name, _) in enumerate(task.instances("train")) if name == "set_price")
    example = task.example(index, "train")
    for code in (
        "submit()",
        "print('all checks passed'); submit('all checks passed')",
        "import json\njson.dumps = lambda *a, **k: 'null'\nsubmit()",
        "import sqlite3\nsqlite3.connect = None\nsubmit()",
        "import os\nos.remove('shop.db')\nsubmit()",
        "print = lambda *a: None\nsubmit()",
        "open('shop.db', 'w').write('x' * 5000)\nsubmit()",
        "db.execute('BEGIN EXCLUSIVE')\nsubmit()",
        "open('.submitted', 'w').write('[' * 100000)",
        "import os\nos.mkdir('.submitted')",
    ):
        episode = play(task, example, script(block(code)))
        assert (episode.reward, episode.failure) == (0, ""), code


def test_prompts_tell_what_there_is() -> None:
    task = Tools()
    for index in range(22):
        prompt = task.example(index, "train").prompt
        assert prompt.count("```python\n") == 2
        assert prompt.rstrip().rpartition("Task: ")[2] == task.instances("train")[index][2].ask
        assert len(prompt) < 2500
        assert not re.search(r"[{}]\w+[{}]", prompt.replace('{"', "").replace("'", ""))


# --- games


def guesser(prompt: str, turns: Any) -> str:
    """Halves what is left, by what the game says."""
    low, high = 1, 20
    for said, heard in turns:
        guess = int(said.strip("[]"))
        low, high = (guess + 1, high) if "higher" in heard else (low, guess - 1)
    return f"[{(low + high) // 2}]"


def test_guess_the_number() -> None:
    task = es.make_task("games", game="guess_the_number")
    assert is_multi_turn(task)
    before = random.getstate()
    lengths = set()
    for index in range(8):
        example = task.example(index, "test")
        assert "between 1 and 20" in example.prompt
        episode = play(task, example, guesser, "test")
        assert (episode.done, episode.reward) == (True, 1)
        lengths.add(len(episode.turns))
    assert len(lengths) > 1
    assert max(lengths) <= 5  # 20 numbers are found by halving in five guesses
    assert random.getstate() == before
    idle = play(task, example, script(), "train")
    assert (idle.done, idle.reward) == (True, 0)
    far = play(task, example, script("[1]", "[1]", "[1]"), "test")
    assert far.reward == 0


def test_mastermind_by_elimination() -> None:
    codes = list(itertools.permutations("123456", 4))

    def pegs(a: Any, b: Any) -> tuple[int, int]:
        black = sum(x == y for x, y in zip(a, b, strict=True))
        return black, len({*a} & {*b}) - black

    def policy(prompt: str, turns: Any) -> str:
        left = codes
        for said, heard in turns:
            black, white = map(int, re.findall(r"(\d) (?:black|white)", heard))
            guess = said.strip("[]").split()
            left = [code for code in left if pegs(code, guess) == (black, white)]
        return f"[{' '.join(left[0])}]"

    task = es.make_task("games", seed=5, game="mastermind")
    first = play(task, task.example(3, "train"), policy)
    assert (first.done, first.reward) == (True, 1)
    assert first == play(task, task.example(3, "train"), policy)
    assert first != play(task, task.example(4, "train"), policy)


def test_games_do_not_share_random_numbers() -> None:
    """Minesweeper lays its mines at the first move: whoever plays beside it changes nothing."""
    task = es.make_task("games", game="minesweeper")
    moves = script("[0 0]", "[4 4]", "[2 2]")
    alone = play(task, task.example(0, "train"), moves)
    with Worlds(task, [task.example(i, "train") for i in (0, 1)]) as worlds:
        said = []
        for turn in range(len(alone.turns)):
            random.seed(turn)
            move = moves("", [("", "")] * turn)
            said.append(worlds.reply({0: move, 1: move})[0].observation)
    assert said == [heard for _, heard in alone.turns]


def test_all_games_begin() -> None:
    for game in GAMES:
        task = es.make_task("games", game=game)
        example = task.example(0, "test")
        assert len(example.prompt) > 100
        idle = play(task, example, script(), "test")
        assert (idle.done, idle.reward, idle.failure) == (True, 0, ""), game
    refused(lambda: es.make_task("games", game="wordle"), "'wordle'", "mastermind")


def test_games_without_their_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "textarena", None)
    refused(lambda: es.make_task("games"), "'entrostat[games]'")


# --- AppWorld, with a stand-in of the same API

FAKE = '''
import contextlib, io, os, traceback, types

class AppWorld:
    """The calls of appworld.AppWorld that are made, on a world of one number."""

    def __init__(self, task_id, experiment_name):
        print("noise that is not for the host")
        assert os.path.isdir(os.path.join(os.environ["APPWORLD_ROOT"], "data", "tasks", task_id))
        os.makedirs(os.path.join("experiments", "outputs", experiment_name))
        self.done, self.number = False, 0
        self.scope = {"apis": types.SimpleNamespace(
            supervisor=types.SimpleNamespace(complete_task=self.complete),
            counter=types.SimpleNamespace(add=self.add))}

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def add(self, n):
        self.number += n
        return self.number

    def complete(self, answer=None, status="success"):
        self.done = True

    def execute(self, code):
        if "die" in code:
            os._exit(3)
        if "hang" in code:
            import time
            time.sleep(60)
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            try:
                exec(code, self.scope)
            except Exception:
                return "Execution failed. Traceback:\\n" + traceback.format_exc()
        return said.getvalue() or "Execution successful."

    def task_completed(self):
        return self.done

    def evaluate(self):
        passed = [self.number >= n for n in (1, 2, 3, 4)]
        return types.SimpleNamespace(
            passes=[p for p in passed if p], failures=[p for p in passed if not p])
'''


@pytest.fixture
def appworld(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "world"
    (root / "data" / "datasets").mkdir(parents=True)
    for split in ("train", "dev", "test_normal", "test_challenge"):
        (root / "data" / "datasets" / f"{split}.txt").write_text("82e2fac_1\n82e2fac_2\n")
    whose = {"first_name": "Ada", "last_name": "Roe", "email": "ada@x.org", "phone_number": "555"}
    for task in ("82e2fac_1", "82e2fac_2"):
        (root / "data" / "tasks" / task).mkdir(parents=True)
        specs = {
            "instruction": f"Count to {{4}} in {task}.",
            "supervisor": whose,
            "db_version": "1",
        }
        (root / "data" / "tasks" / task / "specs.json").write_text(json.dumps(specs))
    (tmp_path / "packages" / "appworld").mkdir(parents=True)
    (tmp_path / "packages" / "appworld" / "__init__.py").write_text(FAKE)
    monkeypatch.setenv("APPWORLD_ROOT", str(root))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "packages"))
    monkeypatch.setenv("ENTROSTAT_SANDBOX", "unsafe")
    return root


def test_appworld(appworld: Path) -> None:
    task = es.make_task("appworld")
    assert [task.turns(split) for split in task.splits] == [30, 50, 50, 50]  # type: ignore[attr-defined]
    assert task.size("test_normal") == 2
    example = task.example(1, "train")
    assert "assistant of Ada Roe (ada@x.org, 555)" in example.prompt
    assert example.prompt.endswith("Task: Count to {4} in 82e2fac_2.\n")
    add = block("print(apis.counter.add(3))")
    done = block("apis.supervisor.complete_task()")
    episode = play(task, example, script(add, block("1/0"), "hm", done))
    said = [heard for _, heard in episode.turns]
    assert said[0] == "Output:\n3\n"
    assert "ZeroDivisionError" in said[1]
    assert "Nothing was run" in said[2]
    assert said[3] == "Output:\nExecution successful.\n"
    assert (episode.done, episode.reward) == (True, 0.75)
    assert play(task, example, script(add, done), "dev").reward == 0
    assert play(task, example, script(add, add, done), "dev").reward == 1
    never = play(task, example, script(*[add] * 40))
    assert (len(never.turns), never.done, never.reward) == (30, False, 0)
    assert not list((appworld / "experiments" / "outputs").iterdir())


@pytest.mark.long
def test_an_appworld_that_dies_or_hangs_costs_its_rollout(appworld: Path) -> None:
    task = es.make_task("appworld")
    examples = [task.example(0, "train") for _ in range(3)]
    with Worlds(task, examples, timeout=8.0) as worlds:
        replies = worlds.reply({0: block("die = 1"), 1: block("hang = 1"), 2: block("print(5)")})
        assert replies == {0: Reply(done=True), 1: Reply(done=True), 2: Reply("Output:\n5\n")}
        assert "its process has ended" in worlds.failures[0]
        assert worlds.failures[1] == "timed out (it took longer than 8 s)"


def test_appworld_wants_its_data_and_a_word_on_safety(
    appworld: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sandbox.use("auto")
    task = es.make_task("appworld")
    with pytest.raises(ValueError, match=r"give --sandbox unsafe|--sandbox unsafe runs them"):
        task.environment(task.example(0, "train"))  # type: ignore[attr-defined]
    monkeypatch.setenv("APPWORLD_ROOT", str(tmp_path / "nowhere"))
    refused(lambda: es.make_task("appworld"), "no AppWorld data", "appworld download data")


def test_nothing_of_appworld_is_imported_here(appworld: Path) -> None:
    task = es.make_task("appworld")
    play(task, task.example(0, "train"), script(block("print(1)")))
    assert "appworld" not in sys.modules
