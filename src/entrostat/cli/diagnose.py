"""The verb that says what became of a run's entropy, and what to try."""

from __future__ import annotations

import json

from .._text import say
from .flags import SOURCE, asked_for_help, options, source_of

SHOWN = 5
"""Runs of several that are told at length, the worst."""

_DIAGNOSE = """\
usage: entrostat diagnose PATH [PATH...] [--json] [--format FORMAT]
                          [--step NAME] [--entropy NAME] [--score NAME]

Say what happened in a run, how bad that is and what to do: what became of its
entropy (collapse, explosion, drift, held, cannot tell), its score and its
lengths, when it began, what went with it, the plainest first, and what to try,
as lines to paste for the trainer that wrote the run. A path is what `entrostat
report` takes; of several runs in it there is a table, the worst first.
docs/diagnosis_rules.md has the rules and how often they are right.

Examples:
  entrostat diagnose runs/demo
  entrostat diagnose outputs/checkpoint-500
  entrostat diagnose verl.log --json | jq '.causes[0].evidence'
  entrostat diagnose log.csv --step update --entropy H --score accuracy

  --json    one JSON object for one run, a list for several, the worst first,
            as docs/diagnosis.schema.json describes it
  --format  entrostat, trl, verl, prime_rl, slime, tensorboard, wandb or table;
            default: by the contents
  --step, --entropy, --score
            a table's own names of these columns
"""


def diagnose_verb(args: list[str]) -> int:
    """Verdict, onset, causes and remedies of runs, ours or other trainers'."""
    if (done := asked_for_help(args, _DIAGNOSE)) is not None:
        return done
    given, args = options(args, "entrostat diagnose", SOURCE, ("json",))
    if not args:
        raise ValueError("diagnose needs the path of a run, or of several; see --help")
    from ..diagnosis import diagnose_run, table
    from ..logs.importers import read_all

    read = [read_all(word, *source_of(given)) for word in args]
    found = [diagnose_run(run) for runs, _ in read for run in runs]
    found.sort(key=lambda each: each.rank)
    skipped = [sentence for _, some in read for sentence in some]
    if given["json"]:
        tables = [diagnosis.to_dict() for diagnosis in found]
        say(json.dumps(tables[0] if len(tables) == 1 else tables, indent=2))
        return 0
    if len(found) > 1:
        say("\n".join(table(found)))
    shown = found[:SHOWN]
    for place, diagnosis in enumerate(shown):
        if place or len(found) > 1:
            say("")
        say("\n".join(diagnosis.lines()))
    if len(found) > len(shown):
        say(f"\n{len(found) - len(shown)} more: name a run to see it, or --json for all.")
    for sentence in skipped:
        say(f"skipped: {sentence}")
    return 0
