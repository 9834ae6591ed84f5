"""The command line: one function per verb; torch is imported when a verb needs it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence

from .._names import unknown
from .._text import open_streams, say
from .._version import __version__
from .catalogue import methods_verb
from .diagnose import diagnose_verb
from .doctor import doctor_verb
from .evaluate import eval_verb
from .models import model_verb
from .runs import law_verb, report_verb, verl_config_verb
from .studies import study_verb
from .subset import subset_verb
from .tasks import tasks_verb
from .terminal import show_warning, tell
from .training import pretrain_verb, train_verb
from .watch import watch_verb

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
  entrostat verl-config  print the command that `train --host verl` would start
  entrostat pretrain     make the tiny policy that ships with entrostat

Look:
  entrostat diagnose     say what became of a run's entropy, and what to try
  entrostat report       write the page of a run, or of several, whoever trained
  entrostat watch        serve that page while runs go on
  entrostat law          fit R = -a exp(H) + b: what entropy was traded for
  entrostat eval         evaluate models and runs, with intervals

`entrostat VERB --help` lists a verb's options. Version {version}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code.

    0, 1 (a run stopped, the doctor found something), 2 (bad input) or 130 (Ctrl-C).
    """
    args = list(sys.argv[1:] if argv is None else argv)
    verbs: dict[str, Callable[[list[str]], int]] = {
        "train": train_verb,
        "doctor": doctor_verb,
        "study": study_verb,
        "eval": eval_verb,
        "methods": methods_verb,
        "tasks": tasks_verb,
        "subset": subset_verb,
        "model": model_verb,
        "report": report_verb,
        "diagnose": diagnose_verb,
        "watch": watch_verb,
        "analyze": report_verb,  # its name of before, still taken
        "law": law_verb,
        "verl-config": verl_config_verb,
        "pretrain": pretrain_verb,
    }
    open_streams()
    warnings.showwarning = show_warning
    try:
        if args[:1] == ["help"] and len(args) > 1:
            args = [args[1], "--help"]
        if not args or args[0] in ("-h", "--help", "help"):
            say(_HELP.format(version=__version__).rstrip())
            return 0
        if args[0] == "--version":
            say(__version__)
            return 0
        if args[0] not in verbs:
            return tell(unknown("command", args[0], verbs))
        return verbs[args[0]](args[1:])
    except ValueError as error:
        return tell(str(error))
    except OSError as error:  # the last net: a place that cannot be read or written
        return tell(f"{error.filename or ''}: {error.strerror or error}".lstrip(": "), code=1)
    except KeyboardInterrupt:
        say("\ninterrupted", sys.stderr)
        return 130
