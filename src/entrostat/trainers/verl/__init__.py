"""veRL with an objective: a plugin, one trainer class and one worker class; see docs/hosts/verl.md.

    run.py       `entrostat train --host verl`: starts main_ppo and follows it; imports no veRL
    recipe.py    translates a configuration to veRL's overrides; config.py formats them;
                 model_ref.py resolves model and task; no veRL
    data.py      a task's prompts as Parquet, in the lab's order and tokens; imports no veRL
    preflight.py checks veRL, Ray and the task before veRL is started
    agent.py     a rollout: the exact prompt, stops; completions.py, its end and text; no veRL
    turns.py     a multi-turn rollout, by the lab's rules; imports no veRL
    reward.py    veRL's reward function: the task's own score; imports no veRL
    settings.py  the objective's settings in veRL's configuration, and the checks at the start
    driver.py    once per rollout batch: controllers, advantages; imports no veRL
    trainer.py   calls the driver's functions and checkpoints their state
    worker.py    once per update: the plan over the whole minibatch and all ranks
    loss.py      the loss of a micro-batch under that plan
    plugin.py    the module that veRL imports; selfcheck.py checks that it did

Importing this package does not import veRL.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import shell_command
    from .recipe import verl_config
    from .selfcheck import check

_HOME = {"check": ".selfcheck", "shell_command": ".config", "verl_config": ".recipe"}
__all__ = ["check", "shell_command", "verl_config"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name], __name__), name)
