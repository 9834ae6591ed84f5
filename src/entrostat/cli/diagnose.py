"""The verb that says what became of a run's entropy, and what to try."""

from __future__ import annotations

import json
from pathlib import Path

from .._names import refuse_options
from .._text import say
from .flags import asked_for_help, take_source, take_switch


def diagnose_verb(args: list[str]) -> int:
    """Verdict, onset, causes and remedies of runs, ours or other trainers'."""
    text = (
        "usage: entrostat diagnose PATH [PATH...] [--json] [--format FORMAT]\n"
        "                          [--step NAME] [--entropy NAME] [--score NAME]\n\n"
        "Say what became of a run's entropy (collapse, explosion, drift, held, cannot tell), when\n"
        "it began, with an interval, what went with it, the plainest first, with its numbers and\n"
        "the paper, and what to try, as lines to paste for the trainer that wrote the run. A path\n"
        "is what `entrostat report` takes. docs/diagnose.md has the rules and how often they are\n"
        "right.\n\n"
        "  --json       one JSON object for one run, a list for several: verdict, confidence,\n"
        "               onset, causes, remedies\n"
        "  --format     entrostat, trl, verl, prime_rl, slime or table; default: by the contents\n"
        "  --step, --entropy, --score    a table's own names of these columns\n\n"
        "Examples:\n"
        "  entrostat diagnose runs/demo\n"
        "  entrostat diagnose outputs/checkpoint-500\n"
        "  entrostat diagnose verl.log --json | jq '.causes[0].evidence'\n"
        "  entrostat diagnose log.csv --step update --entropy H --score accuracy\n"
    )
    if (done := asked_for_help(args, text)) is not None:
        return done
    as_json, args = take_switch(args, "json")
    format, columns, args = take_source(args)
    refuse_options(
        args, "entrostat diagnose", ("json", "format", "step", "entropy", "score", "help")
    )
    if not args:
        raise ValueError("diagnose needs the path of a run, or of several; see --help")
    from ..diagnosis import diagnose
    from ..logs.importers.places import runs_in

    paths = [path for word in args for path in runs_in(Path(word))]
    found = [diagnose(path, format, columns) for path in paths]
    if as_json:
        tables = [diagnosis.to_dict() for diagnosis in found]
        say(json.dumps(tables[0] if len(tables) == 1 else tables, indent=2))
        return 0
    for place, diagnosis in enumerate(found):
        if place:
            say("")
        for line in diagnosis.lines():
            say(line)
    return 0
