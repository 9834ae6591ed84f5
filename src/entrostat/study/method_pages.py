"""A page a method: what it is, what it came to wherever it took part, which claims speak of it.

A method takes part in settings that name it; the first one of several is what the others sit on and
takes no part. It is set beside the settings of the same experiment that differ in it alone.
"""

from __future__ import annotations

import dataclasses
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..config import TrainConfig
from ..logs.run import read_run
from ..method import MethodInfo, methods
from ..report.figures import Image, draw
from ..report.overlays import comparison_panels
from ..report.page import _write, address
from ..report.seeds import Entry, style_of
from .claims import Decided
from .confounding import Arm
from .file import Study
from .plan import Plan
from .results import Experiment, Group, Results
from .tables import USUAL

SHOWN = ("entropy", "reward")  # panels
FOLDER = "method_pages"
FEW = 3  # iterations of which no curve is drawn
_NEITHER = ("method", "advantage", "seed", "output", "log")  # what a baseline may differ in


@dataclass(frozen=True)
class Use:
    """Settings that a method takes part in; `baseline` differs in this method alone."""

    experiment: str
    group: Group
    baseline: Group | None


@dataclass(frozen=True)
class Line:
    name: str
    seeds: str
    cells: tuple[str, ...]
    is_difference: bool


@dataclass(frozen=True)
class Part:
    """An experiment on a method's page; `held_out` is the set that its scores are of."""

    name: str
    title: str
    held_out: str
    lines: tuple[Line, ...]
    images: tuple[Image, ...]


def names_of(method: Sequence[Any]) -> tuple[str, ...]:
    """The methods that take part in what a run asks for (`TrainConfig.method`).

    Example:
        >>> names_of(["dapo", {"name": "repo_r", "zeta_max": 0.5}]), names_of(["dapo"])
        (('repo_r',), ('dapo',))
    """
    names = [_name(each) for each in method]
    return tuple(dict.fromkeys(names[1:] or names))


def _name(entry: Any) -> str:
    """What a method is registered as: of MODULE:NAME the name."""
    given = str(entry["name"] if isinstance(entry, Mapping) else entry)
    return given.rpartition(":")[2]


def uses_of(studies: Mapping[str, Study], results: Results) -> dict[str, tuple[Use, ...]]:
    """By method, in alphabetical order, the settings with a finished run that it takes part in."""
    found: dict[str, list[Use]] = {}
    for experiment in results.experiments:
        study = studies[experiment.name]
        configs = {origin.group: study.runs[run] for run, origin in study.origins.items()}
        groups = {group.name: group for group in experiment.groups if group.seeds}
        there = {name: configs[name] for name in configs if name in groups}
        arms = {name: _arm(config) for name, config in there.items()}
        known = methods()  # now with those of the user's own that these settings name
        starts = {
            origin.group: (origin.after and study.origins[origin.after].group, origin.start)
            for origin in study.origins.values()
        }
        for name, config in there.items():
            for method in names_of(config.method):
                if method in known:
                    alike = {k: c for k, c in there.items() if starts[k] == starts[name]}
                    beside = _baseline(known[method], name, alike, arms)
                    use = Use(experiment.name, groups[name], groups.get(beside))
                    found.setdefault(method, []).append(use)
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
        parts = [_part(plan, of_name[name], [use for use in uses if use.experiment == name])
                 for name in names]  # fmt: skip
        pages[method] = _write(
            "method.html.jinja", output, title=method, info=known[method], parts=parts,
            columns=USUAL, claims=_claims(uses, results),
            back=address(report, output),
        )  # fmt: skip
    return pages


def _arm(config: TrainConfig) -> Arm:
    with warnings.catch_warnings(action="ignore"):  # the run says them itself
        return Arm.of(config)


def _baseline(
    info: MethodInfo, name: str, configs: Mapping[str, TrainConfig], arms: Mapping[str, Arm]
) -> str:
    """The settings without the method, all else equal, or its fair baseline; "" without any.

    `configs` are those that begin with the same policy.
    """
    config, arm = configs[name], arms[name]
    mine = _rest(config)
    alike = [other for other in configs if other != name and _rest(configs[other]) == mine]
    left = [each for each in config.method if _name(each) != info.name]
    without = tuple(each for each in arm.interventions if each != info.name)
    # the names of some, as `thermostat`, are not those of the methods that they make
    bare = dataclasses.replace(arm, interventions=without)
    fair = _arm(dataclasses.replace(config, method=left)) if left else bare
    for other in alike:
        if fair != arm and arms[other] == fair:
            return other
    if len(config.method) > 1:  # its baseline lacks more than the method
        return ""
    for other in alike:  # a surrogate's: another surrogate, under the same estimator
        same = (arms[other].estimator, arms[other].aggregation) == (arm.estimator, arm.aggregation)
        if same and configs[other].method == [info.baseline]:
            return other
    return ""


def _rest(config: TrainConfig) -> dict[str, Any]:
    return {k: v for k, v in dataclasses.asdict(config).items() if k not in _NEITHER}


def _claims(uses: tuple[Use, ...], results: Results) -> list[Decided]:
    mine = {(use.experiment, use.group.name) for use in uses}
    return [
        one for one in results.decided
        if any((one.claim.experiment, group) in mine for group in one.claim.every_group)
    ]  # fmt: skip


def _part(plan: Plan, experiment: Experiment, uses: list[Use]) -> Part:
    baselines = {use.baseline.name: use.baseline for use in uses if use.baseline is not None}
    own = {use.group.name for use in uses}
    lines = [_line(group) for name, group in baselines.items() if name not in own]
    for use in uses:
        lines.append(_line(use.group))
        if use.baseline is not None:
            lines.append(_difference(use.group, use.baseline))
    shown = baselines | {use.group.name: use.group for use in uses}
    images = _images(plan, experiment.name, list(shown.values()))
    return Part(experiment.name, experiment.title, experiment.held_out, tuple(lines), images)


def _line(group: Group) -> Line:
    cells = tuple(some.cell() if (some := group.figures.get(column)) else "" for column in USUAL)
    return Line(group.name, str(len(group.seeds)), cells, False)


def _difference(group: Group, baseline: Group) -> Line:
    found = [group.minus(baseline, column) for column in USUAL]
    seeds = max((some.n for some in found if some is not None), default=0)
    cells = tuple("" if some is None else some.cell(sign="+") for some in found)
    return Line(f"{group.name} - {baseline.name}", str(seeds), cells, True)


def _images(plan: Plan, experiment: str, groups: list[Group]) -> tuple[Image, ...]:
    """Entropy and reward of the runs that the table counts, a band where seeds differ."""
    runs, entries = [], []
    for place, group in enumerate(groups):
        named = [each for each in plan.of(experiment) if each.group == group.name]
        mine = [read_run(each.path) for each in named if each.seed in group.seeds]
        mine = [run for run in mine if run.done >= FEW]
        if mine:
            members = tuple(range(len(runs), len(runs) + len(mine)))
            entries.append(Entry(group.name, members, *style_of(place)))
            runs += mine
    if not runs:
        return ()
    return tuple(draw(panel) for panel in comparison_panels(runs, entries) if panel.name in SHOWN)
