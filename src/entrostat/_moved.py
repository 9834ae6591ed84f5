"""Old import paths: `entrostat.hosts.trl` is `entrostat.trainers.trl`, and so on.

An old name gives the same module object as the new one, with a DeprecationWarning, so that saved
veRL commands and users' imports keep working.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# modules that kept their name, by (old package, new package)
_KEPT = {
    ("", "core"): "batch loss objective stats",
    ("hosts", "core"): "mismatch probe rollouts",
    ("hosts", "models"): "rounding",
    ("hosts", "runs"): "resolve trackers",
    ("hosts.lab", "analysis"): "analysis influence responses",
    ("hosts.lab", "data"): "prompts scoring seeds",
    ("hosts.lab", "evaluation"): "evaluator",
    ("hosts.lab", "models"): "attention head packing policy prepacked pretrain rollout stops",
    ("hosts.lab", "runs"): "checkpoint progress resume run_directory schedule",
    ("models", "model_files"): "catalogue convert download fetch names",
}
MOVED = {
    "advantage": "core.advantages",
    "control.authority": "method.thermostat",
    "control.bank": "control.kalman_bank",
    "control.knob": "control.thermostat",
    "control.laws": "control.rules",
    "evaluate": "evaluation",
    "evaluate.forms": "evaluation.canonical",
    "evaluate.over": "evaluation.checkpoint_correlation",
    "evaluate.subjects": "evaluation.models",
    "evaluate.votes": "evaluation.statistics",
    "exact": "core.deterministic",
    "hosts": "trainers",
    "hosts.alarm": "runs.entropy_monitor",
    "hosts.going_on": "trainers.resume_command",
    "hosts.lab.abilities": "models.capabilities",
    "hosts.lab.answers": "data.generation",
    "hosts.lab.best": "runs.best_checkpoint",
    "hosts.lab.cache": "models.kv_cache",
    "hosts.lab.choice": "models.rollout",
    "hosts.lab.clock": "runs.run_writer",
    "hosts.lab.economy": "models.stops",
    "hosts.lab.embeddings": "models.policy_evaluator",
    "hosts.lab.dump": "trainers.dump",
    "hosts.lab.evaluation": "evaluation.in_training",
    "hosts.lab.graphed": "models.kv_cache",
    "hosts.lab.held_out": "evaluation.eval_sets",
    "hosts.lab.influenced": "trainers.lab.analysis",
    "hosts.lab.machine": "models.hardware",
    "hosts.lab.meter": "models.policy_evaluator",
    "hosts.lab.needs": "models.hardware",
    "hosts.lab.numerics": "models.rounding",
    "hosts.lab.turns": "data.generation",
    "hosts.lab.watch": "analysis.update_probe",
    "hosts.ranks": "core.process_ranks",
    "hosts.verl.facts": "trainers.verl.recipe",
    "method.adapo": "method.repo",
    "method.names": "method.lookup",
    "method.permuted": "method.permute_weights",
    "method.quadrant": "method.steer",
    "method.selection": "method.rounding",
    "method.states": "method.state_dict",
    "models.cache": "model_files.names",
    "threads": "core.thread_ranks",
    "whole": "core.distributed",
} | {
    f"{old}.{name}".removeprefix("."): f"{new}.{name}"
    for (old, new), names in _KEPT.items()
    for name in names.split()
}

# names that moved individually, and their present modules
_MOVED_NAMES = {"entrostat.diagnosis.doctor.examine": "entrostat.trainers.lab"}


def new_name(name: str) -> str | None:
    """The present name of a moved module, by the longest old prefix.

    Example:
        >>> new_name("entrostat.hosts.trl.trainer")
        'entrostat.trainers.trl.trainer'
    """
    package, _, inside = name.partition(".")
    head, tail = inside, ""
    while package == "entrostat" and head:
        if head in MOVED:
            return f"entrostat.{MOVED[head]}{tail}"
        head, _, last = head.rpartition(".")
        tail = f".{last}{tail}"
    return None


def moved(module: str, name: str) -> Any:
    """Look up a name that has moved out of a module, for that module's `__getattr__`."""
    home = _MOVED_NAMES.get(f"{module}.{name}")
    if home is None:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    warnings.warn(f"{module}.{name} has moved to {home}", DeprecationWarning, stacklevel=3)
    return getattr(import_module(home), name)


class _Alias(Loader):
    """Loader that returns an already loaded module."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has set the old name's spec


class _Finder(MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = new_name(name)
        if found is None:
            return None
        warnings.warn(f"{name} has moved to {found}", DeprecationWarning, stacklevel=2)
        return ModuleSpec(name, _Alias(import_module(found)))


def install() -> None:
    """Install the import finder for old names, if it is not installed yet."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
