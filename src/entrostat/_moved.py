"""Old import paths: `entrostat.hosts.trl` is `entrostat.trainers.trl`, and so on.

An old name gives the very module of the new one, with a DeprecationWarning, so that saved veRL
commands and users' imports go on working.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "advantage": "core.advantages",
    "batch": "core.batch",
    "control.authority": "control.known_ranges",
    "control.bank": "control.kalman_bank",
    "control.knob": "control.actuator_range",
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
    "hosts.lab.analysis": "analysis.analysis",
    "hosts.lab.answers": "data.generation",
    "hosts.lab.attention": "models.attention",
    "hosts.lab.best": "runs.best_checkpoint",
    "hosts.lab.cache": "models.kv_cache",
    "hosts.lab.checkpoint": "runs.checkpoint",
    "hosts.lab.choice": "models.rollout",
    "hosts.lab.clock": "runs.run_writer",
    "hosts.lab.dump": "runs.dump",
    "hosts.lab.economy": "models.stops",
    "hosts.lab.embeddings": "models.policy_evaluator",
    "hosts.lab.evaluation": "evaluation.in_training",
    "hosts.lab.evaluator": "evaluation.evaluator",
    "hosts.lab.graphed": "models.kv_cache",
    "hosts.lab.head": "models.head",
    "hosts.lab.held_out": "evaluation.eval_sets",
    "hosts.lab.influence": "analysis.influence",
    "hosts.lab.influenced": "trainers.lab.add_influence",
    "hosts.lab.machine": "models.hardware",
    "hosts.lab.meter": "models.policy_evaluator",
    "hosts.lab.needs": "models.hardware",
    "hosts.lab.numerics": "models.rounding",
    "hosts.lab.packing": "models.packing",
    "hosts.lab.policy": "models.policy",
    "hosts.lab.prepacked": "models.prepacked",
    "hosts.lab.pretrain": "models.pretrain",
    "hosts.lab.progress": "runs.progress",
    "hosts.lab.prompts": "data.prompts",
    "hosts.lab.responses": "analysis.responses",
    "hosts.lab.resume": "runs.resume",
    "hosts.lab.rollout": "models.rollout",
    "hosts.lab.run_directory": "runs.run_directory",
    "hosts.lab.schedule": "runs.schedule",
    "hosts.lab.scoring": "data.scoring",
    "hosts.lab.seeds": "data.seeds",
    "hosts.lab.stops": "models.stops",
    "hosts.lab.turns": "data.turns",
    "hosts.lab.watch": "analysis.update_probe",
    "hosts.mismatch": "core.mismatch",
    "hosts.probe": "core.probe",
    "hosts.ranks": "core.process_ranks",
    "hosts.resolve": "runs.resolve",
    "hosts.rollouts": "core.rollouts",
    "hosts.rounding": "models.rounding",
    "hosts.trackers": "runs.trackers",
    "hosts.verl.facts": "trainers.verl.run_plan",
    "loss": "core.loss",
    "method.names": "method.lookup",
    "method.permuted": "method.permute_weights",
    "method.selection": "method.rounding",
    "method.states": "method.state_dict",
    "method.supplies": "method.requirements",
    "objective": "core.objective",
    "models.cache": "model_files.names",
    "models.catalogue": "model_files.catalogue",
    "models.convert": "model_files.convert",
    "models.download": "model_files.download",
    "models.fetch": "model_files.fetch",
    "models.names": "model_files.names",
    "stats": "core.stats",
    "threads": "core.thread_ranks",
    "whole": "core.distributed",
}


def new_name(name: str) -> str | None:
    """The present name of a module that has moved, by the longest old name that it begins with.

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


class _Alias(Loader):
    """Gives a module that is loaded already, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # importlib has set that of the old name


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
    """Make the old names importable; once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
