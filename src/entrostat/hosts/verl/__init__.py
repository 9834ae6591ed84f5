"""veRL with an objective: a plugin, one trainer class and one worker class; see docs/hosts/verl.md.

    config.py    a recipe as veRL's overrides; imports no veRL
    settings.py  the objective's settings in veRL's configuration, and what is refused at the start
    driver.py    once a rollout batch: controllers, advantages; imports no veRL
    trainer.py   where the driver calls that, and checkpoints it
    worker.py    once an update: the plan over the whole minibatch and all ranks
    loss.py      the loss of a micro-batch under that plan
    plugin.py    what veRL imports; selfcheck.py, whether it did

Nothing of veRL is imported with this package itself.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import shell_command, verl_config
    from .selfcheck import check

_HOME = {"check": ".selfcheck", "shell_command": ".config", "verl_config": ".config"}
__all__ = ["check", "shell_command", "verl_config"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
