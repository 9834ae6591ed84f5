"""What code that settings name is made of, as a hash: its own file and what that imports beside it.

Nothing is imported. The standard library's `modulefinder` reads which modules a module imports;
only those are followed that lie under the same place of the search path, so that a method in
`my_methods.py` that uses `helpers.py` beside it has changed when either has. Of a module that was
installed (`site-packages`) its own file alone counts: what it needs has versions. What a module
imports by a computed name, or reads as data, is not seen.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from modulefinder import ModuleFinder
from pathlib import Path

from .._plugins import offers

_INSTALLED = ("site-packages", "dist-packages")


def source_of(name: str) -> str | None:
    """A hash of the source behind "MODULE:NAME": a SHA-256, hexadecimal.

    The module is looked for in the current folder, then where Python looks. None where there is no
    such module, or it has no source.
    """
    module = name.partition(":")[0]
    found = _located(module)
    if found is None:
        return None
    root, file = found
    files = {module: file} if root.name in _INSTALLED else _beside(module, root) | {module: file}
    whole = hashlib.sha256()
    for each in sorted(files):
        whole.update(f"{each} ".encode())
        whole.update(hashlib.sha256(files[each].read_bytes()).digest())
    return whole.hexdigest()


def _located(module: str) -> tuple[Path, Path] | None:
    """The place of the search path under which a module's source lies, and that source."""
    importlib.invalidate_caches()  # a file may be as new as what was listed last
    parts = module.split(".")
    spec = top = _top(parts[0])
    for count in range(2, len(parts) + 1):
        places = list(spec.submodule_search_locations or ()) if spec else []
        spec = PathFinder.find_spec(".".join(parts[:count]), places) if places else None
    if spec is None or top is None or not spec.origin or not spec.origin.endswith(".py"):
        return None
    inner = list(top.submodule_search_locations or ())
    root = Path(inner[0]).parent if inner else Path(spec.origin).parent
    return root.absolute(), Path(spec.origin)


def _top(name: str) -> ModuleSpec | None:
    """A module without a point: in the current folder, or by whoever finds modules here."""
    found = PathFinder.find_spec(name, [os.getcwd()])
    try:  # also those of an editable install, which no path leads to
        return found or importlib.util.find_spec(name)
    except ValueError:  # one that was made by hand
        return None


def offered_source(kind: str, name: str) -> str | None:
    """The same of what installed packages offer under a name; None where none does."""
    target = _offered(kind, tuple(sys.path)).get(name)
    return None if target is None else source_of(target)


@lru_cache(8)
def _offered(kind: str, path: tuple[str, ...]) -> dict[str, str]:
    """MODULE:NAME by name; packages are looked for under `path`."""
    return {offer.name: offer.target for offer in offers(kind)}


def _beside(module: str, root: Path) -> dict[str, Path]:
    """The modules under a place that a module leads to, by name; those that can be read."""
    finder = ModuleFinder(path=[str(root)])
    with suppress(ImportError, SyntaxError):  # the run itself says so
        finder.import_hook(module)
    files = {name: getattr(each, "__file__", None) for name, each in finder.modules.items()}
    return {name: Path(file) for name, file in files.items() if file and file.endswith(".py")}
