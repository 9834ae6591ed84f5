"""Read logs of TRL's GRPOTrainer, and of ms-swift, which builds on it: state, JSON lines, console.

`trainer_state.json` is written with every checkpoint, and under the output directory after
`save_state()`; the newest readable one counts. ms-swift writes `logging.jsonl` beside it. A console
has one `{'loss': ...}` per logged line (transformers 5 quotes the numbers) and no steps. The steps
come from the progress bar before the line; without one, the lines are counted.

An iteration is a generation batch. Its rewards are logged with the first of its optimizer steps. So
if every step is logged, the number of steps per iteration is known, and an iteration's metrics are
their means. docs/analyze.md defines `entropy`; source: TRL 1.16.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..run import Run
from .names import PPO, bare, folded, renamed, trainer_of
from .rows import Row, averaged
from .source import PAIR, Given, document, first_line, lines, listed, number, parse, step_of
from .steps import Dumped, finish, metrics_of

STATE = "trainer_state.json"
NAMES = {
    "entropy/exact": ("entropy", "entropy_mean"),
    "clip/low": ("clip_ratio_low_mean",),
    "clip/high": ("clip_ratio_high_mean",),
}
OTHERS = {"entropy/logged": ("entropy", "policy_entropy_avg")}  # the supervised trainer's, PPO's
ENTROPY_IS = (
    "the mean over completion tokens of the full next-token entropy, of logits divided by "
    "the sampling temperature (which the log does not name), in nats, under the policy that was "
    "being updated; micro-batches{steps} have equal weight"
)
OURS = (
    "exact: the mean over completion tokens of the full next-token entropy, of logits divided by "
    "the sampling temperature, in nats, under the policy that sampled (EntropyGRPOTrainer)"
)
UNKNOWN = (
    "it cannot be known: the log has an entropy, but neither GRPOTrainer's rewards nor its "
    "completion lengths, so another trainer wrote it"
)
_SETTING = re.compile(r'"(max_steps|logging_steps)"\s*:\s*(\d+)')
_DOCUMENT = re.compile(r"\s*(\{|\[\s*(\{|$))")  # an object, or a list of objects
LIST = re.compile(r'"log_history"\s*:\s*\[')
_BETWEEN = re.compile(r"(?<=\})\s+(?=\{['\"])")
# the progress bar of the step before a line
BAR = re.compile(r"(?:^|[\])] )\s*\d{1,3}%\|[^|]{0,200}\|\s*(\d{1,12})/(\d{1,12}) \[")
SLASH = "global_step/max_steps"
_GRPO = ('"completions/', '"completion_length"', '"frac_reward_zero_std"', '"rewards/', SLASH)
_LOGGED = ("loss", "reward", "entropy", "grad_norm")


def is_document(head: str) -> bool:
    head = head.lstrip("\ufeff \t\r\n")
    return head[:1] == "{" and LIST.search(head) is not None and not is_line(head.split("\n")[0])


def is_line(text: str) -> bool:
    """Whether a line is a logged one, as JSON or as a printed dictionary."""
    if "loss" not in text or "[{" in text:  # a whole history in one line
        return False
    if "'loss': " in text:  # people paste it without its brace, too
        return "'epoch': " in text or "'reward" in text
    return '"loss"' in text and "{" in text and any(word in text for word in _GRPO)


def states(directory: Path) -> list[Path]:
    """Return states of an output directory: its own, then the checkpoints', newest first."""
    checkpoints = [p for p in directory.glob("checkpoint-*") if p.name[11:].isdecimal()]
    newest = sorted(checkpoints, key=lambda p: (int(p.name[11:]), p), reverse=True)
    return [path / STATE for path in (directory, *newest) if (path / STATE).is_file()]


def scan(path: Path, given: Given) -> Iterator[Row]:
    """Yield rows of lines or of a state; of a truncated state, the rows before the cut."""
    first = first_line(path)
    if not _DOCUMENT.match(first) or is_line(first):
        yield from _lines(path, given)
        return
    settings = dict(reversed(_SETTING.findall(document(path, Given(path)))))
    for line, entry in listed(path, given):
        if "log_history" not in entry:
            yield Row(path, line, entry.get("step"), entry, settings)


def _lines(path: Path, given: Given) -> Iterator[Row]:
    settings: dict[str, str] = {}
    at = total = count = 0
    latest, epoch = (0, 0), -1.0
    for line, text, whole in _entries(path, given):
        if "%|" in text and (bar := BAR.search(text)):
            latest = int(bar[1]), int(bar[2])
            if latest[1] >= total:  # a smaller total is the progress bar of an evaluation
                at, total = latest
        if not is_line(text):
            continue
        if not whole and "}" not in text:
            given.problem(path, line, "the line is cut; what is whole in it is read")
        values = {bare(name): value for name, value in _figures(text).items()}
        before, epoch = epoch, number(values.get("epoch")) or 0.0
        fell = epoch < before
        logged = any(name in values for name in _LOGGED)
        count = 1 if fell else count + logged
        if fell:
            settings, (at, total) = {}, latest
        step = values.pop("step", None)
        if SLASH in values:
            told, _, planned = str(values.pop(SLASH)).partition("/")
            settings["max_steps"], step = planned, told
        elif step is None:
            step = at or count
            settings["max_steps"] = str(total or "")
            if not at:
                settings["counted"] = "1"
        if logged or any(name.startswith("eval") for name in values):
            yield Row(path, line, step, values, settings, fresh=fell)


def _entries(path: Path, given: Given) -> Iterator[tuple[int, str, bool]]:
    """Yield lines; dictionaries that were pasted into one line are lines of their own."""
    for line, text, whole in lines(path, given):
        yield from ((line, part, whole) for part in _BETWEEN.split(text))


def _figures(text: str) -> dict[str, Any]:
    if "'loss': " in text:
        return dict(PAIR.findall(text))
    try:
        return parse(text[text.index("{") : text.rindex("}") + 1])
    except ValueError:  # not an object, or a truncated one
        return {}


def run_of(rows: Sequence[Row], given: Given, dumped: Dumped | None = None) -> Run | None:
    """Build the run from rows with TRL's names; uses settings `max_steps`, `logging_steps`."""
    settings = rows[-1].settings
    folders = {rows[0].path.parent, rows[0].path.parent.parent}
    rows = [row._replace(values=_bare(row.values)) for row in rows]
    seen = folded(dict.fromkeys(key for row in rows for key in row.values))
    grpo = bool(seen.keys() & {"reward", "completions_mean_length", "frac_reward_zero_std"})
    names = renamed(seen.values(), NAMES if grpo else OTHERS)
    every = step_of(settings.get("logging_steps")) or 1
    rows, updates = _iterations(rows) if every == 1 else (rows, 1)
    if updates > 1:
        given.notes.append(
            f"An iteration is a generation batch, of {updates} optimizer steps, and its figures "
            "are their means."
        )
    if every > 1:
        given.notes.append(f"A line is logged every {every} steps and is their mean.")
    if settings.get("counted"):
        given.notes.append("The console has no steps; its logged lines are counted instead.")
    if any(any(folder.glob("completions/*.parquet")) for folder in folders):
        given.notes.append(
            "completions/*.parquet is not read (that needs pyarrow): there are no rollouts."
        )
    source, entropy_is = PPO if trainer_of(seen) == PPO else "a Hugging Face trainer", UNKNOWN
    if grpo:
        swift = "entropy_mean" in seen or trainer_of(seen) == "ms-swift"
        source = "ms-swift" if swift else "TRL"
        entropy_is = ENTROPY_IS.format(steps=f" of each {every} steps" if every > 1 else "")
    if "entropy_exact" in seen:
        entropy_is = OURS
    planned = step_of(settings.get("max_steps"))
    planned = -(-planned // updates) if planned else None
    return finish(given, source, entropy_is, metrics_of(given, names, rows), planned=planned)


def _bare(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename metrics to their names before transformers grouped them for a tracker."""
    found = {re.sub(r"^(eval|test)/(?=.)", r"\1_", bare(key)): v for key, v in values.items()}
    return {key: v for key, v in found.items() if key not in ("step", "global_step")}


def _iterations(rows: list[Row]) -> tuple[list[Row], int]:
    """One row per iteration, and its optimizer steps; rows unchanged if the steps are unknown."""
    begin = sorted({step_of(row.step) or 0 for row in rows if "reward" in row.values})
    gaps = {after - before for before, after in pairwise(begin)}
    steps: dict[int, list[Row]] = defaultdict(list)
    odd: list[Row] = []  # without a step
    for row in rows:
        step = step_of(row.step)
        (odd if step is None else steps[step]).append(row)
    updates = gaps.pop() if len(gaps) == 1 and begin[0] == 1 else 1
    if updates == 1 or not steps.keys() >= {*range(1, begin[-1])}:
        return rows, 1
    iterations: dict[int, list[Row]] = defaultdict(list)
    for step, some in steps.items():
        iterations[-(-step // updates)] += some
    return odd + [averaged(some, i) for i, some in iterations.items()], updates
