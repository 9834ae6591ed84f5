"""Names that installed packages offer by entry points, in wheels that pip installs."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch

import entrostat as es
from builders import refused
from entrostat._plugins import offers
from entrostat.cli import main
from entrostat.method import METHODS
from entrostat.testing import check_method

pytestmark = pytest.mark.usefixtures("unrendered")

METHOD = '''
from dataclasses import dataclass

import entrostat as es


@dataclass(frozen=True)
class Damped(es.Method):
    """Damped: tokens that the policy was sure of count less."""

    strength: float = 0.5

    def prepare(self, batch, state):
        return batch.replace(
            advantages=batch.advantages * (1 - self.strength * batch.old_logp.exp())
        )


def damped_by_hand():
    return None
'''
TASK = """
import entrostat as es


class CountUp:
    name = "count_up"
    splits = ("train", "test")

    def __init__(self, seed=0, most=5):
        self.most = most

    def max_new_tokens(self, split):
        return 4

    def size(self, split):
        return None

    def example(self, index, split):
        return es.Example(f"{index % self.most}/1:", str(index % self.most + 1))

    def score(self, completion, example):
        return float(completion == example.answer)


class Nothing:
    name, splits = "nothing", ("train",)
"""
GRADER = '''
import os


def shout(response, answer, *, marks=1):
    """Right in capitals, with so many exclamation marks; the answer "pid" asks who grades."""
    if answer == "pid":
        return os.getpid()
    return float(response == answer.upper() + "!" * marks)
'''
RAISES = "raise ImportError('libsomething.so.3: cannot open shared object file\\n(is it there?)')\n"
# distribution, version, modules, entry points
WHEELS = [
    ("damped-entropy", "1.2",
     {"damped_entropy": METHOD, "damped_tasks": TASK, "shouting": GRADER}, """
[entrostat.methods]
damped = damped_entropy:Damped
twice = damped_entropy:Damped
[entrostat.tasks]
count_up = damped_tasks:CountUp
[entrostat.graders]
shout = shouting:shout
"""),
    ("broken-methods", "0.1", {"broken_methods": RAISES, "half_broken": METHOD + TASK}, """
[entrostat.methods]
breaks = broken_methods:Breaks
absent = half_broken:Absent
function = half_broken:damped_by_hand
other-name = half_broken:Damped
twice = half_broken:Damped
# what entrostat has itself
grpo = broken_methods:Grpo
steer = broken_methods:Steer
[entrostat.tasks]
bare = half_broken:Nothing
sum_of_none = half_broken:damped_by_hand
arithmetic = broken_methods:Arithmetic
gsm8k = broken_methods:Gsm8k
broken_task = broken_methods:Task
[entrostat.graders]
number = broken_methods:number
one_text = half_broken:CountUp.score
no_function = half_broken:__name__
broken_grader = broken_methods:grade
"""),
]  # fmt: skip
SMALL = [
    "--iterations", "1", "--sampling.prompts", "4", "--sampling.rollouts", "4", "--eval.prompts",
    "0",
]  # fmt: skip


def wheel(folder: Path, name: str, version: str, modules: dict[str, str], entries: str) -> Path:
    """A wheel as the specification has it, of pure Python."""
    stem = f"{name.replace('-', '_')}-{version}"
    info = f"{stem}.dist-info"
    files = {f"{module}.py": text for module, text in modules.items()} | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
        f"{info}/entry_points.txt": entries,
    }
    path = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
        record = "".join(f"{place},,\n" for place in files)
        archive.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")
    return path


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed them."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels = [str(wheel(folder, *one)) for one in WHEELS]
    target = folder / "site"
    command = [sys.executable, "-m", "pip", "--isolated", "install", "--no-index", "--no-deps"]
    subprocess.run([*command, "-q", "--target", str(target), *wheels], check=True)
    return target


@pytest.fixture(autouse=True)
def on_path(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """As in an environment that has the packages; what a test uses of them is forgotten."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(installed))
    methods, modules = dict(METHODS), set(sys.modules)
    yield
    METHODS.clear()
    METHODS.update(methods)
    for name in set(sys.modules) - modules:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(installed)):
            del sys.modules[name]


def imported() -> set[str]:
    """Which of the packages' modules are."""
    return {module for *_, modules, _ in WHEELS for module in modules} & set(sys.modules)


def test_a_method_is_a_name_like_any_other() -> None:
    assert "damped" not in es.methods()
    objective = es.make_objective(["dapo", {"name": "damped", "strength": 1.0}])
    assert objective.names == ("ppo", "damped")
    assert es.methods()["damped"].parameters == {"strength": 0.5}
    lp = torch.tensor([[0.25, 0.5]], dtype=torch.float64).log()
    batch = es.TokenBatch(lp, lp, torch.ones(1, 2), torch.tensor([4.0], dtype=torch.float64))
    found = objective.prepare(batch).advantages
    torch.testing.assert_close(found, torch.tensor([[3.0, 2.0]]).double())  # 4 (1 - p)
    assert imported() == {"damped_entropy"}
    assert es.make_objective("damped").names == ("ppo", "damped")  # known from then on
    check_method("damped", rules=["layout", "needs"])


@pytest.mark.long
def test_it_trains_from_the_command_line_and_from_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    words = ["train", *SMALL, "--method", "damped,gspo", "--method.strength", "0.25"]
    assert main([*words, "--output", "run"]) == 0
    assert 'name = "damped"' in (tmp_path / "run/config.toml").read_text()
    del METHODS["damped"]  # as in a new process
    # no MODULE:NAME, so no --trust-code: what was installed is the user's own word
    assert main(["train", "--resume", "run", "--iterations", "2"]) == 0
    del METHODS["damped"]
    (tmp_path / "c.toml").write_text('method = "damped"\ntask = "count_up"\noutput = "other"\n')
    assert main(["train", "--config", "c.toml", *SMALL]) == 0
    assert METHODS["damped"].__module__ == "damped_entropy"


def test_lists_name_packages_and_import_none(capsys: pytest.CaptureFixture) -> None:
    assert main(["methods"]) == 0
    shown = capsys.readouterr().out
    for line in (
        "  damped           damped-entropy 1.2 (damped_entropy:Damped)\n",
        "  grpo             broken-methods 0.1 (broken_methods:Grpo): hidden by entrostat's ",
        "  breaks           broken-methods 0.1 (broken_methods:Breaks)\n",
    ):
        assert line in shown
    assert main(["tasks"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "count_up of the package damped-entropy 1.2 (damped_tasks:CountUp)" in shown
    assert (
        "arithmetic of the package broken-methods 0.1 (broken_methods:Arithmetic): hidden" in shown
    )
    assert "ifeval, broken_grader, no_function, one_text, shout, or MODULE:FUNCTION" in shown
    assert imported() == set()


def test_one_is_explained_with_its_package(capsys: pytest.CaptureFixture) -> None:
    assert main(["methods", "damped"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("damped (intervention; damped-entropy 1.2)\n\nDamped: tokens that")
    assert main(["methods"]) == 0
    ours, theirs = capsys.readouterr().out.split("of installed packages")
    assert "  damped           Damped: tokens that the policy was sure of count less.\n" in ours
    assert "                   [damped-entropy 1.2]\n" in ours
    assert "  damped " not in theirs
    assert main(["tasks", "count_up"]) == 0
    assert "options: most = 5" in capsys.readouterr().out


def test_a_name_of_ours_is_never_a_package_s(capsys: pytest.CaptureFixture) -> None:
    assert es.make_objective("steer").names == ("ppo", "steer")
    assert es.make_objective("grpo").names == ("ppo",)
    assert type(es.make_task("arithmetic")).__module__ == "entrostat.tasks.arithmetic"
    assert es.grade("number", "so 4", "4") == 1
    assert main(["methods", "steer"]) == 0
    assert capsys.readouterr().out.startswith("steer (intervention; STEER 5, App. E.3)\n")
    assert imported() == set()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("breaks", "method 'breaks' of the package broken-methods 0.1 (broken_methods:Breaks): "
         "loading it raised ImportError: libsomething.so.3: cannot open shared object file (is"),
        ("absent", "method 'absent' of the package broken-methods 0.1 (half_broken:Absent): "
         "loading it raised AttributeError: module 'half_broken' has no attribute 'Absent'"),
        ("function", "must derive from entrostat.Method"),
        ("other-name", "a name is letters, digits and underscores, got 'other-name'"),
        ("twice", "method 'twice' is offered by broken-methods 0.1 (half_broken:Damped) and "
         "damped-entropy 1.2 (damped_entropy:Damped); uninstall one of them"),
        ("dampt", "unknown method 'dampt'. Did you mean 'damped'?"),
    ],
)  # fmt: skip
def test_a_method_that_cannot_be_had_is_one_line(
    name: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    for verb in (["methods"], ["train", *SMALL, "--output", "run", "--method"]):
        assert main([*verb, name]) == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert name not in METHODS


def test_a_task_is_a_name_like_any_other() -> None:
    task = es.make_task("count_up", most=3)
    assert task.example(5, "train") == es.Example("2/1:", "3")
    for name, words in (
        (
            "bare",
            "task 'bare' of the package broken-methods 0.1 .* has no 'max_new_tokens', 'size'",
        ),
        ("sum_of_none", "task 'sum_of_none' of .* is a function; a task is a class"),
        ("broken_task", "task 'broken_task' of .*: loading it raised ImportError"),
        ("count_down", r"unknown task 'count_down'\. Did you mean 'count_up'"),
    ):
        with pytest.raises(ValueError, match=words):
            es.make_task(name)
    refused(lambda: es.make_task("count_up", mots=3), "'count_up'", "'mots'")


def test_a_grader_is_one_and_works_in_a_process_of_its_own(tmp_path: Path) -> None:
    assert es.grade("shout", "YES!", "yes") == 1
    assert es.grade("shout", "yes", "yes") == 0
    assert es.grade("shout", "YES!!!", "yes", options={"marks": 3}) == 1
    assert es.grade("shout", "", "pid") != os.getpid()
    refused(lambda: es.grade("shout", "", "", options={"mark": 3}), "'shout'", "'mark'")
    (tmp_path / "rows.jsonl").write_text('{"question": "loud?", "reply": "yes"}\n')
    fields = {"prompt": "question", "answer": "reply"}
    task = es.make_task("rows.jsonl", grader="shout", fields=fields)
    assert task.score("YES!", task.example(0, "train")) == 1
    for name, words in (
        ("one_text", r"grader 'one_text' of .* must take \(response, answer\)"),
        ("no_function", "grader 'no_function' of .* is a str; a grader is a function"),
        ("broken_grader", "grader 'broken_grader' of .*: loading it raised ImportError"),
        ("shouts", "unknown grader 'shouts'. Did you mean 'shout'"),
    ):
        with pytest.raises(ValueError, match=words):
            es.grade(name, "", "")


def test_a_process_of_its_own_finds_them(installed: Path) -> None:
    path = os.pathsep.join([str(installed), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "entrostat.cli", "methods", "damped"],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "damped (intervention; damped-entropy 1.2)" in done.stdout


def test_only_the_three_groups_are_read() -> None:
    assert {offer.name for offer in offers("grader")} >= {"shout", "number"}
    assert offers("host") == []
