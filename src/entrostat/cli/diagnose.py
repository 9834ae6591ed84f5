"""The verb that says what became of a run's entropy, and what to try."""

from __future__ import annotations

import json

from .._names import refuse_options
from .._text import say
from .flags import asked_for_help, take_source, take_switch

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
    text = _DIAGNOSE
    if (done := asked_for_help(args, text)) is not None:
        return done
    as_json, args = take_switch(args, "json")
    format, columns, args = take_source(args)
    refuse_options(
        args, "entrostat diagnose", ("json", "format", "step", "entropy", "score", "help")
    )
    if not args:
        raise ValueError("diagnose needs the path of a run, or of several; see --help")
    from ..diagnosis import diagnose_run, table
    from ..logs.importers import read_all

    read = [read_all(word, format, columns) for word in args]
    found = [diagnose_run(run) for runs, _ in read for run in runs]
    found.sort(key=lambda each: each.rank)
    skipped = [sentence for _, some in read for sentence in some]
    if as_json:
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
