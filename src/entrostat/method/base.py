"""What a method is: a frozen dataclass of hyperparameters whose hooks edit data, never a trainer.

Every hook is a pure function of its arguments; state is handed in and handed back, so an objective
can save it, restore it and show it. A method overrides only the hooks it needs.
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
    """Rollouts that a method asks for beside an iteration's own, from the policy as it stands."""

    share: float  # of the iteration's prompts, the first ones; each is sampled as often as before
    temperature: float  # to sample at


@dataclass(frozen=True)
class Method:
    """Base of every surrogate and intervention; each hook here does nothing.

    Class attributes:
        kind: "surrogate" (says which ratio and clip bounds are meant; one an objective) or
            "intervention" (edits advantages or terms; any number).
        paper: short name of the source, with its section; "ours" without a source.
        needs: the `TokenBatch` fields that it reads beyond logp, old_logp, mask and advantages.
        hosts: where it can run.
        instead: a sentence on why and what to do where it cannot; ends an error message.
        base: the recipe or surrogate whose advantage estimator and aggregation the bare name takes;
            an intervention takes its surrogate too. It is the fair baseline, which differs in this
            method alone.
        on_policy: sound with one update per rollout batch only.
        replaces_advantages: computes advantages anew, so edits before it would be lost.
        reads_current: its `plan` reads the current policy's logp or entropy, so that a host has to
            have them for the whole minibatch first.
        penalises: adds a term that acts on every sampled token, those of groups without a signal
            too, which hosts may else leave out.
        alone: why a surrogate shares an objective with no other.
        contradicts: methods that it cannot stand beside, with the reason.
        idle_on_policy: what of it does nothing while every ratio is 1; "" where that is not worth a
            warning.
        actuator: where a controller moves a coefficient, the coefficient's name in `control/...`
            and the parameter that ends its range on the side that keeps entropy up (None: that end
            is 0). The other end is the method at rest.
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
    # parameter -> (as written, what it is over the run); set on the instance (`schedules`)
    schedules: ClassVar[Mapping[str, tuple[str, Any]]] = {}

    def __post_init__(self) -> None:
        """Refuse a number outside of its range (`within`), and a word that its Literal lacks."""
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
        """What error messages call it: the class's name in the manner of `METHODS`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()

    def required(self) -> tuple[str, ...]:
        """The fields these hyperparameters really need; `needs` unless a parameter changes it."""
        return self.needs

    def controls(self) -> str | None:
        """The coefficient that a controller of this method moves; an objective has one for each."""
        return None

    def init(self) -> Any:
        """State before the first iteration; None for a method without any.

        A state has `to_dict() -> dict` of plain data and a class method `from_dict`.
        """
        return None

    def observe(self, state: Any, seen: Observation) -> Any:
        """State after seeing an iteration's entropy, before that iteration's updates."""
        return state

    def resamples(self, state: Any) -> Resample | None:
        """Further rollouts that this iteration needs, after `observe`; None for none.

        They are then in the batch, marked as `tempered`, a group for each prompt.
        """
        return None

    def influence_sample(self) -> float | None:
        """The share of the prompts whose tokens' `influence` it needs; None: it needs none."""
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
        """At every micro-batch: edit the terms by what its rollouts' own log-probs are now.

        What a token's weight is may follow from its own rollout alone; then no pass over the whole
        minibatch is needed before the update. `batch.logp` has no gradient here.
        """
        return terms

    def metrics(self, state: Any) -> dict[str, float]:
        """Figures of the state to log, as `group/name`."""
        return {}

    @classmethod
    def parameters(cls) -> dict[str, Any]:
        """Parameter names with their defaults, in order."""
        return {f.name: f.default for f in fields(cls)}


@dataclass(frozen=True)
class Surrogate(Method):
    """Base of the methods that say which ratio and clip bounds are meant; no clip unless they do.

    Class attributes:
        ratio_kind: whose ratio the loss has: "token", "sequence" or "none" (-A log p).
    """

    kind: ClassVar[Literal["surrogate", "intervention"]] = "surrogate"
    reads_current: ClassVar[bool] = False
    ratio_kind: ClassVar[Ratio] = "token"

    def plan(self, batch: TokenBatch, terms: Terms, state: Any, generator: Rng) -> Terms:
        return terms.replace(ratio=self.ratio_kind)


class Default(float):
    """A parameter's default that gives way to a controller's own; a value that is given does not.

    It counts as not given by its type: a user's number is kept even where it equals the default.
    """


def within(default: Any, low: float, high: float = 1e12, *, above: bool = False) -> Any:
    """A parameter's default, and its range: [low, high], or (low, high] with `above`."""
    return field(default=default, metadata={"range": (low, high, above)})


@cache
def _words(cls: type[Method]) -> dict[str, tuple[str, ...]]:
    try:
        hints = get_type_hints(cls)
    except (NameError, AttributeError, TypeError):  # of types that only a type checker knows
        return {}
    return {name: get_args(hint) for name, hint in hints.items() if get_origin(hint) is Literal}


def unread(method: Method, mode: str, parameters: tuple[str, ...]) -> None:
    """Warn of parameters that are given and that nothing reads in this mode."""
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
    """Refuse a number outside [low, high], or (low, high] with `above`; NaN too."""
    if not (low <= value <= high) or (above and value == low):
        left = "above" if above else "at least"
        right = "" if high == 1e12 and value < high else f" and at most {high:g}"
        none = "; it may be none" if optional else ""
        raise ValueError(f"{who}: {parameter} must be {left} {low:g}{right}, got {value}{none}")
