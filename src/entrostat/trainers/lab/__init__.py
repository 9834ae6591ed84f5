"""The lab: our own training loop, for any Hugging Face causal LM, on CPU or one GPU.

`train` and `examine` are imported on first use, so run directories can be read without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import train
    from .rehearsal import examine

_HOME = {"train": ".loop", "examine": ".rehearsal"}
__all__ = ["examine", "train"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = getattr(import_module(_HOME[name], __name__), name)
    return globals()[name]
