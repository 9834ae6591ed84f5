"""TRL's GRPOTrainer: the log in `trainer_state.json`.

The trainer writes the state with every checkpoint, and under the output directory after
`save_state()`; the newest that can be read counts. Read beside TRL 1.16
(`GRPOTrainer._compute_loss` and `log`): `entropy` is the sum over completion tokens of the exact
entropy over their number, for every micro-batch over all processes, from logits divided by
`temperature`; tokens of tools and of masked truncated completions do not count. `log` takes the
plain mean over the micro-batches since the last logged line.

An iteration is a generation batch. Its rewards are logged with the first of its optimizer steps, so
that where every step is logged the number of these can be told; an iteration's figures are then
their means. `EntropyGRPOTrainer` logs figures under our names as well, and these are taken.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..run import Run
from .source import Given, UnreadableError, document, number, objects, parse, step_of
from .steps import Log, finish

STATE = "trainer_state.json"
NAMES = {
    "entropy": "entropy/exact",
    "reward": "reward/mean",
    "completions/mean_length": "rollout/length_mean",
    "grad_norm": "grad/norm",
    "clip_ratio/low_mean": "clip/low",
    "clip_ratio/high_mean": "clip/high",
}
ENTROPY_IS = (
    "exact: the mean over completion tokens of the full next-token entropy, of logits divided by "
    "the sampling temperature (which the log does not name), in nats, under the policy that was "
    "being updated; micro-batches{steps} have equal weight (TRL 1.16)"
)
OURS = (
    "exact: the mean over completion tokens of the full next-token entropy, of logits divided by "
    "the sampling temperature, in nats, under the policy that sampled (EntropyGRPOTrainer)"
)
UNKNOWN = (
    "it cannot be known: the log has an entropy, but neither rewards nor completion lengths, so "
    "GRPOTrainer did not write it"
)
NONE = "none: the log has no entropy"
Entries = list[tuple[int | None, dict[str, Any]]]
LIST = re.compile(r'"log_history"\s*:\s*\[')


def is_document(head: str) -> bool:
    """Whether a text begins like a trainer's state."""
    return head.lstrip("\ufeff \t\r\n")[:1] == "{" and LIST.search(head) is not None


def states(directory: Path) -> Iterator[Path]:
    """States of an output directory: newest checkpoint first, then the directory's own."""
    numbered = []
    for path in directory.glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isascii() and step.isdigit() and len(step) < 16 and (path / STATE).is_file():
            numbered.append((int(step), path / STATE))
    if (directory / STATE).is_file():
        yield directory / STATE
    yield from (path for _, path in sorted(numbered, reverse=True))


def read(files: Sequence[Path], given: Given) -> Run | None:
    """The run of the newest state among `files`."""
    best: tuple[int, Entries, dict[str, Any], Path] | None = None
    for path in files:
        history, state = _history(path, given)
        last = max((step_of(row.get("step")) or 0 for _, row in history), default=-1)
        if history and (best is None or last > best[0]):
            best = (last, history, state, path)
            if path.parent.name.startswith("checkpoint-"):
                break  # the other checkpoints are older
    if best is None:
        return None
    _, history, state, path = best
    return run_of(path, history, state, given)


def run_of(path: Path, history: Entries, state: Mapping[str, Any], given: Given) -> Run | None:
    """The run of a log.

    Args:
        path: where it stood.
        history: (line, entry) with `step` and figures under TRL's names.
        state: what is known of `logging_steps` and `max_steps`.
        given: takes the problems.
    """
    seen = {key for _, row in history for key in row}
    grpo = bool(seen & {"reward", "completions/mean_length", "frac_reward_zero_std"})
    names = NAMES if grpo else NAMES | {"entropy": "entropy/logged"}
    log = Log(given, {key: name for key, name in names.items() if name not in seen})
    every = step_of(state.get("logging_steps"))
    several = every is not None and every > 1
    updates = 1 if several else _updates(history)
    for place, row in history if updates == 1 else _iterations(history, updates):
        figures = {key: value for key, value in row.items() if key != "step"}
        log.add(path, place, row.get("step"), figures)
    entropy_is = ENTROPY_IS.format(steps=f" of each {every} steps" if several else "")
    if "entropy/exact" in seen:
        entropy_is = OURS
    elif "entropy" not in seen:
        entropy_is = NONE
    elif not grpo:
        entropy_is = UNKNOWN
    if updates > 1:
        given.notes.append(
            f"An iteration is a generation batch, of {updates} optimizer steps, and its figures "
            "are their means."
        )
    if several:
        given.notes.append(f"A line is logged every {every} steps and is their mean.")
    for folder in {path.parent, path.parent.parent}:
        if any(folder.glob("completions/*.parquet")):
            given.notes.append(
                "completions/*.parquet is not read (that needs pyarrow): there are no rollouts."
            )
            break
    source = "TRL" if grpo else "a Hugging Face trainer"
    planned = step_of(state.get("max_steps"))
    planned = None if not planned else -(-planned // updates)
    return finish(given, source, entropy_is, log.metrics(), planned=planned)


def _updates(history: Entries) -> int:
    """Optimizer steps per iteration; 1 where they cannot be told."""
    steps = {step_of(row.get("step")) for _, row in history}
    begin = sorted({step_of(row.get("step")) or 0 for _, row in history if "reward" in row})
    gaps = {after - before for before, after in pairwise(begin)}
    whole = len(gaps) == 1 and begin[0] == 1 and steps.issuperset(range(1, begin[-1]))
    return gaps.pop() if whole else 1


def _iterations(history: Entries, updates: int) -> Entries:
    """One entry per iteration; of a number that several have, their mean."""
    places: dict[int, int | None] = {}
    values: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    others: Entries = []
    for place, row in history:
        step = step_of(row.get("step"))
        if not step:
            others.append((place, row))
            continue
        iteration = (step - 1) // updates + 1
        places.setdefault(iteration, place)
        for key, value in row.items():
            values[iteration][key].append(value)
    return others + [
        (places[i], {key: _mean(found) for key, found in row.items()} | {"step": i})
        for i, row in values.items()
    ]


def _mean(values: Sequence[Any]) -> Any:
    """Of the numbers among some values; the last value where none is one."""
    known = [x for x in map(number, values) if x is not None]
    return sum(known) / len(known) if known else values[-1]


def _history(path: Path, given: Given) -> tuple[Entries, dict[str, Any]]:
    """(line, entry) of the log, and the state around it; of a cut file what came before."""
    text = document(path, given)
    begin = LIST.search(text)
    located: Entries = [*objects(text, begin.end())] if begin else []
    try:
        state = parse(text)
    except UnreadableError as error:
        given.problem(path, None, f"{error}; the entries before the fault are read")
        return located, {}
    history = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(history, list):
        given.problem(path, None, "holds no list log_history")
        return [], {}
    entries = [entry for entry in history if isinstance(entry, dict)]
    if len(entries) < len(history):
        left_out = len(history) - len(entries)
        given.problem(path, None, f"{left_out} entries of log_history are not objects")
    if [entry for _, entry in located] == entries:
        return located, state
    return [(None, entry) for entry in entries], state
