"""Methods with a coefficient that a controller moves: what they share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..control import (
    Additive,
    ControlState,
    Multiplicative,
    Observation,
    ProportionalIntegral,
    Range,
    TargetSpec,
    Thermostat,
)
from .base import Default, Method

Signal = Literal["exact", "response_mean"]
Law = Multiplicative | Additive | ProportionalIntegral | Thermostat


@dataclass(frozen=True)
class Controlled(Method):
    """A method with one coefficient, which the law of its controller moves, or none does.

    Every such method takes `controller="thermostat"`, which holds the target whatever the
    coefficient does. A subclass says what the coefficient is (`actuator`, `coefficient`) and gives
    its law.

    Class attributes:
        coefficient: what it is called in a sentence.
    """

    coefficient: ClassVar[str] = ""

    def law(self) -> Law | None:
        """What moves the coefficient; None where it is fixed."""
        raise NotImplementedError

    def settle(self, parameter: str, value: float) -> None:
        """Set a parameter that the user has not given to a value of the controller's own."""
        if isinstance(getattr(self, parameter), Default):
            object.__setattr__(self, parameter, value)

    def at_first(self) -> ControlState | None:
        """The state of a coefficient that is fixed; None where the parameter itself is read."""
        return None

    def check_law(self, who: str, what: str) -> None:
        """Refuse, when built, what the law could not work with.

        Raises:
            ValueError: names the method, its coefficient and what is wrong.
        """
        try:
            self.law()
        except ValueError as error:
            raise ValueError(f"{who}: {what}'s {error}") from None

    def controls(self) -> str | None:
        """The coefficient, unless it is fixed."""
        return None if self.law() is None else self.coefficient

    def init(self) -> ControlState | None:
        """The coefficient at its start value."""
        law = self.law()
        return self.at_first() if law is None else law.init()

    def observe(self, state: Any, seen: Observation) -> Any:
        """The coefficient moves, unless it is fixed."""
        law = self.law()
        if law is None:
            return state
        if isinstance(law, Thermostat):
            return law.observe(state, seen)
        return law.update(state, self.signal_of(seen))

    def signal_of(self, seen: Observation) -> float:
        """The entropy that a law of the papers compares with its target: as `signal` says, if any.

        The mean entropy of tokens ("exact"), or of a response's tokens, then of responses.
        """
        signal: Signal = getattr(self, "signal", "exact")
        if signal == "exact":
            return seen.entropy
        return seen.need(signal, f"{type(self).__name__} with signal={signal!r}")

    def metrics(self, state: Any) -> dict[str, float]:
        """`control/NAME`, `control/target` and, of a thermostat, what it has learnt."""
        assert self.actuator is not None
        if state is None:
            return {}
        law, out = self.law(), {f"control/{self.actuator[0]}": state.value}
        if state.target is not None:
            out["control/target"] = state.target
        if isinstance(law, Thermostat):
            out |= {f"thermostat/{name}": value for name, value in law.figures(state).items()}
        return out


def learnt_law(controller: str, start: float, range: Range, target: TargetSpec) -> Law | None:
    """The law of the controllers that every coefficient has; None for a word that is another's.

    Raises:
        ValueError: the start is not in the range, or the target cannot be read.
    """
    if controller == "thermostat":
        return Thermostat(start, range, target)
    return None
