"""The thermostat on made-up plants: 10^4 of them, gains from 1e-3 to 1e3 (`draw`).

    python benchmarks/thermostat_plants.py [--cases 10000]

Prints, over the plants whose knob has the authority, quantiles of: the RMS deviation of the true
entropy from the target over the noise of a measurement (the last 30 iterations of each half; the
gain changes between them), the iterations until the mean of ten is within two such noises for good,
and the overshoot beyond the target over the first gap or ten noises.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entrostat.control.kalman_bank import Bank, begin, learn
from entrostat.control.thermostat import HORIZON, steer

ITERATIONS, CHUNK = 160, 500
Array = NDArray[np.float64]


@dataclass
class Plants:
    """Many at once; each [n]. Entropy begins at 1, the knob goes from 0 to 1 and begins at .5.

    Attributes:
        gain: change of entropy an iteration by the whole range of the knob.
        later: the gain's factor in the second half.
        drift: change of entropy an iteration while the knob is in the middle.
        delay: iterations until the knob acts.
        lag: of the knob's action that which stays for the next iteration (momentum).
        noise: standard deviation of a measurement.
        restless: standard deviation of the entropy's own steps.
        target: what to hold.
    """

    gain: Array
    later: Array
    drift: Array
    delay: NDArray[np.int64]
    lag: Array
    noise: Array
    restless: Array
    target: Array

    @property
    def reachable(self) -> NDArray[np.bool_]:
        """Whether the knob can hold the target throughout, with a third to spare."""
        half = self.gain * np.minimum(1, self.later) / 2
        return half > 1.5 * np.abs(self.drift) + self.noise / 2


def draw(n: int, seed: int) -> Plants:
    """Gains from 1e-3 to 1e3, delays of 0 to 2 or lags to .8, noise of 1 to 3%."""
    rng = np.random.default_rng(seed)
    lag = np.where(rng.random(n) < 0.5, 0, rng.uniform(0, 0.8, n))
    noise = rng.uniform(0.01, 0.03, n)
    return Plants(
        gain=2 * 10 ** rng.uniform(-3, 3, n),
        later=10 ** rng.uniform(-0.7, 0.7, n),
        drift=rng.uniform(-0.06, 0.03, n),
        delay=np.where(lag > 0, 0, rng.integers(0, 3, n)),
        lag=lag,
        noise=noise,
        restless=0.3 * noise,
        target=rng.uniform(0.5, 1.25, n),
    )


def run(plants: Plants, iterations: int, seed: int) -> tuple[Array, Array]:
    """[iterations, n]: the entropy itself and the knob, under the thermostat."""
    rng, n = np.random.default_rng(seed), len(plants.gain)
    H, acting, x = np.ones(n), np.full(n, 0.5), np.full(n, 0.5)
    past, seen, knob = np.full((3, n), 0.5), [], []
    bank: Bank | None = None
    goal = np.repeat(plants.target[:, None], HORIZON, 1)
    for t in range(iterations):
        y = H + plants.noise * rng.standard_normal(n)
        bank = learn(bank, y) if bank else begin(y, np.maximum(y, plants.target), x)
        bank, _ = steer(bank, goal)
        x = bank.knob
        past = np.concatenate([x[None], past[:-1]])
        seen.append(H)
        knob.append(x)
        acting = plants.lag * acting + (1 - plants.lag) * past[plants.delay, np.arange(n)]
        gain = plants.gain * (plants.later if t >= iterations // 2 else 1)
        H = H + plants.drift + gain * (acting - 0.5) + plants.restless * rng.standard_normal(n)
    return np.array(seen), np.array(knob)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10_000)
    cases = parser.parse_args().cases
    parts = []
    for i in range(0, cases, CHUNK):
        plants = draw(min(CHUNK, cases - i), i)
        H, knob = run(plants, ITERATIONS, i + 1)
        half, noise, off = ITERATIONS // 2, plants.noise, H - plants.target
        tens = np.stack([off[t : t + 10].mean(0) for t in range(half - 9)])
        outside = np.abs(tens) > 2 * noise
        settled = np.where(outside.any(0), len(tens) - np.argmax(outside[::-1], 0), 0)
        gap = np.maximum(np.abs(1 - plants.target), 10 * noise)
        over = np.where(plants.target >= 1, off[:half].max(0), -off[:half].min(0)) / gap
        rms = [np.sqrt((off[a - 30 : a] ** 2).mean(0)) / noise for a in (half, ITERATIONS)]
        bounded = np.isfinite(H).all(0) & ((knob >= 0) & (knob <= 1)).all(0)
        parts.append(np.stack([plants.reachable, bounded, *rms, settled, over]))
        print(f"{i + len(noise)} of {cases}", end="\r", file=sys.stderr)
    reachable, bounded, first, second, settled, over = np.concatenate(parts, 1)
    on = reachable.astype(bool)
    print(f"{cases} plants, {on.sum()} reachable; all bounded: {bool(bounded.all())}")
    print("quantile                       .5      .9      .99     .999    1")
    for name, values in (
        ("deviation / noise, first half", first), ("after the gain changed", second),
        ("settled, iterations", settled), ("overshoot / gap", over),
    ):  # fmt: skip
        figures = np.quantile(values[on], [0.5, 0.9, 0.99, 0.999, 1])
        print(f"{name:30s} " + " ".join(f"{x:7.2f}" for x in figures))


if __name__ == "__main__":
    main()
