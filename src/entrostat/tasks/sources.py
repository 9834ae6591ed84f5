"""Where a data set's rows come from: a path, entrostat's cache, a package, or the hub.

No code of a set is executed: files are read as JSON and Parquet, and the hub through `datasets`,
which has no loading scripts from version 4 on.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from .._names import unknown
from ..errors import in_one_line
from ..model_files.names import cache_directory
from .rows import SUFFIXES, Located, read_rows
from .sets import KINDS, SETS, DataSet

_PATIENCE = 3.0  # seconds to wait for the hub


class Source(NamedTuple):
    where: str  # name for messages
    rows: Callable[[Iterable[str]], Iterator[Located]]  # reads these columns


def _files(where: str) -> Source:
    """A split in a file, or a directory of them."""
    return Source(where, partial(read_rows, where))


def _hub(name: str, data: DataSet, split: str) -> Source:
    """A split on the Hugging Face hub, or in the local cache of `datasets`."""
    part = f", {data.config}" if data.config else ""
    return Source(f"{data.hub} (hub{part}, {split})", partial(_hub_rows, name, data, split))


def _hub_rows(name: str, data: DataSet, split: str, columns: Iterable[str]) -> Iterator[Located]:
    loaded = _loaded(name, data, split)
    heads = {part for column in columns for part in (column, column.split(".")[0])}
    there = [column for column in loaded.column_names if column in heads]
    others = dict.fromkeys(loaded.column_names)
    if not there:
        yield Located("row 1", others, dict)
        return
    tables = loaded.select_columns(there).with_format("arrow").iter(1000)
    for number, row in enumerate(row for table in tables for row in table.to_pylist()):
        again = partial(loaded.__getitem__, number)
        yield Located(f"row {number + 1}", others | row, again)


def _loaded(name: str, data: DataSet, split: str) -> Any:
    try:
        import datasets
    except ImportError:
        raise ValueError(missing(name, data, "the library `datasets` is not installed")) from None
    try:
        with _quick():
            if data.files:
                files = [f"hf://datasets/{data.hub}/{file}" for file in data.files]
                return datasets.load_dataset("json", data_files=files, split="train")
            return datasets.load_dataset(data.hub, data.config, split=split)
    except Exception as error:  # of the library, the network or the file system
        raise ValueError(missing(name, data, in_one_line(error)[:200])) from None


def sources(name: str, data: DataSet, path: str | Mapping[str, str] | None) -> dict[str, Source]:
    """The source of each available split, in the set's order.

    `path` is a file or directory for the first split, or a table by split; None: search for it.
    """
    given = {next(iter(data.splits)): path} if isinstance(path, str) else path
    if given is not None:
        if not isinstance(given, Mapping) or not given:
            raise ValueError(f"task {name!r}: path is a file or a table of files, got {path!r}")
        for split, file in given.items():
            if split not in data.splits:
                raise ValueError(f"task {name!r}: path: {unknown('split', split, data.splits)}")
            if not isinstance(file, str):
                raise ValueError(f"task {name!r}: path.{split} must be a file, got {file!r}")
        return {split: _files(given[split]) for split in data.splits if split in given}
    cached = _cached(data)
    if cached:
        return {split: _files(str(cached[split])) for split in data.splits if split in cached}
    packaged = _packaged(data)
    if packaged:
        return {next(iter(data.splits)): _files(str(packaged))}
    return {split: _hub(name, data, theirs) for split, theirs in data.splits.items()}


def from_anywhere(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A task's table with absolute file paths, for processes with another working directory."""
    table = dict(settings)
    name, path = table["name"], table.get("path")
    kind, colon, file = name.partition(":")
    if colon and kind in KINDS:
        table["name"] = f"{kind}:{Path(file).absolute()}"
    elif name.endswith(SUFFIXES):
        table["name"] = str(Path(name).absolute())
    elif name in SETS and isinstance(path, str):
        table["path"] = str(Path(path).absolute())
    elif name in SETS and isinstance(path, Mapping):
        table["path"] = {split: str(Path(one).absolute()) for split, one in path.items()}
    return table


def at_hand(data: DataSet) -> str:
    """Where this machine has a set; "" if nowhere."""
    if _cached(data):
        return "cache"
    if data.package and _packaged(data):
        return f"package {data.package[0].replace('_', '-')}"
    if _in_hub_cache(data.hub):
        return "cache of datasets"
    return ""


def missing(name: str, data: DataSet, reason: str) -> str:
    part = f", configuration {data.config}" if data.config else ""
    names = data.files or tuple(data.splits.values())
    kind = "files" if data.files else "splits" if len(names) > 1 else "split"
    wanted = f"{kind} {', '.join(names)}"
    first = places(data)[0]
    return (
        f"task {name!r} is not at hand: download {data.hub} ({wanted}{part}) from "
        f"huggingface.co/datasets and put it at {first}.jsonl or .parquet (or a directory "
        f"{first.name} of such files), or name your copy with --task.path. Looked for on the hub: "
        f"{reason}"
    )


def places(data: DataSet) -> list[Path]:
    """Paths of the splits in the cache, without suffixes."""
    home = cache_directory() / "data"
    if len(data.splits) == 1:
        return [home / data.name]
    return [home / f"{data.name}-{split}" for split in data.splits]


@contextmanager
def _quick() -> Iterator[None]:
    """Set the hub's libraries to offline if the hub does not answer.

    Otherwise they retry for half a minute before they use their cache.
    """
    import huggingface_hub.constants as hub
    from datasets import config

    offline = bool(hub.HF_HUB_OFFLINE) or not _answers(hub.ENDPOINT)
    before = hub.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE = offline
    try:
        yield
    finally:
        hub.HF_HUB_OFFLINE, config.HF_HUB_OFFLINE = before


def _answers(endpoint: str) -> bool:
    """Whether a connection can be opened; behind a proxy True, untested."""
    if getproxies():
        return True
    address = urlsplit(endpoint)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), _PATIENCE).close()
    except Exception:  # OSError and others, without a network
        return False
    return True


def _cached(data: DataSet) -> dict[str, Path]:
    found = {}
    for split, place in zip(data.splits, places(data), strict=True):
        files = (*(place.with_name(place.name + suffix) for suffix in SUFFIXES), place)
        there = next((one for one in files if one.exists()), None)
        if there is not None:
            found[split] = there
    return found


def _packaged(data: DataSet) -> Path | None:
    """The file in an installed package; does not import the package."""
    if data.package is None:
        return None
    package, file = data.package
    spec = find_spec(package)
    homes = spec.submodule_search_locations if spec else None
    return next((Path(home, file) for home in homes or () if Path(home, file).is_file()), None)


def _in_hub_cache(hub: str) -> bool:
    """Whether the cache of `datasets` has a directory for the set; does not import `datasets`."""
    home = os.environ.get("HF_HOME") or Path(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "huggingface"
    )
    own = os.environ.get("HF_DATASETS_CACHE") or Path(home, "datasets")
    return Path(own).expanduser().joinpath(hub.replace("/", "___").lower()).is_dir()
