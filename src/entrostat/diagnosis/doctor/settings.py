"""Checks of a configuration alone: no model, milliseconds.

Each takes a `Plan` and returns a fault, or None if the settings do not show one.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from ...config import TrainConfig
from ...control import parse_target
from ...core.advantages import NEED_PAIRS
from ...core.objective import Objective, make_objective
from ...core.probe import ONE_UPDATE, idle_at_one, probe
from ...method import Method
from ...method.controlled import Controlled
from ...method.regularizers import AdaptiveEntropy
from ...models.rounding import FIX, rounds
from ..checks import Finding, wrong


@dataclass(frozen=True)
class Plan:
    config: TrainConfig
    objective: Objective

    @property
    def chain(self) -> list[tuple[str, Method]]:
        """(name, method) pairs, the surrogate first."""
        return list(zip(self.objective.names, self.objective.methods, strict=True))


def plan_of(config: TrainConfig) -> Plan:
    """Build the plan of a configuration, without warnings; ValueError if that is impossible."""
    with warnings.catch_warnings(action="ignore"):
        objective = make_objective(
            config.method, advantage=config.advantage, aggregation=config.optim.aggregation,
            updates=config.updates,
        )  # fmt: skip
    return Plan(config, objective)


def rounding(plan: Plan) -> Finding | None:
    """Rounding that the configuration, or the launcher's environment, asks for."""
    numerics, precision = plan.config.numerics, plan.config.precision
    fsdp2 = os.environ.get("ACCELERATE_USE_FSDP", "").lower() in ("true", "1")
    fsdp2 = fsdp2 and os.environ.get("FSDP_VERSION") == "2"
    if plan.config.host == "trl" and fsdp2 and precision in ("bf16", "fp16"):
        return wrong(
            "accelerate was launched with FSDP2, which casts what the model returns to "
            f"{precision} (MixedPrecisionPolicy.output_dtype), and the ratio with it",
            f"{FIX}; or --precision fp32",
        )
    if not rounds(numerics):
        return None
    return wrong(
        f"the ratio is made of rounded log-probs on purpose: numerics.round_logp "
        f"{numerics.round_logp or 'none'}, numerics.round_old_logp "
        f"{numerics.round_old_logp or 'none'}",
        "leave [numerics] out, unless its effect is what you study",
    )


MORE_UPDATES = (
    "more than one update per rollout batch (--optim.minibatches 2 or --optim.epochs 2; TRL: "
    "num_iterations=2, or steps_per_generation above gradient_accumulation_steps; veRL: "
    "ppo_mini_batch_size below train_batch_size)"
)


def ratio(plan: Plan) -> Finding | None:
    """One update per rollout batch, with a clip or a method that acts only through the ratio."""
    if plan.config.updates > 1 or probe(plan.objective).ratio == "none":
        return None
    idle, clip = idle_at_one(plan.objective)
    name, fix = plan.objective.names[0], "--optim.minibatches 2 or --optim.epochs 2"
    said = "what acts by the ratio does not act"
    if clip is not None:
        estimator = plan.objective.advantage
        fix += f"; or the same gradient without a clip: --method reinforce --advantage {estimator}"
        said = f"the clip of {name}, [{1 - clip[0]:g}, {1 + clip[1]:g}], acts on no token"
    elif not idle:
        return None
    return wrong(f"{ONE_UPDATE.format(what='rollout batch')} {said}", fix)


def penalties(plan: Plan) -> Finding | None:
    """Interventions that do nothing while every ratio is 1."""
    edits = [f"`{name}` (" for name, method in plan.chain if method.kind == "intervention"]
    idle = [text for text in idle_at_one(plan.objective)[0] if text.startswith(tuple(edits))]
    if plan.config.updates > 1 or not idle:
        return None
    return wrong(
        f"{ONE_UPDATE.format(what='rollout batch')} {' and '.join(idle)} does nothing",
        "--optim.minibatches 2 or --optim.epochs 2, or leave it out",
    )


def authority(plan: Plan) -> Finding | None:
    """A controller with a target of 0."""
    for name, method in plan.chain:
        law = method.law() if isinstance(method, Controlled) else None
        if law is None or method.actuator is None:
            continue
        target = parse_target(getattr(law, "target", None))
        if any(level.value == 0 for level in target.levels):
            return wrong(
                f"{name}: a target of 0: no policy that samples has no entropy",
                "give a target above 0, 0.75x say",
            )
    return None


def gate(plan: Plan) -> Finding | None:
    """A bonus that acts only at an entropy of 0."""
    for name, method in plan.chain:
        if isinstance(method, AdaptiveEntropy) and parse_target(method.target).fixed == 0:
            return wrong(
                f"{name}: acts while entropy is at most 0 nats, which it never is",
                "give a target near the policy's own entropy",
            )
    return None


def group(plan: Plan) -> Finding | None:
    """One rollout per prompt, with an estimator that compares rollouts of a prompt."""
    sampling, estimator = plan.config.sampling, plan.objective.advantage
    least = sampling.enough.least(sampling.rollouts)
    if least > 1 or estimator not in NEED_PAIRS:
        return None
    key = "sampling.enough.group" if sampling.enough.on else "sampling.rollouts"
    return wrong(
        f"{key} is 1, and the advantage {estimator!r} compares rollouts of one prompt: there is "
        "nothing to compare with",
        f"--{key} 8, or --advantage reinforce_pp",
    )
