"""`entrostat subset`."""

from __future__ import annotations

from .._text import say
from .flags import asked_for_help, dataclass_flags
from .open_flags import apply_open_flags, take_open_flags
from .terminal import quiet_libraries, tell

_SUBSET = """\
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
    if (done := asked_for_help(args, _SUBSET)) is not None:
        return done
    from ..errors import RunStopped
    from ..evaluation.subset import SubsetConfig, run_subset

    name, *words = args
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
