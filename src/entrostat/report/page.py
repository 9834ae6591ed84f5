"""The pages: one HTML file each, readable without a network and without JavaScript.

All text goes through a template with autoescape on, since prompts, completions, names and settings
are untrusted. The page's Content-Security-Policy also forbids scripts and addresses, except for its
one script (`scripts.py`), which it allows by hash.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .._text import printable
from .._version import __version__
from ..logs.lines import number
from ..logs.run import Run, read_run, run_of
from .answers import answers_of, answers_of_all
from .differences import differences_of
from .dynamics import dynamics_of
from .dynamics.pooled import pooled_panels
from .explore import explore_of
from .export import write_file
from .figures import draw
from .law import law_of
from .overlays import comparison_panels
from .panels import run_panels
from .runs import (
    apart,
    ends_note,
    entropy_key,
    k_words,
    notes_of_all,
    rows_of,
    summary_of,
    summary_of_all,
)
from .scripts import Live, read_file, script
from .seeds import entries_of, spreads_of
from .tokens import token_view, with_dumps

_MISSING = "—"
SUFFIXES = ("", ".html", ".htm")


def write_run_report(run: Path, output: Path | None = None) -> Path:
    """Write the page of one run, finished or not; return its path.

    Without `output` it is RUN/report.html.
    """
    read = read_run(run)
    return write_report(read, Path(output or read.path / "report.html"))


def write_report(run: Run, output: Path) -> Path:
    """Write the page of a loaded run, ours or another trainer's; return its path."""
    return _put(_page(output), page_of(run))


def page_of(run: Run, live: Live | None = None) -> str:
    """The page of a run as HTML; `live` has the additions of a page served during the run."""
    from ..diagnosis import diagnose

    run = with_dumps(run)
    (row,) = rows_of([run])
    dynamics, law, tokens = dynamics_of(run), law_of(run), token_view(run)
    labels = [row.label]
    parts = groupby(run_panels(run), attrgetter("part"))
    return _render(
        "run.html.jinja",
        live=live,
        run=run,
        row=row,
        summary=summary_of(row),
        ends=ends_note([row]),
        heading=_heading(run),
        diagnosis=diagnose(run),
        notes=[*run.notes, *tokens.notes],
        facts=_facts(run),
        explore=explore_of([run], entries_of([run], labels), labels),
        images=[(part, list(map(draw, some))) for part, some in parts],
        tokens=tokens,
        environment=_indented(run.environment_text),
        dynamics=dynamics,
        dynamics_images={s.anchor: [draw(p) for p in s.panels] for s in dynamics.sections},
        law=law,
        law_image=draw(law.panel) if law.panel else None,
        answers=answers_of(run),
    )


def write_comparison(runs: Sequence[Path | Run], output: Path, title: str = "Comparison") -> Path:
    """Write one page that overlays several runs; return its path.

    Args:
        runs: run directories, or loaded runs, ours or other trainers'; at least one.
        output: the file to write.
        title: heading of the page.
    """
    if not runs:
        raise ValueError("write_comparison: runs is empty; name at least one run directory")
    output = _page(output)
    read = [run_of(run) for run in runs]
    return _put(output, comparison_of(read, title, output))


def comparison_of(
    read: Sequence[Run], title: str, output: Path | None = None, live: Live | None = None
) -> str:
    """The page that overlays several runs, as HTML; its links are relative to `output`."""
    from ..diagnosis import diagnose

    rows = rows_of(read)
    labels = [row.label for row in rows]
    entries = entries_of(read, labels)
    of_run = {i: entry for entry in entries for i in entry.members}
    shown = [of_run[i] for i in range(len(rows))]  # the entry that contains each run
    differences = differences_of(read, [entry.label for entry in shown])
    foreign = any(run.source != "entrostat" for run in read)
    other = foreign or any(entropy_key(run) not in ("entropy/exact", None) for run in read)
    return _render(
        "comparison.html.jinja",
        live=live,
        title=title,
        summary=[*summary_of_all(rows), *filter(None, [differences.sentence])],
        verdicts=[(label, diagnose(run)) for label, run in zip(labels, read, strict=True)],
        differences=differences,
        foreign=foreign,
        ends=ends_note(rows),
        rows=rows,
        colors=[entry.color for entry in shown],
        bands=spreads_of(entries, rows, read),
        in_band=[entry.label if entry.is_band else None for entry in shown],
        runs=read,
        links=[None if output is None else _link(run, output) for run in read],
        notes=[
            *notes_of_all(read, labels, other),
            *(("Scores", note) for note in apart(rows)),
        ],
        k=k_words(rows),
        splits=sorted({row.split for row in rows if row.split is not None}),
        explore=explore_of(read, entries, labels),
        images=[draw(panel) for panel in comparison_panels(read, entries)],
        pooled=[draw(panel) for panel in pooled_panels(read, entries)],
        answers=answers_of_all(read, entries),
        settings=_common(read),
        entropy_words="as each run has it (see the notes)" if other else "exact",
    )


def _heading(run: Run) -> str:
    """Name the model and its task; another trainer's log may lack the task."""
    name = run.methods or run.name
    return f"{name} on {run.task}" if _says_task(run) else name


def _says_task(run: Run) -> bool:
    return run.source == "entrostat" or "task" in run.config


def _facts(run: Run) -> list[tuple[str, str]]:
    facts = [] if run.source == "entrostat" else [("trainer", run.source)]
    facts += [("task", run.task)] if _says_task(run) else []
    facts += [(key, str(run.config[key])) for key in ("model", "seed") if key in run.config]
    if bits := _quantised(run):
        facts.append(("weights", f"quantised to {bits}"))
    facts.append(("iterations", run.progress))
    if run.best is not None:
        figure, value = run.best["figure"][:60], run.best["value"]
        facts.append(("best", f"iteration {run.best['iteration']}, {figure} {value:.4g}"))
    return [*facts, ("directory", run.name)]


def _quantised(run: Run) -> str | None:
    """The quantization of the model's weights before training; None if unknown."""
    try:
        return str(json.loads(run.environment_text)["model"]["quantisation"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _indented(text: str) -> str:
    try:
        return json.dumps(json.loads(text), indent=2, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text


def _common(runs: Sequence[Run]) -> list[tuple[str, str]]:
    first, *others = (dict(_facts(run)) for run in runs)
    keys = ("task", "model", "weights", "seed", "iterations")
    return [
        (key, first[key])
        for key in keys
        if key in first and all(first[key] == other.get(key) for other in others)
    ]


def _link(run: Run, output: Path) -> str | None:
    """Link to a run's own report, relative to the page; None if there is none."""
    report = run.path / "report.html"
    there = report.is_file() and report.resolve() != output.resolve()
    return address(report, output) if there else None


def address(page: Path, output: Path) -> str:
    # every character except the slash is quoted, so that a name cannot be another kind of URL
    path = os.path.relpath(page, output.parent)  # a study's link keeps its name
    return quote(os.fsencode(path), safe="/")  # a name may not be UTF-8


def _page(output: Path) -> Path:
    """Path of a page; raise on the extension of another file type."""
    output = Path(output)
    if output.suffix.lower() not in SUFFIXES:
        parts = {".svg": "--figure", ".png": "--figure", ".csv": "--figure or --table",
                 ".md": "--table", ".tex": "--table"}  # fmt: skip
        flag = parts.get(output.suffix.lower())
        also = f"; for a part of it add {flag} NAME (--list prints the names)" if flag else ""
        raise ValueError(
            f"report: the page is HTML, and {str(output)!r} is named otherwise; write "
            f"{output.with_suffix('.html').name!r}{also}"
        )
    return output


def waiting_page(title: str, live: Live) -> str:
    return _render("waiting.html.jinja", live=live, title=title)


def _render(template: str, live: Live | None = None, **values: Any) -> str:
    template_of = _environment().get_template(template)
    return template_of.render(version=__version__, script=script(), live=live, **values)


def _write(template: str, output: Path, **values: Any) -> Path:
    return _put(output, _render(template, **values))


def _put(output: Path, html: str) -> Path:
    return write_file(output, html.encode("utf-8", "replace"), "report")


def _environment() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(read_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda v: printable(v) if type(v) is str else v,
    )
    environment.filters["num"] = _decimal
    environment.filters["duration"] = _duration
    return environment


def _duration(seconds: float | None) -> str:
    from ..runs.progress import duration

    return _MISSING if seconds is None else duration(seconds)


def _decimal(value: Any, digits: int = 3) -> str:
    found = number(value)  # a log may hold anything in place of a number
    return _MISSING if found is None else f"{found:.{digits}f}"
