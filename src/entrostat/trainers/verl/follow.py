"""Copy veRL's output into the run directory's own logs.

Metrics come from veRL's "file" logger, evaluations from its validation dumps. Our trainer writes
rollouts itself, in veRL's process (`trainer.py`).
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import TrainConfig
from ...data.prompts import example
from ...evaluation.eval_sets import ResolvedEvalSet
from ...evaluation.in_training import summarized
from ...logs.lines import JsonLines
from ...runs.best_checkpoint import BestCheckpoint
from ...runs.progress import Progress, figures
from ...runs.run_directory import RunDirectory
from ...runs.run_writer import RunWriter
from . import checkpoints

# veRL's names of metrics that the lab logs too
NAMES = {
    "actor/grad_norm": "grad/norm",
    "actor/lr": "optim/lr",
    "timing_s/gen": "time/sample",
    "timing_s/old_log_prob": "time/measure",
    "timing_s/update_actor": "time/update",
    "timing_s/step": "time/iteration",
}
# prefixes of metrics that only veRL has; they keep their names, after `verl/`
_THEIRS = (
    "actor/", "critic/", "training/", "perf/", "timing_s/", "timing_per_token_ms/", "num_turns/",
    "response_length/", "response_length_non_aborted/", "response/", "prompt_length/",
    "global_seqlen/", "rollout_corr/", "variance_proxy/", "tool_call_counts/", "moe/",
)  # fmt: skip
_EVALUATION = ("val-core/", "val-aux/")


@dataclass(frozen=True)
class Intake:
    """Destination of veRL's output."""

    run: RunDirectory
    config: TrainConfig
    sets: Sequence[ResolvedEvalSet]  # evaluation sets

    @property
    def dumps(self) -> Path:
        return self.run.path / "verl" / "validation"

    def catch_up(self, sources: Iterable[Path]) -> None:
        """Import lines of veRL's "file" logger that were written while nothing followed it."""
        for source in sources:
            Follower(self, source, Progress()).look()

    def consider(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep an evaluated policy if it is the best so far (`save.best`)."""
        step = rows[0]["iteration"] if rows else -1
        places = self.run.checkpoints
        if not step or checkpoints.folder(places, step).is_dir():
            best = BestCheckpoint(self.run.path, self.config.save.best)
            best.consider(rows, checkpoints.parts(places, step))
            best.settle()  # its checkpoint was written before its evaluation


class Follower:
    """Reads new lines of veRL's "file" logger and imports them.

    Lines already in the run directory stay unchanged.
    """

    def __init__(self, intake: Intake, source: Path, progress: Progress) -> None:
        run, config = intake.run, intake.config
        self._intake, self._source, self._progress = intake, source, progress
        self._answers_due = sum(one.count * one.config.eval.samples for one in intake.sets)
        self._writer = RunWriter(run, config, progress)
        self._known = {row["iteration"] for row in self._writer.metrics.read()}
        self._evaluated_after = run.evaluated_after()
        self._read = 0
        self._due: list[int] = []

    def look(self, last: bool = False) -> bool:
        """Import new lines; `last`: no more will come. Return whether there were any."""
        new = list(self._lines())
        for record in new:
            step, data = record["step"], record["data"]
            if step not in self._evaluated_after and any(k.startswith(_EVALUATION) for k in data):
                self._due.append(step)
            if step > 0 and "entropy/exact" in data and step not in self._known:
                self._known.add(step)
                metrics = self._writer.line(step, row_of(data))
                self._progress.trained(step, metrics)
                self._progress.iteration(step, metrics)
        while self._due and (answers := self._dumped(self._due[0], last)) is not None:
            self._evaluated(self._due.pop(0), answers)
        return bool(new)

    def _lines(self) -> Iterator[dict[str, Any]]:
        """Yield complete new lines."""
        if not self._source.exists():
            return
        with open(self._source, "rb") as file:
            file.seek(self._read)
            whole, end, _ = file.read().rpartition(b"\n")
        self._read += len(whole) + len(end)
        for line in whole.splitlines():
            record = json.loads(line)
            if isinstance(record, dict) and isinstance(record.get("data"), dict):
                yield record

    def _dumped(self, step: int, last: bool) -> list[dict[str, Any]] | None:
        """The answers of an evaluation; None while veRL is still writing them."""
        answers = JsonLines(self._intake.dumps / f"{step}.jsonl").read()
        return answers if last or len(answers) >= self._answers_due else None

    def _evaluated(self, step: int, answers: list[dict[str, Any]]) -> None:
        rows, lines = evaluated(answers, step, self._intake.sets)
        self._writer.evaluations.append(rows)
        self._writer.answers.append(lines)
        self._intake.consider(rows)
        if step < self._intake.config.iterations:  # the last is shown at the end, beside the first
            for row in rows:
                self._progress.note(f"{row['set']}: {figures(row)}")


def row_of(data: Mapping[str, Any]) -> dict[str, float]:
    """Rename veRL's metrics of an iteration to the lab's; non-finite and other values are dropped.

    `time/tokens_per_second` covers the whole iteration, as in the lab.
    """
    row: dict[str, float] = {}
    for key, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and not key.startswith(_EVALUATION):
            row[NAMES.get(key, f"verl/{key}" if key.startswith(_THEIRS) else key)] = value
    seconds = row.get("time/iteration", 0.0)
    tokens = row.get("rollout/tokens", 0.0)
    return row | {"time/tokens_per_second": tokens / seconds if seconds > 0 else 0.0}


def evaluated(
    answers: Sequence[Mapping[str, Any]], iteration: int, sets: Iterable[ResolvedEvalSet]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the lab's rows of an evaluation after an iteration, and its lines per prompt.

    There are no entropies, since veRL does not compute them in evaluation. `answers` come from a
    validation dump: `where` ("SET/3"), `score`, `completion`, `failed`; a missing answer scores 0.
    """
    found: dict[str, dict[int, list[Mapping[str, Any]]]] = defaultdict(lambda: defaultdict(list))
    for answer in answers:
        name, _, index = str(answer["where"]).rpartition("/")
        found[name][int(index)].append(answer)
    rows, lines = [], []
    for one in sets:
        k, prompts = one.config.eval.samples, dict(sorted(found[one.name].items()))
        if not prompts:
            continue
        failed = sum(int(a["failed"]) for given in prompts.values() for a in given)
        lost = {"completion": "", "score": 0.0}
        whole = [(given + [lost] * k)[:k] for given in prompts.values()]
        row, of_prompts = summarized(
            one, iteration, {i: example(one.task, i, one.split) for i in prompts},
            [[a["completion"] for a in given] for given in whole],
            [[float(a["score"]) for a in given] for given in whole],
        )  # fmt: skip
        rows.append(row | ({"failed": failed} if failed else {}))
        lines += of_prompts
    return rows, lines
