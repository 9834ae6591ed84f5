"""The content address of a training: a hash of all that decides its result (docs/studies.md).

Models with a built-in name or a hub name are identified by that name. The version of entrostat is
not part of the address.

Source code is a module's own file and the modules that it imports from the same entry of the search
path. For an installed module (`site-packages`) only its own file counts, since its dependencies
have versions. Nothing is imported, so imports by a computed name and data files are not seen.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from importlib.machinery import ModuleSpec, PathFinder
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, Literal

from .._plugins import offers
from ..config import Forecast, TrainConfig
from ..model_files import is_ours
from ..tasks.rows import SUFFIXES
from ..tasks.trust import is_code, is_code_task

LENGTH = 16  # hexadecimal digits: 64 bits
# settings of later versions, omitted at their default, so that older addresses stay valid
_LATER: dict[tuple[str, ...], Any] = {
    ("forecast",): dataclasses.asdict(Forecast()),
    ("sampling", "redraws"): 0,
    ("optim", "keep_size"): False,
    ("optim", "whole_groups"): None,
}
_INSTALLED = ("site-packages", "dist-packages")
_WEIGHTS = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja", "*.gguf")


def address_of(
    config: TrainConfig, after: str | None = None, start: Literal["final", "best"] = "final"
) -> str:
    """Address of a training that starts from `config.model`, or a policy of the run `after`."""
    settings: dict[str, Any] = dataclasses.asdict(config)
    del settings["output"], settings["log"], settings["expect"]  # these do not change the result
    for (*rooms, key), usual in _LATER.items():
        inside = settings
        for room in rooms:
            inside = inside[room]
        if inside[key] == usual:
            del inside[key]
    if after is None:
        content = None if is_ours(config.model) else _content(config.model)
        settings["model"] = [config.model, content]
    else:
        settings["model"] = {"after": after, "start": start}
    tasks = tasks_of(config)
    names = [str(task["name"]) for task in tasks]
    settings["files"] = [_content(name) or _content(name.partition(":")[2]) for name in names]
    if read := [found for task in tasks for found in _rows_of(task) if found is not None]:
        settings["read"] = read
    if code := code_of(config):
        settings["code"] = code
    text = json.dumps(settings, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:LENGTH]


def code_of(config: TrainConfig) -> dict[str, str | None]:
    """Hash the source of user code, by its name in the settings."""
    tasks = tasks_of(config)
    named = [("method", each["name"] if isinstance(each, Mapping) else each)
             for each in config.method]  # fmt: skip
    named += [("task", task["name"]) for task in tasks]
    named += [("grader", task["grader"]) for task in tasks if task.get("grader")]
    found: dict[str, str | None] = {}
    for kind, name in named:
        if is_code_task(name) if kind == "task" else is_code(name):
            found[name] = source_of(name)
        else:
            target = _offered(kind, tuple(sys.path)).get(name)
            if target is not None and (source := source_of(target)) is not None:
                found[name] = source
    return found


def tasks_of(config: TrainConfig) -> list[Mapping[str, Any]]:
    return [config.task, *(one.task for one in config.eval.sets if one.task is not None)]


def _rows_of(task: Mapping[str, Any]) -> Iterator[str | None]:
    """Hash a task's `path` and the directory in its name, but not a data file that is its name."""
    path, folder = task.get("path"), str(task["name"]).partition(":")[2]
    given = list(path.values()) if isinstance(path, Mapping) else [path]
    given += [folder] if Path(folder).is_dir() else []
    for place in map(str, filter(None, given)):
        if Path(place).is_dir():
            files = (p for p in Path(place).iterdir() if p.name.endswith((*SUFFIXES, ".gz")))
            yield _of_files(sorted(files))
        else:
            yield _content(place)


def _content(name: str) -> str | None:
    """Hash a file, or the files of a model directory; None if the path is neither."""
    path = Path(name)
    if not name:  # Path("") is the working directory
        return None
    if path.is_file():
        return _of_files([path])
    if (path / "config.json").is_file():
        return _of_files(sorted({file for kind in _WEIGHTS for file in path.glob(kind)}))
    return None


def _of_files(files: Sequence[Path]) -> str | None:
    if not files:
        return None
    stats = [(file, file.stat()) for file in files]
    return _digest(tuple((str(file), s.st_size, s.st_mtime_ns) for file, s in stats))


@lru_cache(256)
def _digest(files: tuple[tuple[str, int, int], ...]) -> str:
    """Hash names and contents; sizes and times only detect changes between two calls."""
    whole = hashlib.sha256()
    for path, _, _ in files:
        with open(path, "rb") as file:
            whole.update(f"{Path(path).name} ".encode())
            whole.update(hashlib.file_digest(file, "sha256").digest())
    return whole.hexdigest()


def source_of(name: str) -> str | None:
    """SHA-256 of the source behind "MODULE:NAME"; None if the source cannot be found."""
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
    """The search path entry that contains a module's source, and the source file."""
    importlib.invalidate_caches()  # a file may have been created after the last listing
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
    """Find a top-level module in the working directory, else with the normal import system."""
    found = PathFinder.find_spec(name, [os.getcwd()])
    try:  # also finds editable installs, which are on no path
        return found or importlib.util.find_spec(name)
    except ValueError:  # a module created by hand
        return None


@lru_cache(8)
def _offered(kind: str, path: tuple[str, ...]) -> dict[str, str]:
    """Map the names of entry points to MODULE:NAME; packages are searched under `path`."""
    return {offer.name: offer.target for offer in offers(kind)}


def _beside(module: str, root: Path) -> dict[str, Path]:
    """Readable modules below `root` that a module imports, by name."""
    finder = ModuleFinder(path=[str(root)])
    with suppress(ImportError, SyntaxError):  # the run itself reports it
        finder.import_hook(module)
    files = {name: getattr(each, "__file__", None) for name, each in finder.modules.items()}
    return {name: Path(file) for name, file in files.items() if file and file.endswith(".py")}
