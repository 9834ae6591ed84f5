"""A Python notebook as the policy's tool: blocks of code run in a sandbox, one after another.

As in REPO App. D.1, the fenced Python blocks of each turn are run. The observation is their output
or the traceback; variables persist. This repeats until the policy submits or turns run out. Without
a submission the reward is 0. In training the reward is the share of checks that pass, in evaluation
1 if all pass.

Checks never run in the sandbox, and nothing there knows the expected values: the final state is
read from the sandbox as data and compared here.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Sequence
from typing import Any

from ..grading.fences import PYTHON, fenced
from ..grading.texts import spoken
from ..sandbox import Session
from .worlds import Reply

SUBMITTED = ".submitted"
SUBMIT = f'''
def submit(answer=None, _path=__import__("os").path.abspath({SUBMITTED!r})):
    """End the task."""
    import json
    with open(_path, "w") as file:
        json.dump(answer, file, default=str)
'''
ENDED = ("timed out", "out of memory", "killed")
ANEW = "The notebook has started anew: variables and files are as at the beginning"
NO_CODE = "Nothing was run: write a block of code between ```python and ```."


class PythonTool:
    """The environment of one rollout.

    Args:
        start: starts the notebook with `SUBMIT` and the task's own tools; called at the first block
            of code.
        judge: (notebook, submitted value) -> which checks pass; called once, after `submit`.
        longest: most characters of an observation; the middle is cut out of a longer one.
    """

    def __init__(
        self,
        start: Callable[[], Session],
        judge: Callable[[Session, Any], Sequence[bool]],
        longest: int = 2000,
    ) -> None:
        self._start, self._judge, self._longest = start, judge, longest
        self._notebook: Session | None = None
        self._submitted: str | None = None
        self._closed = False

    def reply(self, text: str) -> Reply:
        code = code_in(text)
        if code is None:
            return Reply(shown(NO_CODE, self._longest))
        if self._notebook is None:
            self._notebook = self._start()
            if self._closed:  # closed while the notebook started
                self.close()
                return Reply(done=True)
        ran = self._notebook.run(code)
        said = ran.stdout + ran.stderr
        if ran.failure in ENDED:
            said = f"{said.rstrip()}\n[{ran.failure}: {ran.detail}. {ANEW}]"
        self._submitted = self._notebook.files().get(SUBMITTED)
        return Reply(shown(said, self._longest), done=self._submitted is not None)

    def reward(self, training: bool) -> float:
        if self._notebook is None or self._submitted is None:
            return 0.0
        try:
            answer = json.loads(self._submitted)
        except (ValueError, RecursionError):
            answer = None
        passed = self._judge(self._notebook, answer)
        return sum(passed) / len(passed) if training else float(all(passed))

    def close(self) -> None:
        self._closed = True
        if self._notebook is not None:
            self._notebook.close()


def code_in(text: str) -> str | None:
    """The Python blocks of a turn after its thinking part, joined to one program; None without any.

    The last block may lack its closing fence, which may be the stop string of the turn.
    """
    text = spoken(text)
    blocks = [text[one.start : one.end] for one in fenced(text) if one.language in PYTHON]
    return "\n".join(map(textwrap.dedent, blocks)) if blocks else None


def shown(text: str, longest: int) -> str:
    text = text.strip("\n")
    if len(text) > longest:
        half = longest // 2
        text = f"{text[:half]}\n[... {len(text) - 2 * half} characters ...]\n{text[-half:]}"
    return f"Output:\n{text}\n"
