"""TRL's arguments beside an objective: which are set from it, which change, which are inert.

An argument of `GRPOConfig` that says what the objective says (advantage, ratio, clip, aggregation,
entropy, reference KL) is set from the objective; one warning names those that it changes.
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
_UNCLIPPED = ("cispo", "sapo", "vespo")  # loss types that are surrogates of their own
_USUAL = (0.2, 0.2)
# what an objective says -> TRL's arguments that say it
_ASPECTS = {
    "advantage": ("scale_rewards", "multi_objective_aggregation"),
    "clip": ("epsilon", "epsilon_high", "delta", "importance_sampling_level",
             "sapo_temperature_pos", "sapo_temperature_neg", "vespo_k_pos", "vespo_lambda_pos",
             "vespo_k_neg", "vespo_lambda_neg"),
    "aggregation": ("loss_type",),
    "terms": ("beta", "entropy_coef", "use_adaptive_entropy", "top_entropy_quantile",
              "off_policy_mask_threshold"),
}  # fmt: skip
# argument -> values that leave the distribution as it is
_TRUNCATES: dict[str, tuple[Any, ...]] = {
    "top_p": (None, 1.0), "top_k": (None, 0, -1), "min_p": (None, 0.0),
    "repetition_penalty": (None, 1.0),
}  # fmt: skip
_LOG = logging.getLogger(__name__)


def by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """GRPOTrainer's arguments by name, its configuration among them."""
    given = dict(inspect.signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments)
    if given.get("args") is None:
        model = given.get("model")
        name = model if isinstance(model, str) else getattr(model, "name_or_path", "") or "model"
        given["args"] = GRPOConfig(f"{name.rstrip('/').split('/')[-1]}-GRPO")
    return given


def resolved(
    args: Any, method: MethodSpec | Objective | None, entropy: float | str | None, alone: bool
) -> tuple[Objective | None, Any]:
    """What is trained: the objective, if any, and the arguments beside it."""
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
    """The loss that the arguments mean, under a thermostat."""
    if args.use_adaptive_entropy:
        raise ValueError(
            f"{WHO}: entropy={target!r} and use_adaptive_entropy=True would both move the entropy "
            "coefficient; set use_adaptive_entropy=False"
        )
    own = from_grpo_config(args)
    own["method"].append({"name": "thermostat", "target": target})
    return make_objective(**own)


def build(method: MethodSpec | Objective, args: Any) -> Objective:
    """The objective that a user names, or has made, if TRL can run it with these arguments."""
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
    """Optimizer steps that one generation batch has a part in, at most."""
    micro = args.steps_per_generation * args.num_iterations
    return math.ceil(micro / args.gradient_accumulation_steps)


def settle(args: Any, objective: Objective, said: str | None = None, alone: bool = False) -> Any:
    """A copy of the arguments whose own loss, which TRL logs, is near what the objective means.

    An objective that means what the arguments mean leaves them as they are. Where it changes the
    estimator, the clip, the mean or leaves a term out, one warning names what changed, `said` being
    the objective in its user's words; none where the arguments stand `alone`, which are not meant
    to say what is trained.
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
    elif not alone:  # TRL's defaults, which cannot be told from what was not set
        _LOG.warning(message)
    terms = probe(objective)
    low, high = bounds(terms)
    own = objective.names[0] if objective.names[0] in _UNCLIPPED else None
    mean = mean_of(given, objective)
    mean = LOSS_TYPES[objective.aggregation] if mean in _UNCLIPPED else mean
    args.sync_ref_model = args.sync_ref_model and args.beta > 0  # TRL refuses it without one
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
    """The loss type whose denominators are the objective's mean: the arguments' own if they can."""
    own = _meant(args)
    if own is not None and _mean(own) == _mean(objective):
        return args.loss_type
    return LOSS_TYPES[objective.aggregation]


def changes(args: Any, objective: Objective) -> tuple[list[str], bool]:
    """What the objective trains otherwise than the arguments, and whether any was set in these."""
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
    """What an objective says by `_ASPECTS`, but for its terms."""
    return {
        "advantage": objective.advantage, "aggregation": _mean(objective),
        "clip": (objective.names[0], objective.methods[0]),
    }  # fmt: skip


def _meant(args: Any) -> Objective | None:
    """The objective that the arguments mean by themselves; None where there is none."""
    try:
        return make_objective(**from_grpo_config(args))
    except ValueError:
        return None


def _mean(objective: Objective) -> tuple[str, int | None]:
    constant = objective.aggregation == "seq_mean_token_sum_norm"
    return objective.aggregation, objective.max_length if constant else None


def warn_of_truncation(args: Any) -> None:
    given = {name: getattr(args, name) for name in _TRUNCATES} | (args.generation_kwargs or {})
    cut = [f"{k}={given[k]}" for k, rest in _TRUNCATES.items() if given.get(k) not in rest]
    if cut:
        warnings.warn(
            f"{WHO}: {', '.join(cut)} samples from a part of the distribution. Entropies, targets "
            "and log-probs are of the whole one at this temperature, so samples are less diverse "
            "than entropy says and ratios are of another policy; use temperature alone",
            stacklevel=4,
        )


def check_generation(args: Any) -> None:
    """Refuse continuous batching under mixed precision: log-probs would be another policy's."""
    if args.use_transformers_continuous_batching and (args.bf16 or args.fp16):
        kind = "bf16" if args.bf16 else "fp16"
        raise ValueError(
            f"{WHO}: use_transformers_continuous_batching with {kind}=True casts the policy's own "
            f"weights to {kind} before it generates (TRL 1.16), and training goes on in them; set "
            f"{kind}=False, or use use_vllm or TRL's ordinary generation"
        )


def warn_of_inert(objective: Objective, args: Any) -> None:
    """Warn where a method has nothing to act on: one update per batch, so that every ratio is 1."""
    if updates_per_generation(args) > 1:
        return
    inert, clip = idle_at_one(objective)
    methods = zip(objective.names, objective.methods, strict=True)
    alone = all(method.kind == "surrogate" for method in objective.methods)
    if alone and clip not in (None, _USUAL):  # TRL has that clip too, and says nothing
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
    """What makes TRL load the reference, and whether its KL is multiplied by the ratio.

    The coefficient that trains is in the terms.
    """
    if "ref_logp" not in objective.needs:
        return 0.0, False
    found = [m for m in objective.methods if "ref_logp" in m.required()]
    coef = float(getattr(found[0], "coef", 0.0))
    return coef or 1.0, getattr(found[0], "unbiased", False)
