"""Base of methods: a frozen dataclass of hyperparameters whose hooks edit data, never a trainer.

Every hook is a pure function of its arguments. State is passed in and returned, so an objective can
save, restore and log it. A method overrides only the hooks it needs.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch

from ..control import Observation
from ..core.batch import Ratio, Terms, TokenBatch

HOSTS = ("lab", "trl", "verl")
Rng = torch.Generator | None  # for random selections; None takes torch's global one


@dataclass(frozen=True)
class Resample:
    """A method's request for additional rollouts from the current policy."""

    share: float  # of the iteration's prompts, the first ones; each is sampled as often as before
    temperature: float  # sampling temperature


@dataclass(frozen=True)
class Method:
    """Base of every surrogate and intervention; each hook here does nothing.

    Class attributes:
        kind: "surrogate" (defines the ratio and the clip bounds; one per objective) or
            "intervention" (edits advantages or terms; any number).
        paper: short name of the source, with its section; "ours" without a source.
        needs: the `TokenBatch` fields that it reads beyond logp, old_logp, mask and advantages.
        hosts: the trainers it can run in.
        instead: a sentence on why it cannot run in others and what to do; ends an error message.
        base: the recipe or surrogate whose advantage estimator and aggregation the bare name takes;
            an intervention takes its surrogate too. It is the fair baseline, which differs in this
            method alone.
        on_policy: valid for one update per rollout batch only.
        replaces_advantages: recomputes advantages, so earlier edits would be lost.
        reads_current: its `plan` reads the current policy's logp or entropy, so a trainer must
            compute them for the whole minibatch first.
        penalises: adds a term on every sampled token, including tokens of zero-advantage groups,
            which trainers may otherwise leave out.
        alone: why a surrogate cannot share an objective with another surrogate.
        contradicts: methods that it cannot be combined with, with the reason.
        idle_on_policy: the part of it without effect while every ratio is 1; "" if that needs no
            warning.
        actuator: if a controller moves a coefficient: its name in `control/...`, and the parameter
            for the end of its range that raises entropy (None: that end is 0). At the other end
            the method has no effect.
    """

    kind: ClassVar[Literal["surrogate", "intervention"]] = "intervention"
    paper: ClassVar[str] = ""
    needs: ClassVar[tuple[str, ...]] = ()
    hosts: ClassVar[tuple[str, ...]] = HOSTS
    instead: ClassVar[str] = ""
    base: ClassVar[str] = "grpo_token"
    on_policy: ClassVar[bool] = False
    replaces_advantages: ClassVar[bool] = False
    reads_current: ClassVar[bool] = True
    penalises: ClassVar[bool] = False
    alone: ClassVar[str] = "an objective has one ratio and one clip"
    contradicts: ClassVar[Mapping[str, str]] = {}
    idle_on_policy: ClassVar[str] = ""
    actuator: ClassVar[tuple[str, str | None] | None] = None
    # parameter -> (as written, its values over the run); set on the instance (`schedules`)
    schedules: ClassVar[Mapping[str, tuple[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Check that numbers are in range (`within`) and words are in their Literal type."""
        for name, words in _words(type(self)).items():
            if (word := getattr(self, name)) not in words:
                *some, last = map(repr, words)
                options = f"{', '.join(some)} or {last}"
                raise ValueError(f"{self._who}: {name} must be {options}, got {word!r}")
        for part in fields(self):
            value = getattr(self, part.name)
            if "range" in part.metadata and value is not None:
                optional = "None" in str(part.type)
                in_range(self._who, part.name, value, *part.metadata["range"], optional=optional)

    @property
    def _who(self) -> str:
        """Its name in error messages: the class name in the style of `METHODS`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def required(self) -> tuple[str, ...]:
        """The fields needed with these hyperparameters; `needs` unless a parameter changes it."""
        return self.needs

    def controls(self) -> str | None:
        """The coefficient that this method's controller moves; unique in an objective."""
        return None

    def init(self) -> Any:
        """State before the first iteration; None for a method without state.

        A state has `to_dict() -> dict` of plain data and a class method `from_dict`.
        """
        return None

    def observe(self, state: Any, seen: Observation) -> Any:
        """State after observing an iteration's entropy, before the iteration's updates."""
        return state

    def resamples(self, state: Any) -> Resample | None:
        """The further rollouts that this iteration needs, after `observe`; None for none.

        The batch then contains them, marked `tempered`, one group per prompt.
        """
        return None

    def influence_sample(self) -> float | None:
        """The share of prompts whose tokens' `influence` it needs; None for none."""
        return None

    def shape(self, batch: TokenBatch, state: Any) -> TokenBatch:
        """Once per rollout batch, before the advantage estimator: edit the rewards [B]."""
        return batch

    def choose(self, batch: TokenBatch, state: Any) -> TokenBatch:
        """Once per rollout batch, after the estimator: edit outcome advantages [B] and `idle`."""
        return batch

    def prepare(self, batch: TokenBatch, state: Any) -> TokenBatch:
        """Once per rollout batch: edit the per-token advantages [B, T]."""
        return batch

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        """At every update: edit the terms, from detached statistics of the whole minibatch."""
        return terms

    def local(self, batch: TokenBatch, terms: Terms, state: Any) -> Terms:
        """At every micro-batch: edit the terms from its rollouts' current log-probs.

        For weights that depend on the token's own rollout only: then the update needs no pass over
        the whole minibatch first. `batch.logp` has no gradient here.
        """
        return terms

    def metrics(self, state: Any) -> dict[str, float]:
        """Metrics of the state, named `group/name`."""
        return {}

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Parameter names with their defaults, in order."""
        return {f.name: f.default for f in fields(cls)}


@dataclass(frozen=True)
class Surrogate(Method):
    """Base of the methods that define the ratio and the clip bounds; no clip by default.

    Class attributes:
        ratio_kind: the ratio of the loss: "token", "sequence" or "none" (-A log p).
    """

    kind: ClassVar[Literal["surrogate", "intervention"]] = "surrogate"
    reads_current: ClassVar[bool] = False
    ratio_kind: ClassVar[Ratio] = "token"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return terms.replace(ratio=self.ratio_kind)


class Default(float):
    """A parameter's default that a controller may replace; a user's value is kept.

    The type marks it as a default: a user's number is kept even if it equals the default.
    """


def within(default: Any, low: float, high: float = 1e12, *, above: bool = False) -> Any:
    """A parameter's default, and its range: [low, high], or (low, high] with `above`."""
    return field(default=default, metadata={"range": (low, high, above)})


@cache
def _words(cls: type[Method]) -> dict[str, tuple[str, ...]]:
    try:
        hints = get_type_hints(cls)
    except (NameError, AttributeError, TypeError):  # names imported for type checking only
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def unread(method: Method, mode: str, parameters: tuple[str, ...]) -> None:
    """Warn of parameters that were set but are not used in this mode."""
    defaults, who = method.parameters(), method._who
    for parameter in parameters:
        value = getattr(method, parameter)
        if value != defaults[parameter]:
            warnings.warn(f"{who}: {parameter}={value!r} has no effect with {mode}", stacklevel=4)


def in_range(
    who: str,
    parameter: str,
    value: float,
    low: float,
    high: float = 1e12,
    above: bool = False,
    optional: bool = False,
) -> None:
    """Raise on a number outside [low, high], or (low, high] with `above`, and on NaN."""
    if not (low <= value <= high) or (above and value == low):
        left = "above" if above else "at least"
        right = "" if high == 1e12 and value < high else f" and at most {high:g}"
        none = "; it may be none" if optional else ""
        raise ValueError(f"{who}: {parameter} must be {left} {low:g}{right}, got {value}{none}")
