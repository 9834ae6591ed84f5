"""`entrostat eval --over`: entropy against every figure, over the checkpoints of runs."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._text import console, say
from .flags import asked_for_help, options

if TYPE_CHECKING:
    from ..evaluation.checkpoint_correlation import Correlation, OfSet

_OVER = """\
usage: entrostat eval --over PATH [PATH...] [--output DIR]

Relate entropy and score over the checkpoints of runs, set by set: Spearman's
rank correlation of entropy with every figure (PAR Tab. 1 and 4), and the
mutual information of the score with the cumulative entropy and with the
iteration, pooled (REPO Tab. 6).

Examples:
  entrostat eval --over runs/grpo
  entrostat eval --over runs/study --output runs/study/over
  entrostat eval runs/grpo --checkpoints --on math500 --output evals
  entrostat eval --over evals

A path is a run that evaluated in training (eval.every), a study (its runs), or
what `entrostat eval RUN --checkpoints` wrote. Nothing is sampled: what was
recorded is read.

  --output DIR  write over.json (checkpoints, correlations with p and n,
                information) and over.svg (score against entropy and cumulative
                entropy) there
"""
_POWER = re.compile(r"(?:pass|maj)@(\d+)")


def over_verb(args: list[str]) -> int:
    """Print the tables; write them and a figure where asked for."""
    if (done := asked_for_help(args, _OVER)) is not None:
        return done
    given, args = options(args, "entrostat eval --over", ("output",))
    from ..evaluation.checkpoint_correlation import over

    sets = over(args)
    for one in sets:
        _show(one)
    if (output := given["output"]) is not None:
        _write(Path(output), sets)
        say(f"written: {output}")
    return 0


def _show(one: OfSet) -> None:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    from ..evaluation.checkpoint_correlation import ENTROPIES

    runs = len(one.runs)
    across = "" if runs == 1 else f" of {runs} runs"
    title = f"{escape(one.name)}: {len(one.points)} checkpoints{across}\n"
    table = Table(
        title=f"{title}Spearman's correlation with the entropy of ...",
        box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True,
    )  # fmt: skip
    table.add_column("figure", overflow="fold")
    for kind in ENTROPIES:
        table.add_column(kind, justify="right", no_wrap=True)
        if runs > 1:
            table.add_column("mean\nof runs", justify="right", no_wrap=True)
    for figure, kinds in one.pooled.items():
        if _listed(figure, one.score):
            cells = []
            for kind in ENTROPIES:
                cells.append(_cell(kinds.get(kind)))
                if runs > 1:
                    mean = one.mean_of_runs(figure, kind)
                    cells.append("-" if mean is None else f"{mean:+.3f}")
            table.add_row(escape(figure), *cells)
    if table.row_count:
        console().print(table)
    else:
        say(title.rstrip())
    words = {"cumulative": "cumulative entropy", "iteration": "the iteration"}
    for key, found in one.shared.items():
        say(
            f"mutual information of {one.score} and {words[key]}: {found.histogram:.3f} nats "
            f"({found.bins} by {found.bins} bins, corrected for chance; p {_p(found.p)}), "
            f"{found.neighbours:.3f} by nearest neighbours; {found.n} checkpoints"
        )
    for note in one.notes:
        say(note)
    say()


def _cell(found: Correlation | None) -> str:
    if found is None:
        return "-"
    return f"{found.rho:+.3f}\n[dim]p {_p(found.p)}, n {found.n}[/]"


def _listed(figure: str, score: str | None) -> bool:
    """Of pass@1, pass@2, ... the powers of two and the last are shown; over.json has all."""
    power = _POWER.fullmatch(figure)
    k = int(power[1]) if power else 0
    return not k & (k - 1) or score is None or score.endswith(f"@{k}")


def _p(value: float) -> str:
    return "<.001" if value < 0.001 else f"{value:.3f}".lstrip("0") if value < 1 else "1"


def _write(directory: Path, sets: Sequence[OfSet]) -> None:
    from ..logs.files import atomic
    from ..report.over import figure_of

    data: dict[str, Any] = {"sets": [asdict(one) for one in sets]}
    with atomic(directory / "over.json") as part:
        part.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    figure = figure_of(sets)
    if figure is not None:
        with atomic(directory / "over.svg") as part:
            part.write_bytes(figure)
