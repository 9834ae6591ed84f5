"""The lab: our own training loop, for any Hugging Face causal LM, on CPU or one GPU.

`train` is loaded when first used: a run directory can be looked at without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .loop import train


def __getattr__(name: str) -> Any:
    if name != "train":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .loop import train

    globals()[name] = train
    return train


__all__ = ["train"]
