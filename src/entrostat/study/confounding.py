"""Check that the runs of a study differ only in the compared method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..config import TrainConfig
from ..core.objective import make_objective
from ..method import methods


@dataclass(frozen=True)
class Arm:
    """A run's objective: the compared `interventions`, and what they are combined with."""

    interventions: tuple[str, ...]
    estimator: str
    surrogate: str
    aggregation: str

    @property
    def under(self) -> str:
        return f"{self.estimator} | {self.surrogate} | {self.aggregation}"

    @classmethod
    def of(cls, config: TrainConfig) -> Arm:
        objective = make_objective(
            config.method, advantage=config.advantage, aggregation=config.optim.aggregation
        )
        pairs = list(zip(objective.names, objective.methods, strict=True))
        surrogate = next(repr(method) for _, method in pairs if method.kind == "surrogate")
        return cls(
            tuple(name for name, method in pairs if method.kind == "intervention"),
            str(objective.advantage),
            surrogate,
            str(objective.aggregation),
        )


def confounded(runs: Mapping[str, TrainConfig]) -> list[str]:
    """Warn of each method without another run of its estimator, surrogate and aggregation."""
    arms: dict[Arm, str] = {}
    for name, config in runs.items():
        arms.setdefault(Arm.of(config), name)
    lines = []
    for arm, name in arms.items():
        others = [other for other in arms if other != arm]
        if not arm.interventions or not others or any(o.under == arm.under for o in others):
            continue
        baselines = [methods()[method].baseline for method in arm.interventions]
        lines.append(
            f"{name}: {' + '.join(arm.interventions)} sits on {arm.under}, no other run does "
            f"({arms[others[0]]}: {others[0].under}), so they differ in more than the method. Add "
            f"a run of its fair baseline ({baselines[0]}), or give all runs one"
        )
    return lines
