"""Shared base of methods with a coefficient that a controller moves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from ..control import (
    Additive,
    ControlState,
    Multiplicative,
    Multiplier,
    Observation,
    ProportionalIntegral,
    Thermostat,
)
from .base import Default, Method

Signal = Literal["exact", "response_mean"]
Law = Multiplicative | Additive | ProportionalIntegral | Thermostat | Multiplier


def control_figures(state: ControlState, **values: float) -> dict[str, float]:
    found = values if state.target is None else values | {"target": state.target}
    return {f"control/{name}": value for name, value in found.items()}


@dataclass(frozen=True)
class Controlled(Method):
    """A method with one coefficient, which is fixed or moved by a control law.

    A subclass declares the coefficient (`actuator`, `coefficient`) and returns its law.

    Class attributes:
        coefficient: its name in a sentence.
    """

    coefficient: ClassVar[str] = ""

    def law(self) -> Law | None:
        """The control law that moves the coefficient; None if it is fixed."""
        raise NotImplementedError

    def settle(self, parameter: str, value: float) -> None:
        """Set a parameter that the user has not given to the controller's own value."""
        if isinstance(getattr(self, parameter), Default):
            object.__setattr__(self, parameter, value)

    def at_first(self) -> ControlState | None:
        """The state of a fixed coefficient; None if the parameter itself is read."""
        return None

    def check_law(self, what: str) -> None:
        """Check the law's settings on construction; `what` is the coefficient's name."""
        try:
            self.init()
        except ValueError as error:
            raise ValueError(f"{self._who}: {what}'s {error}") from None

    def controls(self) -> str | None:
        return None if self.law() is None else self.coefficient

    def init(self) -> ControlState | None:
        law = self.law()
        return self.at_first() if law is None else law.init()

    def observe(self, state: Any, seen: Observation) -> Any:
        law = self.law()
        if law is None:
            return state
        if isinstance(law, Thermostat):
            return law.update(state, seen.entropy, seen.progress)
        if isinstance(law, Multiplier):
            return law.observe(state, seen)
        # the papers' laws compare the mean over tokens, or over responses, with their target
        signal: Signal = getattr(self, "signal", "exact")
        if signal == "exact":
            return law.update(state, seen.entropy)
        return law.update(state, seen.need(signal, f"{self._who} with signal={signal!r}"))

    def metrics(self, state: Any) -> dict[str, float]:
        assert self.actuator is not None
        if state is None:
            return {}
        law, out = self.law(), control_figures(state, **{self.actuator[0]: state.value})
        if isinstance(law, Thermostat | Multiplier):
            out |= {f"thermostat/{name}": value for name, value in law.figures(state).items()}
        return out
