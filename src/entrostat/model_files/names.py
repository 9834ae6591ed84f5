"""From the name of a model to what can be loaded."""

from __future__ import annotations

import re
from pathlib import Path

from .._names import unknown
from .cache import is_whole, model_directory
from .catalogue import MODELS

TINY = "tiny"
NOWHERE = "no such directory, and not a name on the hub (OWNER/NAME)"
_SIZED = re.compile(r"tiny-([1-9]\d{0,3})x([1-9]\d{0,2})")
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


def tiny_directory() -> Path:
    """Where the shipped tiny policy lies: config, tokenizer and safetensors weights."""
    return Path(__file__).parents[1] / "assets" / "tiny"


def tiny_size(model: str) -> tuple[int, int] | None:
    """Width and layers of a tiny policy of another size, `tiny-WIDTHxLAYERS`; None of others.

    Example:
        >>> tiny_size("tiny-96x3"), tiny_size("tiny")
        ((96, 3), None)
    """
    match = _SIZED.fullmatch(model)
    return (int(match[1]), int(match[2])) if match else None


def is_tiny(model: str) -> bool:
    """Whether a name means the tiny policy, of any size."""
    return model == TINY or tiny_size(model) is not None


def is_ours(model: str) -> bool:
    """Whether a name means one of our models, wherever it lies."""
    return is_tiny(model) or model in MODELS


def find(model: str) -> str:
    """What to load for a model's name: a directory for one of ours, anything else as it is.

    A name of ours means our model even where a directory is called so; `./NAME` is the directory.
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
    """Refuse, before anything is loaded, what cannot be a model."""
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
