"""The command line: one function per verb; torch is imported when a verb needs it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence

from .._names import unknown
from .._text import open_streams, say
from .._version import __version__
from ..errors import RunStopped
from . import catalogue, doctor, evaluate, models, runs, studies, tasks, training
from .terminal import show_warning, tell

_HELP = """\
entrostat: an entropy thermostat for reinforcement learning of language models.

Examples:
  entrostat train                          a first run: entropy held, a minute
  entrostat train --method grpo
  entrostat diagnose outputs/checkpoint-500
  entrostat report runs/a runs/b
  entrostat study recipes/demo.toml

Train:
  entrostat train        train a policy, its entropy measured and held
  entrostat doctor       check settings before a run, or what a run left
  entrostat study        run several trainings side by side and compare them
  entrostat methods      list the methods; `methods NAME` explains one
  entrostat tasks        list the tasks; `tasks NAME` explains one
  entrostat subset       choose a part of a task's prompts
  entrostat model        list the models that go by a name, or fetch one
  entrostat pretrain     make the tiny policy that ships with entrostat

Look:
  entrostat diagnose     say what became of a run's entropy, and what to try
  entrostat report       write the page of a run, or of several, whoever trained
  entrostat watch        serve that page while runs go on
  entrostat law          fit R = -a exp(H) + b: what entropy was traded for
  entrostat eval         evaluate models and runs, with intervals

`entrostat VERB --help` lists a verb's options. Version {version}.
"""


Verb = Callable[[list[str]], int]
# function, help text, and whether the verb runs without arguments
_VERBS: dict[str, tuple[Verb, str, bool]] = {
    "train": (training.train_verb, training.TRAIN, True),
    "doctor": (doctor.doctor_verb, doctor.DOCTOR, False),
    "study": (studies.study_verb, studies.STUDY, False),
    "eval": (evaluate.eval_verb, evaluate.EVAL, True),
    "methods": (catalogue.methods_verb, catalogue.METHODS, True),
    "tasks": (tasks.tasks_verb, tasks.TASKS, True),
    "subset": (tasks.subset_verb, tasks.SUBSET, False),
    "model": (models.model_verb, models.MODEL, True),
    "report": (runs.report_verb, runs.REPORT, False),
    "diagnose": (runs.diagnose_verb, runs.DIAGNOSE, False),
    "watch": (runs.watch_verb, runs.WATCH, False),
    "law": (runs.law_verb, runs.LAW, False),
    "pretrain": (training.pretrain_verb, training.PRETRAIN, True),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code.

    0, 1 (a run stopped, the doctor found something), 2 (bad input) or 130 (Ctrl-C).
    """
    args = list(sys.argv[1:] if argv is None else argv)
    open_streams()
    warnings.showwarning = show_warning
    verb: Verb | None = None
    try:
        if args[:1] == ["help"] and len(args) > 1:
            args = [args[1], "--help"]
        if not args or args[0] in ("-h", "--help", "help"):
            say(_HELP.format(version=__version__).rstrip())
            return 0
        if args[0] == "--version":
            say(__version__)
            return 0
        if args[0] not in _VERBS:
            return tell(unknown("command", args[0], _VERBS))
        verb, text, bare = _VERBS[args.pop(0)]
        if verb is evaluate.eval_verb and "--over" in args:
            args.remove("--over")
            verb, text, bare = evaluate.over_verb, evaluate.OVER, False
        if "-h" in args or "--help" in args or not (args or bare):
            say(text.rstrip())
            return 0 if args else 2
        return verb(args)
    except RunStopped as error:
        return tell(str(error), code=1)
    except ValueError as error:
        return tell(str(error))
    except OSError as error:  # a path that cannot be read or written
        return tell(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), code=1)
    except KeyboardInterrupt:
        resumes = verb in (studies.study_verb, evaluate.eval_verb)
        more = "; the same command goes on" if resumes else ""
        say(f"\ninterrupted{more}", sys.stderr)
        return 130
