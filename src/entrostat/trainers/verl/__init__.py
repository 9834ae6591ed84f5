"""veRL with an objective: a plugin, one trainer class and one worker class; see docs/hosts/verl.md.

    run.py       `entrostat train --host verl`: starts main_ppo and follows it; imports no veRL
    recipe.py    a configuration, and what it leaves open, as veRL's overrides; config.py, how they
                 are written; model_ref.py, model and task; no veRL
    data.py      a task's prompts as Parquet, in the lab's order and tokens; imports no veRL
    preflight.py what veRL and Ray say to that before it is started
    agent.py     a rollout: the exact prompt, stops; completions.py, its end and text; no veRL
    turns.py     a rollout of several turns, by the lab's rules; imports no veRL
    reward.py    what veRL calls for a reward: the task's own score; imports no veRL
    settings.py  the objective's settings in veRL's configuration, and what is refused at the start
    driver.py    once per rollout batch: controllers, advantages; imports no veRL
    trainer.py   where the driver calls that, and checkpoints it
    worker.py    once per update: the plan over the whole minibatch and all ranks
    loss.py      the loss of a micro-batch under that plan
    plugin.py    what veRL imports; selfcheck.py, whether it did

Nothing of veRL is imported with this package itself.
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
