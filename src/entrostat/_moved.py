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
    "evaluate": "evaluation",
    "exact": "core.deterministic",
    "hosts": "trainers",
    "hosts.verl.facts": "trainers.verl.run_plan",
    "loss": "core.loss",
    "objective": "core.objective",
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
