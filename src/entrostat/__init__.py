"""entrostat: an entropy thermostat for reinforcement learning with verifiable rewards.

Names are loaded when first used, so that the command line answers before torch is imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ._moved import install
from ._version import __version__

if TYPE_CHECKING:
    from . import dynamics, law, testing
    from .config import TrainConfig
    from .core.advantages import advantages
    from .core.batch import Terms, TokenBatch
    from .core.objective import LossOutput, Objective, make_objective
    from .core.stats import TokenStats, token_stats, token_stats_from_logits
    from .diagnosis import Diagnosis, diagnose
    from .evaluation import metrics
    from .grading import grade
    from .logs.rollouts import Rollouts, load_rollouts
    from .method import Method, MethodInfo, methods, register
    from .report.notebook import compare, load_run, load_runs, plot
    from .tasks import Example, Task, make_task
    from .trainers.lab import train

_NAMES = {
    ".config": "TrainConfig",
    ".core.advantages": "advantages",
    ".core.batch": "Terms TokenBatch",
    ".core.objective": "LossOutput Objective make_objective",
    ".core.stats": "TokenStats token_stats token_stats_from_logits",
    ".diagnosis": "Diagnosis diagnose",
    ".grading": "grade",
    ".logs.rollouts": "Rollouts load_rollouts",
    ".method": "Method MethodInfo methods register",
    ".report.notebook": "compare load_run load_runs plot",
    ".tasks": "Example Task make_task",
    ".trainers.lab": "train",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_MODULES = {
    "dynamics": ".dynamics",
    "law": ".law",
    "metrics": ".evaluation.metrics",
    "testing": ".testing",
}


install()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = import_module(_MODULES[name], __name__)
    elif name in _HOME:
        value = getattr(import_module(_HOME[name], __name__), name)
    else:
        raise AttributeError(f"module 'entrostat' has no attribute {name!r}")
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
