"""`entrostat eval`, and `eval --over`: entropy against every figure, over checkpoints."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import console, say
from .flags import apply_open_flags, dataclass_flags, options, read, take_open_flags
from .terminal import quiet_libraries, say_page, tell

if TYPE_CHECKING:
    from ..evaluation.checkpoint_correlation import OfSet

EVAL = """\
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
    from ..config import TrainConfig
    from ..evaluation.settings import EvalConfig
    from ..tasks.trust import refuse_code

    given, args = read(args, {"checkpoints": "", "trust-code": "", "sandbox": "WORD"})
    if given["sandbox"] is not None:
        args = [*args, "--scoring.sandbox", given["sandbox"]]
    start = next((i for i, word in enumerate(args) if word.startswith("-")), len(args))
    specs, flags = args[:start], args[start:]
    for place, (word, after) in enumerate(pairwise([*flags, ""])):  # `--greedy` alone means true
        if word == "--greedy" and after.lower() not in ("true", "false", "none"):
            flags[place] = "--greedy=true"
    flags, open_flags = take_open_flags(flags)
    for path, text in open_flags:
        if path in (["task"], ["task", "name"]):
            raise ValueError(f"--task {text}: sets are named by --on, --on {text}")
        if path[0] != "task":
            raise ValueError(f"unknown option '--{'.'.join(path)}'; see entrostat eval --help")
    options = apply_open_flags({}, open_flags)["task"]
    del options["name"]
    config: Any = dataclass_flags(EvalConfig, EvalConfig(), flags, "entrostat eval", EVAL)
    if not specs:
        raise ValueError(
            "name what to evaluate first: entrostat eval MODEL_OR_RUN... --on NAME; see --help"
        )
    if given["sandbox"] is not None:
        from ..sandbox import use

        use(config.scoring.sandbox)
    quiet_libraries()
    from ..evaluation.runner import plan

    def check(run: TrainConfig) -> None:
        if not given["trust-code"]:
            refuse_code({"task": run.task}, "the run")

    subjects, sets = plan(specs, config, options, given["checkpoints"], check)

    import torch

    from ..evaluation.progress import Display
    from ..evaluation.runner import run_evaluation
    from ..report.evaluation import write_page

    try:
        with closing(Display(sys.stdout)) as display:
            root, results = run_evaluation(subjects, sets, config, display)
    except torch.OutOfMemoryError:
        return tell(
            f"out of GPU memory. Lower --batch (now {config.batch}) or --micro-batch (now "
            f"{config.micro_batch})", code=1,
        )  # fmt: skip
    found = [each for _, each in results]
    for name in dict.fromkeys(name for each in found for name in each["sets"]):
        _show(name, [(each["model"], each["sets"][name]) for each in found if name in each["sets"]])
    say(f"results: {root}")
    say_page(write_page, root, results)
    return 0


_SHOWN = (
    "avg@{k}", "pass@1", "pass@{k}", "maj@{k}", "distinct", "ngram_diversity", "self_bleu",
    "clusters", "entropy", "prompt_entropy", "prompt_entropy_ratio", "logp_gap", "auroc", "ece",
    "length", "truncated", "failed",
)  # fmt: skip


def _show(name: str, models: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Print a set's metrics by model; without intervals if the terminal is too narrow."""
    from rich.text import Text

    from ..evaluation.results import side_by_side
    from ..study.tables import plain_table

    entries = [entry for _, entry in models]
    figures = side_by_side(entries, _SHOWN)
    if all(entry["k"] == 1 for entry in entries):
        figures.pop("pass@1", None)
    if not any(one and one["value"] for one in figures.get("failed", ("", []))[1]):
        figures.pop("failed", None)
    rows = [[_cell(one) for one in cells] for _, cells in figures.values()]
    screen = console()
    columns = zip(*rows, strict=True)
    wide = sum(max(map(len, column), default=0) + 2 for column in columns) + 24 > screen.width
    drawn = plain_table(None)
    counts = " / ".join(dict.fromkeys(f"{entry['n']} problems x {entry['k']}" for entry in entries))
    drawn.title, drawn.title_justify = Text(f"{name}: {counts}"), "left"
    drawn.add_column("")
    for model, _ in models:
        drawn.add_column(Text(model), justify="right", overflow="fold")
    for (label, _), cells in zip(figures.values(), rows, strict=True):
        shown = [cell.partition(" [")[0] if wide else cell for cell in cells]
        drawn.add_row(Text(label), *map(Text, shown))
    screen.print(drawn)


def _cell(figure: Mapping[str, float | None] | None) -> str:
    """A metric with its interval, such as 0.430 [0.380, 0.490]; "" if there is none."""
    if figure is None:
        return ""
    interval = "" if figure["low"] is None else f" [{figure['low']:.3f}, {figure['high']:.3f}]"
    return f"{figure['value']:.3f}{interval}"


OVER = """\
usage: entrostat eval --over PATH [PATH...] [--output DIR]

Relate entropy and score over the checkpoints of runs, set by set: Spearman's
rank correlation of entropy with every figure (PAR Tab. 1 and 4), and the
mutual information of the score with the cumulative entropy and with the
iteration, pooled (REPO Tab. 6).

Examples:
  entrostat eval --over runs/grpo
  entrostat eval --over runs/study --output runs/study/over
  entrostat eval runs/grpo --checkpoints --on math500 --output evals
  entrostat eval --over evals

A path is a run that evaluated in training (eval.every), a study (its runs), or
what `entrostat eval RUN --checkpoints` wrote. Nothing is sampled: what was
recorded is read.

  --output DIR  write over.json (checkpoints, correlations with p and n,
                information) and over.svg (score against entropy and cumulative
                entropy) there
"""
_POWER = re.compile(r"(?:pass|maj)@(\d+)")


def over_verb(args: list[str]) -> int:
    given, args = options(args, OVER)
    from ..evaluation.checkpoint_correlation import over

    sets = over(args)
    for one in sets:
        _show_over(one)
    if given["output"] is not None:
        _write(Path(given["output"]), sets)
        say(f"written: {given['output']}")
    return 0


def _show_over(one: OfSet) -> None:
    from ..evaluation.checkpoint_correlation import ENTROPIES
    from ..study.tables import print_numbers

    across = "" if len(one.runs) == 1 else f" of {len(one.runs)} runs"
    say(f"{one.name}: {len(one.points)} checkpoints{across}")
    rows = []
    for figure in (figure for figure in one.pooled if _listed(figure, one.score)):
        row = [figure]
        for kind in ENTROPIES:
            found, mean = one.pooled[figure].get(kind), one.mean_of_runs(figure, kind)
            row.append("-")
            if found is not None:
                row[-1] = f"{found.rho:+.3f}\n[dim]p {_p(found.p)}, n {found.n}[/]"
            if across:
                row.append("-" if mean is None else f"{mean:+.3f}")
        rows.append(row)
    head = [each for kind in ENTROPIES for each in (kind, "mean\nof runs")[: 2 if across else 1]]
    if rows:
        title = "Spearman's correlation with the entropy of ..."
        print_numbers(title, ["figure", *head], rows)
    words = {"cumulative": "cumulative entropy", "iteration": "the iteration"}
    for key, found in one.shared.items():
        say(
            f"mutual information of {one.score} and {words[key]}: {found.histogram:.3f} nats "
            f"({found.bins} by {found.bins} bins, corrected for chance; p {_p(found.p)}), "
            f"{found.neighbours:.3f} by nearest neighbours; {found.n} checkpoints"
        )
    for note in one.notes:
        say(note)
    say()


def _listed(figure: str, score: str | None) -> bool:
    """Whether to show a metric: of pass@1, pass@2, ..., only powers of two and the last."""
    power = _POWER.fullmatch(figure)
    k = int(power[1]) if power else 0
    return not k & (k - 1) or score is None or score.endswith(f"@{k}")


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".lstrip("0") if value < 1 else "1"


def _write(directory: Path, sets: Sequence[OfSet]) -> None:
    from ..logs.files import atomic
    from ..report.evaluation import figure_of

    data: dict[str, Any] = {"sets": [asdict(one) for one in sets]}
    with atomic(directory / "over.json") as part:
        part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    figure = figure_of(sets)
    if figure is not None:
        with atomic(directory / "over.svg") as part:
            part.write_bytes(figure)
