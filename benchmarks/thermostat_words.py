"""A language model under the thermostat: what was held, and what the words cost or were worth.

    entrostat study recipes/llm_thermostat.toml --output runs/llm_thermostat   # hours
    python benchmarks/thermostat_words.py runs/llm_thermostat --evaluate \\
        --picture docs/thermostat_words.png

Reads the runs that are done, by their names SETTINGS-SEED, and takes seeds together: means with 95%
intervals (Student's t; "±" is missing where there is one seed). `--evaluate` first asks each final
policy 256 answers to each of the 22 letters, if that was not done. Of each run:

    held       mean entropy of iterations 31 to 40, as a share of the first
    deviation  RMS of (H - target) / target over iterations 12 to 40, and `offset` its mean
    in band    the first iteration from which on the mean of every five is within 10% of the target;
               a dash where there is none, one entry a seed
    avg@16, pass@16, distinct   of the last evaluation on `test`; distinct right words of 16
    avg@256, ..., distinct@256  of `--evaluate`: its own samples

and, seed by seed, what differs from GRPO. Nothing is timed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from entrostat.logs.lines import number
from entrostat.logs.run import Run, read_run
from entrostat.study.results import Interval, spread

ITERATIONS, SETTLED, LATE, BAND = 40, 12, 30, 0.1
SCORES = {"avg@16": "avg@k", "pass@16": "pass@k", "distinct": "distinct"}
MANY = {"avg@256": "avg@256", "pass@4": "pass@4", "pass@64": "pass@64", "pass@256": "pass@256",
        "distinct@256": "distinct"}  # fmt: skip
COLUMNS = ("held", "deviation", "offset", *SCORES, *MANY)
PLAIN, SET = "grpo", "words/test"


@dataclass(frozen=True)
class Figures:
    """Of one run; `values` by column, without those that it has not."""

    values: Mapping[str, float]
    in_band: int | None


def in_band(deviations: Sequence[float]) -> int | None:
    """The first iteration from which on every mean of five deviations is within the band."""
    fives = [fmean(deviations[i : i + 5]) for i in range(len(deviations) - 4)]
    outside = [i for i, mean in enumerate(fives) if abs(mean) > BAND]
    begin = outside[-1] + 1 if outside else 0
    return begin + 1 if begin < len(fives) else None


def figures(run: Run) -> Figures:
    H = run.series("entropy/exact")[1]
    values = {"held": fmean(H[LATE:]) / H[0]}
    arrived = None
    if target := run.series("control/target")[1]:
        D = [h / target[-1] - 1 for h in H]
        late = D[SETTLED - 1 :]
        values["deviation"] = math.sqrt(fmean(d * d for d in late))
        values["offset"] = fmean(late)
        arrived = in_band(D)
    values |= many(run.path)
    last = [line for line in run.evaluation if line.get("split") == "test"][-1:]
    for column, key in SCORES.items():
        if last and (value := number(last[0].get(key))) is not None:
            values[column] = value
    return Figures(values, arrived)


def many(run: Path) -> dict[str, float]:
    """What 256 answers a letter gave; nothing where they were not asked."""
    results = run.parent / "eval" / run.name / "results.json"
    if not results.exists():
        return {}
    metrics = json.loads(results.read_text())["sets"][SET]["metrics"]
    return {column: metrics[key]["value"] for column, key in MANY.items()}


def evaluate(run: Path) -> None:
    """Ask a final policy, unless that was done."""
    output = run.parent / "eval" / run.name
    if (output / "results.json").exists() or not (run / "final").is_dir():
        return
    words = ["eval", str(run), "--k", "256", "--problems", "22", "--on", SET, "--output"]
    done = subprocess.run(
        [sys.executable, "-m", "entrostat", *words, str(output), "--precision", "bf16"],
        capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    print(f"{run.name}: {done.stderr[-300:] if done.returncode else 'evaluated'}", flush=True)


def found(directory: Path) -> dict[str, dict[int, Figures]]:
    """By settings and seed, of the runs that are done."""
    runs: dict[str, dict[int, Figures]] = {}
    for log in sorted(directory.glob("[!.]*/metrics.jsonl")):
        name, _, seed = log.parent.name.rpartition("-")
        run = read_run(log.parent)
        if run.done == ITERATIONS and run.evaluation:
            runs.setdefault(name, {})[int(seed)] = figures(run)
    return runs


def together(runs: Mapping[int, Figures], column: str) -> Interval | None:
    values = [one.values[column] for one in runs.values() if column in one.values]
    return spread(values) if len(values) == len(runs) else None


def cell(some: Interval | None) -> str:
    if some is None:
        return ""
    return f"{some.mean:.2f}" if some.n < 2 else f"{some.mean:.2f} ± {some.half:.2f}"


def draw(runs: Mapping[str, Mapping[int, Figures]], path: Path) -> None:
    """Scores and distinct right words against the entropy that was really held."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    names = sorted(runs, key=lambda name: fmean(f.values["held"] for f in runs[name].values()))
    for axis, column in zip(figure.subplots(1, 2), ("avg@16", "distinct"), strict=True):
        for place, name in enumerate(names):
            x, y = (together(runs[name], key) for key in ("held", column))
            if x is None or y is None:
                continue
            held = name.startswith(("zeta", "bonus", "pi"))
            axis.errorbar(
                [x.mean], [y.mean], xerr=[x.half], yerr=[y.half], marker="o" if held else "s", ms=6,
                mfc=None if held else "white", color=f"C{place}", elinewidth=1, capsize=2,
                label=name,
            )  # fmt: skip
        axis.set(xlabel="entropy of iterations 31 to 40, share of the first", ylim=(0, None))
    left, right = figure.axes
    left.set(ylabel="avg@16 on held-out letters")
    right.set(ylabel="distinct right words of 16")
    left.legend(frameon=False, loc="lower left", fontsize=8)
    figure.suptitle(
        "SmolLM2-135M on `words`: held by a controller (filled), or not (open)", size=10
    )
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path, help="of the study's runs")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--picture", type=Path)
    given = parser.parse_args()
    if given.evaluate:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(evaluate, sorted(given.directory.glob("[!.]*-[0-9]"))))
    runs = found(given.directory)
    if not runs:
        parser.error(f"{given.directory} holds no run of {ITERATIONS} iterations with evaluations")
    print(" | ".join(["run", "seeds", *COLUMNS, "in band"]))
    for name, mine in runs.items():
        when = " ".join("-" if f.in_band is None else str(f.in_band) for f in mine.values())
        cells = [cell(together(mine, column)) for column in COLUMNS]
        print(" | ".join([name, str(len(mine)), *cells, when if cells[1] else ""]))
    base = runs.get(PLAIN, {})
    for name, mine in runs.items():
        both = sorted(mine.keys() & base.keys())
        if name == PLAIN or not both:
            continue
        cells = [
            cell(spread([mine[s].values[c] - base[s].values[c] for s in both]))
            for c in (*SCORES, *MANY)
            if all(c in one.values for s in both for one in (mine[s], base[s]))
        ]
        print(" | ".join([f"{name} less {PLAIN}", str(len(both)), *cells]))
    if given.picture:
        draw(runs, given.picture)


if __name__ == "__main__":
    main()
