"""The objective's settings inside veRL's configuration, and the checks before a run starts.

veRL turns `actor_rollout_ref.actor.policy_loss` into the dataclass that its `_target_` names; a
subclass may have more fields. If another trainer or worker uses such a configuration, it looks up
the loss `entrostat` in veRL's registry, which raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import PolicyLossConfig

from ..._moved import new_name
from ...core.advantages import advantages
from ...core.objective import Objective, make_objective
from ...core.rollouts import FIELDS
from .refusals import raise_if, refusals
from .selfcheck import NAME, check

_HERE = "actor_rollout_ref.actor"


@dataclass
class PolicyLoss(PolicyLossConfig):
    """An objective as veRL's `policy_loss`; the fields are those of `make_objective`.

    Args:
        loss_mode: must stay "entrostat".
        method: a name, a table with a name, or a list of them.
        advantage: estimator; None takes the recipe's.
        aggregation: "token_mean", "seq_mean_token_mean" or "seq_mean_token_sum_norm"; None takes
            the recipe's.
        max_length: the constant of the last.
        seed: for random selections.

    Raises:
        ValueError: the objective is invalid.
        RuntimeError: the plugin is not active.
    """

    loss_mode: str = NAME
    method: Any = None
    advantage: Optional[str] = None  # noqa: UP045 (OmegaConf reads it)
    aggregation: Optional[str] = None  # noqa: UP045
    max_length: Optional[int] = None  # noqa: UP045
    seed: int = 0

    def __post_init__(self) -> None:
        check()
        if self.loss_mode != NAME:
            raise ValueError(
                f"{_HERE}.policy_loss.loss_mode must be {NAME!r} with this _target_, "
                f"got {self.loss_mode!r}"
            )
        if self.method is None:
            raise ValueError(
                f"{_HERE}.policy_loss.method is not set; name one, e.g. "
                f"+{_HERE}.policy_loss.method=[dapo,repo_r]"
            )
        self.objective()

    def objective(self, updates: int | None = None) -> Objective:
        """Build a new objective from these settings; `updates` as in `make_objective`."""
        plain: Any = OmegaConf.to_container(OmegaConf.create({"method": self.method}))
        return make_objective(
            plain["method"],
            advantage=self.advantage,
            aggregation=self.aggregation,  # type: ignore[bad-argument-type]
            max_length=self.max_length,
            updates=updates,
        )


@register_policy_loss(NAME)
def refuse(*args: Any, **kwargs: Any) -> Any:
    """The registered loss: raises if veRL's own worker uses it."""
    raise RuntimeError(
        f"{_HERE}.policy_loss is entrostat's, but veRL's own worker came to use it; set "
        "trainer.v1.trainer_mode=entrostat (and trainer.use_v1=True)"
    )


def check_run(config: Any) -> tuple[PolicyLoss, Objective]:
    """Check veRL's whole configuration; return the settings and the objective."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    target = actor.policy_loss.get("_target_")
    if (new_name(str(target)) or target) != f"{PolicyLoss.__module__}.{PolicyLoss.__qualname__}":
        raise ValueError(
            f"trainer.v1.trainer_mode={NAME} needs {_HERE}.policy_loss._target_="
            f"{PolicyLoss.__module__}.{PolicyLoss.__qualname__}, got {target}; "
            "`entrostat train --host verl` writes the settings"
        )
    settings = omega_conf_to_dataclass(actor.policy_loss)
    updates = actor.ppo_epochs * max(1, config.data.train_batch_size // actor.ppo_mini_batch_size)
    try:
        objective = settings.objective(updates)
    except ValueError as error:
        raise ValueError(
            f"{error}; in veRL: {_HERE}.ppo_epochs=1 and {_HERE}.ppo_mini_batch_size="
            "data.train_batch_size"
        ) from None
    objective.check_host("verl", FIELDS, updates)
    raise_if(refusals(partial(OmegaConf.select, config), objective))
    try:
        K = rollout.n
        advantages(objective.advantage, torch.zeros(K), torch.zeros(K), torch.ones(K))
    except ValueError as error:
        raise ValueError(f"actor_rollout_ref.rollout.n is {rollout.n}: {error}") from None
    return settings, objective
