"""Scores of SmolLM2 against the entropy it was held at, on three tasks: the record's figure.

    python benchmarks/frontier_llm.py --picture docs/frontier_llm.png

Draws `docs/frontier_llm.tsv`, the final policies of the first table in docs/thermostat_record.md, a
row per method and target. `entropy` is the entropy on held-out problems, over the first entropy.
`_half` is half of a 95% interval over seeds; it is empty for one seed, or where the seeds' values
were not kept.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

from matplotlib.figure import Figure

ROWS = Path(__file__).parents[1] / "docs/frontier_llm.tsv"
SCORES = {"avg": "avg@16", "pass": "pass@16", "distinct": "distinct right of 16"}
MARKS = "osD^v<>pX"


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Draw a row of panels per task and a column per score; a line joins a method's targets."""
    tasks, methods = (list(dict.fromkeys(row[key] for row in rows)) for key in ("task", "method"))
    figure = Figure(figsize=(10, 2.6 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), len(SCORES), squeeze=False)
    for axes, task in zip(panels, tasks, strict=True):
        for axis, (key, title) in zip(axes, SCORES.items(), strict=True):
            for place, method in enumerate(methods):
                found = [row for row in rows if (row["task"], row["method"]) == (task, method)]
                found.sort(key=lambda row: float(row["entropy"]))
                x, y, dx, dy = (
                    [float(row.get(name) or 0) for row in found]
                    for name in ("entropy", key, "entropy_half", f"{key}_half")
                )
                axis.errorbar(
                    x, y, xerr=dx, yerr=dy, marker=MARKS[place], ms=5, color=f"C{place}",
                    label=method, capsize=2, lw=1.8 if place == 0 else 0.7, elinewidth=0.8,
                )  # fmt: skip
            axis.set(xlim=(0, 2.1))
            axis.set_ylim(0, 1.1 * max(float(row[key]) for row in rows if row["task"] == task))
            if task == tasks[0]:
                axis.set_title(title, fontsize=10)
        axes[0].set_ylabel(task)
    for axis in panels[-1]:
        axis.set_xlabel("entropy on held-out problems, of the first")
    panels[0][0].legend(frameon=False, fontsize=7)
    figure.savefig(path, dpi=100, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--picture", type=Path, required=True)
    given = parser.parse_args()
    with ROWS.open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    draw(rows, given.picture)
    for row in (rows[0].keys(), *(row.values() for row in rows)):
        print(" | ".join(row))


if __name__ == "__main__":
    main()
