"""How the thermostat comes nearer to a target far away."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from entrostat.control import thermostat
from entrostat.control.kalman_bank import begin


@pytest.mark.parametrize(
    ("goal", "path"),
    [
        # an eighth of what is left, (3 - 1) / 8, an iteration
        (3.0, [1.25, 1.5, 1.75, 2.0]),
        (0.2, [0.9, 0.8, 0.7, 0.6]),
        # where that is less: a twentieth of the first entropy
        (1.125, [1.05, 1.1, 1.125, 1.125]),
        (1.0, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_a_target_far_away_is_come_nearer_to(
    goal: float, path: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def wanted(bank: Any, path: Any, stiffness: float) -> Any:
        asked.append(path)
        return plain(bank, path, stiffness)

    plain = thermostat.wanted
    monkeypatch.setattr(thermostat, "wanted", wanted)
    bank = begin(*map(np.asarray, (1.0, 1.0, 0.5)))  # entropy, the first entropy, the knob
    thermostat.steer(bank, np.full(4, goal))
    assert asked[0].tolist() == pytest.approx(path)
