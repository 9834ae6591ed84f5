"""How often the diagnosis is right: runs with a planted fault, and recorded ones.

    python benchmarks/verdicts.py                                  # planted, seed 0
    python benchmarks/verdicts.py --seed 1 --recorded tests/data/recorded_runs.jsonl.xz
    python benchmarks/verdicts.py --truth DIR/truth.json           # a set of your own
    python benchmarks/verdicts.py --border 1000                    # only where two verdicts meet

Planted runs are made by `planted_runs.py`, which was written by someone who had not seen the rules,
in the formats of TRL, veRL, slime, the lab and CSV. Recorded runs are of the tiny policy and of
SmolLM2 in the three hosts; their verdict is that of their family, by the mean over its seeds.

Printed: the confusion table of verdicts; how many onsets are within 10% of the run, and how many
90% intervals hold the true one; how often the planted cause is the first, and among the first
three; every run that was missed.

At the borders the truth is that of the course without its noise, by the definitions of
docs/diagnosis_rules.md: level at 35 to 65% of the first entropy (collapse or held), at 130 to 170%
(explosion or held), or sloping by 5 to 30% (drift or held); 60 to 200 iterations, noise of 2 to 6%
with correlation .5. There, what is right or wrong is a matter of chance; what must be true is the
confidence.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import lfilter

import planted_runs
from entrostat.diagnosis import Diagnosis, diagnose, judge
from entrostat.diagnosis.verdict import Judged
from entrostat.logs.run import Run

BORDERS = {"collapse": (0.35, 0.65, 0.5), "explosion": (1.3, 1.7, 1.5), "drift": (0.05, 0.3, 0.15)}
BINS = (0.6, 0.75, 0.9, 0.99, 1.01)  # of the confidence
VERDICTS = ("collapse", "explosion", "drift", "held", "cannot tell")


@dataclass(frozen=True)
class Case:
    """A run, what is known of it, and what was found."""

    name: str
    verdict: str
    onset: int | None
    cause: str | None
    length: int
    found: Diagnosis


def planted(truth: Path) -> list[Case]:
    """Cases of a truth.json, whose paths are beside it."""
    cases = []
    for row in json.loads(truth.read_text())["runs"]:
        found = diagnose(truth.parent / row["path"])
        length = row["last"] - row["first"] + 1
        cases.append(Case(row["path"], row["verdict"], row["onset"], row["cause"], length, found))
    return cases


def recorded(file: Path) -> list[Case]:
    """Cases of a compressed file of recorded runs: a line each, with its family's verdict."""
    cases = []
    with lzma.open(file, "rt") as lines:
        found: list[dict[str, Any]] = [json.loads(text) for text in lines]
    for row in found:
        rows: list[dict[str, Any]] = [{"iteration": i} for i in range(1, row["iterations"] + 1)]
        for name, values in row["series"].items():  # a number alone stands for all iterations
            several = values if isinstance(values, list) else [values] * len(rows)
            for line, value in zip(rows, several, strict=True):
                line[name] = value
        run = Run(Path(row["name"]), row["config"], "", "", rows, [], ())
        said = diagnose(run)
        cases.append(Case(row["name"], row["verdict"], None, row.get("cause"), len(rows), said))
    return cases


def wilson(hits: int, count: int) -> str:
    """A share with its 95% interval."""
    if count == 0:
        return "none"
    z, p = 1.96, hits / count
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(p * (1 - p) / count + z * z / (4 * count**2)) / (1 + z * z / count)
    return f"{hits} of {count} ({p:.0%}, 95% interval {middle - half:.0%} to {middle + half:.0%})"


def confusion(cases: Sequence[Case]) -> str:
    """Rows: what is known; columns: what was found."""
    counts = Counter((case.verdict, case.found.verdict) for case in cases)
    lines = ["known \\ found | " + " | ".join(VERDICTS), " | ".join(["---"] * 6)]
    for row in VERDICTS:
        cells = [str(counts[row, column]) for column in VERDICTS]
        if any(cell != "0" for cell in cells):
            lines.append(" | ".join([row, *cells]))
    return "\n".join(lines)


def report(title: str, cases: Sequence[Case]) -> None:
    right = [case.verdict == case.found.verdict for case in cases]
    print(f"\n{title}: verdict {wilson(sum(right), len(cases))}\n\n{confusion(cases)}\n")
    dated = [c for c in cases if c.onset is not None and c.found.judged.onset is not None]
    if dated:
        near = covered = 0
        for case in dated:
            at = case.found.judged.onset
            assert at is not None
            assert case.onset is not None
            near += abs(at.iteration - case.onset) <= 0.1 * case.length
            covered += at.low <= case.onset <= at.high
        print(f"onset within 10% of the run: {wilson(near, len(dated))}")
        print(f"90% interval holds it: {wilson(covered, len(dated))}")
    caused = [c for c in cases if c.cause is not None]
    if caused:
        names = [[cause.name for cause in c.found.causes] for c in caused]
        first = sum(n[:1] == [c.cause] for c, n in zip(caused, names, strict=True))
        three = sum(c.cause in n[:3] for c, n in zip(caused, names, strict=True))
        print(f"first cause: {wilson(first, len(caused))}")
        print(f"among the first three: {wilson(three, len(caused))}\n")
        print("cause | first | runs\n--- | --- | ---")
        for cause in sorted({c.cause for c in caused if c.cause}):
            some = [n for c, n in zip(caused, names, strict=True) if c.cause == cause]
            print(f"{cause} | {sum(n[:1] == [cause] for n in some)} | {len(some)}")
    for case in cases:
        found = case.found
        causes = ", ".join(f"{c.name} {c.weight:.2f}" for c in found.causes[:3])
        wrong_cause = case.cause is not None and not causes.startswith(case.cause)
        if case.verdict != found.verdict or wrong_cause:
            print(
                f"missed: {case.name}: {case.verdict}, onset {case.onset}, {case.cause}; found "
                f"{found.verdict} {found.judged.confidence:.2f}, {found.judged.onset}, {causes}"
            )


def border(verdict: str, rng: np.random.Generator) -> tuple[str, Judged]:
    """A course near a border: what it is without its noise, and what was said of it."""
    low, high, at = BORDERS[verdict]
    n, place = int(rng.integers(60, 201)), rng.uniform(low, high)
    t = np.arange(n)
    if verdict == "drift":  # the slope of the last half over that half's mean, times n
        level = 1 + rng.choice([-1, 1]) * place * (t - 0.75 * n) / n
        truth = "drift" if place > at else "held"
    else:
        level = place + (1 - place) * np.exp(-t / (n / 20))
        beyond = place <= at if verdict == "collapse" else place >= at
        truth = verdict if beyond else "held"
    noise = np.asarray(lfilter([math.sqrt(0.75)], [1, -0.5], rng.normal(size=n + 50)))[50:]
    entropy = 0.9 * level * np.exp(rng.uniform(0.02, 0.06) * noise)
    return truth, judge(range(1, n + 1), entropy.tolist())


def report_borders(count: int, seed: int) -> None:
    """Right answers by how sure the diagnosis was."""
    print(
        "border | cannot tell | "
        + " | ".join(f"sure {a:g}-{min(b, 1):g}" for a, b in pairwise(BINS))
    )
    print(" | ".join(["---"] * (len(BINS) + 1)))
    for verdict in BORDERS:
        rng = np.random.default_rng(seed)
        found = [border(verdict, rng) for _ in range(count)]
        told = [(truth, j) for truth, j in found if j.verdict != "cannot tell"]
        cells = []
        for a, b in pairwise(BINS):
            some = [truth == j.verdict for truth, j in told if a <= j.confidence < b]
            cells.append(wilson(sum(some), len(some)))
        print(" | ".join([verdict, f"{count - len(told)} of {count}", *cells]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of the planted runs")
    parser.add_argument("--truth", type=Path, help="in place of the planted runs")
    parser.add_argument("--recorded", type=Path, help="recorded runs as well")
    parser.add_argument("--border", type=int, help="courses at each border, and nothing else")
    given = parser.parse_args()
    if given.border is not None:
        report_borders(given.border, given.seed)
        return
    if given.truth is not None:
        report(str(given.truth), planted(given.truth))
    else:
        with tempfile.TemporaryDirectory() as directory:
            made = Path(directory) / "runs"
            planted_runs.write(made, given.seed)
            report(f"planted, seed {given.seed}", planted(made / "truth.json"))
    if given.recorded is not None:
        report("recorded", recorded(given.recorded))


if __name__ == "__main__":
    main()
