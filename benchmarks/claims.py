"""How often the claims engine errs, and what it can see: synthetic effects whose truth is known.

For each noise and number of seeds: how often at least one of 30 claims that are all false at the
border (the mean effect is exactly `least`) is said to hold, and not to hold; then how often a claim
that is true is said to hold, by its distance from `least` in standard deviations of one seed.

    python benchmarks/claims.py                 # minutes
    python benchmarks/claims.py --studies 400 --seeds 3 5   # a minute or two
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from entrostat.study.claims import Claim, Claims, Decided, decide
from entrostat.study.figures import Figure

M = 30  # claims of a file
LEAST = 0.5
DISTANCES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0)
SEEDS = (3, 5, 8, 10)
FIGURE = Figure("metric", "x")

Noise = Callable[[Generator, tuple[int, int]], NDArray[np.float64]]


def _shared(draw: Generator, size: tuple[int, int]) -> NDArray[np.float64]:
    """Claims that share the luck of a seed: correlation .5."""
    return (draw.normal(size=size) + draw.normal(size=(1, size[1]))) / np.sqrt(2)


# of mean 0 and standard deviation 1
NOISES: dict[str, Noise] = {
    "normal": lambda draw, size: draw.normal(size=size),
    "normal, shared by seed": _shared,
    "Student, 5 df": lambda draw, size: draw.standard_t(5, size) / np.sqrt(5 / 3),
    "exponential": lambda draw, size: draw.exponential(size=size) - 1,
    "exponential, mirrored": lambda draw, size: 1 - draw.exponential(size=size),
}


def claims_of(count: int) -> Claims:
    """So many claims, each about a group of its own."""
    made = tuple(
        Claim(f"c{i}", "OURS", "-", "-", "e", FIGURE, "level", {"a": (f"g{i}",)}, "above", LEAST)
        for i in range(count)
    )
    return Claims(0.05, made, "", Path("claims.toml"))


def decided(effects: NDArray[np.float64]) -> list[Decided]:
    """What is said to effects [claims, seeds]."""
    m, n = effects.shape

    def figure(experiment: str, group: str, seed: int, figure: Figure) -> float:
        return float(effects[int(group[1:]), seed])

    return decide(claims_of(m), figure, lambda e, g: range(n))


def errors(noise: Noise, n: int, studies: int, draw: Generator) -> tuple[int, int, int]:
    """Studies with a false "holds", "does not hold", and "holds" that is called robust."""
    found = [decided(LEAST + noise(draw, (M, n))) for _ in range(studies)]
    return (
        sum(any(one.verdict == "holds" for one in each) for each in found),
        sum(any(one.verdict == "does not hold" for one in each) for each in found),
        sum(any(one.verdict == "holds" and one.robust for one in each) for each in found),
    )


def power(
    noise: Noise, n: int, distance: float, studies: int, draw: Generator
) -> tuple[float, float]:
    """Share of true claims said to hold, and to hold robustly: ten of the file's thirty are."""
    seen = robust = 0
    for _ in range(studies):
        truth = LEAST + distance * (np.arange(M) < M // 3)[:, None]
        held = [o for o in decided(truth + noise(draw, (M, n)))[: M // 3] if o.verdict == "holds"]
        seen, robust = seen + len(held), robust + sum(one.robust for one in held)
    return seen / (studies * (M // 3)), robust / (studies * (M // 3))


def wilson(k: int, n: int) -> tuple[float, float]:
    """95% interval of a share."""
    from scipy.stats import binomtest

    found = binomtest(k, n).proportion_ci(method="wilson")
    return found.low, found.high


def main() -> None:
    """Print both tables."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    flags.add_argument("--studies", type=int, default=1000, help="files of 30 claims per row")
    flags.add_argument("--seeds", type=int, nargs="+", default=SEEDS, help="seeds of a claim")
    flags.add_argument("--seed", type=int, default=0)
    given = flags.parse_args()
    draw = np.random.default_rng(given.seed)
    print(f"{M} claims at the border, {given.studies} files: share with one or more false, in %")
    print(f"{'noise':24}{'seeds':>6}{'holds':>20}{'does not hold':>20}{'holds, robust':>20}")
    for name, noise in NOISES.items():
        for n in given.seeds:
            print(f"\r{name}, {n} seeds ...", end="", file=sys.stderr, flush=True)
            cells = [
                f"{100 * k / given.studies:.1f} ({100 * low:.1f} to {100 * high:.1f})"
                for k in errors(noise, n, given.studies, draw)
                for low, high in [wilson(k, given.studies)]
            ]
            print(f"\r{name:24}{n:>6}" + "".join(f"{c:>20}" for c in cells), flush=True)
    print("\nten of thirty are true: share of them that is said to hold, in %, by the distance of")
    print("their mean from `least` in standard deviations of one seed")
    print(f"{'noise':24}{'seeds':>6}" + "".join(f"{d:>7g}" for d in DISTANCES))
    for n in given.seeds:
        few = max(1, given.studies // 20)
        both = [power(NOISES["normal"], n, d, few, draw) for d in DISTANCES]
        for place, word in enumerate(("normal", "normal, robust")):
            print(f"{word:24}{n:>6}" + "".join(f"{100 * b[place]:>7.0f}" for b in both), flush=True)


if __name__ == "__main__":
    main()
