"""One world of AppWorld, in the interpreter with the package; orders and answers are JSON lines.

The script imports nothing of entrostat, because AppWorld needs an older pydantic and may have its
own virtual environment. A world freezes the clock and holds databases for its whole process, so
each rollout has a process.

Usage: python -P appworld_child.py ARGUMENTS, the JSON of the arguments of `appworld.AppWorld`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Make the world, then follow one order per line: execute code, or evaluate."""
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    with open(os.devnull) as nothing:  # keep stdin and stdout from AppWorld and the policy
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)

    def say(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        from appworld import AppWorld

        with AppWorld(**json.loads(sys.argv[1])) as world:
            say({})
            for line in lines:
                say(_obey(world, **json.loads(line)))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})


def _obey(world: Any, do: str, code: str = "") -> dict[str, Any]:
    if do == "execute":
        return {"output": str(world.execute(code)), "done": bool(world.task_completed())}
    tests = world.evaluate()
    return {"passed": len(tests.passes), "failed": len(tests.failures)}


if __name__ == "__main__":
    main()
