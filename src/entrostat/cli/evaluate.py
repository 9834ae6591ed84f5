"""`entrostat eval`."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from .._text import console, say
from ..errors import MissingExtraError
from .flags import asked_for_help, dataclass_flags, take, take_switch
from .open_flags import apply_open_flags, take_open_flags
from .terminal import quiet_libraries, tell

if TYPE_CHECKING:
    from ..evaluation.evaluate import Table

_EVAL = """\
usage: entrostat eval MODEL_OR_RUN... --on NAME[,NAME] [OPTIONS]
       entrostat eval --over PATH...

Evaluate models and runs: k responses per problem, scored, with 95% intervals
over the problems. The same command goes on with what was interrupted.

Examples:
  entrostat eval smollm2 --on arithmetic,gym:chain_sum --k 16 --problems 100
  entrostat eval runs/demo/grpo@0 runs/demo/grpo
  entrostat eval path/to/model --on aime24,math500 --preset cov --engine vllm
  entrostat eval tiny --on target_sum/ood --greedy
  entrostat eval path/to/model --on mine.jsonl --task.grader math \\
      --task.fields.answer solution

MODEL is a directory, a name of `entrostat model` or of the hub. RUN is a run's
directory and stands for its final model; RUN@30 for its checkpoint 30, RUN@0
for the model that it began with, RUN@best for the best that it kept. A run
alone is evaluated on its own task's held-out splits.

  --on NAME[,NAME]      tasks (`entrostat tasks`); NAME/SPLIT for one split,
                        else all but the one trained on; of a bare file all
  --task.KEY VALUE      a parameter of the sets' tasks
  --preset NAME         a paper's settings: cov, opefo, steer, par or repo
  --k N                 responses per problem; default 16
  --temperature X       default 1
  --top-p X             default 1
  --greedy              the likeliest token each time, one response per problem
  --max-new-tokens N    of a response; default: the task's
  --problems N          the first N of each set; default: all, or 100
  --seed N              default 0
  --checkpoints         each RUN stands for all of its checkpoints
  --engine WORD         transformers or vllm
  --precision WORD      fp32, bf16, fp16 or auto; default fp32
  --output DIR          default runs/eval/NAME
  --over PATH...        relate entropy and score over checkpoints:
                        `entrostat eval --over --help`
  --trust-code          import the code (MODULE:NAME) that a run names
  --sandbox unsafe      run a model's programs with your own rights, where
                        nothing isolates them (docs/sandbox.md)

  --help-all            every option

The output directory has results.json, responses/SET.jsonl, eval.html and
lm_eval/ (as lm-evaluation-harness writes); docs/evaluation.md.
"""


def eval_verb(args: list[str]) -> int:
    """Evaluate models and runs on sets of problems."""
    over, args = take_switch(args, "over")
    if over:
        from .over import over_verb

        return over_verb(args)
    if args and (done := asked_for_help(args, _EVAL)) is not None:
        return done
    from ..config import TrainConfig
    from ..evaluation.settings import EvalConfig
    from ..tasks.trust import refuse_code

    checkpoints, args = take_switch(args, "checkpoints")
    trusted, args = take_switch(args, "trust-code")
    allowed, args = take(args, "sandbox")
    if allowed is not None:
        args = [*args, "--scoring.sandbox", allowed]
    start = next((i for i, word in enumerate(args) if word.startswith("-")), len(args))
    specs, flags = args[:start], args[start:]
    flags, open_flags = take_open_flags(_with_value(flags, "--greedy"))
    options = _options(open_flags)
    config: Any = dataclass_flags(EvalConfig, EvalConfig(), flags, "entrostat eval", _EVAL)
    if not specs:
        raise ValueError(
            "name what to evaluate first: entrostat eval MODEL_OR_RUN... --on NAME; see --help"
        )
    if allowed is not None:
        from ..sandbox import use

        use(config.scoring.sandbox)
    quiet_libraries()
    from ..evaluation.evaluate import plan

    def check(run: TrainConfig) -> None:
        if not trusted:
            refuse_code({"task": run.task}, "the run")

    subjects, sets = plan(specs, config, options, checkpoints, check)

    import torch

    from ..errors import RunStopped
    from ..evaluation.evaluate import run_evaluation, tables
    from ..evaluation.progress import Shown
    from ..report.evaluation import write_page

    try:
        with closing(Shown()) as display:
            root, results = run_evaluation(subjects, sets, config, display)
    except RunStopped as error:
        return tell(str(error), code=1)
    except torch.OutOfMemoryError:
        return tell(
            f"out of GPU memory. Lower --batch (now {config.batch}) or --micro-batch (now "
            f"{config.micro_batch})", code=1,
        )  # fmt: skip
    except KeyboardInterrupt:
        say("\ninterrupted; the same command goes on", sys.stderr)
        return 130
    for table in tables([found for _, found in results]):
        _show(table)
    say(f"results: {root}")
    try:
        say(f"report: {write_page(root, results)}")
    except MissingExtraError as error:
        say(f"no page: {error}")
    return 0


def _with_value(args: list[str], switch: str) -> list[str]:
    """`--switch` alone means true."""
    words = []
    for place, word in enumerate(args):
        words.append(word)
        after = "".join(args[place + 1 : place + 2])
        if word == switch and after.lower() not in ("true", "false", "none"):
            words.append("true")
    return words


def _options(flags: list[tuple[list[str], str]]) -> dict[str, Any]:
    """The tasks' parameters of `--task.KEY VALUE`."""
    for path, text in flags:
        if path == ["task"]:
            raise ValueError(f"--task {text}: sets are named by --on, --on {text}")
        if path[0] != "task":
            raise ValueError(f"unknown option '--{'.'.join(path)}'; see entrostat eval --help")
    return {k: v for k, v in apply_open_flags({}, flags)["task"].items() if k != "name"}


def _show(found: Table) -> None:
    """A set's table; where it does not fit the terminal, figures without their intervals."""
    from rich import box
    from rich.table import Table as Screen
    from rich.text import Text

    screen = console()
    columns = list(zip(*(cells for _, cells in found.rows), strict=True))
    wide = sum(max(map(len, column), default=0) + 2 for column in columns) + 24 > screen.width
    drawn = Screen(
        title=Text(found.title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False,
        collapse_padding=True,
    )  # fmt: skip
    drawn.add_column("")
    for model in found.models:
        drawn.add_column(Text(model), justify="right", overflow="fold")
    for name, cells in found.rows:
        shown = [cell.partition(" [")[0] if wide else cell for cell in cells]
        drawn.add_row(Text(name), *map(Text, shown))
    screen.print(drawn)
