"""Keys of veRL's configuration that conflict with an objective. Imports no veRL.

`--print` checks before anything starts; the trainer checks the whole configuration again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
    f"{_HERE}.tau_pos": 1.0,
    f"{_HERE}.tau_neg": 1.05,
    f"{_HERE}.kl_loss_coef": 0.001,
    f"{_HERE}.kl_loss_type": "low_var_kl",
    f"{_HERE}.policy_loss.clip_cov_ratio": 0.0002,
    f"{_HERE}.policy_loss.clip_cov_lb": 1.0,
    f"{_HERE}.policy_loss.clip_cov_ub": 5.0,
    f"{_HERE}.policy_loss.kl_cov_ratio": 0.0002,
    f"{_HERE}.policy_loss.ppo_kl_coef": 0.1,
    f"{_ROLLOUT}.calculate_log_probs": False,
    "trainer.use_v1": True,
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.use_kl_in_reward": False,
    "critic.enable": None,
    f"{_CORRECTION}.rollout_is": None,
    f"{_CORRECTION}.rollout_rs": None,
    f"{_CORRECTION}.bypass_mode": False,
    f"{_CORRECTION}.loss_type": "ppo_clip",
    "distillation.enabled": False,
}
# parameters of a surrogate's clip, and veRL's keys for them
_CLIP = {"low": "clip_ratio_low", "high": "clip_ratio_high", "dual": "clip_ratio_c"}
# keys of veRL's own losses: the method of the same loss, and its parameter
_PARAMETERS = {
    "tau_pos": ("sapo", "tau_pos"),
    "tau_neg": ("sapo", "tau_neg"),
    "kl_loss_coef": ("kl_ref", "coef"),
    "policy_loss.clip_cov_ratio": ("clip_cov", "ratio"),
    "policy_loss.clip_cov_lb": ("clip_cov", "low"),
    "policy_loss.clip_cov_ub": ("clip_cov", "high"),
    "policy_loss.kl_cov_ratio": ("kl_cov", "frac"),
    "policy_loss.ppo_kl_coef": ("kl_cov", "coef"),
}


def _unused(objective: Objective, get: Callable[[str], Any]) -> dict[str, tuple[Any, str]]:
    """Keys that the objective ignores: the neutral value, and the advice."""
    names, terms = "+".join(objective.names), probe(objective)
    mean, (low, high) = objective.aggregation, bounds(terms)
    own = dict(zip(objective.names, objective.methods, strict=True))
    first = objective.names[0]
    clip = "".join(
        f",{part}:{get(f'{_HERE}.{key}')}"
        for part, key in _CLIP.items()
        if hasattr(own[first], part)
    )
    clip = f": {names} has its own clip; say it in the method, {{name:{first}{clip}}}"
    found = {
        f"{_HERE}.{key}": (
            getattr(own.get(name), parameter, DEFAULTS[f"{_HERE}.{key}"]),
            f"; say it in the method, {{name:{name},{parameter}:{get(f'{_HERE}.{key}')}}}",
        )
        for key, (name, parameter) in _PARAMETERS.items()
    }
    if "kl_ref" in own:
        found[f"{_HERE}.kl_loss_type"] = "low_var_kl", ": kl_ref is low_var_kl; leave it unset"
    else:  # unused in veRL, too, or refused with use_kl_loss
        del found[f"{_HERE}.kl_loss_coef"]
    return found | {
        f"{_HERE}.entropy_coeff": (0, "; add the method entropy_bonus"),
        f"{_HERE}.loss_agg_mode": (
            mean.replace("_", "-"), f": {names} takes {mean}; set policy_loss.aggregation",
        ),
        f"{_HERE}.clip_ratio": (low, clip),
        f"{_HERE}.clip_ratio_low": (low, clip),
        f"{_HERE}.clip_ratio_high": (high, clip),
        f"{_HERE}.clip_ratio_c": (terms.dual, clip),
        "algorithm.use_kl_in_reward": (False, "; add the method kl_reward, or kl_ref for the loss"),
        "algorithm.adv_estimator": (
            "grpo", f": {names} estimates by {objective.advantage}; set adv_estimator=grpo, and "
            "policy_loss.advantage for another estimator",
        ),
        "algorithm.norm_adv_by_std_in_grpo": (
            objective.advantage != "dr_grpo", f": {names} estimates by {objective.advantage}; set "
            "policy_loss.advantage, dr_grpo for False",
        ),
        "distillation.enabled": (False, "; set it to False"),
    }  # fmt: skip


def raise_if(found: Iterable[tuple[bool, str]], who: str = "") -> None:
    """Raise one line with every reason that applies."""
    if reasons := [reason for applies, reason in found if applies]:
        raise ValueError(who + ". ".join(reasons))


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
    unused: dict[str, list[str]] = {}
    for key, (value, instead) in _unused(objective, get).items():
        if get(key) not in (value, None) and (key in given or get(key) != DEFAULTS[key]):
            unused.setdefault(instead, []).append(f"{key}={get(key)}")
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
         "(its coefficient is the method's)"),
        ("ref_logp" not in needs and bool(get(f"{_HERE}.use_kl_loss")),
         f"{_HERE}.use_kl_loss=True: {names} has no reference KL, so it would be computed for "
         f"nothing; add the method {{name:kl_ref,coef:{get(f'{_HERE}.kl_loss_coef')}}}, or set it "
         "to False"),
        (bool(critic), "a critic would be trained for nothing: the objective estimates the "
         "advantages; set algorithm.adv_estimator=grpo and leave critic.enable unset"),
        *((True, f"{', '.join(k)} would not be used{instead}") for instead, k in unused.items()),
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
