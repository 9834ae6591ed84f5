"""`entrostat train` and `entrostat pretrain`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import say
from .flags import apply_open_flags, dataclass_flags, named, read, take_open_flags
from .terminal import quiet_libraries, say_page, show_warning, tell

if TYPE_CHECKING:
    from ..config import TrainConfig

TRAIN = """\
usage: entrostat train [OPTIONS]

Train a policy by reinforcement learning, its entropy measured and held.
Without options: a first run of the tiny policy under the thermostat.

Examples:
  entrostat train --method thermostat --method.target 0.75x
  entrostat train --method gspo,repo_r --method.gspo.high 5e-4 --seed 1
  entrostat train --task gym:chain_sum --task.max_terms 3 --model path/to/model
  entrostat train --task my.parquet --task.fields.answer solution \\
      --task.grader my_module:grade
  entrostat train --config recipes/grpo.toml --optim.lr 1e-4 --output runs/mine
  entrostat train --resume runs/mine
  entrostat train --config recipes/grpo.toml --host trl

What is trained:
  --method NAME[,NAME]  `entrostat methods` lists them; MODULE:NAME for your own
  --method.KEY VALUE    a parameter; --method.NAME.KEY where several have it
  --task NAME           `entrostat tasks` lists them; FILE.jsonl, MODULE:CLASS
  --task.KEY VALUE      a parameter of the task
  --model NAME          a directory, a name of `entrostat model` or of the hub
  --iterations N        rollout batches; default 150
  --seed N              default 0
  --output DIR          default runs/METHOD-TASK-sSEED
  --config FILE.toml    start from a file; flags win over it
  --resume RUN          go on with a run; --iterations may be raised

Often used:
  --sampling.prompts N, --sampling.rollouts N
                        prompts an iteration, rollouts of each; default 32, 8
  --sampling.max-new-tokens N
                        of a rollout; default: the task's
  --optim.lr X          default 3e-4 below ten million parameters, else 1e-6
  --optim.epochs N, --optim.minibatches N
                        passes over a batch, updates a pass; default 2, 2
  --optim.micro-batch N sequences in memory at once; default 128
  --precision WORD      fp32, bf16, fp16 or auto; default fp32
  --eval.every N        iterations between evaluations; default: first and last
  --analyze.every N     what updates do to entropy, token by token
  --save.best SET/FIGURE
                        keep the policy that evaluates best: test/avg@k, say
  --log NAME [NAME]     also to wandb, trackio, tensorboard, mlflow
  --no-report           write no page at the end

Other trainers:
  --host trl|verl       train in TRL or veRL; --trl.KEY, --verl.KEY set theirs
  --verl-python PATH    with --host verl: the interpreter of veRL's environment
  --ray-address ADDRESS with --host verl: a running Ray, HOST:PORT or auto
  --print               with --host verl: show the command, start nothing

Code of others:
  --trust-code          import the code (MODULE:NAME) that the file or run names
  --sandbox unsafe      run the policy's programs with your own rights, where
                        nothing isolates them (docs/sandbox.md)

  --help-all            every setting (docs/config.md)
"""

PRETRAIN = """\
usage: entrostat pretrain [OPTIONS]

Make the tiny policy: about 4 minutes on one core.

Examples:
  entrostat pretrain --output runs/tiny
  entrostat pretrain --hidden 96 --layers 3 --output runs/larger

  --output DIR  config, tokenizer, weights and model card; default runs/tiny
  --steps N     updates; default 1500
  --hidden N    width; default 64
  --layers N    blocks; default 3
  --seed N      default 0

  --help-all    every option
"""

_FIRST = "runs/first"
_FIRST_RUN: list[str] = [
    "--method", "thermostat", "--method.target", "0.75x", "--iterations", "60", "--output", _FIRST,
]  # fmt: skip
_NEXT = f"""\

Next:
  open {_FIRST}/report.html
  entrostat diagnose {_FIRST}
  entrostat train --method grpo --iterations 60 --output runs/plain
  entrostat report {_FIRST} runs/plain --output runs/both.html
  entrostat train --help"""


# options about the configuration file, in addition to its settings
FROM_FILE = {"config": "FILE", "trust-code": "", "sandbox": "WORD"}


def configured(given: Mapping[str, Any], args: list[str], prog: str, text: str) -> TrainConfig:
    """Build the configuration: flags override those of a file, or of a resumed run.

    `given` has the values of the `FROM_FILE` options, and may have "resume", a run.
    """
    from ..config import TrainConfig, from_dict, load
    from ..tasks.trust import refuse_code, refuse_unsafe, typed_keys
    from ..trainers.verl import config as verl

    file, run, sandbox = given["config"], given.get("resume"), given["sandbox"]
    typed = {"scoring.sandbox"} if sandbox else set()
    if sandbox and run is None:
        args = [*args, "--scoring.sandbox", sandbox]
    args, flags = take_open_flags(named(args, "log", "to"))
    if args and not args[0].startswith("-"):
        word = args[0]
        kind = "--config" if word.endswith(".toml") else "--method" if _is_method(word) else None
        hint = f"did you mean {kind} {word}?" if kind else "options look like --seed 1"
        raise ValueError(f"unexpected {word!r}; {hint}")
    if run is not None:
        data, where = _resumed(run, args, flags), f"--resume {run!r}"
    else:
        data, where = ({} if file is None else load(file)), f"config {file!r}"
        typed |= typed_keys(flags)
    if "runs" in data:
        raise ValueError(f"config {file!r} is a study of several runs; use: entrostat study {file}")
    refuse_unsafe(data, where, typed)
    if not given["trust-code"]:
        refuse_code(data, where, typed)
        verl.refuse_code(data.get("verl"), where)
    if run is None:
        data = apply_open_flags(data, flags)
    config: Any = dataclass_flags(TrainConfig, from_dict(data), args, prog, text)
    config.validate()
    if sandbox:
        from ..sandbox import use

        use(sandbox)
    return config


def _is_method(word: str) -> bool:
    from ..method import METHODS

    return word in METHODS


def _resumed(run: str, args: list[str], flags: list[tuple[list[str], str]]) -> dict[str, Any]:
    """Settings of a resumed run; flags may change only a few."""
    from ..config import load

    path = Path(run) / "config.toml"
    if not path.is_file():
        raise ValueError(f"--resume {run!r}: no run there (no config.toml)")
    changed = {word.split("=")[0] for word in args if word.startswith("--")}
    changed |= {f"--{path[0]}" for path, _ in flags}
    free = {
        "--iterations", "--threads", "--log.to", "--log.project", "--log.name", "--help",
        "--help-all",
    }  # fmt: skip
    if not changed <= free:
        raise ValueError(
            f"--resume goes on exactly as it began, so it cannot change "
            f"{', '.join(sorted(changed - free))}; only --iterations, --threads and --log may "
            "be given"
        )
    return {**load(path), "output": run}


def train_verb(args: list[str]) -> int:
    if not args:
        return _first_run()
    from ..config import at_hand, check_model
    from ..trainers.resume_command import resume_command

    of_verl = {"verl-python": "PATH", "ray-address": "ADDRESS", "print": ""}
    given, args = read(args, {**FROM_FILE, **of_verl, "resume": "RUN", "no-report": ""})
    file, run, page = given["config"], given["resume"], not given["no-report"]
    if file is not None and run is not None:
        raise ValueError("--config and --resume exclude each other: a run keeps its own config")
    config = configured(given, args, "entrostat train", TRAIN)
    options = {}
    if config.host == "verl":
        options = {"python": given["verl-python"], "ray_address": given["ray-address"]}
    elif any(given[name] for name in of_verl):
        raise ValueError("--verl-python, --ray-address and --print go with --host verl")

    quiet_libraries()
    if given["print"]:
        from ..trainers.verl.run import command

        say(command(config, **options))
        return 0
    from .._launch import study_of

    if (study := study_of()) is not None:
        _end_with(study)

    # check everything possible before loading torch, which takes seconds
    from ..runs.run_directory import RunDirectory, check_output, default_output
    from ..runs.trackers.services import check_installed
    from ..tasks import make_task

    config.output = config.output or default_output(config)
    own = Path(config.output) / "config.toml"
    if file is not None and own.exists() and own.samefile(at_hand(file)):
        raise ValueError(
            f"output {config.output!r} holds the --config file itself, which the run would "
            "overwrite; choose another --output"
        )
    check_output(Path(config.output), config.iterations, run is not None)
    if run is not None and RunDirectory(Path(run)).complete(config.iterations):
        say(f"{run} already has {config.iterations} iterations; raise --iterations to go on")
        return _finish(Path(run), config.expect, page)
    check_model(config.model)
    if config.host != "verl":  # veRL checks in its own environment
        check_installed(config.log.to)
    chosen: dict[str, Any] = {"seed": config.seed, **config.task}
    task = make_task(**chosen)

    from .._launch import is_main
    from ..trainers import trains

    main = config.host != "trl" or is_main()  # accelerate may launch several processes
    if main and sys.stdout.isatty():
        sys.stdout.write("loading ...\r")
        sys.stdout.flush()
    # use huge pages for tensors, if Linux offers them: otherwise a language model on a CPU spends a
    # tenth of its time on page faults
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    import torch

    if main and run is None:
        from ..diagnosis.doctor import preflight

        for finding in preflight(config):
            show_warning(f"{finding.evidence}. {finding.fix}. (entrostat doctor: {finding.name})")
    from ..runs.progress import Progress, for_stream

    train = trains(config.host)
    try:
        with closing(for_stream() if main else Progress()) as progress:
            path = train(config, task=task, progress=progress, resume=run is not None, **options)
        return _finish(path, config.expect, page) if main else 0
    except torch.OutOfMemoryError:
        return tell(
            f"out of GPU memory. Lower optim.micro_batch (now {config.optim.micro_batch}) or "
            f"sampling.batch (now {config.sampling.batch}), or use --gradient-checkpointing True",
            code=1,
        )
    except KeyboardInterrupt:
        if main and (Path(config.output) / "config.toml").exists():
            say(f"\ninterrupted; go on with: {resume_command(config, **options)}", sys.stderr)
        elif main:
            say("\ninterrupted before it began; the same command begins again", sys.stderr)
        return 130


def _first_run() -> int:
    if Path(_FIRST, "config.toml").is_file():
        code = train_verb(["--resume", _FIRST])
    else:
        say(f"a first run: entrostat train {' '.join(_FIRST_RUN)}")
        code = train_verb(_FIRST_RUN)
    if code == 0:
        say(_NEXT)
    return code


def _finish(path: Path, expect: Mapping[str, str], page: bool) -> int:
    """Print warnings of a finished run and write its report; 1 if an expectation fails, else 0."""
    from ..config.instruments import Expectation
    from ..logs.run import read_run, saturated

    run = read_run(path)
    for sentence in saturated(path, run.metrics):
        show_warning(sentence)
    if page:
        from ..report import write_run_report

        say_page(write_run_report, path)
    checked = (Expectation(*one).broken(run.series(one[0])[1]) for one in expect.items())
    broken = [sentence for sentence in checked if sentence is not None]
    for sentence in broken:
        say(sentence, sys.stderr)
    return int(bool(broken))


def pretrain_verb(args: list[str]) -> int:
    quiet_libraries()
    from ..models.pretrain import PretrainConfig
    from .models import pretrained

    config = dataclass_flags(PretrainConfig, PretrainConfig(), args, "entrostat pretrain", PRETRAIN)
    path = pretrained(config)
    say(f"done: {path}")
    return 0


def _end_with(study: int) -> None:
    """On Linux, have the kernel end this process if the study that started it is killed."""
    import ctypes
    import signal

    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != study:  # the study was killed before the call
            os.kill(os.getpid(), signal.SIGTERM)
