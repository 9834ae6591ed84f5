"""The verbs that read runs: study, report, analyze, law; and verl-config."""

from __future__ import annotations

from pathlib import Path

from .._names import refuse_options
from .flags import asked_for_help, take


def study_verb(args: list[str]) -> int:
    """Run the trainings of a file and compare them."""
    text = (
        "usage: entrostat study FILE.toml [--output DIR] [--jobs N]\n\n"
        "Run the trainings of a file side by side (those that are done are skipped, those that\n"
        "were stopped go on), print a table and write DIR/report.html.\n\n"
        "  --output    default: runs/NAME for NAME.toml\n"
        "  --jobs      trainings at once; default: `jobs` of the file, else one a processor\n\n"
        "The file: a title, [base] with the settings of all runs, [[runs]] with a name and what\n"
        "differs; docs/lab.md describes it.\n\n"
        "Example:\n  entrostat study recipes/demo.toml --output runs/demo\n"
    )
    if (done := asked_for_help(args, text)) is not None:
        return done
    output, args = take(args, "output")
    jobs, args = take(args, "jobs")
    refuse_options(args, "entrostat study", ("output", "jobs", "help"))
    if len(args) != 1:
        raise ValueError(f"study takes one file, got {' '.join(args) or 'none'}")
    if jobs is not None and (not jobs.isdigit() or int(jobs) < 1):
        raise ValueError(f"--jobs must be a whole number above 0, got {jobs!r}")
    from ..study import run_study

    return run_study(args[0], output, None if jobs is None else int(jobs))


def report_verb(args: list[str]) -> int:
    """Write the page of a run, or one that compares several."""
    text = (
        "usage: entrostat report RUN [RUN...] [--output FILE.html]\n\n"
        "Write RUN/report.html, or one page that compares several runs. The directory of a\n"
        "study stands for the runs in it.\n\n"
        "  --output    default: RUN/report.html; of several runs report.html here, of a study\n"
        "              STUDY/report.html\n\n"
        "Example:\n  entrostat report runs/a runs/b --output compare.html"
    )
    if (done := asked_for_help(args, text)) is not None:
        return done
    from ..report import write_comparison, write_run_report

    output, args = take(args, "output")
    refuse_options(args, "entrostat report", ("output", "help"))
    paths = [Path(a) for a in args]
    runs = [run for path in paths for run in _runs_of(path)]
    if runs != paths and len(paths) == 1:
        page = Path(output) if output is not None else paths[0] / "report.html"
        path = write_comparison(runs, page, paths[0].resolve().name)
    elif len(runs) == 1:
        path = write_run_report(runs[0], None if output is None else Path(output))
    else:
        path = write_comparison(runs, Path(output or "report.html"))
    print(f"report: {path}")
    return 0


def _runs_of(path: Path) -> list[Path]:
    """The runs within a study's directory; a run, or what is neither, as it is."""
    if (path / "metrics.jsonl").exists() or not path.is_dir():
        return [path]
    return sorted(p.parent for p in path.glob("*/metrics.jsonl")) or [path]


def analyze_verb(args: list[str]) -> int:
    """The page of another trainer's run."""
    text = (
        "usage: entrostat analyze PATH [--output FILE.html] [--format FORMAT]\n"
        "                              [--step NAME] [--entropy NAME] [--score NAME]\n\n"
        "Read a run of any known trainer (a file or a directory), say which entropy it logged and\n"
        "what could not be read, and write the report page.\n\n"
        "  --format     entrostat, trl, verl, prime_rl, slime or table; default: by the contents\n"
        "  --step, --entropy, --score    a table's own names of these columns\n"
        "  --output     default: RUN/report.html for our own run, else NAME.report.html here\n\n"
        "Examples:\n"
        "  entrostat analyze outputs/checkpoint-500\n"
        "  entrostat analyze verl.log --output verl.html\n"
        "  entrostat analyze log.csv --step update --entropy H --score accuracy\n"
    )
    if (done := asked_for_help(args, text)) is not None:
        return done
    output, args = take(args, "output")
    format, args = take(args, "format")
    columns = {}
    for kind in ("step", "entropy", "score"):
        name, args = take(args, kind)
        if name is not None:
            columns[kind] = name
    refuse_options(
        args, "entrostat analyze", ("output", "format", "step", "entropy", "score", "help")
    )
    if len(args) != 1:
        raise ValueError(f"analyze takes one path, got {' '.join(args) or 'none'}; see --help")
    from ..logs.importers import read
    from ..report import write_report

    run = read(args[0], format, columns or None)
    if output is None:
        ours = run.source == "entrostat"
        output = run.path / "report.html" if ours else f"{run.path.resolve().name}.report.html"
    first, last = run.metrics[0]["iteration"], run.metrics[-1]["iteration"]
    print(f"source: {run.source}, {len(run.metrics)} steps ({first} to {last})")
    print(f"entropy: {run.entropy_is}")
    for problem in run.problems[:5]:
        where = problem.file if problem.line is None else f"{problem.file}:{problem.line}"
        print(f"left out: {where}: {problem.reason}")
    if len(run.problems) > 5:
        print(f"left out: {len(run.problems) - 5} more, listed in the report")
    print(f"report: {write_report(run, Path(output))}")
    return 0


def law_verb(args: list[str]) -> int:
    """Fit the entropy law to runs."""
    text = (
        "usage: entrostat law RUN [RUN...] [--score NAME] [--entropy NAME] [--share X]\n"
        "                         [--output FILE.json]\n\n"
        "Fit R = -a exp(H) + b to a run's entropy and score: coefficients and ceiling (the score\n"
        "at entropy 0) with 95% intervals, how well the first part of the run predicts the rest,\n"
        "and what speaks against the fit. With several sizes of model, coefficients by size.\n\n"
        "  --score      validation (avg@k of the first split), training (the mean reward), a\n"
        "               metric, or a figure of the evaluations: avg@k, test/pass@k. Default:\n"
        "               validation, or training where there are too few evaluations\n"
        "  --entropy    rollouts (what is trained on), evaluation (the evaluation's samples), or\n"
        "               a metric as entropy/nll. Default: rollouts\n"
        "  --share      the first part, which predicts the rest, in whole steps; default 0.15\n\n"
        "Examples:\n"
        "  entrostat law runs/demo/grpo\n"
        "  entrostat law runs/law/* --score test/pass@k --entropy evaluation --output laws.json\n"
    )
    if (done := asked_for_help(args, text)) is not None:
        return done
    score, args = take(args, "score")
    entropy, args = take(args, "entropy")
    share, args = take(args, "share")
    output, args = take(args, "output")
    refuse_options(args, "entrostat law", ("score", "entropy", "share", "output", "help"))
    try:
        part = 0.15 if share is None else float(share)
    except ValueError:
        raise ValueError(f"--share must be a number between 0 and 1, got {share!r}") from None
    from ..study.laws import run_law

    return run_law(args, score, part, output, entropy)


def verl_config_verb(args: list[str]) -> int:
    """Print a veRL recipe as a command."""
    text = (
        "usage: entrostat verl-config RECIPE.verl.toml [KEY=VALUE...]\n\n"
        "Print the command that runs a recipe in veRL (Ray, FSDP2, vLLM): every Hydra\n"
        "override that the objective and the recipe need, and then yours, which win.\n\n"
        "Examples:\n"
        "  entrostat verl-config recipes/papers/cov_table2_clip_cov_7b.verl.toml\n"
        "  entrostat verl-config my.verl.toml trainer.n_gpus_per_node=4 trainer.nnodes=1\n"
    )
    if (done := asked_for_help(args, text)) is not None:
        return done
    recipe, *overrides = args
    for word in overrides:
        if "=" not in word:
            raise ValueError(f"verl-config: {word!r} is no override; write KEY=VALUE")
    from ..hosts.verl import shell_command, verl_config

    print(shell_command(verl_config(recipe, overrides)))
    return 0
