"""The picture of docs/study.md, from the record: ten methods, one task a column.

    python benchmarks/study_picture.py                           # docs/study.png
    python benchmarks/study_picture.py --output study.png

Above entropy over training, the mean of the seeds; below what it ends with and the score, with
half of the 95% interval (Student's t) over seeds on both sides. Of the seeds that all ten have on
record. Nothing is trained and nothing is timed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from entrostat.report.figures import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, SKY, styled
from entrostat.report.picture import Picture
from entrostat.study.figures import read_figure
from study_page.cells import said
from study_page.record import ROOT, Record
from study_page.settings import LATE, MODEL_ROWS, SCORE, columns

# the tiny policy's are spread over experiments that share task, budget and seeds
TINY = {
    "grpo": "control", "clip_higher": "balance", "kl_cov": "signs", "clip_cov": "signs",
    "on_policy": "balance", "steer": "steer_control", "pos_adv": "signs", "repo_r": "control",
    "thermostat": "control", "opefo": "balance",
}  # fmt: skip
OTHERWISE = {("control", "repo_r"): "repo_r_both_ways"}  # what the language model's is
TASKS: dict[str, dict[str, str]] = {"tiny policy, target_sum": TINY} | {
    f"SmolLM2, {name}": dict.fromkeys(MODEL_ROWS, f"llm_{name}")
    for name in ("words", "arithmetic", "gym")
}
# what ends where GRPO does is drawn in grey, told apart by its mark
MARKS = {
    "grpo": ("#222222", "o"), "clip_higher": (GREY, "v"), "kl_cov": (SKY, "s"),
    "clip_cov": (GREY, "s"), "steer": (GREEN, "^"), "pos_adv": (GREY, "D"),
    "on_policy": (ORANGE, "P"), "repo_r": (PURPLE, "D"), "thermostat": (BLUE, "o"),
    "opefo": (RED, "X"),
}  # fmt: skip


def draw(record: Record) -> Picture:
    """The picture."""
    entropy, score = (read_figure(c.word, c.figure) for c in columns(LATE, SCORE))
    figure = Picture(figsize=(10.4, 5.8), layout="constrained")
    axes = figure.subplots(2, len(TASKS))
    handles: dict[str, Any] = {}
    for (above, below), (task, experiments) in zip(axes.T, TASKS.items(), strict=True):
        runs = {m: (e, OTHERWISE.get((e, m), m)) for m, e in experiments.items()}
        have = [set(record.seeds(*run)) for run in runs.values()]
        seeds = sorted(set.intersection(*have))
        for method, (experiment, group) in runs.items():
            color, mark = MARKS[method]
            front = 2 if color == GREY else 3
            series = [record.run(experiment, group, s).series("entropy/exact") for s in seeds]
            curve = [mean(each) for each in zip(*(values for _, values in series), strict=True)]
            above.plot(series[0][0], curve, color=color, lw=1.4, zorder=front)
            x, y = (record.mean(experiment, group, seeds, f) for f in (entropy, score))
            if x is None or y is None:
                raise ValueError(f"study_picture: {experiment}/{group} lacks entropy or a score")
            handles[MODEL_ROWS[method]] = below.errorbar(
                x.mean, y.mean, xerr=x.half, yerr=y.half, color=color, marker=mark, ms=5.5,
                mec="white", mew=0.5, lw=0, elinewidth=1, zorder=front,
            )  # fmt: skip
        above.set(title=f"{task}\n{said(seeds)}", xlabel="iteration", ylim=(0, None))
        for axis in (above, below):
            axis.locator_params(nbins=5)
        below.set(xlabel="entropy at the end, nats", xlim=(0, None), ylim=(0, 1))
    axes[0, 0].set_ylabel("entropy, nats a token")
    axes[1, 0].set_ylabel("avg@16 at the end")
    figure.legend(
        handles.values(), handles.keys(), loc="outside lower center", ncols=5, frameon=False
    )
    return figure


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, default=ROOT / "docs/study.png")
    output = parser.parse_args(words).output
    with tempfile.TemporaryDirectory() as folder, styled():
        output.write_bytes(draw(Record(Path(folder))).png(dpi=140))
    return 0


if __name__ == "__main__":
    sys.exit(main())
