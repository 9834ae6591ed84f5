"""The objective equivalent to a `GRPOConfig`: `make_objective(**from_grpo_config(config))`.

Its loss is TRL's own for that configuration, with TRL's conventions: the epsilon added to standard
deviations of rewards, and the denominators.
"""

from __future__ import annotations

from typing import Any

from ..._names import unknown
from ...method import METHODS

_AGGREGATIONS: dict[str, dict[str, Any]] = {
    "dapo": {"aggregation": "token_mean"},
    "bnpo": {"aggregation": "token_mean"},
    "cispo": {"aggregation": "token_mean"},
    "vespo": {"aggregation": "token_mean"},
    "grpo": {"aggregation": "seq_mean_token_mean"},
    "sapo": {"aggregation": "seq_mean_token_mean"},
    "dr_grpo": {"aggregation": "seq_mean_token_sum_norm"},
    "luspo": {"aggregation": "seq_mean_token_sum_norm", "max_length": 1},
}
ESTIMATORS = {"group": "grpo", "batch": "grpo_batch", "none": "dr_grpo"}


def from_grpo_config(config: Any) -> dict[str, Any]:
    """Return arguments of `make_objective` for the loss of a GRPOConfig.

    The loss equals TRL's up to rounding. One difference: `adaptive_entropy`
    (`use_adaptive_entropy`) acts once per generation batch, in TRL once per optimizer step.

    Args:
        config: a `trl.GRPOConfig`.

    Returns:
        A new dictionary; its "method" is a list to which interventions may be appended.

    Raises:
        ValueError: no objective is equivalent; the message names the argument and the reason.

    Example:
        >>> from trl import GRPOConfig  # doctest: +SKIP
        >>> from_grpo_config(GRPOConfig("out", epsilon_high=0.28))["method"]  # doctest: +SKIP
        [{'name': 'ppo', 'high': 0.28}]
    """
    for name, known in (("loss_type", _AGGREGATIONS), ("scale_rewards", ESTIMATORS)):
        if getattr(config, name) not in known:
            raise ValueError(unknown(name, str(getattr(config, name)), known))
    for wrong, reason in _without_equal(config):
        if wrong:
            raise ValueError(f"{reason}, or leave objective and entropy out: TRL trains it so")
    chain = [_surrogate(config)]
    if config.off_policy_mask_threshold is not None:
        chain.append({"name": "off_policy_mask", "delta": config.off_policy_mask_threshold})
    if config.top_entropy_quantile < 1:
        top = config.top_entropy_quantile
        chain.append({"name": "forking_tokens", "top": top, "threshold": "quantile"})
    if config.use_adaptive_entropy:
        chain.append(
            {
                "name": "adaptive_entropy", "target": config.entropy_target,
                "coef": config.entropy_coef, "delta": config.entropy_coef_delta,
                "coef_min": config.entropy_coef_min, "coef_max": config.entropy_coef_max,
                "delayed": True,
            }
        )  # fmt: skip
    elif config.entropy_coef:
        chain.append({"name": "entropy_bonus", "coef": config.entropy_coef})
    if config.beta:
        unbiased = config.use_bias_correction_kl
        chain.append({"name": "kl_ref", "coef": config.beta, "unbiased": unbiased})
    how = dict(_AGGREGATIONS[config.loss_type])
    if config.loss_type == "dr_grpo":
        how["max_length"] = config.max_completion_length
    advantage = ESTIMATORS[config.scale_rewards]
    if config.multi_objective_aggregation == "normalize_then_sum":
        advantage = "gdpo"
    # omit parameters at the method's defaults
    defaults = [METHODS[m["name"]].parameters() | {"name": None} for m in chain]
    method = [
        {k: v for k, v in m.items() if v != usual[k]}
        for m, usual in zip(chain, defaults, strict=True)
    ]
    return {"method": method, "advantage": advantage, **how, "conventions": "trl"}


def _surrogate(config: Any) -> dict[str, Any]:
    low, high, delta = config.epsilon, config.epsilon_high, config.delta
    high = low if high is None else high
    if config.loss_type == "cispo":  # TRL's epsilon_high is the bound itself
        return {"name": "cispo", "high": high - 1}
    if config.loss_type == "sapo":
        taus = {"tau_pos": config.sapo_temperature_pos, "tau_neg": config.sapo_temperature_neg}
        return {"name": "sapo"} | taus
    if config.loss_type == "vespo":
        names = ("k_pos", "lambda_pos", "k_neg", "lambda_neg")
        own = {n.replace("lambda", "lam"): getattr(config, f"vespo_{n}") for n in names}
        return {"name": "vespo"} | own
    name = "gspo" if config.importance_sampling_level == "sequence" else "ppo"
    if delta is not None and delta < 1 + high:
        # TRL bounds the ratio by delta on both sides of the minimum: the clip is at delta where
        # A > 0, and where A < 0 the clipped branch takes over up to 1 + high
        high, delta = delta - 1, 1 + high
    return {"name": name, "low": low, "high": high, "dual": delta}


def _without_equal(config: Any) -> list[tuple[bool, str]]:
    """List (applies, reason) for each argument that no method can express."""
    sequence = config.importance_sampling_level == "sequence"
    own, delta = config.loss_type in ("cispo", "sapo", "vespo"), config.delta
    bonus = bool(config.use_adaptive_entropy or config.entropy_coef)
    corrected = config.use_vllm and config.vllm_importance_sampling_correction
    # in VESPO the level affects only the bias correction of the reference KL
    level = config.loss_type != "vespo" or (config.beta and config.use_bias_correction_kl)
    return [
        (own and sequence and bool(level), f"loss_type={config.loss_type!r} with "
         "importance_sampling_level='sequence': the method takes a token's ratio; set 'token'"),
        (config.loss_type == "vespo" and corrected, "loss_type='vespo' with vLLM: TRL puts the "
         "sampler's correction inside the weight; set vllm_importance_sampling_correction=False"),
        (config.off_policy_mask_threshold is not None and config.use_vllm,
         "off_policy_mask_threshold with vLLM: TRL compares with vLLM's log-probs, off_policy_mask "
         "with the old policy's; leave the threshold out and add off_policy_mask"),
        (delta is not None and delta < 1 and not own, f"delta={delta} is below 1, which leaves "
         "positive advantages without gradient; set it above 1 + epsilon"),
        (config.top_entropy_quantile < 1 and bonus,
         f"top_entropy_quantile={config.top_entropy_quantile} keeps the entropy bonus to its "
         "tokens, and entropy_bonus acts on all; set entropy_coef=0 and use_adaptive_entropy=False "
         "and append entropy_bonus"),
    ]  # fmt: skip
