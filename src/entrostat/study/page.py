"""The page of a study: claims first, then who scored what at which entropy, then what failed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..report.figures import COLORS, Curve, Image, Panel, Points, draw
from ..report.page import _write, address
from .claims import VERDICTS, Decided
from .results import KEPT, SCORE, Experiment, Group, Results

NAMED = 14  # groups up to which a figure names each
_SHAPES = ("o", "s", "^", "D", "v", "P")  # of points: another where colours begin again
_ROOM = 1.25  # times the largest share kept that the picture is wide
_MARGIN = 0.06  # of a claim's scale, on either side
_DIGITS = {"distinct": 1, "cumulative": 1}
_AXES = (KEPT, SCORE)  # across, up


@dataclass(frozen=True)
class Part:
    """An experiment on the page.

    Attributes:
        anchor: of its heading.
        link: address of its own page with all curves; None where there is none.
        columns: names of the figures that any group has.
        rows: number in the figure or "", name, seeds, and a cell a column of each group.
        held_out: the set that its scores are of; "" where nothing was evaluated.
        figure: score against entropy kept.
        failed: name and reason of runs that are not done.
    """

    anchor: str
    title: str
    link: str | None
    columns: tuple[str, ...]
    rows: tuple[tuple[str, str, str, tuple[str, ...]], ...]
    held_out: str
    figure: Image | None
    failed: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Reach:
    """Where a claim's interval lies on a scale of its own, 0 to 100 from left to right.

    `zero` is no effect; what lies right of `least` speaks for the claim.
    """

    zero: float
    least: float
    low: float
    mean: float
    high: float


def reach_of(one: Decided) -> Reach | None:
    """The scale of a claim's row; None where there is no effect or only one seed's."""
    if one.estimate is None or one.low is None or one.high is None:
        return None
    ends = [0.0, one.claim.least, one.estimate]
    ends += [end for end in (one.low, one.high) if math.isfinite(end)]
    least, most = min(ends), max(ends)
    margin = _MARGIN * (most - least) or 1.0
    whole = most - least + 2 * margin

    def place(value: float) -> float:
        return round(min(max(100 * (value - least + margin) / whole, 0.0), 100.0), 2)

    return Reach(*map(place, (0.0, one.claim.least, one.low, one.estimate, one.high)))


def write_study(
    results: Results, output: Path, title: str, pages: dict[str, Path], facts: Sequence[tuple],
    methods: Mapping[str, Path] | None = None,
) -> Path:  # fmt: skip
    """Write the page of a study; returns its path."""
    parts = [_part(each, pages.get(each.name), output) for each in results.experiments]
    counts = {verdict: sum(one.verdict == verdict for one in results.told) for verdict in VERDICTS}
    contents = [("claims", "Claims")] if results.claims else []
    links = [(name, address(path, output)) for name, path in (methods or {}).items()]
    ends = [("methods", "Methods")] if links else []
    reaches = {one.claim.id: reach_of(one) for one in results.decided}
    return _write(
        "study.html.jinja", output, title=title, results=results, counts=counts, parts=parts,
        facts=facts, methods=links, reaches=reaches,
        contents=[*contents, *((part.anchor, part.title) for part in parts), *ends],
    )  # fmt: skip


def _part(experiment: Experiment, page: Path | None, output: Path) -> Part:
    columns = tuple(dict.fromkeys(w for group in experiment.groups for w in group.figures))
    numbers = numbers_of(experiment)
    rows = []
    for group in experiment.groups:
        cells = tuple(_cell(group, column) for column in columns)
        rows.append((numbers.get(group.name, ""), group.name, _seeds(group), cells))
    panel = score_panel(experiment)
    return Part(
        f"experiment-{experiment.name}", experiment.title,
        None if page is None else address(page, output), columns, tuple(rows), experiment.held_out,
        None if panel is None else draw(panel), experiment.failed,
    )  # fmt: skip


def numbers_of(experiment: Experiment) -> dict[str, str]:
    """A number a group, by its row in the table, where they are too many for a legend."""
    names = [group.name for group in experiment.groups]
    return {name: str(i) for i, name in enumerate(names, 1)} if len(names) > NAMED else {}


def score_panel(experiment: Experiment) -> Panel | None:
    """Score against the share of entropy kept: a cross of 95% intervals for each group."""
    numbers = numbers_of(experiment)
    groups = [g for g in experiment.groups if all(axis in g.figures for axis in _AXES)]
    if not groups:
        return None
    curves: list[Curve] = []
    points: list[Points] = []
    # a wide interval of one would leave no room for the others
    most = _ROOM * max(100 * group.figures[KEPT].mean for group in groups)
    scores = [group.figures[SCORE].mean for group in groups]
    beyond = (_ROOM - 1) * max(max(scores) - min(scores), *map(abs, scores))
    bottom, top = min(scores) - beyond, max(scores) + beyond
    for place, group in enumerate(groups):
        color = COLORS[place % len(COLORS)]
        shape = _SHAPES[place // len(COLORS) % len(_SHAPES)]
        kept, score = (group.figures[axis] for axis in _AXES)
        tag = numbers.get(group.name, "")
        x, y = 100 * kept.mean, score.mean
        points.append(
            Points(
                "" if tag else group.name, [x], [y], color, size=3.5 if tag else 6.0, alpha=1.0,
                name=group.name, shape=shape, tag=tag,
            )
        )  # fmt: skip
        wide, tall = 100 * kept.half, score.half
        across = ([max(x - wide, 0.0), min(x + wide, most)], [y, y])
        lines = (across, ([x, x], [max(y - tall, bottom), min(y + tall, top)]))
        alpha = 0.25 if tag else 0.6
        curves += [
            Curve("", *line, color, width=1.0, alpha=alpha, name=group.name) for line in lines
        ]
    return Panel(
        "Score and entropy kept",
        "Each group's mean over seeds with 95% intervals; to the right more entropy is left."
        + " Numbers are those of the table." * bool(numbers),
        f"avg@k of {experiment.held_out} at the end", tuple(curves),
        points=tuple(points), across="entropy kept, %",
        name=f"score_{experiment.name}",
    )  # fmt: skip


def _seeds(group: Group) -> str:
    return str(group.planned) if len(group.seeds) == group.planned else (
        f"{len(group.seeds)} of {group.planned}"
    )  # fmt: skip


def _cell(group: Group, column: str) -> str:
    some = group.figures.get(column)
    return "" if some is None else some.cell(_DIGITS.get(column, 3))
