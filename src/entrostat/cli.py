"""The command line: one function a verb; torch is imported when a verb needs it."""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ._names import refuse_options, unknown
from ._version import __version__

_HELP = """\
entrostat: an entropy thermostat for reinforcement learning with verifiable rewards.

  entrostat train        train a policy, its entropy watched token by token and held
  entrostat study        run several trainings side by side and compare them
  entrostat methods      list the methods; `entrostat methods NAME` explains one
  entrostat report       write report.html for a run, or one page that compares several
  entrostat analyze      the same page for a run of TRL, veRL, prime-rl, slime, or any CSV
  entrostat law          fit R = -a exp(H) + b: what entropy was traded for, and where it ends
  entrostat verl-config  print a veRL recipe as the command that starts it on a cluster
  entrostat pretrain     make the tiny policy that ships with entrostat

Examples:
  entrostat train --method grpo
  entrostat train --method repo_r --method.bidirectional true --method.target 0.7 \\
      --method.zeta_max 0.5
  entrostat train --resume runs/repo_r-target_sum-s0
  entrostat study recipes/demo.toml

`entrostat VERB --help` lists a verb's options. Version {version}.
"""

_TRAIN = """\
Train a policy by reinforcement learning and watch its entropy.

  --method NAME[,NAME...]       what to train with (`entrostat methods`); MODULE:NAME for your own
  --method.KEY VALUE            a parameter; --method.NAME.KEY where several methods have it
  --task NAME                   target_sum, gym:NAME, FILE.jsonl or MODULE:CLASS
  --task.KEY VALUE              a parameter of the task
  --analyze every=N             what updates do to entropy, token by token, every N iterations
  --config FILE.toml            start from a file; flags override it
  --resume RUN                  go on with a run that was stopped; --iterations may be raised

Examples:
  entrostat train --method repo_r --method.bidirectional true --method.target 0.7 \\
      --method.zeta_max 0.5 --seed 1
  entrostat train --method gspo,repo_r --method.gspo.high 5e-4
  entrostat train --task gym:chain_sum --task.max_terms 3 --model path/to/model
  entrostat train --method steer --analyze every=10
  entrostat train --config recipes/grpo.toml --optim.lr 1e-4 --output runs/mine
  entrostat train --resume runs/mine
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code: 0, 1 (a run stopped), 2 (bad input) or 130 (Ctrl-C)."""
    args = list(sys.argv[1:] if argv is None else argv)
    verbs: dict[str, Callable[[list[str]], int]] = {
        "train": _train,
        "study": _study,
        "methods": _methods,
        "report": _report,
        "analyze": _analyze,
        "law": _law,
        "verl-config": _verl_config,
        "pretrain": _pretrain,
    }
    for stream in (sys.stdout, sys.stderr):  # an ASCII terminal shows ? for an arrow, no traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    warnings.showwarning = _show_warning
    try:
        if not args or args[0] in ("-h", "--help", "help"):
            print(_HELP.format(version=__version__), end="", flush=True)
            return 0
        if args[0] == "--version":
            print(__version__)
            return 0
        if args[0] not in verbs:
            return _error(unknown("command", args[0], verbs))
        return verbs[args[0]](args[1:])
    except BrokenPipeError:
        # whoever read our output has gone, `head` say; nothing is left to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ValueError as error:
        return _error(str(error))
    except OSError as error:  # the last net: a place that cannot be read or written
        return _error(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), code=1)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130


def _show_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """One line, without the place in the code that a library would name."""
    print(f"entrostat: warning: {str(message).strip()}", file=sys.stderr)


def _error(message: str, code: int = 2) -> int:
    print(f"entrostat: error: {message}", file=sys.stderr)
    return code


def _dataclass_flags(cls: Any, default: Any, args: list[str], prog: str, text: str) -> Any:
    """Flags over a default, by tyro; what it does not know is one line with the nearest name."""
    import tyro

    # booleans as in TOML, which is how the rest of the command line and the files write them
    args = [re.sub(r"(^|=)(true|false)$", lambda m: m[1] + m[2].title(), word) for word in args]
    value, rest = tyro.cli(
        cls, default=default, args=args, prog=prog, description=text, return_unknown_args=True,
        config=(tyro.conf.FlagConversionOff,),
    )  # fmt: skip
    refuse_options(rest, prog, _flag_names(cls))
    if rest:
        raise ValueError(f"unexpected {rest[0]!r}; options look like --seed 1")
    return value


def _flag_names(cls: Any, prefix: str = "") -> list[str]:
    import dataclasses
    import typing

    names = []
    for name, hint in typing.get_type_hints(cls).items():
        nested = dataclasses.is_dataclass(hint)
        names += _flag_names(hint, f"{prefix}{name}.") if nested else [prefix + name]
    return names


def _take(args: list[str], name: str) -> tuple[str | None, list[str]]:
    """The value of `--name VALUE` or `--name=VALUE`, and the other arguments."""
    rest, value = [], None
    words = iter(args)
    for word in words:
        if word == f"--{name}":
            value = next(words, None)
            if value is None:
                raise ValueError(f"--{name} needs a value")
        elif word.startswith(f"--{name}="):
            value = word.split("=", 1)[1]
        else:
            rest.append(word)
    return value, rest


def _spread(args: list[str], name: str) -> list[str]:
    """`--name KEY=VALUE[,KEY=VALUE]` as the flags `--name.KEY VALUE`."""
    value, args = _take(args, name)
    for word in value.split(",") if value else ():
        key, is_pair, setting = word.partition("=")
        if not is_pair:
            raise ValueError(f"--{name} takes KEY=VALUE, as --{name} every=10; got {word!r}")
        args = [*args, f"--{name}.{key.strip()}", setting.strip()]
    return args


def _train(args: list[str]) -> int:
    from .config import (
        TrainConfig,
        apply_open_flags,
        check_model,
        from_dict,
        load,
        take_open_flags,
    )

    file, args = _take(args, "config")
    run, args = _take(args, "resume")
    args = _spread(args, "analyze")
    if file is not None and run is not None:
        raise ValueError("--config and --resume exclude each other: a run keeps its own config")
    args, flags = take_open_flags(args)
    if run is not None:
        path = Path(run) / "config.toml"
        if not path.is_file():
            raise ValueError(f"--resume {run!r}: no run there (no config.toml)")
        changed = {word.split("=")[0] for word in args if word.startswith("--")}
        changed |= {f"--{path[0]}" for path, _ in flags}
        if not changed <= {"--iterations", "--threads", "--help"}:
            raise ValueError(
                f"--resume goes on exactly as it began, so it cannot change "
                f"{', '.join(sorted(changed - {'--iterations', '--threads'}))}; only --iterations "
                "and --threads may be given"
            )
        data = {**load(path), "output": run}
    else:
        given = load(file) if file is not None else {}
        if "runs" in given:
            raise ValueError(
                f"config {file!r} is a study of several runs; use: entrostat study {file}"
            )
        data = apply_open_flags(given, flags)
    config = _dataclass_flags(TrainConfig, from_dict(data), args, "entrostat train", _TRAIN)
    config.validate()

    _quiet_libraries()
    from .study.runner import STARTED_BY_A_STUDY

    if os.environ.get(STARTED_BY_A_STUDY):
        _end_with_parent()

    # what can be wrong without torch, which takes seconds to load, is found before
    from .hosts.lab.run_directory import RunDirectory, check_output, default_output
    from .tasks import make_task

    config.output = config.output or default_output(config)
    check_output(Path(config.output), config.iterations, run is not None)
    if run is not None and RunDirectory(Path(run)).complete(config.iterations):
        print(f"{run} already has {config.iterations} iterations; raise --iterations to go on")
        return _finish(Path(run))
    check_model(config.model)
    chosen: dict[str, Any] = {"seed": config.seed} | config.task
    task = make_task(**chosen)

    if sys.stdout.isatty():
        print("loading ...", end="\r", flush=True)
    import torch

    from .errors import RunStopped
    from .objective import make_objective

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `train` builds it again and says them
        make_objective(config.method, advantage=config.advantage, updates=config.updates)
    from .hosts.lab import train
    from .hosts.lab.progress import for_stream

    progress = for_stream()
    try:
        path = train(config, task=task, progress=progress, resume=run is not None)
        return _finish(path)
    except RunStopped as error:
        progress.close()
        return _error(str(error), code=1)
    except torch.OutOfMemoryError:
        progress.close()
        return _error(
            f"out of GPU memory. Lower optim.micro_batch (now {config.optim.micro_batch}) or "
            f"sampling.batch (now {config.sampling.batch}), or use --gradient-checkpointing True",
            code=1,
        )
    except KeyboardInterrupt:
        progress.close()
        print(
            f"\ninterrupted; go on with: entrostat train --resume {config.output}", file=sys.stderr
        )
        return 130
    finally:
        progress.close()


def _finish(path: Path) -> int:
    """What is said of a run that is over, and its report."""
    from .logs.run import read_run, saturated
    from .report import write_run_report

    for sentence in saturated(path, read_run(path).metrics):
        _show_warning(sentence)
    print(f"report: {write_run_report(path)}")
    return 0


def _study(args: list[str]) -> int:
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
    if not args or "-h" in args or "--help" in args:
        print(text, end="")
        return 0 if args else 2
    output, args = _take(args, "output")
    jobs, args = _take(args, "jobs")
    refuse_options(args, "entrostat study", ("output", "jobs", "help"))
    if len(args) != 1:
        raise ValueError(f"study takes one file, got {' '.join(args) or 'none'}")
    if jobs is not None and (not jobs.isdigit() or int(jobs) < 1):
        raise ValueError(f"--jobs must be a whole number above 0, got {jobs!r}")
    from .study import run_study

    return run_study(args[0], output, None if jobs is None else int(jobs))


def _methods(args: list[str]) -> int:
    if args in (["-h"], ["--help"]):
        print(
            "usage: entrostat methods [NAME]\n\nList the methods, or explain one.\n\n"
            "Examples:\n  entrostat methods\n  entrostat methods clip_cov\n"
            "  entrostat methods my_module:my_method    (registered by @entrostat.register)"
        )
        return 0
    refuse_options(args, "entrostat methods", ("help",))
    if len(args) > 1:
        raise ValueError(f"methods takes one name, got {' '.join(args)}")
    import shutil
    import textwrap

    from .advantage import ESTIMATORS
    from .advantage import advantages as estimate
    from .method import imported, methods, unknown_method
    from .method.base import HOSTS

    if args:
        args = [imported(args[0])]
    known = methods()
    if args:
        if args[0] in ESTIMATORS:
            doc = inspect.getdoc(estimate) or ""
            (line,) = (w for w in doc.splitlines() if w.startswith(f"{args[0]} "))
            print(f"{args[0]} (advantage estimator): {line.removeprefix(args[0]).strip()}")
            if args[0] not in known:
                return 0
            print("\nBeside other methods the name means this estimator. Alone it is the recipe:\n")
        if args[0] not in known:
            raise ValueError(unknown_method(args[0]))
        info = known[args[0]]
        print(f"{info.name} ({info.kind}; {info.paper or 'your own'})\n\n{info.doc}\n")
        if info.sits_on:
            print(f"alone, on: {info.sits_on}")
        print(f"needs: {', '.join(info.needs) or 'nothing beyond log-probs and advantages'}")
        print(f"hosts: {', '.join(info.hosts)}")
        print("parameters:" if info.parameters else "parameters: none")
        for key, value in info.parameters.items():
            print(f"  {key} = {value}")
        return 0
    width = min(shutil.get_terminal_size().columns, 110)
    indent = " " * 19
    legend = (
        "In brackets: the paper and its section (docs/paper_index.md says which paper), what the "
        "method needs beyond log-probs and advantages, and where it runs if not everywhere."
    )
    print(f"{textwrap.fill(legend, width)}\n")
    for kind in ("surrogate", "intervention", "recipe"):
        print(f"{kind}s")
        for info in (info for info in known.values() if info.kind == kind):
            about = [info.paper or "your own"]
            if info.needs:
                about.append(f"needs {', '.join(info.needs)}")
            if set(info.hosts) != set(HOSTS):
                about.append(f"runs in {', '.join(info.hosts)}")
            text = textwrap.fill(
                info.summary, width, initial_indent=indent, subsequent_indent=indent
            )
            print(f"  {info.name:<16} {text[len(indent) :]}\n{indent}[{'; '.join(about)}]")
        print()
    print(f"advantage estimators (--advantage, or among the methods): {', '.join(ESTIMATORS)}")
    return 0


def _report(args: list[str]) -> int:
    if not args or "-h" in args or "--help" in args:
        print(
            "usage: entrostat report RUN [RUN...] [--output FILE.html]\n\n"
            "Write RUN/report.html, or one page that compares several runs. The directory of a\n"
            "study stands for the runs in it.\n\n"
            "  --output    default: RUN/report.html; of several runs report.html here, of a study\n"
            "              STUDY/report.html\n\n"
            "Example:\n  entrostat report runs/a runs/b --output compare.html"
        )
        return 0 if args else 2
    from .report import write_comparison, write_run_report

    output, args = _take(args, "output")
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


def _analyze(args: list[str]) -> int:
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
    if not args or "-h" in args or "--help" in args:
        print(text, end="")
        return 0 if args else 2
    output, args = _take(args, "output")
    format, args = _take(args, "format")
    columns = {}
    for kind in ("step", "entropy", "score"):
        name, args = _take(args, kind)
        if name is not None:
            columns[kind] = name
    if len(args) != 1 or args[0].startswith("-"):
        raise ValueError(f"analyze takes one path, got {' '.join(args) or 'none'}; see --help")
    from .logs.importers import read
    from .report import write_report

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


def _law(args: list[str]) -> int:
    text = (
        "usage: entrostat law RUN [RUN...] [--score NAME] [--share X] [--output FILE.json]\n\n"
        "Fit R = -a exp(H) + b to a run's entropy and score: coefficients and ceiling (the score\n"
        "at entropy 0) with 95% intervals, how well the first part of the run predicts the rest,\n"
        "and what speaks against the fit. With several sizes of model, coefficients by size.\n\n"
        "  --score      a metric, or a figure of the evaluations as avg@k; default reward/mean\n"
        "  --share      the part that predicts the rest; default 0.15\n\n"
        "Examples:\n"
        "  entrostat law runs/demo/grpo\n"
        "  entrostat law runs/three_seeds/* --output laws.json\n"
    )
    if not args or "-h" in args or "--help" in args:
        print(text, end="")
        return 0 if args else 2
    score, args = _take(args, "score")
    share, args = _take(args, "share")
    output, args = _take(args, "output")
    for word in args:
        if word.startswith("-"):
            raise ValueError(f"unknown option {word!r}; see entrostat law --help")
    try:
        part = 0.15 if share is None else float(share)
    except ValueError:
        raise ValueError(f"--share must be a number between 0 and 1, got {share!r}") from None
    from .study.laws import run_law

    return run_law(args, score, part, output)


def _verl_config(args: list[str]) -> int:
    if not args or "-h" in args or "--help" in args:
        print(
            "usage: entrostat verl-config RECIPE.verl.toml [KEY=VALUE...]\n\n"
            "Print the command that runs a recipe in veRL (Ray, FSDP2, vLLM): every Hydra\n"
            "override that the objective and the recipe need, and then yours, which win.\n\n"
            "Examples:\n"
            "  entrostat verl-config recipes/papers/cov_table2_clip_cov_7b.verl.toml\n"
            "  entrostat verl-config my.verl.toml trainer.n_gpus_per_node=4 trainer.nnodes=1\n"
        )
        return 0 if args else 2
    recipe, *overrides = args
    for word in overrides:
        if "=" not in word:
            raise ValueError(f"verl-config: {word!r} is no override; write KEY=VALUE")
    from .hosts.verl import shell_command, verl_config

    print(shell_command(verl_config(recipe, overrides)))
    return 0


def _pretrain(args: list[str]) -> int:
    _quiet_libraries()
    from .hosts.lab.pretrain import PretrainConfig, pretrain

    text = (
        "Make the tiny policy: about 4 minutes on one core.\n\n"
        "Example:\n  entrostat pretrain --output runs/tiny"
    )
    config = _dataclass_flags(PretrainConfig, PretrainConfig(), args, "entrostat pretrain", text)
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns) as progress:
        bar = progress.add_task("", total=config.steps)
        path = pretrain(
            config,
            lambda step, loss: progress.update(bar, completed=step, description=f"loss {loss:.3f}"),
        )
    print(f"done: {path}")
    return 0


def _end_with_parent() -> None:
    """On Linux, have the kernel end this process when the study that started it is killed."""
    import ctypes
    import signal

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _quiet_libraries() -> None:
    """Their progress bars and hints would break ours; their errors still come through."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("HF_HUB_VERBOSITY", "error")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


if __name__ == "__main__":
    raise SystemExit(main())
