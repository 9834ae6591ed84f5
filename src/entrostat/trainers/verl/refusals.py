"""Keys of veRL's configuration that conflict with an objective. Imports no veRL.

`--print` checks before anything starts; the trainer checks the whole configuration again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from ...core.objective import Objective
from ...core.probe import bounds, probe
from ..hold import Hold

_HERE, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
_CORRECTION = "algorithm.rollout_correction"
# veRL 0.9.1's defaults of the keys checked here
DEFAULTS: dict[str, Any] = {
    f"{_HERE}.strategy": "fsdp",
    f"{_HERE}.calculate_entropy": False,
    f"{_HERE}.use_kl_loss": False,
    f"{_HERE}.entropy_coeff": 0,
    f"{_HERE}.loss_agg_mode": "token-mean",
    f"{_HERE}.clip_ratio": 0.2,
    f"{_HERE}.clip_ratio_low": 0.2,
    f"{_HERE}.clip_ratio_high": 0.2,
    f"{_HERE}.clip_ratio_c": 3.0,
    f"{_ROLLOUT}.calculate_log_probs": False,
    "trainer.use_v1": True,
    "algorithm.adv_estimator": "gae",
    "algorithm.use_kl_in_reward": False,
    "critic.enable": None,
    f"{_CORRECTION}.rollout_is": None,
    f"{_CORRECTION}.rollout_rs": None,
    f"{_CORRECTION}.bypass_mode": False,
    f"{_CORRECTION}.loss_type": "ppo_clip",
    "distillation.enabled": False,
}


def _unused(objective: Objective) -> dict[str, tuple[Any, str]]:
    """Keys that the objective ignores: the neutral value, and the advice."""
    names, (low, high) = "+".join(objective.names), bounds(probe(objective))
    mean = objective.aggregation
    clip = f": {names} has its own clip; say it in the method, {{name:ppo,low:0.2,high:0.28}}"
    return {
        f"{_HERE}.entropy_coeff": (0, "; add the method entropy_bonus"),
        f"{_HERE}.loss_agg_mode": (
            mean.replace("_", "-"), f": {names} takes {mean}; set policy_loss.aggregation",
        ),
        f"{_HERE}.clip_ratio": (low, clip),
        f"{_HERE}.clip_ratio_low": (low, clip),
        f"{_HERE}.clip_ratio_high": (high, clip),
        "algorithm.use_kl_in_reward": (False, "; add the method kl_reward, or kl_ref for the loss"),
        "algorithm.adv_estimator": (
            "grpo", f": {names} takes {objective.advantage}; set policy_loss.advantage, and "
            "adv_estimator=grpo",
        ),
        "distillation.enabled": (False, "; set it to False"),
    }  # fmt: skip


def corrects(get: Callable[[str], Any]) -> bool:
    """Whether veRL's rollout correction is enabled."""
    return any(get(f"{_CORRECTION}.{key}") for key in ("rollout_is", "rollout_rs", "bypass_mode"))


def refusals(
    get: Callable[[str], Any], objective: Objective, given: Collection[str] = ()
) -> list[tuple[bool, str]]:
    """List (applies, message) for settings that would be ignored, or computed for nothing.

    `get` returns a key's value. `given` are keys that were set explicitly, if known; other keys at
    veRL's default count as unset.
    """
    needs, names = objective.needs, "+".join(objective.names)
    strategy, hold = get(f"{_HERE}.strategy"), Hold.of(objective)
    held = hold is not None and (hold.exact or strategy != "fsdp2")
    estimator = get("algorithm.adv_estimator")
    critic = get("critic.enable") or (get("critic.enable") is None and estimator == "gae")
    unused = [
        (key in given or get(key) != DEFAULTS[key], f"{key}={get(key)} would not be used{instead}")
        for key, (value, instead) in _unused(objective).items()
        if get(key) not in (value, None)
    ]
    return [
        (strategy not in ("fsdp", "fsdp2"),
         f"{_HERE}.strategy={strategy}: entrostat plans over a rank's whole minibatch, which "
         "here is known of fsdp and fsdp2 only (under Megatron log-probs exist on the last "
         f"pipeline stage alone); set {_HERE}.strategy=fsdp2"),
        (not get("trainer.use_v1"), "trainer.use_v1=False: entrostat's trainer is a v1 trainer; "
         "set trainer.use_v1=True"),
        ("entropy" in needs and not get(f"{_HERE}.calculate_entropy"),
         f"{names} needs the current policy's entropy; set {_HERE}.calculate_entropy=True"),
        (held,
         "thermostat: in veRL the multiplier is solved for with solve='sample' under "
         f"{_HERE}.strategy=fsdp2; set both, or knob='entropy_coef'"),
        ("ref_logp" in needs and not get(f"{_HERE}.use_kl_loss"),
         f"{names} needs a reference policy, which veRL makes only with {_HERE}.use_kl_loss=True "
         "(its coefficient is not used)"),
        ("ref_logp" not in needs and bool(get(f"{_HERE}.use_kl_loss")),
         f"{_HERE}.use_kl_loss=True: {names} has no reference KL, so it would be computed for "
         "nothing; add the method kl_ref, or set it to False"),
        (bool(critic), "a critic would be trained for nothing: the objective estimates the "
         "advantages; set algorithm.adv_estimator=grpo and leave critic.enable unset"),
        *unused,
        (corrects(get) and not get(f"{_ROLLOUT}.calculate_log_probs"),
         f"{_CORRECTION} (rollout_is, rollout_rs, bypass_mode) needs the sampler's log-probs; set "
         f"{_ROLLOUT}.calculate_log_probs=True"),
        (bool(get(f"{_CORRECTION}.bypass_mode")) and get(f"{_CORRECTION}.loss_type") != "ppo_clip",
         f"{_CORRECTION}.loss_type={get(f'{_CORRECTION}.loss_type')} would not be used: the "
         "objective is the loss; leave it at ppo_clip, and take the method cispo or icepop"),
        (objective.aggregation == "seq_mean_token_sum_norm" and objective.max_length is None,
         f"aggregation seq_mean_token_sum_norm needs its constant; set "
         f"+{_HERE}.policy_loss.max_length=data.max_response_length"),
    ]  # fmt: skip
