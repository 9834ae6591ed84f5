"""`entrostat tasks`."""

from __future__ import annotations

import inspect
import shutil
import textwrap
from dataclasses import MISSING, fields
from typing import Any

from .._names import refuse_options
from .._text import say
from ..errors import extra

_TASKS = """\
usage: entrostat tasks [NAME]

List the tasks with their options, or explain one. `entrostat tasks gym` lists
the data sets of reasoning-gym, `entrostat tasks gym:NAME` the options of one.

Examples:
  entrostat tasks
  entrostat tasks arithmetic
  entrostat tasks gym:countdown
  entrostat tasks gsm8k
  entrostat tasks my_module:MyTask
"""
_HEAD = (
    "As --task NAME, an option as --task.OPTION VALUE; in a file as [task] name, option = value.\n"
)
_FILE = "FILE.jsonl"


def tasks_verb(args: list[str]) -> int:
    """List the tasks, or explain one."""
    if "-h" in args or "--help" in args:
        say(_TASKS.rstrip())
        return 0
    refuse_options(args, "entrostat tasks", ("help",))
    if len(args) > 1:
        raise ValueError(f"tasks takes one name, got {' '.join(args)}")
    if not args:
        _list()
    elif args[0] in ("gym", "gym:"):
        with extra("tasks", "task 'gym'"):
            from reasoning_gym.factory import DATASETS

        say(_wrapped(", ".join(sorted(DATASETS))))
    else:
        _explain(args[0])
    return 0


def _list() -> None:
    from .._plugins import offers
    from ..grading import GRADERS
    from ..tasks import BUILT_IN, task_class
    from ..tasks.sets import data_set
    from .data_sets import list_sets

    say(_HEAD)
    for name in BUILT_IN:
        cls = task_class(name)
        module = inspect.getmodule(cls)
        summary = (inspect.getdoc(module) or "").split("\n\n")[0].partition(": ")[2]
        _show(name, summary, _options(cls))
    list_sets(_wrapped)
    graders = [offer.name for offer in offers("grader") if offer.name not in GRADERS]
    names = ", ".join([*GRADERS, *graders])
    _show(
        "gym:NAME",
        "a data set of reasoning-gym with its own scorer; `entrostat tasks gym` lists them",
        "max_new_tokens = 256, and the data set's own",
    )
    _show(
        _FILE,
        "your prompts and answers, one object per line; also FILE.json and FILE.parquet. "
        f"Graders: {names}, or MODULE:FUNCTION, your own of (response, answer)",
        _options(task_class(_FILE)),
    )
    _show("MODULE:CLASS", "your own class with the members of entrostat.Task", "its parameters")
    for offer in offers("task"):
        ours = offer.name in BUILT_IN or data_set(offer.name) is not None
        hidden = ": hidden by entrostat's own of that name" if ours else ""
        _show(
            offer.name,
            f"of the package {offer.package} ({offer.target}){hidden}",
            f"`entrostat tasks {offer.name}` imports the package and lists them",
        )


def _show(name: str, summary: str, options: str) -> None:
    text = _wrapped(" ".join(summary.split()), 17)
    say(f"  {name:<14} {text.lstrip()}")
    say(_wrapped(f"options: {options or 'none'}", 17) + "\n")


def _explain(name: str) -> None:
    from ..tasks import task_class
    from ..tasks.sets import data_set
    from .data_sets import explain_set, options_of

    if name.startswith("gym:"):
        from ..tasks import gym

        data, config = gym.data_set(name.removeprefix("gym:"))
        about, options = (
            data,
            {"max_new_tokens": 256}
            | {
                f.name: f.default if f.default_factory is MISSING else f.default_factory()
                for f in fields(config)
                if f.name != "seed"
            },
        )
        options = ", ".join(f"{key} = {value!r}" for key, value in options.items())
    else:
        about = task_class(name)
        options = _options(about)
    say(f"{name}\n")
    found = data_set(name)
    if found:
        explain_set(found, _wrapped)
        options = options_of(found)
    elif doc := inspect.getdoc(about):
        say(f"{doc}\n")
    say(_wrapped(f"options: {options or 'none'}"))


def _options(cls: type[Any]) -> str:
    """A task's parameters with their defaults; `seed` is the run's, `path` the name."""
    words = []
    for key, parameter in inspect.signature(cls).parameters.items():
        if key in ("name", "seed", "path") or parameter.kind in (parameter.VAR_KEYWORD,):
            continue
        if key == "fields":
            words += ["fields.prompt = 'prompt'", "fields.answer = 'answer'"]
        else:
            default = parameter.default
            words.append(key if default is parameter.empty else f"{key} = {default!r}")
    return ", ".join(words)


def _wrapped(text: str, indent: int = 0) -> str:
    width = min(shutil.get_terminal_size().columns, 100)
    blank = " " * indent
    return textwrap.fill(
        text, width, initial_indent=blank, subsequent_indent=blank, break_on_hyphens=False
    )
