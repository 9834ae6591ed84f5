"""entrostat: an entropy thermostat for reinforcement learning with verifiable rewards.

Names are loaded when first used, so that the command line answers before torch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._version import __version__

if TYPE_CHECKING:
    from . import dynamics, law, testing
    from .advantage import advantages
    from .batch import Terms, TokenBatch
    from .config import TrainConfig
    from .diagnosis import Diagnosis, diagnose
    from .evaluate import metrics
    from .grading import grade
    from .hosts.lab import train
    from .logs.rollouts import Rollouts, load_rollouts
    from .method import Method, MethodInfo, methods, register
    from .objective import LossOutput, Objective, make_objective
    from .report.notebook import compare, load_run, load_runs, plot
    from .stats import TokenStats, token_stats, token_stats_from_logits
    from .tasks import Example, Task, make_task

_HOME = {
    "advantages": ".advantage",
    "Terms": ".batch",
    "TokenBatch": ".batch",
    "TrainConfig": ".config",
    "Diagnosis": ".diagnosis",
    "diagnose": ".diagnosis",
    "dynamics": ".dynamics",
    "law": ".law",
    "metrics": ".evaluate.metrics",
    "grade": ".grading",
    "train": ".hosts.lab",
    "Rollouts": ".logs.rollouts",
    "load_rollouts": ".logs.rollouts",
    "Method": ".method",
    "MethodInfo": ".method",
    "methods": ".method",
    "register": ".method",
    "LossOutput": ".objective",
    "Objective": ".objective",
    "make_objective": ".objective",
    "compare": ".report.notebook",
    "load_run": ".report.notebook",
    "load_runs": ".report.notebook",
    "plot": ".report.notebook",
    "TokenStats": ".stats",
    "token_stats": ".stats",
    "token_stats_from_logits": ".stats",
    "Example": ".tasks",
    "Task": ".tasks",
    "make_task": ".tasks",
    "testing": ".testing",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'entrostat' has no attribute {name!r}")
    module = import_module(_HOME[name], __name__)
    value = module if name in ("metrics", "dynamics", "law", "testing") else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


__all__ = [
    "Diagnosis",
    "Example",
    "LossOutput",
    "Method",
    "MethodInfo",
    "Objective",
    "Rollouts",
    "Task",
    "Terms",
    "TokenBatch",
    "TokenStats",
    "TrainConfig",
    "__version__",
    "advantages",
    "compare",
    "diagnose",
    "dynamics",
    "grade",
    "law",
    "load_rollouts",
    "load_run",
    "load_runs",
    "make_objective",
    "make_task",
    "methods",
    "metrics",
    "plot",
    "register",
    "testing",
    "token_stats",
    "token_stats_from_logits",
    "train",
]
