"""slime: metrics from its console log, and samples that you exported as JSONL.

Source: THUDM/slime. The console has `step 12: {'train/loss': ...}` once per update
(`backends/megatron_utils/model.py`), `rollout 3: {'rollout/raw_reward': ...}` and `perf 3: {...}`
once per rollout (`data.py`, `ray/rollout.py`). docs/analyze.md defines `train/entropy_loss`.

`rollout/zero_std/count_1.0` counts the groups whose rewards are all 1.0, and is absent if there
are none (`observability/rollout_metrics.py`). Only Megatron's list of arguments at the start of the
console has the number of groups (`rollout_batch_size ....... 32`).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..run import Run
from .names import renamed
from .rows import Row, averaged
from .source import PAIR, Given, UnreadableError, lines, number, step_of
from .steps import NO_ENTROPY, Dumped, Rollout, finish, metrics_of, recorded, token_ids, trained

PICKLE = (
    "a pickle (torch.save), which runs code when it is opened: it is not opened here; where you "
    "trust it, export it to JSONL as docs/analyze.md shows"
)
NAMES = {"entropy/exact": ("entropy_loss", "rollout_entropy")}
SAMPLE = {
    "logp": "log_probs", "sampler_logp": "rollout_log_probs", "entropy": "entropy",
    "advantage": "advantages",
}  # fmt: skip
LINE_OF = re.compile(r"(?<![\w-])(step|rollout|perf|eval) (\d{1,18}): \{(?='[\w-]+/)")
SIZE = re.compile(r"(?<!\w)rollout_batch_size \.{2,200} (\d{1,9})\s*$")
IDLE = "rollout/zero_std/count_"
ENTROPY_IS = (
    "the full next-token entropy of logits divided by rollout_temperature (which the log "
    "does not name), in nats, during the updates; the mean over a response's tokens and then over "
    "responses, or over all tokens under --calculate-per-token-loss (the log does not say which)"
)
SAMPLES = (
    "the full next-token entropy of logits divided by rollout_temperature, in nats, where "
    "the samples have it; here its mean over the tokens of the loss mask"
)


def is_line(text: str) -> bool:
    return ": {'" in text and LINE_OF.search(text) is not None


def scan(path: Path, given: Given) -> Iterator[Row | Rollout]:
    """Yield console rows, each update under its rollout, and samples.

    A rollout number that repeats at once begins a new piece, which keeps a first attempt's updates
    apart.
    """
    settings: dict[str, str] = {}
    rollout: int | None = None
    for count, text, whole in lines(path, given):
        if text.lstrip()[:2] == '{"':
            yield from recorded(RECORDS, given, path, count, text)
        elif ": {'" in text and (begin := LINE_OF.search(text)):
            if not whole or "}" not in text[begin.end() :]:
                given.problem(path, count, "the line is cut; what is whole in it is read")
            kind, at = begin[1], int(begin[2])
            again = kind == "rollout" and at == rollout
            if kind == "rollout":
                rollout = at
            elif kind == "step" and rollout is not None:
                at = rollout
            told = PAIR.findall(text[begin.end() :])
            figures = {name: value for name, value in told if number(value) is not None}
            yield Row(path, count, at, figures, settings, fresh=again)
        elif "rollout_batch_size ." in text and (size := SIZE.search(text)):
            settings = {**settings, "rollout_batch_size": size[1]}


def _sample(path: Path, line: int, record: Mapping[str, Any]) -> Rollout:
    """Parse a sample (docs/analyze.md): `tokens` includes the prompt, the other lists do not."""
    step = step_of(record.get("rollout_id", record.get("step")))
    length = step_of(record.get("response_lengths", record.get("response_length")))
    ids = token_ids(record["tokens"])
    if step is None or length is None or not 0 < length <= len(ids):
        raise UnreadableError("rollout_id, tokens or response_lengths do not fit")
    mask = record.get("loss_masks", record.get("loss_mask"))
    mask = mask if isinstance(mask, list) and len(mask) == length else [1] * length
    found = trained(record, ids[-length:], mask, SAMPLE)
    if not found["tokens"]:
        raise UnreadableError("its loss mask leaves no token")
    reward = number(record.get("raw_reward", record.get("rewards", record.get("reward"))))
    reward = math.nan if reward is None else reward
    return Rollout(path, step, reward, group=tuple(ids[:-length]), **found)


RECORDS = tuple(
    ({"tokens": list, length: object}, _sample)
    for length in ("response_lengths", "response_length")
)


def run_of(rows: Sequence[Row], given: Given, dumped: Dumped | None = None) -> Run | None:
    """Build the run from rows, averaging the metrics of a rollout's updates."""
    settings = rows[-1].settings if rows else {}
    rollouts, updates = _rollouts_of(rows)
    names = renamed(dict.fromkeys(key for row in rollouts for key in row.values), NAMES)
    metrics, entropy_is = metrics_of(given, names, rollouts), ENTROPY_IS
    if updates > 1:
        given.notes.append(
            f"An iteration is a rollout of up to {updates} updates: their figures are averaged."
        )
    for row in metrics:
        if "rollout/log_probs" in row:
            row["entropy/nll"] = -row["rollout/log_probs"]
    prompts = step_of(settings.get("rollout_batch_size"))
    counted = any(name.startswith(IDLE) for row in metrics for name in row)
    for row in metrics:
        if counted and any(name.startswith("rollout/") for name in row):
            counts = [value for name, value in row.items() if name.startswith(IDLE)]
            row["rollout/zero_advantage_groups"] = math.fsum(counts)
            if prompts:
                row["rollout/groups"] = prompts
    if not metrics and dumped:
        metrics, entropy_is = dumped.metrics(), SAMPLES
    if not any("entropy/exact" in row for row in metrics):
        entropy_is = NO_ENTROPY
    return finish(given, "slime", entropy_is, metrics, dumped, settings=settings)


def _rollouts_of(rows: Sequence[Row]) -> tuple[list[Row], int]:
    """One row per rollout, and the largest number of updates; a later attempt wins."""
    tries: dict[int, list[Row]] = {}
    last, updates = -1, 1
    for row in rows:
        if row.fresh or row.step < last:
            tries = {step: some for step, some in tries.items() if step < row.step}
        last = row.step
        tries.setdefault(row.step, []).append(row)
    for some in tries.values():
        logged = Counter(name for row in some for name in row.values)
        updates = max([updates, *logged.values()])
    return [averaged(some, step) for step, some in tries.items()], updates
