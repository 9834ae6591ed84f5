"""`entrostat tasks`, and `entrostat subset`, which selects some of a task's prompts."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any

from .._text import say
from ..errors import extra
from .flags import apply_open_flags, dataclass_flags, one_name, take_open_flags
from .terminal import quiet_libraries, say_entry, wrapped

if TYPE_CHECKING:
    from ..tasks.sets import DataSet

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


def tasks_verb(args: list[str]) -> int:
    name = one_name(args, TASKS)
    if name is None:
        _list()
    elif name in ("gym", "gym:"):
        with extra("tasks", "task 'gym'"):
            from reasoning_gym.factory import DATASETS

        say(wrapped(", ".join(sorted(DATASETS))))
    else:
        _explain(name)
    return 0


def _list() -> None:
    from .._plugins import offers
    from ..grading import GRADERS
    from ..tasks import BUILT_IN, task_class
    from ..tasks.sets import data_set

    def show(name: str, summary: str, options: str) -> None:
        say_entry(name, " ".join(summary.split()), f"options: {options or 'none'}", width=14)
        say()

    say(
        "As --task NAME, an option as --task.OPTION VALUE; in a file as [task] name, option = "
        "value.\n"
    )
    for name in BUILT_IN:
        cls = task_class(name)
        module = inspect.getmodule(cls)
        summary = (inspect.getdoc(module) or "").split("\n\n")[0].partition(": ")[2]
        show(name, summary, _options(cls))
    _list_sets()
    graders = [offer.name for offer in offers("grader") if offer.name not in GRADERS]
    show(
        "gym:NAME",
        "a data set of reasoning-gym with its own scorer; `entrostat tasks gym` lists them",
        "max_new_tokens = 256, and the data set's own",
    )
    show(
        "FILE.jsonl",
        "your prompts and answers, one object per line; also FILE.json and FILE.parquet. Graders: "
        f"{', '.join([*GRADERS, *graders])}, or MODULE:FUNCTION, your own of (response, answer)",
        _options(task_class("FILE.jsonl")),
    )
    show("MODULE:CLASS", "your own class with the members of entrostat.Task", "its parameters")
    for offer in offers("task"):
        ours = offer.name in BUILT_IN or data_set(offer.name) is not None
        hidden = ": hidden by entrostat's own of that name" if ours else ""
        show(
            offer.name,
            f"of the package {offer.package} ({offer.target}){hidden}",
            f"`entrostat tasks {offer.name}` imports the package and lists them",
        )


def _explain(name: str) -> None:
    from ..tasks import task_class
    from ..tasks.sets import data_set

    found = data_set(name)
    if name.startswith("gym:"):
        from ..tasks import gym

        about, config = gym.data_set(name.removeprefix("gym:"))
        defaults = {"max_new_tokens": 256} | {
            f.name: f.default if f.default_factory is MISSING else f.default_factory()
            for f in fields(config)
            if f.name != "seed"
        }
        options = ", ".join(f"{key} = {value!r}" for key, value in defaults.items())
    else:
        about = task_class(name)
        options = _options(about, found)
    say(f"{name}\n")
    if found:
        _explain_set(found)
    elif doc := inspect.getdoc(about):
        say(f"{doc}\n")
    say(wrapped(f"options: {options or 'none'}"))


def _options(cls: type[Any], one: DataSet | None = None) -> str:
    """The parameters of a task class, with their defaults or a data set's own values."""
    own: dict[str, Any] = {}
    columns: Mapping[str, str] = {"prompt": "prompt", "answer": "answer"}
    if one is not None:
        columns = one.fields
        own = {
            "template": one.template, "grader": one.grader, "grader_options": {},
            "without": list(one.without), "test": one.held_out,
            "max_new_tokens": one.max_new_tokens,
        }  # fmt: skip
    words = []
    for key, parameter in inspect.signature(cls).parameters.items():
        default = own.get(key, parameter.default)
        if key == "fields":
            words += [f"fields.{name} = {column!r}" for name, column in columns.items()]
        elif key not in ("name", "seed", "path") and parameter.kind != parameter.VAR_KEYWORD:
            words.append(key if default is parameter.empty else f"{key} = {default!r}")
    return ", ".join(words)


def _list_sets() -> None:
    from ..tasks.sets import KINDS, SETS
    from ..tasks.sources import at_hand

    say("Data sets by name (options: `entrostat tasks NAME`; your own copy: --task.path FILE):\n")
    for one in SETS.values():
        use = "" if one.trains else "to evaluate on; "
        place = at_hand(one) or f"not at hand: download {one.hub}"
        facts = f"[{use}{place}; licence: {one.licence}]"
        say_entry(one.name, f"{one.summary} {facts}")
    say("")
    for one in KINDS.values():
        say_entry(f"{one.name}:FILE", _of_file(one))
    say("")


def _explain_set(one: DataSet) -> None:
    from ..tasks.sets import TEMPLATES
    from ..tasks.sources import at_hand, places

    columns = ", ".join(f"{name} = {column}" for name, column in one.fields.items())
    facts = {"grader": one.grader, "columns": columns, "template": TEMPLATES[one.template]}
    if one.hub:
        part = f", configuration {one.config}" if one.config else ""
        splits = ", ".join(
            ours if ours == hubs else f"{ours} (called {hubs} there)"
            for ours, hubs in one.splits.items()
        )
        facts = {
            "from": f"{one.hub} on huggingface.co/datasets{part}",
            "splits": splits + ("" if one.trains else "; to evaluate on: train_on_test lifts that"),
            "at hand": at_hand(one) or "no",
            "looked for": " and ".join(f"{place}.jsonl or .parquet" for place in places(one)),
            "licence": one.licence,
            **facts,
        }
        if one.without:
            facts["without"] = f"the problems of {', '.join(one.without)}"
    say(wrapped(one.summary if one.hub else _of_file(one), 0) + "\n")
    for key, text in facts.items():
        for line in text.splitlines() or [""]:
            say(f"  {key + ':' * bool(key):<12}{wrapped(line, 14).lstrip()}".rstrip())
            key = ""
    say("")
    if one.note:
        say(wrapped(one.note, 0) + "\n")


def _of_file(one: DataSet) -> str:
    columns = ", ".join(one.fields.values())
    return f"a file of your own with {one.summary}; columns {columns}, or --task.fields.NAME COLUMN"


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

  --help-all        every option
"""


def subset_verb(args: list[str]) -> int:
    from ..evaluation.subset import SubsetConfig, run_subset

    name, words = ("", args) if args[0].startswith("-") else (args[0], args[1:])
    words, flags = take_open_flags(words)
    given = apply_open_flags({"task": {"name": name}}, flags)["task"]
    config = dataclass_flags(SubsetConfig, SubsetConfig(), words, "entrostat subset", SUBSET)
    if not name:
        raise ValueError("name the task first: entrostat subset TASK --by ...; see --help")
    quiet_libraries()
    subset = run_subset(given, config)
    say(f"{subset.size} of {subset.of} prompts: {subset.path}")
    grader = "" if subset.grader is None else f" --task.grader {subset.grader}"
    say(f"train on it with: entrostat train --task {subset.path}{grader}")
    return 0
