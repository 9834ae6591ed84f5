"""What each knob could hold where it was measured: advice for a knob at the end of its range."""

from __future__ import annotations

# lowest and highest share of the first entropy, of those tried (.5, .75, 1, 1.25), from which no
# mean of ten iterations was off by more than 11%: `target_sum`, one seed, docs/thermostat_record.md
HELD: dict[str, tuple[float, float]] = {
    "entropy_coef": (0.5, 1.25),
    "zeta": (0.5, 0.75),
    "balance": (0.5, 0.75),
    "zeta_d": (0.75, 0.75),
}

# the lowest share tried there that a knob did not hold
FAILED: dict[str, float] = {
    "zeta": 1.0,
}


def able(share: float, knob: str) -> list[str]:
    """Knobs that held a share of the first entropy, but for `knob`.

    Args:
        share: the target over the first entropy.
        knob: that which stands at its end, by the thermostat's name of it.
    """
    return [name for name, (low, high) in HELD.items() if low <= share <= high and name != knob]
