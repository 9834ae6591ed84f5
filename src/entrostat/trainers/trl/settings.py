"""Reconcile TRL's arguments with an objective: arguments set from it, changed, or inert.

Arguments of `GRPOConfig` that the objective determines (advantage, ratio, clip, aggregation,
entropy, reference KL) are set from the objective; one warning names those that it changes.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import logging
import math
import warnings
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from ...core.objective import Objective, make_objective
from ...core.probe import ONE_UPDATE, bounds, idle_at_one, probe
from ...core.rollouts import FIELDS
from ...method import MethodSpec
from .equal import ESTIMATORS, from_grpo_config

WHO = "EntropyGRPOTrainer"
LOSS_TYPES = {
    "token_mean": "dapo",
    "seq_mean_token_mean": "grpo",
    "seq_mean_token_sum_norm": "dr_grpo",
}
_SCALES = {estimator: scale for scale, estimator in ESTIMATORS.items()}
_UNCLIPPED = ("cispo", "sapo", "vespo")  # loss types with their own surrogate
_USUAL = (0.2, 0.2)
# property of an objective -> TRL's arguments for it
_ASPECTS = {
    "advantage": ("scale_rewards", "multi_objective_aggregation"),
    "clip": ("epsilon", "epsilon_high", "delta", "importance_sampling_level",
             "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos",
             "vespo_k_neg", "vespo_lambda_neg"),
    "aggregation": ("loss_type",),
    "terms": ("beta", "entropy_coef", "use_adaptive_entropy", "top_entropy_quantile",
              "off_policy_mask_threshold"),
}  # fmt: skip
# argument, or key of generation_kwargs -> values that leave the sampling distribution unchanged
_TRUNCATES: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0), "typical_p": (None, 1.0), "do_sample": (None, True),
    "num_beams": (None, 1), "no_repeat_ngram_size": (None, 0), "epsilon_cutoff": (None, 0.0),
    "eta_cutoff": (None, 0.0), "presence_penalty": (None, 0.0), "frequency_penalty": (None, 0.0),
}  # fmt: skip
_LOG = logging.getLogger(__name__)


def by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return GRPOTrainer's arguments by name, including its configuration."""
    given = dict(inspect.signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments)
    if given.get("args") is None:
        model = given.get("model")
        name = model if isinstance(model, str) else getattr(model, "name_or_path", "") or "model"
        given["args"] = GRPOConfig(f"{name.rstrip('/').split('/')[-1]}-GRPO")
    return given


def resolved(
    args: Any, method: MethodSpec | Objective | None, entropy: float | str | None, alone: bool
) -> tuple[Objective | None, Any]:
    """Return the objective, if any, and the arguments beside it."""
    if not alone:
        warn_of_truncation(args)
    if entropy is not None:
        if method is not None:
            raise ValueError(
                f"{WHO}: entropy={entropy!r} is a thermostat over the loss of args; beside an "
                f"objective list it there: [..., {{'name': 'thermostat', 'target': {entropy!r}}}]"
            )
        method = held(args, entropy)
    if method is None:
        return None, args
    check_generation(args)
    objective = build(method, args)
    args = settle(args, objective, repr(method), alone)
    warn_of_inert(objective, args)
    return objective, args


def held(args: Any, target: float | str) -> Objective:
    """The objective of the arguments' own loss, under a thermostat."""
    if args.use_adaptive_entropy:
        raise ValueError(
            f"{WHO}: entropy={target!r} and use_adaptive_entropy=True would both move the entropy "
            "coefficient; set use_adaptive_entropy=False"
        )
    own = from_grpo_config(args)
    own["method"].append({"name": "thermostat", "target": target})
    return make_objective(**own)


def build(method: MethodSpec | Objective, args: Any) -> Objective:
    """Build the objective that a user named or made; raise if TRL cannot run it."""
    if isinstance(method, Objective):
        objective = method
    else:
        objective = make_objective(method, max_length=args.max_completion_length)
    updates = updates_per_generation(args)
    try:
        objective.check_updates(updates)
    except ValueError as error:
        raise ValueError(
            f"{WHO}: {error}; in TRL: num_iterations=1, and steps_per_generation and "
            "generation_batch_size unset"
        ) from None
    objective.check_host("trl", FIELDS, updates)
    return objective


def updates_per_generation(args: Any) -> int:
    """Maximum number of optimizer steps that use one generation batch."""
    micro = args.steps_per_generation * args.num_iterations
    return math.ceil(micro / args.gradient_accumulation_steps)


def settle(args: Any, objective: Objective, said: str | None = None, alone: bool = False) -> Any:
    """Copy the arguments so that TRL's own logged loss is close to the objective's.

    If the objective equals the arguments' own, they stay. If it changes the estimator, clip or
    mean, or omits a term, one warning names the changes; `said` is the objective as the user wrote
    it. No warning is given if the arguments stand `alone`: they then do not specify the loss.
    """
    changed, chosen = changes(args, objective)
    args, given = copy.copy(args), args
    if changed or args.beta == 0.0:
        args.beta, args.use_bias_correction_kl = _beta(objective)
    if not changed:
        return args
    message = (
        f"{WHO}: objective={said or repr(objective)} changes what this GRPOConfig trains: "
        f"{'; '.join(changed)}. To keep it, give entropy=TARGET, or append methods to the list of "
        "from_grpo_config(args)"
    )
    if chosen:
        warnings.warn(message, stacklevel=4)
    elif not alone:  # TRL's defaults, which look the same as unset arguments
        _LOG.warning(message)
    terms = probe(objective)
    low, high = bounds(terms)
    own = objective.names[0] if objective.names[0] in _UNCLIPPED else None
    mean = mean_of(given, objective)
    mean = LOSS_TYPES[objective.aggregation] if mean in _UNCLIPPED else mean
    args.sync_ref_model = args.sync_ref_model and args.beta > 0  # TRL raises without a reference
    vars(args).update({
        "loss_type": own or mean,
        "epsilon": low,
        "epsilon_high": high + 1 if own == "cispo" else high,
        "delta": terms.dual,
        "scale_rewards": _SCALES.get(objective.advantage, "group"),
        "importance_sampling_level": "sequence" if terms.ratio == "sequence" else "token",
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "multi_objective_aggregation": "sum_then_normalize",
        "off_policy_mask_threshold": None,
    })  # fmt: skip
    return args


def mean_of(args: Any, objective: Objective) -> str:
    """The loss type with the objective's denominators: the arguments' own, if possible."""
    own = _meant(args)
    if own is not None and _mean(own) == _mean(objective):
        return args.loss_type
    return LOSS_TYPES[objective.aggregation]


def changes(args: Any, objective: Objective) -> tuple[list[str], bool]:
    """List what the objective changes in the arguments, and whether the user set any of these."""
    own, defaults = _meant(args), {f.name: f.default for f in dataclasses.fields(args)}
    same, found, chosen = {}, [], False
    if own is not None:
        said = _said(objective)
        same = {aspect: value == said[aspect] for aspect, value in _said(own).items()}
        same["terms"] = all(method in objective.methods for method in own.methods[1:])
    for aspect, names in _ASPECTS.items():
        mine = [n for n in names if getattr(args, n) != defaults[n]]
        if not mine if own is None else same[aspect]:
            continue
        words = ", ".join(f"{n}={getattr(args, n)!r}" for n in mine or names[:1])
        if aspect == "terms":
            found.append(f"{words} is not used")
        elif aspect == "clip":
            clip = dataclasses.asdict(objective.methods[0]).items()
            clip = ", ".join(f"{key}={value!r}" for key, value in clip)
            found.append(f"{words} becomes {objective.names[0]}({clip})")
        else:
            found.append(f"{words} becomes {aspect}={getattr(objective, aspect)!r}")
        chosen = chosen or bool(mine)
    return found, chosen


def _said(objective: Objective) -> dict[str, Any]:
    """The objective's value for each key of `_ASPECTS` except its terms."""
    return {
        "advantage": objective.advantage, "aggregation": _mean(objective),
        "clip": (objective.names[0], objective.methods[0]),
    }  # fmt: skip


def _meant(args: Any) -> Objective | None:
    """The objective equivalent to the arguments; None if there is none."""
    try:
        return make_objective(**from_grpo_config(args))
    except ValueError:
        return None


def _mean(objective: Objective) -> tuple[str, int | None]:
    constant = objective.aggregation == "seq_mean_token_sum_norm"
    return objective.aggregation, objective.max_length if constant else None


def warn_of_truncation(args: Any) -> None:
    neutral = {**_TRUNCATES, "temperature": (args.temperature,)}
    given = {name: getattr(args, name, None) for name in neutral} | (args.generation_kwargs or {})
    cut = [f"{k}={given[k]}" for k, rest in neutral.items() if given[k] not in rest]
    if cut:
        warnings.warn(
            f"{WHO}: {', '.join(cut)} samples from another distribution. Entropies, targets and "
            f"log-probs are of the policy at temperature={args.temperature}, so samples are not as "
            "diverse as entropy says and ratios are of another policy; set temperature alone",
            stacklevel=4,
        )


def check_generation(args: Any) -> None:
    """Raise on continuous batching under mixed precision, which casts the trained weights."""
    if args.use_transformers_continuous_batching and (args.bf16 or args.fp16):
        kind = "bf16" if args.bf16 else "fp16"
        raise ValueError(
            f"{WHO}: use_transformers_continuous_batching with {kind}=True casts the policy's own "
            f"weights to {kind} before it generates (TRL 1.16), and training goes on in them; set "
            f"{kind}=False, or use use_vllm or TRL's ordinary generation"
        )


def warn_of_inert(objective: Objective, args: Any) -> None:
    """Warn about methods without effect: with one update per batch, every ratio is 1."""
    if updates_per_generation(args) > 1:
        return
    inert, clip = idle_at_one(objective)
    methods = zip(objective.names, objective.methods, strict=True)
    alone = all(method.kind == "surrogate" for method in objective.methods)
    if alone and clip not in (None, _USUAL):  # TRL has that clip too, without a warning
        idle = [name for name, method in methods if not method.idle_on_policy]
        inert += [f"`{name}` (its clip never acts)" for name in idle]
    if inert:
        warnings.warn(
            f"{WHO}: {ONE_UPDATE.format(what='generation batch')} {' and '.join(inert)} does "
            "nothing; set num_iterations=2, or steps_per_generation above "
            "gradient_accumulation_steps",
            stacklevel=4,
        )


def _beta(objective: Objective) -> tuple[float, bool]:
    """Return TRL's beta, which loads the reference, and whether its KL is multiplied by the ratio.

    The coefficient used in training is in the terms.
    """
    if "ref_logp" not in objective.needs:
        return 0.0, False
    found = [m for m in objective.methods if "ref_logp" in m.required()]
    coef = float(getattr(found[0], "coef", 0.0))
    return coef or 1.0, getattr(found[0], "unbiased", False)
