"""The pages: one HTML file each, readable without a network, with no script in it.

All text goes through a template with autoescape on, for prompts, completions, names and settings
are data. The page's own policy (Content-Security-Policy) forbids scripts and addresses as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from .._version import __version__
from ..logs.run import Run, number, read_run
from .figures import draw
from .panels import comparison_panels, run_panels, run_style
from .runs import pretty_environment, rows_of
from .samples import read_samples

_MISSING = "—"
# C0 controls but tab and line break, as the signs that stand for them; HTML has no way to say them
_CONTROLS = {c: 0x2400 + c for c in range(32) if chr(c) not in "\t\n"} | {127: 0x2421}


def write_run_report(run: Path, output: Path | None = None) -> Path:
    """Write the page of one run; returns its path.

    Args:
        run: the run directory; the run may still be going on.
        output: the file to write; None takes RUN/report.html.

    Raises:
        ValueError: the directory holds no whole line of metrics, or the file cannot be written.
    """
    read = read_run(run)
    samples = read_samples(read.path)
    notes = list(read.notes)
    if isinstance(samples, str):
        notes.append(samples)
        samples = None
    return _write(
        "run.html.jinja",
        Path(output) if output is not None else read.path / "report.html",
        run=read,
        row=rows_of([read])[0],
        notes=notes,
        facts=_facts(read),
        images=[draw(panel) for panel in run_panels(read)],
        evaluation=[_evaluation(line) for line in read.evaluation],
        samples=samples,
        environment=pretty_environment(read.environment_text),
    )


def write_comparison(runs: list[Path], output: Path, title: str = "Comparison") -> Path:
    """Write one page that overlays several runs; returns its path.

    Args:
        runs: run directories, one or more.
        output: the file to write.
        title: heading of the page.

    Raises:
        ValueError: no runs, a directory without a whole line of metrics, or the file cannot be
            written.
    """
    if not runs:
        raise ValueError("write_comparison: runs is empty; name at least one run directory")
    read = [read_run(path) for path in runs]
    rows = rows_of(read)
    output = Path(output)
    ks = {row.k for row in rows if row.k is not None}
    panels = comparison_panels(read, [row.label for row in rows])
    return _write(
        "comparison.html.jinja",
        output,
        title=title,
        rows=rows,
        colors=[run_style(i)[0] for i in range(len(rows))],
        runs=read,
        links=[_link(run, output) for run in read],
        notes=[(row.label, n) for run, row in zip(read, rows, strict=True) for n in run.notes],
        k=str(ks.pop()) if len(ks) == 1 else "k",
        splits=sorted({row.split for row in rows if row.split is not None}),
        images=[draw(panel) for panel in panels],
        settings=_common(read),
    )


def _evaluation(line: dict[str, Any]) -> dict[str, Any]:
    """A line of evaluation.jsonl with nothing but numbers where numbers belong."""
    names = {"prompts": "prompts", "k": "k", "avg": "avg@k", "pass_": "pass@k",
             "distinct": "distinct", "entropy": "entropy"}  # fmt: skip
    figures = {name: number(line.get(key)) for name, key in names.items()}
    return {"iteration": line["iteration"], "split": str(line.get("split", _MISSING)), **figures}


def _facts(run: Run) -> list[tuple[str, str]]:
    """The headline's pairs of word and value."""
    of = f" of {run.planned}" if run.planned is not None else ""
    facts = [("task", run.task)]
    facts += [(key, str(run.config[key])) for key in ("model", "seed") if key in run.config]
    return [*facts, ("iterations", f"{run.done}{of}"), ("directory", run.name)]


def _common(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """What all runs share: task, model, seed, iterations done."""
    pairs = [dict(_facts(run)) for run in runs]
    keys = ("task", "model", "seed", "iterations")
    shared = [(key, {p.get(key) for p in pairs}) for key in keys]
    return [(key, v) for key, values in shared if len(values) == 1 and (v := values.pop())]


def _link(run: Run, output: Path) -> str | None:
    """Address of a run's own report, from where the page lies; None where there is none."""
    report = run.path / "report.html"
    if not report.is_file() or report.resolve() == output.resolve():
        return None
    # every character but the slash is quoted, so that a name cannot be another kind of address
    return quote(os.path.relpath(report.resolve(), output.resolve().parent), safe="/")


def _write(template: str, output: Path, **values: Any) -> Path:
    """Render, and put the file in place whole.

    Raises:
        ValueError: it cannot be written.
    """
    html = _environment().get_template(template).render(version=__version__, **values)
    part = output.with_name(f".{output.name}.part")
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        # model output may hold half of a surrogate pair, which no file can
        part.write_bytes(html.encode("utf-8", "replace"))
        os.replace(part, output)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise ValueError(f"report: cannot write {str(output)!r}: {error.strerror}") from None
    return output


def _environment() -> Any:
    import jinja2

    def source(name: str) -> str:
        return (
            resources.files(__name__.rpartition(".")[0]).joinpath(name).read_text(encoding="utf-8")
        )

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda v: v.translate(_CONTROLS) if type(v) is str else v,
    )
    environment.filters["num"] = _decimal
    environment.filters["duration"] = _duration
    return environment


def _duration(seconds: float | None) -> str:
    from ..hosts.lab.progress import duration

    return _MISSING if seconds is None else duration(seconds)


def _decimal(value: float | None, digits: int = 3) -> str:
    return _MISSING if value is None else f"{value:.{digits}f}"
