"""Controllers: move one coefficient, once per iteration, from the entropy they see.

A controller is a frozen dataclass of hyperparameters with two pure functions, `init() -> state` and
`update(state, entropy) -> state`. The coefficient is `state.value`. The entropy is the masked mean
over the full rollout batch, in nats, before any update. Without a `target` the first observed
entropy becomes the target (REPO, section 3). The papers' controllers (`rules`) use hand-set steps;
their range [low, high] applies from the first move on, so a start outside it is kept until then.
`rules` also has a proportional-integral law with hand-set gains, for comparison. The `Multiplier`
(ours) solves for an entropy bonus from gradients. The `Thermostat` (ours) learns a coefficient's
effect on entropy.
"""

from .alarm import Alarm, Forecast
from .base import ControlState, Observation, at_limit
from .multiplier import Multiplier, MultiplierState
from .rules import Additive, Flip, Multiplicative, PiState, ProportionalIntegral
from .target import Target, TargetSpec, held_target, parse_target, plain_target
from .thermostat import Range, Thermostat, ThermostatState

__all__ = [
    "Additive", "Alarm", "ControlState", "Flip", "Forecast", "Multiplicative",
    "Multiplier", "MultiplierState", "Observation", "PiState", "ProportionalIntegral", "Range",
    "Target", "TargetSpec",
    "Thermostat", "ThermostatState", "at_limit", "held_target", "parse_target",
    "plain_target",
]  # fmt: skip
