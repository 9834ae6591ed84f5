"""The objective that a `GRPOConfig` means by itself: `make_objective(**from_grpo_config(config))`.

What TRL's loss with such a configuration has an equal of. Two things differ in every case: TRL's
denominators count groups without a signal, and it adds 1e-4, not 1e-6, to the deviation of rewards.
"""

from __future__ import annotations

from typing import Any

from ...method import METHODS

_AGGREGATIONS: dict[str, dict[str, Any]] = {
    "dapo": {"aggregation": "token_mean"},
    "grpo": {"aggregation": "seq_mean_token_mean"},
    "dr_grpo": {"aggregation": "seq_mean_token_sum_norm"},
    "luspo": {"aggregation": "seq_mean_token_sum_norm", "max_length": 1},
}
_NO_LOSS = {
    "bnpo": "its mean is over the tokens of each micro-batch; the nearest is "
    "aggregation='token_mean', over those of the whole step",
    "cispo": "no surrogate weights log-probs with a clipped ratio",
    "sapo": "no surrogate has a soft clip",
    "vespo": "no surrogate weights log-probs by a function of the sequence's ratio",
}


def from_grpo_config(config: Any) -> dict[str, Any]:
    """Arguments of `make_objective` for the loss that a GRPOConfig means.

    `forking_tokens` and `entropy_bonus` act over the whole optimizer step, TRL's over each
    micro-batch; `adaptive_entropy` moves its coefficient before a step, TRL after it.

    Args:
        config: a `trl.GRPOConfig`.

    Raises:
        ValueError: no objective is equal; says what has no equal, and why.

    Example:
        >>> from trl import GRPOConfig  # doctest: +SKIP
        >>> from_grpo_config(GRPOConfig("out", epsilon_high=0.28))["method"]  # doctest: +SKIP
        [{'name': 'ppo', 'high': 0.28}]
    """
    for wrong, reason in _without_equal(config):
        if wrong:
            raise ValueError(reason)
    sequence = config.importance_sampling_level == "sequence"
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    surrogate = {"name": "gspo" if sequence else "ppo", "low": config.epsilon, "high": high}
    if config.delta is not None:
        surrogate["dual"] = config.delta
    chain = [surrogate]
    if config.top_entropy_quantile < 1:
        chain.append({"name": "forking_tokens", "top": config.top_entropy_quantile})
    if config.use_adaptive_entropy:
        chain.append(
            {
                "name": "adaptive_entropy", "target": config.entropy_target,
                "coef": config.entropy_coef, "delta": config.entropy_coef_delta,
                "coef_min": config.entropy_coef_min, "coef_max": config.entropy_coef_max,
            }
        )  # fmt: skip
    elif config.entropy_coef:
        chain.append({"name": "entropy_bonus", "coef": config.entropy_coef})
    if config.beta:
        chain.append({"name": "kl_ref", "coef": config.beta})
    how = dict(_AGGREGATIONS[config.loss_type])
    if config.loss_type == "dr_grpo":
        how["max_length"] = config.max_completion_length
    advantage = {"group": "grpo", "none": "dr_grpo"}[config.scale_rewards]
    return {"method": [_shortened(m) for m in chain], "advantage": advantage, **how}


def spoken(arguments: dict[str, Any]) -> str:
    """A call of `make_objective`, as one writes it."""
    method, *others = arguments.items()
    return f"make_objective({', '.join([repr(method[1]), *(f'{k}={v!r}' for k, v in others)])})"


def _without_equal(config: Any) -> list[tuple[bool, str]]:
    """(whether it is so, why nothing is equal) of all that no method means."""
    sequence = config.importance_sampling_level == "sequence"
    high = config.epsilon if config.epsilon_high is None else config.epsilon_high
    masked = config.top_entropy_quantile < 1
    bonus = bool(config.use_adaptive_entropy or config.entropy_coef)
    return [
        (config.loss_type not in _AGGREGATIONS,
         f"loss_type={config.loss_type!r}: {_NO_LOSS.get(config.loss_type, 'not known here')}"),
        (config.scale_rewards == "batch", "scale_rewards='batch': no estimator divides by the "
         "deviation of the whole batch's rewards"),
        (config.multi_objective_aggregation != "sum_then_normalize",
         f"multi_objective_aggregation={config.multi_objective_aggregation!r}: an objective sees "
         "one reward per rollout, not what it was summed from; normalise in one reward function"),
        (config.off_policy_mask_threshold is not None, "off_policy_mask_threshold="
         f"{config.off_policy_mask_threshold}: no method leaves out whole rollouts by their KL"),
        (bool(config.beta) and config.use_bias_correction_kl, f"beta={config.beta} with "
         "use_bias_correction_kl=True: no method multiplies the KL by the ratio; with False it is "
         "kl_ref"),
        (config.delta is not None and sequence, f"delta={config.delta}: gspo has no dual clip"),
        (config.delta is not None and config.delta < 1 + high, f"delta={config.delta} below the "
         f"upper clip bound {1 + high:g} cuts positive advantages, too, which ppo's dual does not"),
        (masked and bonus, f"top_entropy_quantile={config.top_entropy_quantile} keeps the entropy "
         "bonus to its tokens; entropy_bonus acts on all"),
    ]  # fmt: skip


def _shortened(method: dict[str, Any]) -> dict[str, Any]:
    """Without the parameters that are the method's defaults."""
    defaults = METHODS[method["name"]].parameters()
    return {k: v for k, v in method.items() if k == "name" or v != defaults[k]}
