"""The verbs that read runs: report, diagnose, law, watch."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import say
from .flags import number, options, source_of

if TYPE_CHECKING:
    from ..logs.run import Run

_SOURCE = """\
  --format FORMAT  entrostat, trl, verl, prime_rl, slime, tensorboard, wandb or
                   table; default: by the contents
  --step NAME, --entropy NAME, --score NAME
                   a table's own names of these columns"""

REPORT = f"""\
usage: entrostat report PATH [PATH...] [OPTIONS]
       entrostat report PATH [PATH...] --figure NAME|--table NAME|--list

Write the page of a run, or one page that compares several. A path is a run, a
study (all runs in it), another trainer's log or directory, or a directory of
TensorBoard or W&B. Of other trainers' runs the command says which entropy they
logged and what it could not read.

Examples:
  entrostat report runs/demo
  entrostat report runs/a runs/b --output compare.html
  entrostat report outputs/checkpoint-500
  entrostat report wandb/offline-run-20260301_120000-3f2a91c0
  entrostat report log.csv --step update --entropy H --score accuracy
  entrostat report runs/demo --figure entropy --output entropy.png
  entrostat report runs/demo --table results --output results.tex

{_SOURCE}
  --output FILE    default: RUN/report.html, STUDY/report.html, NAME.report.html
                   here for another trainer's log, report.html here for several
  --list           print the names of the figures and tables that the page has
  --figure NAME    write one of them in place of the page, or any metric that is
                   logged by its own name (grad/norm), as the suffix of --output
                   says: SVG, PNG or CSV with the numbers; default: NAME.svg
  --table NAME     the same of a table: Markdown, LaTeX or CSV; default: print
"""

LAW = """\
usage: entrostat law RUN [RUN...] [OPTIONS]

Fit R = -a exp(H) + b to a run's entropy and score: coefficients and ceiling
(the score at entropy 0) with 95% intervals, how well the first part of the run
predicts the rest, and what speaks against the fit. With several sizes of
model, coefficients by size.

Examples:
  entrostat law runs/demo/grpo
  entrostat law runs/law --score test/pass@k --entropy evaluation \\
      --output laws.json

  --score NAME    validation (avg@k of the first split), training (mean reward),
                  a metric, or a figure as avg@k or test/pass@k. Default:
                  validation, or training where evaluations are too few
  --entropy NAME  rollouts (what is trained on), evaluation (the evaluation's
                  samples), or a metric as entropy/nll. Default: rollouts
  --share X       the first part, which predicts the rest; default 0.15
  --output FILE   also write the fits as JSON
"""


def report_verb(args: list[str]) -> int:
    given, args = options(args, REPORT, "the path of a run, or of several")
    output, figure, table, listing = (given[n] for n in ("output", "figure", "table", "list"))
    if (figure is not None) + (table is not None) + listing > 1:
        raise ValueError("report: --figure, --table and --list exclude each other")
    from ..logs.importers import read_all
    from ..logs.importers.places import runs_in

    paths = [Path(word) for word in args]
    found = [read_all(path, *source_of(given)) for path in paths]
    runs = [run for several, _ in found for run in several]
    one = len(runs) == 1 and runs_in(paths[0]) == paths
    for sentence in (sentence for _, skipped in found for sentence in skipped):
        say(f"skipped: {sentence}", sys.stderr)
    part = figure is not None or table is not None or listing
    for run in runs:  # keep stdout clean for a table, which a program may read
        _say_source(run, several=len(runs) > 1, stream=sys.stderr if part else None)
    if part:
        return export(runs[0] if one else runs, figure, table, output)
    from ..logs.run import called
    from ..report import write_comparison, write_report
    from ..report.runs import told_apart

    if one:
        ours = runs[0].source == "entrostat"
        usual = runs[0].path / "report.html" if ours else Path(f"{runs[0].name}.report.html")
        page = write_report(runs[0], Path(output or usual))
    else:
        study = paths[0] if len(paths) == 1 and paths[0].is_dir() else None
        title = "Comparison" if study is None else called(study)
        say(f"runs: {', '.join(told_apart(runs, [run.name for run in runs]))}")
        page = write_comparison(runs, Path(output or (study or Path()) / "report.html"), title)
    say(f"report: {page}")
    return 0


def _say_source(run: Run, several: bool, stream: Any = None) -> None:
    name = f"{run.name}: " if several else ""
    if run.source != "entrostat":
        first, last = run.metrics[0]["iteration"], run.metrics[-1]["iteration"]
        say(f"{name}source: {run.source}, iterations {first} to {last}", stream)
        say(f"{name}entropy: {run.entropy_is}", stream)
    for problem in run.problems[:5]:
        say(f"{name}left out: {problem}", stream)
    if len(run.problems) > 5:
        say(f"{name}left out: {len(run.problems) - 5} more, listed in the report", stream)


def law_verb(args: list[str]) -> int:
    given, args = options(args, LAW, "the path of a run, or of several")
    share = number(given["share"] or "0.15", "share", 0, 1, float)
    from ..study.laws import run_law

    return run_law(args, given["score"], share, given["output"], given["entropy"])


def export(
    runs: Run | Sequence[Run], figure: str | None, table: str | None, output: str | None
) -> int:
    """Write a figure or a table of the page of these runs, or list their names."""
    from ..report import export as of_page
    from ..report.figures import slug

    parts = of_page.parts_of(runs)
    if figure is not None:
        path = Path(output or f"{slug(figure)}.svg")
        say(f"figure: {of_page.write_figure(parts, figure, path)}")
    elif table is not None and output is not None:
        say(f"table: {of_page.write_table(parts, table, Path(output))}")
    elif table is not None:
        say(of_page.as_markdown(of_page.table_named(parts, table)).rstrip("\n"))
    elif output is not None:
        raise ValueError(
            f"report: --list prints names and writes no {output!r}; name one with --figure or "
            "--table"
        )
    else:
        headings = ("figures (--figure)", "tables (--table)")
        for heading, names in zip(headings, of_page.names_of(parts), strict=True):
            width = max(map(len, names), default=0)
            say(heading)
            for name, title in names.items():
                say(f"  {name:<{width}}  {title}")
    return 0


SHOWN = 5  # with several runs, so many of the worst get a full verdict

DIAGNOSE = f"""\
usage: entrostat diagnose PATH [PATH...] [OPTIONS]

Say what became of a run's entropy (collapse, explosion, drift, held, cannot
tell), its score and its lengths, when it began, what went with it, and what to
try, as lines to paste for the trainer that wrote the run. A path is what
`entrostat report` takes; several runs get a table, the worst first.
docs/diagnosis_rules.md has the rules and how often they are right.

Examples:
  entrostat diagnose runs/demo
  entrostat diagnose outputs/checkpoint-500
  entrostat diagnose verl.log --json | jq '.causes[0].evidence'
  entrostat diagnose log.csv --step update --entropy H --score accuracy

  --json           one JSON object for one run, a list for several, the worst
                   first, as docs/diagnosis.schema.json describes it
{_SOURCE}
"""


def diagnose_verb(args: list[str]) -> int:
    given, args = options(args, DIAGNOSE, "the path of a run, or of several")
    from ..diagnosis import diagnose, table
    from ..logs.importers import read_all

    read = [read_all(word, *source_of(given)) for word in args]
    found = [diagnose(run) for runs, _ in read for run in runs]
    found.sort(key=lambda each: each.rank)
    skipped = [sentence for _, some in read for sentence in some]
    if given["json"]:
        tables = [diagnosis.to_dict() for diagnosis in found]
        say(json.dumps(tables[0] if len(tables) == 1 else tables, indent=2))
        return 0
    blocks = [table(found)] if len(found) > 1 else []
    blocks += [diagnosis.lines() for diagnosis in found[:SHOWN]]
    if len(found) > SHOWN:
        blocks.append([f"{len(found) - SHOWN} more: name a run to see it, or --json for all."])
    say("\n\n".join("\n".join(block) for block in blocks))
    for sentence in skipped:
        say(f"skipped: {sentence}")
    return 0


WATCH = """\
usage: entrostat watch PATH [PATH...] [OPTIONS]

Serve the page of `entrostat report` while runs go on; it updates by itself. A
path is a run's directory, a log of any trainer, or a directory in which runs
appear, which are compared. It need not exist yet. Nothing is written, and
Ctrl-C ends the page, not the runs.

Examples:
  entrostat watch runs/grpo
  entrostat watch runs --every 30
  entrostat watch outputs --port 0 --open
  ssh -L 8642:localhost:8642 MACHINE    # then open http://localhost:8642/ here

  --port N         default 8642; 0 takes any that is free
  --every SECONDS  between two pages, at least; default 5
  --open           open it in a browser on this machine
  --host ADDRESS   to listen on; default 127.0.0.1, this machine alone. Another
                   needs a token, which is part of the address that is printed
  --token          require it on 127.0.0.1 too, if others have accounts here
  --format FORMAT, --step NAME, --entropy NAME, --score NAME
                   as `entrostat report` takes them
"""


def watch_verb(args: list[str]) -> int:
    given, args = options(args, WATCH, "the path of a run, or of a directory of runs")
    port = number(given["port"] or "8642", "port", 0, 65535)
    seconds = number(given["every"] or "5", "every", 0.1, 86_400, float)
    from ..report.live.server import Server, is_loopback, resolve
    from ..report.live.watcher import Watched, Watcher, as_paths

    where, opens, token = given["host"] or "127.0.0.1", given["open"], given["token"]
    if opens and (token or not is_loopback(resolve(where)[1])):
        raise ValueError(
            "--open would put the token into the browser's command line, where others on this "
            "machine can read it; leave it out, and open the address that is printed"
        )
    watcher = Watcher(Watched(as_paths(args), *source_of(given)), seconds)
    server = Server(watcher, where, port, token)
    try:
        say(f"watching {', '.join(args)}: {server.address}")
        say("Ctrl-C ends the page; the runs go on")
        watcher.start()
        if opens:
            import webbrowser

            webbrowser.open(server.address)
        server.serve_forever()
    except KeyboardInterrupt:
        say()
    finally:
        server.server_close()
        watcher.close()
    return 0
