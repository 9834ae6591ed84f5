"""The page of a study: claims first, then scores and entropies, then failures.

There is also a page per method: its description, its results, and the claims about it. A method
takes part in settings that name it. The first of several methods is the base of the others and
takes no part. Each method is compared with settings of the same experiment that differ in it alone.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..logs.run import read_run
from ..method import MethodInfo, methods
from ..report.figures import COLORS, Curve, Image, Panel, Points, draw
from ..report.overlays import comparison_panels
from ..report.page import _write, address
from ..report.seeds import Entry, style_of
from .claims import VERDICTS, Decided
from .confounding import Arm
from .file import Study
from .plan import Plan
from .results import KEPT, SCORE, Experiment, Group, Results
from .tables import USUAL

NAMED = 14  # maximum number of groups that a figure names
_SHAPES = ("o", "s", "^", "D", "v", "P")  # point shapes: a new one when the colors repeat
_ROOM = 1.25  # width of the picture, relative to the largest share kept
_MARGIN = 0.06  # margin on either side, relative to a claim's scale
_DIGITS = {"distinct": 1, "cumulative": 1}
SHOWN = ("entropy", "reward")  # panels
FOLDER = "method_pages"
FEW = 3  # below this number of iterations no curve is drawn
_NEITHER = ("method", "advantage", "seed", "output", "log")  # what a baseline may differ in


def reach_of(one: Decided) -> dict[str, float] | None:
    """Position of a claim's interval on its own scale, 0 to 100 from left to right.

    `zero` is no effect; values right of `least` support the claim. None without an effect, or with
    only one seed.
    """
    if one.estimate is None or one.low is None or one.high is None:
        return None
    ends = [0.0, one.claim.least, one.estimate]
    ends += [end for end in (one.low, one.high) if math.isfinite(end)]
    least, most = min(ends), max(ends)
    margin = _MARGIN * (most - least) or 1.0
    whole = most - least + 2 * margin

    def place(value: float) -> float:
        return round(min(max(100 * (value - least + margin) / whole, 0.0), 100.0), 2)

    values = {"zero": 0.0, "least": one.claim.least, "low": one.low, "high": one.high}
    return {name: place(value) for name, value in (values | {"mean": one.estimate}).items()}


def write_study(
    results: Results, output: Path, title: str, pages: dict[str, Path], facts: Sequence[tuple],
    methods: Mapping[str, Path] | None = None,
) -> Path:  # fmt: skip
    parts = [_part(each, pages.get(each.name), output) for each in results.experiments]
    counts = {verdict: sum(one.verdict == verdict for one in results.told) for verdict in VERDICTS}
    links = [(name, address(path, output)) for name, path in (methods or {}).items()]
    reaches = {one.claim.id: reach_of(one) for one in results.decided}
    return _write(
        "study.html.jinja", output, title=title, results=results, counts=counts, parts=parts,
        facts=facts, methods=links, reaches=reaches,
    )  # fmt: skip


def _part(experiment: Experiment, page: Path | None, output: Path) -> dict[str, Any]:
    """An experiment on the page: a row per group, with its number in the figure."""
    columns = tuple(dict.fromkeys(w for group in experiment.groups for w in group.figures))
    numbers = numbers_of(experiment)
    rows = [
        (
            numbers.get(group.name, ""),
            group.name,
            f"{len(group.seeds)} of " * (len(group.seeds) < group.planned) + str(group.planned),
            [
                some.cell(_DIGITS.get(column, 3)) if (some := group.figures.get(column)) else ""
                for column in columns
            ],
        )
        for group in experiment.groups
    ]
    panel = score_panel(experiment)
    return {
        "of": experiment, "anchor": f"experiment-{experiment.name}",
        "link": None if page is None else address(page, output), "columns": columns, "rows": rows,
        "figure": None if panel is None else draw(panel),
    }  # fmt: skip


def numbers_of(experiment: Experiment) -> dict[str, str]:
    """Number the groups by their table row if they are too many for a legend; else {}."""
    names = [group.name for group in experiment.groups]
    return {name: str(i) for i, name in enumerate(names, 1)} if len(names) > NAMED else {}


def score_panel(experiment: Experiment) -> Panel | None:
    """Score against the share of entropy kept: a cross of 95% intervals for each group."""
    numbers = numbers_of(experiment)
    groups = [g for g in experiment.groups if {KEPT, SCORE} <= g.figures.keys()]
    if not groups:
        return None
    curves: list[Curve] = []
    points: list[Points] = []
    # one wide interval would squeeze the others
    most = _ROOM * max(100 * group.figures[KEPT].mean for group in groups)
    scores = [group.figures[SCORE].mean for group in groups]
    beyond = (_ROOM - 1) * max(max(scores) - min(scores), *map(abs, scores))
    bottom, top = min(scores) - beyond, max(scores) + beyond
    for place, group in enumerate(groups):
        color = COLORS[place % len(COLORS)]
        shape = _SHAPES[place // len(COLORS) % len(_SHAPES)]
        kept, score = group.figures[KEPT], group.figures[SCORE]
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


@dataclass(frozen=True)
class Use:
    """Settings in which a method takes part; `baseline` differs in this method alone."""

    experiment: str
    group: Group
    baseline: Group | None


def names_of(method: Sequence[Any]) -> tuple[str, ...]:
    """The methods that take part in a run's `TrainConfig.method`.

    Example:
        >>> names_of(["dapo", {"name": "repo_r", "zeta_max": 0.5}]), names_of(["dapo"])
        (('repo_r',), ('dapo',))
    """
    names = [_name(each) for each in method]
    return tuple(dict.fromkeys(names[1:] or names))


def _name(entry: Any) -> str:
    """Registered name of a method; NAME for MODULE:NAME."""
    given = str(entry["name"] if isinstance(entry, Mapping) else entry)
    return given.rpartition(":")[2]


@dataclass(frozen=True)
class _Setting:
    config: TrainConfig
    arm: Arm
    rest: object  # settings that a baseline must share, including the policy to start from


def uses_of(studies: Mapping[str, Study], results: Results) -> dict[str, tuple[Use, ...]]:
    """Map each method, in alphabetical order, to its settings with a finished run."""
    found: dict[str, list[Use]] = defaultdict(list)
    for experiment in results.experiments:
        study = studies[experiment.name]
        groups = {group.name: group for group in experiment.groups if group.seeds}
        there: dict[str, _Setting] = {}
        for run, origin in study.origins.items():
            if origin.group in groups and origin.group not in there:
                config = study.runs[run]
                rest = {k: v for k, v in dataclasses.asdict(config).items() if k not in _NEITHER}
                begins = origin.after and (study.origins[origin.after].group, origin.start)
                with warnings.catch_warnings(action="ignore"):  # the run itself warns
                    arm = Arm.of(config)
                there[origin.group] = _Setting(config, arm, (rest, begins))
        known = methods()  # now including user methods that these settings name
        for name, setting in there.items():
            for method in names_of(setting.config.method):
                if method in known:
                    beside = groups.get(_baseline(known[method], name, there))
                    found[method].append(Use(experiment.name, groups[name], beside))
    return {method: tuple(found[method]) for method in sorted(found)}


def write_method_pages(
    plan: Plan, studies: Mapping[str, Study], results: Results, report: Path
) -> dict[str, Path]:
    """Write `method_pages/NAME.html` beside the page of a study, for every method in it."""
    of_name = {each.name: each for each in results.experiments}
    uses_by_method = uses_of(studies, results)
    known, pages = methods(), {}
    for method, uses in uses_by_method.items():
        output = report.parent / FOLDER / f"{re.sub(r'[^A-Za-z0-9_-]+', '_', method)}.html"
        output.parent.mkdir(parents=True, exist_ok=True)
        names = dict.fromkeys(use.experiment for use in uses)
        parts = [_method_part(plan, of_name[name], [use for use in uses if use.experiment == name])
                 for name in names]  # fmt: skip
        pages[method] = _write(
            "method.html.jinja", output, title=method, info=known[method], parts=parts,
            columns=USUAL, claims=_claims(uses, results),
            back=address(report, output),
        )  # fmt: skip
    return pages


def _baseline(info: MethodInfo, name: str, settings: Mapping[str, _Setting]) -> str:
    """Settings equal except for the method, or its fair baseline; "" without any."""
    config, arm = settings[name].config, settings[name].arm
    alike = {k: s for k, s in settings.items() if k != name and s.rest == settings[name].rest}
    left = [each for each in config.method if _name(each) != info.name]
    without = tuple(each for each in arm.interventions if each != info.name)
    # some names, such as `thermostat`, differ from those of the methods that they create
    bare = dataclasses.replace(arm, interventions=without)
    fair = Arm.of(dataclasses.replace(config, method=left)) if left else bare
    for other, setting in alike.items():
        if fair != arm and setting.arm == fair:
            return other
    if len(config.method) > 1:  # removing the method would change more than the method
        return ""
    for other, setting in alike.items():  # another surrogate, same estimator
        same = (arm.estimator, arm.aggregation) == (setting.arm.estimator, setting.arm.aggregation)
        if same and setting.config.method == [info.baseline]:
            return other
    return ""


def _claims(uses: tuple[Use, ...], results: Results) -> list[Decided]:
    mine = {(use.experiment, use.group.name) for use in uses}
    return [
        one for one in results.decided
        if any((one.claim.experiment, group) in mine for group in one.claim.every_group)
    ]  # fmt: skip


def _method_part(plan: Plan, experiment: Experiment, uses: list[Use]) -> dict[str, Any]:
    baselines = {use.baseline.name: use.baseline for use in uses if use.baseline is not None}
    own = {use.group.name for use in uses}
    lines = [_line(group) for name, group in baselines.items() if name not in own]
    for use in uses:
        lines.append(_line(use.group))
        if use.baseline is not None:
            lines.append(_line(use.group, use.baseline))
    shown = baselines | {use.group.name: use.group for use in uses}
    images = _images(plan, experiment.name, list(shown.values()))
    return {"experiment": experiment, "lines": lines, "images": images}


def _line(group: Group, less: Group | None = None) -> dict[str, Any]:
    """A row of metrics; with `less`, of their differences per seed."""
    name, seeds, sign = group.name, len(group.seeds), ""
    found = [group.figures.get(column) for column in USUAL]
    if less is not None:
        name, sign = f"{group.name} - {less.name}", "+"
        found = [group.minus(less, column) for column in USUAL]
        seeds = max((some.n for some in found if some is not None), default=0)
    cells = ["" if some is None else some.cell(sign=sign) for some in found]
    return {"name": name, "seeds": seeds, "cells": cells, "soft": less is not None}


def _images(plan: Plan, experiment: str, groups: list[Group]) -> tuple[Image, ...]:
    """Entropy and reward of the runs in the table, with a band over seeds."""
    runs, entries = [], []
    for place, group in enumerate(groups):
        named = [each for each in plan.of(experiment) if each.group == group.name]
        read = [read_run(each.path) for each in named if each.seed in group.seeds]
        mine = [run for run in read if run.done >= FEW]
        if mine:
            members = tuple(range(len(runs), len(runs) + len(mine)))
            entries.append(Entry(group.name, members, *style_of(place)))
            runs += mine
    panels = comparison_panels(runs, entries) if runs else ()
    return tuple(draw(panel) for panel in panels if panel.name in SHOWN)
