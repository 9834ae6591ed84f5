"""slime: metrics from its console log, and samples that you exported as JSONL.

Read in THUDM/slime. The console has `step 12: {'train/loss': ...}` once per update
(`backends/megatron_utils/model.py`), `rollout 3: {'rollout/raw_reward': ...}` and `perf 3: {...}`
once per rollout (`data.py`, `ray/rollout.py`). `train/entropy_loss` is the exact entropy of logits
divided by `rollout_temperature`, over the sequence's tokens and then over sequences, or over all
tokens with `--calculate-per-token-loss`. `train/pg_clipfrac` counts both sides of the clip range.

`rollout/zero_std/count_1.0` counts the groups whose rewards are all 1.0, and is left out where
there are none (`observability/rollout_metrics.py`); of how many groups, only Megatron's list of
arguments at the start of the console says (`rollout_batch_size ....... 32`).

Its dumps (`--save-debug-train-data`, `--save-debug-rollout-data`) are pickles written by torch: to
open one runs what is in it, so it is left alone. docs/analyze.md shows how to
export yours as JSONL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..run import Run
from .rows import Row
from .source import ANSI, Given, UnreadableError, finite, lines, number, parse, step_of
from .steps import Dumped, Log, Rollout, column, finish, token_ids

PICKLE = (
    "a pickle (torch.save), which runs code when it is opened: it is not opened here; where you "
    "trust it, export it to JSONL as docs/analyze.md shows"
)
NAMES = {
    "train/entropy_loss": "entropy/exact",
    "rollout/entropy": "entropy/exact",
    "rollout/raw_reward": "reward/mean",
    "rollout/response_lengths": "rollout/length_mean",
    "rollout/response_len/mean": "rollout/length_mean",
    "train/grad_norm": "grad/norm",
}
LINE_OF = re.compile(r"(?<![\w-])(step|rollout|perf|eval) (\d{1,18}): \{(?='[\w-]+/)")
PAIR = re.compile(r"'([^']{1,200})': ((?:[\w.]{1,32}\([-+\w.]{1,40}\))|[-+\w.]{1,40})(?=[,}])")
SIZE = re.compile(r"(?<!\w)rollout_batch_size \.{2,200} (\d{1,9})\s*$")
KIND = "entrostat/kind"  # of a line: step, rollout, perf or eval
IDLE = "rollout/zero_std/count_"
ENTROPY_IS = (
    "exact: the full next-token entropy of logits divided by rollout_temperature (which the log "
    "does not name), in nats, during the updates; the mean over a response's tokens and then over "
    "responses, or over all tokens under --calculate-per-token-loss (the log does not say which)"
)
SAMPLES = (
    "exact: the full next-token entropy of logits divided by rollout_temperature, in nats, where "
    "the samples have it; here its mean over the tokens of the loss mask"
)
NONE = "none: the source has no entropy"


def is_line(text: str) -> bool:
    """Whether a line of a console is metrics."""
    return ": {'" in text and LINE_OF.search(ANSI.sub("", text)) is not None


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is an exported sample."""
    length = record.get("response_lengths", record.get("response_length"))
    return isinstance(record.get("tokens"), list) and step_of(length) is not None


def scan(path: Path, given: Given, dumped: Dumped) -> Iterator[Row]:
    """Rows of a console, an update's under its rollout; samples go to `dumped`.

    A rollout that comes again at once begins a piece: its updates are not those of the first try.
    """
    settings: dict[str, str] = {}
    rollout: int | None = None
    kinds: list[str] = []
    for count, text, whole in lines(path, given):
        if text.lstrip()[:2] == '{"':
            if (found := _sample(path, count, text, given)) is not None:
                dumped.add(path, *found)
        elif ": {'" in text and (begin := LINE_OF.search(text := ANSI.sub("", text))):
            if not whole or "}" not in text[begin.end() :]:
                given.problem(path, count, "the line is cut; what is whole in it is read")
            kind, at = begin[1], int(begin[2])
            again = kind == "rollout" and at == rollout and "rollout" in kinds
            if kind == "rollout":
                kinds = kinds if at == rollout and not again else []
                rollout = at
            elif kind == "step" and rollout is not None:
                at = rollout
            kinds.append(kind)
            pairs = ((name, number(value)) for name, value in PAIR.findall(text[begin.end() :]))
            figures = {name: value for name, value in pairs if value is not None}
            yield Row(path, count, at, {**figures, KIND: kind}, settings, fresh=again)
        elif "rollout_batch_size ." in text and (size := SIZE.search(text)):
            settings = {**settings, "rollout_batch_size": size[1]}


def run_of(rows: Sequence[Row], given: Given, dumped: Dumped | None = None) -> Run | None:
    """The run of rows; figures of a rollout's updates are averaged."""
    log = Log(given, NAMES)
    updates = 1
    for path, line, step, figures, count in _rollouts_of(rows):
        updates = max(updates, count)
        log.add(path, line, step, figures)
    metrics, entropy_is = log.metrics(), ENTROPY_IS
    if updates > 1:
        given.notes.append(
            f"An iteration is a rollout of up to {updates} updates: their figures are averaged."
        )
    for row in metrics:
        if "rollout/log_probs" in row:
            row["entropy/nll"] = -row["rollout/log_probs"]
    settings = rows[-1].settings if rows else {}
    _count_groups(metrics, step_of(settings.get("rollout_batch_size")))
    if not metrics and dumped:
        metrics, entropy_is = dumped.metrics(), SAMPLES
    if not any("entropy/exact" in row for row in metrics):
        entropy_is = NONE
    dumps = dumped.of(given, sequences) if dumped else {}
    return finish(given, "slime", entropy_is, metrics, dumps, settings=settings)


def _rollouts_of(
    rows: Sequence[Row],
) -> Iterator[tuple[Path, int | None, int, dict[str, float], int]]:
    """Last place, step, figures and number of updates of each rollout; a later try replaces one."""
    tries: dict[int, list[Row]] = {}
    last = -1
    for row in rows:
        if row.fresh or row.step < last:
            tries = {step: some for step, some in tries.items() if step < row.step}
        last = row.step
        tries.setdefault(row.step, []).append(row)
    for step, some in tries.items():
        values: dict[str, list[float]] = {}
        for row in some:
            for name, value in row.values.items():
                if name != KIND and (row.values.get(KIND) == "step" or name not in values):
                    values.setdefault(name, []).append(value)
        means = {
            name: math.fsum(known) / len(known) if (known := finite(each)) else math.nan
            for name, each in values.items()
        }
        updates = sum(row.values.get(KIND) == "step" for row in some)
        yield some[-1].path, some[-1].line, step, means, updates


def _count_groups(metrics: list[dict[str, Any]], prompts: int | None) -> None:
    """Add the groups without a signal to rows of a rollout, and all groups where they are known."""
    if not any(name.startswith(IDLE) for row in metrics for name in row):
        return
    for row in metrics:
        if any(name.startswith("rollout/") for name in row):
            counts = [value for name, value in row.items() if name.startswith(IDLE)]
            row["rollout/zero_advantage_groups"] = math.fsum(counts)
            if prompts:
                row["rollout/groups"] = prompts


def _sample(path: Path, line: int, text: str, given: Given) -> tuple[int, Rollout] | None:
    """A sample as docs/analyze.md exports it: `tokens` has the prompt too, other lists have not."""
    try:
        record = parse(text)
    except UnreadableError as error:
        given.problem(path, line, str(error))
        return None
    if not isinstance(record, dict) or not is_record(record):
        given.problem(path, line, "not a sample: tokens and response_lengths are missing")
        return None
    step = step_of(record.get("rollout_id", record.get("step")))
    length = step_of(record.get("response_lengths", record.get("response_length")))
    ids = token_ids(record["tokens"])
    if step is None or ids is None or length is None or not 0 < length <= len(ids):
        given.problem(path, line, "rollout_id, tokens or response_lengths do not fit")
        return None
    mask = record.get("loss_masks", record.get("loss_mask"))
    if not isinstance(mask, list) or len(mask) != length:
        mask = [1] * length
    trained = [i for i, keep in enumerate(mask) if keep == 1]
    if not trained:
        given.problem(path, line, "its loss mask leaves no token")
        return None

    def kept(key: str) -> list[float | None]:
        values = column(record, key, length)
        return [values[i] for i in trained]

    prompt, response = ids[:-length], ids[-length:]
    reward = number(record.get("raw_reward", record.get("rewards", record.get("reward"))))
    return step, Rollout(
        math.nan if reward is None else reward,
        group=tuple(prompt),
        tokens=[response[i] for i in trained],
        logp=kept("log_probs"),
        sampler_logp=kept("rollout_log_probs"),
        entropy=kept("entropy"),
        advantage=kept("advantages"),
    )


def sequences(path: Path, given: Given) -> Iterator[tuple[int, Rollout]]:
    """Steps and rollouts of a file of samples."""
    for count, text, _ in lines(path, given):
        if text.lstrip()[:2] == '{"' and (found := _sample(path, count, text, given)):
            yield found
