"""`entrostat tasks`, and `entrostat subset`, which takes a part of one's prompts."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from typing import Any

from .._names import refuse_options
from .._text import say
from ..errors import extra
from .flags import apply_open_flags, dataclass_flags, take_open_flags
from .terminal import quiet_libraries, say_entry, tell, wrapped

TASKS = """\
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
    refuse_options(args, "entrostat tasks", ("help",))
    if len(args) > 1:
        raise ValueError(f"tasks takes one name, got {' '.join(args)}")
    if not args:
        _list()
    elif args[0] in ("gym", "gym:"):
        with extra("tasks", "task 'gym'"):
            from reasoning_gym.factory import DATASETS

        say(wrapped(", ".join(sorted(DATASETS))))
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
    list_sets()
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
    say_entry(name, " ".join(summary.split()), f"options: {options or 'none'}", width=14)
    say()


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
        explain_set(found)
        options = options_of(found)
    elif doc := inspect.getdoc(about):
        say(f"{doc}\n")
    say(wrapped(f"options: {options or 'none'}"))


def _options(cls: type[Any]) -> str:
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


SUBSET = """\
usage: entrostat subset TASK --by kmeans|random|pass_rate [OPTIONS]

Write a part of a task's prompts as a file to train on: one JSON object per
line, {"prompt", "answer", "index", "split", "why"}. The same seed gives the
same file.

Examples:
  entrostat subset my.jsonl --by kmeans --model smollm2 --size 600
  entrostat subset my.jsonl --by random --size 600 --output broad.jsonl
  entrostat train --task broad.jsonl --task.grader number
  entrostat eval smollm2 --on gsm8k/train --k 8 --output evals
  entrostat subset gsm8k --by pass_rate --responses evals --low 0.1 --high 0.9

  kmeans            the prompts of the largest clusters of their embeddings,
                    less diverse than the rest (PAR 6.3): --model, --size,
                    --clusters
  random            as many at random, the control: --size
  pass_rate         prompts that a policy answers right at times (REPO's
                    filter): --responses, --low, --high

  --size N          prompts of the subset; pass_rate takes all without it
  --output FILE     default TASK-BY-SIZE.jsonl
  --task.KEY VALUE  a parameter of the task
  --split NAME      to choose from; default: the one that is trained on
  --prompts N       only the first N of the split
  --seed N          default 0
  --model NAME      of kmeans: whose embeddings
  --clusters N      of kmeans; default 1,000, or a 17th of the prompts
  --responses DIR   of pass_rate: what `entrostat eval` wrote
  --low X, --high X of pass_rate: bounds of the share of right responses
"""


def subset_verb(args: list[str]) -> int:
    """Write a part of a task's prompts as a file."""
    from ..errors import RunStopped
    from ..evaluation.subset import SubsetConfig, run_subset

    name, *words = args
    words, flags = take_open_flags(words)
    given = apply_open_flags({"task": {"name": name}}, flags)["task"]
    config = dataclass_flags(SubsetConfig, SubsetConfig(), words, "entrostat subset", SUBSET)
    quiet_libraries()
    try:
        subset = run_subset(given, config)
    except RunStopped as error:
        return tell(str(error), code=1)
    say(f"{subset.size} of {subset.of} prompts: {subset.path}")
    grader = "" if subset.grader is None else f" --task.grader {subset.grader}"
    say(f"train on it with: entrostat train --task {subset.path}{grader}")
    return 0
