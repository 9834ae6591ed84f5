"""TRL's arguments beside an objective: which are set from it, which are refused, which are inert.

One rule: an argument of `GRPOConfig` that says what the objective says (advantage, ratio, clip,
aggregation, entropy, reference KL) is left at TRL's default or agrees; then it is set from the
objective. Any other value is refused.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import warnings
from typing import Any

from trl import GRPOConfig, GRPOTrainer

from ...method import MethodSpec
from ...objective import Objective, make_objective
from ..probe import ONE_UPDATE, bounds, idle_at_one, probe
from ..rollouts import FIELDS
from .equal import from_grpo_config, spoken

WHO = "EntropyGRPOTrainer"
LOSS_TYPES = {
    "token_mean": "dapo",
    "seq_mean_token_mean": "grpo",
    "seq_mean_token_sum_norm": "dr_grpo",
}
_SCALES = {"grpo": "group", "dr_grpo": "none"}
_USUAL = (0.2, 0.2)


def by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """GRPOTrainer's arguments by name, its configuration among them.

    Raises:
        TypeError: it takes no such arguments.
    """
    given = dict(inspect.signature(GRPOTrainer).bind_partial(*args, **kwargs).arguments)
    if given.get("args") is None:
        model = given.get("model")
        name = model if isinstance(model, str) else getattr(model, "name_or_path", "") or "model"
        given["args"] = GRPOConfig(f"{name.rstrip('/').split('/')[-1]}-GRPO")
    return given


def build(method: MethodSpec | Objective, args: Any) -> Objective:
    """The objective that a user names, or has made, if TRL can run it with these arguments.

    Raises:
        ValueError: TRL cannot run it, or not with these arguments.
    """
    if isinstance(method, Objective):
        objective = method
    else:
        objective = make_objective(method, max_length=args.max_completion_length)
    updates = updates_per_generation(args)
    culprits = [
        f"`{name}`"
        for name, each in zip(objective.names, objective.methods, strict=True)
        if each.on_policy
    ]
    if updates > 1 and culprits:
        raise ValueError(
            f"{WHO}: {' and '.join(culprits)}: strictly on-policy, so one update per generation "
            f"batch, not {updates}; set num_iterations=1 and leave steps_per_generation and "
            "generation_batch_size unset"
        )
    objective.check_host("trl", FIELDS, updates)
    return objective


def updates_per_generation(args: Any) -> int:
    """Optimizer steps on one generation batch.

    Raises:
        ValueError: a step would span two generation batches.
    """
    micro = args.steps_per_generation * args.num_iterations
    if micro % args.gradient_accumulation_steps:
        raise ValueError(
            f"{WHO}: steps_per_generation * num_iterations = {micro} is no multiple of "
            f"gradient_accumulation_steps = {args.gradient_accumulation_steps}, so an optimizer "
            "step would span two generation batches; methods decide over the whole step before it "
            "begins. Leave steps_per_generation unset, or make it a multiple"
        )
    return micro // args.gradient_accumulation_steps


def settle(args: Any, objective: Objective, said: str | None = None) -> Any:
    """A copy of the arguments whose own loss, which TRL logs, is near what the objective means.

    Args:
        args: TRL's.
        objective: what trains.
        said: the objective in its user's words.

    Raises:
        ValueError: an argument contradicts the objective.
    """
    given = args
    args = copy.copy(args)
    terms = probe(objective)
    defaults = {f.name: f.default for f in dataclasses.fields(args)}
    low, high = bounds(terms)
    wanted: dict[str, Any] = {
        "loss_type": LOSS_TYPES[objective.aggregation],
        "epsilon": low,
        "epsilon_high": high,
        "delta": terms.dual,
        "scale_rewards": _SCALES.get(objective.advantage, defaults["scale_rewards"]),
        "beta": _beta(objective),
        "importance_sampling_level": "sequence" if terms.ratio == "sequence" else "token",
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
        "use_adaptive_entropy": False,
        "multi_objective_aggregation": "sum_then_normalize",
        "off_policy_mask_threshold": None,
        "use_bias_correction_kl": False,
    }
    for name, value in wanted.items():
        old = getattr(args, name)
        near = isinstance(old, float) and isinstance(value, float) and math.isclose(old, value)
        if old not in (value, defaults[name]) and not near:
            raise ValueError(
                f"{WHO}: {name}={old!r} contradicts objective={said or repr(objective)}, which "
                f"means {value!r}; leave {name} at TRL's default and say it in the objective. "
                f"{_instead(given)}"
            )
        setattr(args, name, value)
    return args


def _instead(args: Any) -> str:
    """The objective that TRL's arguments mean by themselves, in a sentence."""
    try:
        return f"By itself this GRPOConfig is objective={spoken(from_grpo_config(args))}"
    except ValueError as error:
        return f"No objective is equal to this GRPOConfig ({error}); objective=None trains it"


def check_generation(args: Any) -> None:
    """Refuse what would make the log-probs of an objective another policy's.

    Raises:
        ValueError: continuous batching under mixed precision.
    """
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
            stacklevel=3,
        )


def _beta(objective: Objective) -> float:
    """What makes TRL load the reference; the coefficient that trains is in the terms."""
    if "ref_logp" not in objective.needs:
        return 0.0
    coefs = [getattr(m, "coef", 0.0) for m in objective.methods if "ref_logp" in m.required()]
    return float(coefs[0]) or 1.0
