"""TRL's GRPOTrainer with an objective: `from entrostat.trainers.trl import EntropyGRPOTrainer`."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .equal import from_grpo_config

_HOME = {"EntropyAlarm": ".alarm", "EntropyGRPOTrainer": ".trainer"}

if TYPE_CHECKING:
    from .alarm import EntropyAlarm
    from .trainer import EntropyGRPOTrainer

__all__ = ["EntropyAlarm", "EntropyGRPOTrainer", "from_grpo_config"]


def __getattr__(name: str) -> Any:
    """Import TRL, which takes seconds, only when the trainer is asked for."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import trl  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f"entrostat.trainers.trl needs TRL 1.16 ({error}); pip install 'entrostat[trl]'"
        ) from None
    return getattr(import_module(_HOME[name], __name__), name)
