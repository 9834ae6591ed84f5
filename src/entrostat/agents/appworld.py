"""`appworld`: tasks on AppWorld's apps, solved through its APIs in Python (REPO App. D.1).

Users fetch the package and its data themselves (Apache-2.0; the data is encrypted, and must not be
published in plain text). Each world is a process (`appworld_child`), so the package may be in
another interpreter. Environment variables name both, since a shared configuration file must not:
$APPWORLD_ROOT is the directory with AppWorld's `data`, $APPWORLD_PYTHON the interpreter.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

from ..sandbox import isolation
from ..tasks.base import Example
from .python_tool import NO_CODE, code_in, shown
from .worlds import Reply

_FETCH = (
    "In an environment of its own: pip install appworld && appworld install && appworld download "
    "data; then APPWORLD_PYTHON=THAT/bin/python APPWORLD_ROOT=DIR, the directory with its `data`"
)
_LONGEST = 8000  # most characters of an observation
_CHILD = Path(__file__).with_name("appworld_child.py")
_PROMPT = """\
You are the assistant of {first_name} {last_name} ({email}, {phone_number}) and do a task for them,
alone, with Python. Each turn, write one block of code between ```python and ```. What it prints
comes back to you, and variables stay. The object `apis` has the apps, as in
apis.spotify.login(username=..., password=...). To find out what there is:
print(apis.api_docs.show_app_descriptions())
print(apis.api_docs.show_api_descriptions(app_name="spotify"))
print(apis.api_docs.show_api_doc(app_name="spotify", api_name="login"))
{first_name}'s passwords: apis.supervisor.show_account_passwords(). When the task is done call
apis.supervisor.complete_task(), or complete_task(answer=...) where an answer is asked: that ends it
and cannot be left out.

Task: {instruction}
"""


class AppWorld:
    """Prompt: the person to assist, how to look up the APIs, a task; then turns of Python.

    In training the reward is the share of AppWorld's unit tests that pass, in evaluation 1 if all
    pass. A rollout that does not call `complete_task` gets 0.

    AppWorld runs the policy's code with the user's rights. It rejects operations known to be
    dangerous, which is not a sandbox. So this task requires `--sandbox unsafe`; run it in a
    container.
    """

    name = "appworld"
    splits: tuple[str, ...] = ("train", "dev", "test_normal", "test_challenge")
    stop: tuple[str, ...] = ("\n```\n",)

    def __init__(self) -> None:
        self._root = Path(os.environ.get("APPWORLD_ROOT") or ".").absolute()
        self._python = os.environ.get("APPWORLD_PYTHON") or sys.executable
        self._ids: dict[str, list[str]] = {}
        self._of("train")

    def max_new_tokens(self, split: str) -> int:
        return 1024

    def turns(self, split: str) -> int:
        """30 in training, 50 in evaluation, as in REPO."""
        return 30 if split == "train" else 50

    def size(self, split: str) -> int | None:
        return len(self._of(split))

    def example(self, index: int, split: str) -> Example:
        task = self._of(split)[index]
        specs = json.loads(self._read(f"tasks/{task}/specs.json"))
        whose = specs.get("supervisor") or specs["main_user"]
        prompt = _PROMPT.format(instruction=specs["instruction"], **whose)
        return Example(prompt, data={"label": specs["instruction"], "task": task})

    def environment(self, example: Example) -> World:
        if isolation() != "unsafe":
            raise ValueError(
                "task 'appworld' runs the policy's programs with your rights, under AppWorld's own "
                "guard alone; if that is acceptable, in a container say, give --sandbox unsafe"
            )
        return World(self._root, self._python, example.data["task"])

    def _of(self, split: str) -> list[str]:
        if split not in self._ids:
            self._ids[split] = self._read(f"datasets/{split}.txt").split()
        return self._ids[split]

    def _read(self, path: str) -> str:
        try:
            return (self._root / "data" / path).read_text(encoding="utf-8")
        except OSError:
            raise ValueError(
                f"task 'appworld': no AppWorld data in {str(self._root)!r} (data/{path} is "
                f"missing). {_FETCH}"
            ) from None


class World:
    """One world for a task id, in its own process, which starts at the first code."""

    def __init__(self, root: Path, python: str, task: str) -> None:
        self._root, self._python, self._task = root, python, task
        self._name = f"entrostat-{uuid.uuid4().hex}"
        self._process: subprocess.Popen[str] | None = None
        self._done = False

    def reply(self, text: str) -> Reply:
        code = code_in(text)
        if code is None:
            return Reply(shown(NO_CODE, _LONGEST))
        said = self._ask({"do": "execute", "code": code})
        self._done = said["done"]
        return Reply(shown(said["output"], _LONGEST), self._done)

    def reward(self, training: bool) -> float:
        if not self._done:
            return 0.0
        tests = self._ask({"do": "evaluate"})
        share = tests["passed"] / max(1, tests["passed"] + tests["failed"])
        return share if training else float(share == 1)

    def close(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()
        shutil.rmtree(self._root / "experiments" / "outputs" / self._name, ignore_errors=True)

    def _start(self) -> subprocess.Popen[str]:
        made = {"task_id": self._task, "experiment_name": self._name}
        self._process = subprocess.Popen(
            [self._python, "-P", str(_CHILD), json.dumps(made)], cwd=self._root, encoding="utf-8",
            env=os.environ | {"APPWORLD_ROOT": str(self._root)}, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self._answer(self._process)
        return self._process

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        return self._answer(process)

    def _answer(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Read the process's answer; RuntimeError if it reports an error or has ended."""
        assert process.stdout is not None
        line = process.stdout.readline()
        said = json.loads(line) if line else {"error": f"its process has ended. {_FETCH}"}
        if "error" in said:
            raise RuntimeError(f"AppWorld: {said['error']}")
        return said
