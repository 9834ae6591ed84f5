"""The objective's settings inside veRL's configuration, and what is refused before a run starts.

veRL turns `actor_rollout_ref.actor.policy_loss` into the dataclass that its `_target_` names; a
subclass may have more fields. Should anything but our trainer and worker take such a configuration,
it asks veRL's registry for the loss `entrostat`, which refuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
from verl.trainer.distillation import is_distillation_enabled
from verl.trainer.ppo.core_algos import register_policy_loss
from verl.trainer.ppo.utils import need_critic
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import PolicyLossConfig

from ..._moved import new_name
from ...core.advantages import advantages
from ...core.objective import Objective, make_objective
from ...core.rollouts import FIELDS
from ..hold import Hold
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
        seed: of random selections.

    Raises:
        ValueError: the objective cannot be meant.
        RuntimeError: the plugin is not in force.
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
        """A new objective of these settings; `updates` as in `make_objective`."""
        return make_objective(
            _plain(self.method),
            advantage=self.advantage,
            aggregation=self.aggregation,  # type: ignore[bad-argument-type]
            max_length=self.max_length,
            updates=updates,
        )


@register_policy_loss(NAME)
def refuse(*args: Any, **kwargs: Any) -> Any:
    """What veRL's own worker gets when it asks for our loss.

    Raises:
        RuntimeError: always.
    """
    raise RuntimeError(
        f"{_HERE}.policy_loss is entrostat's, but veRL's own worker came to use it; set "
        "trainer.v1.trainer_mode=entrostat (and trainer.use_v1=True)"
    )


def check_run(config: Any) -> tuple[PolicyLoss, Objective]:
    """The settings and the objective of a run, if veRL can run it so.

    Args:
        config: veRL's whole configuration.

    Raises:
        ValueError: names the setting, the reason and the fix.
    """
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
    for refused, reason in _refusals(config, objective):
        if refused:
            raise ValueError(reason)
    try:
        K = rollout.n
        advantages(objective.advantage, torch.zeros(K), torch.zeros(K), torch.ones(K))
    except ValueError as error:
        raise ValueError(f"actor_rollout_ref.rollout.n is {rollout.n}: {error}") from None
    return settings, objective


def _refusals(config: Any, objective: Objective) -> list[tuple[bool, str]]:
    """(whether it is so, what to say) of all that would be ignored, or computed for nothing."""
    actor, algorithm = config.actor_rollout_ref.actor, config.algorithm
    correction = algorithm.get("rollout_correction") or {}
    needs = objective.needs
    names = "+".join(objective.names)
    return [
        (actor.strategy not in ("fsdp", "fsdp2"),
         f"{_HERE}.strategy={actor.strategy}: entrostat plans over a rank's whole minibatch, which "
         "here is known of fsdp and fsdp2 only (under Megatron log-probs exist on the last "
         f"pipeline stage alone); set {_HERE}.strategy=fsdp2"),
        (not config.trainer.use_v1, "trainer.use_v1=False: entrostat's trainer is a v1 trainer; "
         "set trainer.use_v1=True"),
        ("entropy" in needs and not actor.calculate_entropy,
         f"{names} needs the current policy's entropy; set {_HERE}.calculate_entropy=True"),
        ((hold := Hold.of(objective)) is not None and (hold.exact or actor.strategy != "fsdp2"),
         "thermostat: in veRL the multiplier is solved for with solve='sample' under "
         f"{_HERE}.strategy=fsdp2; set both, or knob='entropy_coef'"),
        ("ref_logp" in needs and not actor.use_kl_loss,
         f"{names} needs a reference policy, which veRL makes only with {_HERE}.use_kl_loss=True "
         "(its coefficient is not used)"),
        ("ref_logp" not in needs and actor.use_kl_loss,
         f"{_HERE}.use_kl_loss=True: {names} has no reference KL, so it would be computed for "
         "nothing; add the method kl_ref, or set it to False"),
        (actor.entropy_coeff != 0, f"{_HERE}.entropy_coeff={actor.entropy_coeff} would not be "
         "used; add the method entropy_bonus"),
        (algorithm.use_kl_in_reward, "algorithm.use_kl_in_reward=True would not be used; add the "
         "method kl_reward"),
        (need_critic(config), "a critic would be trained for nothing: the objective estimates the "
         "advantages; set algorithm.adv_estimator=grpo and leave critic.enable unset"),
        (bool(correction.get("bypass_mode")), "algorithm.rollout_correction.bypass_mode=True "
         "leaves out the pass that gives the old policy's entropy; set it to False"),
        (any(correction.get(key) is not None for key in ("rollout_is", "rollout_rs")),
         "algorithm.rollout_correction: rollout_is and rollout_rs would not be used; entrostat's "
         "loss has no correction for the sampler's log-probs; set both to null"),
        (is_distillation_enabled(config.get("distillation")), "distillation.enabled=True would "
         "not be used; set it to False"),
        (objective.aggregation == "seq_mean_token_sum_norm" and objective.max_length is None,
         f"aggregation seq_mean_token_sum_norm needs its constant; set "
         f"+{_HERE}.policy_loss.max_length=data.max_response_length"),
    ]  # fmt: skip


def _plain(value: Any) -> Any:
    """OmegaConf's containers as lists and dictionaries."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    return value
