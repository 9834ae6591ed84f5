"""`entrostat subset`."""

from __future__ import annotations

from .._text import say
from .flags import asked_for_help, dataclass_flags
from .open_flags import apply_open_flags, take_open_flags
from .terminal import quiet_libraries, tell

_SUBSET = """\
usage: entrostat subset TASK --by kmeans|random|pass_rate [options]

Write a part of a task's prompts as a file to train on: one JSON object per line, {"prompt",
"answer", "index", "split", "why"}. The same seed gives the same file.

  kmeans       the prompts of the largest clusters of their embeddings, less diverse than the rest
               (PAR 6.3): --model NAME --size N [--clusters K]
  random       as many at random, the control: --size N
  pass_rate    prompts that a policy answers right at times (REPO's filter): --responses DIR of
               `entrostat eval` [--low X] [--high X] [--size N]
  --task.KEY VALUE    a parameter of the task

Examples:
  entrostat subset my.jsonl --by kmeans --model smollm2 --size 600 --output narrow.jsonl
  entrostat subset my.jsonl --by random --size 600 --output broad.jsonl
  entrostat train --task narrow.jsonl --task.grader number
  entrostat eval smollm2 --on gsm8k/train --k 8 --output evals
  entrostat subset gsm8k --by pass_rate --responses evals --low 0.1 --high 0.9
"""


def subset_verb(args: list[str]) -> int:
    """Write a part of a task's prompts as a file."""
    if not args:
        return asked_for_help(args, _SUBSET) or 0
    from ..errors import RunStopped
    from ..evaluation.subset_file import SubsetConfig, run_subset

    name, *words = args if args[0] not in ("-h", "--help") else ["", *args]
    words, flags = take_open_flags(words)
    given = apply_open_flags({"task": {"name": name}}, flags)["task"]
    config = dataclass_flags(SubsetConfig, SubsetConfig(), words, "entrostat subset", _SUBSET)
    quiet_libraries()
    try:
        subset = run_subset(given, config)
    except RunStopped as error:
        return tell(str(error), code=1)
    say(f"{subset.size} of {subset.of} prompts: {subset.path}")
    grader = "" if subset.grader is None else f" --task.grader {subset.grader}"
    say(f"train on it with: entrostat train --task {subset.path}{grader}")
    return 0
