"""What is on record of the study's recipes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from statistics import mean

from entrostat.logs.run import Run, read_run
from entrostat.study.figures import Figure, value
from entrostat.study.file import read_study
from entrostat.study.plan import make_places, plan_of
from entrostat.study.record import restore
from entrostat.study.results import Interval, spread

ROOT = Path(__file__).parents[2]
RECIPES, RECORD = ROOT / "recipes/study", ROOT / "docs/study"


class Record:
    """What is on record of the study's recipes, as runs in a directory of our own."""

    def __init__(self, folder: Path) -> None:
        files = sorted(p for p in RECIPES.glob("*.toml") if p.name != "claims.toml")
        plan = plan_of({path.stem: read_study(path) for path in files}, folder)
        make_places(plan)
        known = restore(plan, RECORD)
        self._runs = {
            (each.experiment, each.group, each.seed): plan.trainings[each.address].path
            for each in plan.named if each.address in known
        }  # fmt: skip
        self._planned = [(each.experiment, each.group, each.seed) for each in plan.named]
        self.groups: dict[str, list[str]] = {}
        for each in plan.named:
            groups = self.groups.setdefault(each.experiment, [])
            if each.group not in groups:
                groups.append(each.group)
        self.run: Callable[[str, str, int], Run] = cache(
            lambda *key: read_run(self._runs[key])
        )  # fmt: skip

    def seeds(self, experiment: str, group: str) -> list[int]:
        """Those that a group has."""
        return sorted(s for e, g, s in self._runs if (e, g) == (experiment, group))

    def planned(self, experiment: str, group: str) -> list[int]:
        """Those that a group is to have."""
        return [s for e, g, s in self._planned if (e, g) == (experiment, group)]

    def shared(self, experiment: str, groups: Sequence[str]) -> list[int]:
        """Those that all of the groups have."""
        found = [set(self.seeds(experiment, group)) for group in groups]
        return sorted(set.intersection(*found)) if found else []

    def figure(self, experiment: str, group: str, seed: int, figure: Figure) -> float | None:
        """A number of a run."""
        return value(self.run(experiment, group, seed), figure)

    def mean(
        self, experiment: str, group: str, seeds: Sequence[int], figure: Figure
    ) -> Interval | None:
        """Its mean over seeds; None where one has it not."""
        found = [self.figure(experiment, group, seed, figure) for seed in seeds]
        whole = [each for each in found if each is not None]
        return spread(whole) if len(whole) == len(found) else None

    def each(
        self, experiment: str, group: str, seeds: Sequence[int], figure: Figure
    ) -> list[float]:
        """A number of each seed's run.

        Raises:
            ValueError: a run has it not.
        """
        found = [self.figure(experiment, group, seed, figure) for seed in seeds]
        whole = [one for one in found if one is not None]
        if not whole or len(whole) < len(found):
            raise ValueError(f"study_tables: {experiment}/{group} does not have {figure}")
        return whole

    def sure(self, experiment: str, group: str, seeds: Sequence[int], figure: Figure) -> float:
        """The mean over seeds.

        Raises:
            ValueError: a run has it not.
        """
        return mean(self.each(experiment, group, seeds, figure))
