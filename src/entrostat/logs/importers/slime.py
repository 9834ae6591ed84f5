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
from functools import partial
from pathlib import Path
from typing import Any

from ..run import Run
from .source import ANSI, Given, UnreadableError, finite, lines, number, parse, step_of
from .steps import Log, Means, Rollout, column, finish, read_dump, token_ids

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
LINE_OF = re.compile(r"(?<![\w-])(step|rollout|perf|eval) (\d{1,18}): \{(?='[\w/])")
PAIR = re.compile(r"'([^']{1,200})': ((?:[\w.]{1,32}\([-+\w.]{1,40}\))|[-+\w.]{1,40})(?=[,}])")
SIZE = re.compile(r"(?<!\w)rollout_batch_size \.{2,200} (\d{1,9})\s*$")
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


def read(files: Sequence[Path], given: Given) -> Run | None:
    """The run of all `files`, in their order."""
    console, means, prompts = _Console(), Means(), None
    where: dict[int, list[Path]] = {}
    for path in files:
        for count, text, whole in lines(path, given):
            if text.lstrip()[:2] == '{"':
                if (found := _sample(path, count, text, given)) is not None:
                    means.rollout(*found)
                    if path not in where.setdefault(found[0], []):
                        where[found[0]].append(path)
            elif ": {'" in text and (begin := LINE_OF.search(text := ANSI.sub("", text))):
                if not whole or "}" not in text[begin.end() :]:
                    given.problem(path, count, "the line is cut; what is whole in it is read")
                console.add(path, count, begin[1], int(begin[2]), text[begin.end() :])
            elif "rollout_batch_size ." in text and (size := SIZE.search(text)):
                prompts = int(size[1])
    log = Log(given, NAMES)
    for step, (path, count, figures) in console.rows().items():
        log.add(path, count, step, figures)
    metrics = log.metrics()
    entropy_is = ENTROPY_IS
    if console.updates > 1:
        given.notes.append(
            f"An iteration is a rollout of up to {console.updates} updates: their figures are "
            "averaged."
        )
    for row in metrics:
        if "rollout/log_probs" in row:
            row["entropy/nll"] = -row["rollout/log_probs"]
    _count_groups(metrics, prompts)
    if not metrics:
        rows = means.rows()
        metrics = [{"iteration": step, **rows[step]} for step in sorted(rows)]
        entropy_is = SAMPLES
    if not any("entropy/exact" in row for row in metrics):
        entropy_is = NONE
    dumps = {
        step: partial(read_dump, given.root, where[step], step, _rollouts) for step in sorted(where)
    }
    return finish(given, "slime", entropy_is, metrics, dumps)


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


class _Console:
    """Lines of a console: a rollout, then its updates; a rollout that comes again starts anew."""

    def __init__(self) -> None:
        self.parts: dict[int, list[tuple[str, Path, int, dict[str, float]]]] = {}
        self.rollout: int | None = None
        self.updates = 1

    def add(self, path: Path, line: int, kind: str, at: int, text: str) -> None:
        pairs = ((name, number(value)) for name, value in PAIR.findall(text))
        figures = {name: value for name, value in pairs if value is not None}
        if kind == "rollout":
            before = self.parts.get(at, [])
            if any(each[0] in ("step", "rollout") for each in before):
                self.parts[at] = []
            self.rollout = at
        elif kind == "step" and self.rollout is not None:
            at = self.rollout
        elif kind == "step":
            self.parts.pop(at, None)
        self.parts.setdefault(at, []).append((kind, path, line, figures))

    def rows(self) -> dict[int, tuple[Path, int, dict[str, float]]]:
        """Step -> where, and its figures: the mean over the updates."""
        found = {}
        for step, parts in self.parts.items():
            row: dict[str, list[float]] = {}
            for kind, _, _, figures in parts:
                for name, value in figures.items():
                    if kind == "step" or name not in row:
                        row.setdefault(name, []).append(value)
            self.updates = max(self.updates, sum(kind == "step" for kind, *_ in parts))
            means = {
                name: math.fsum(known) / len(known) if (known := finite(values)) else math.nan
                for name, values in row.items()
            }
            found[step] = (parts[-1][1], parts[-1][2], means)
        return found


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


def _rollouts(path: Path, given: Given) -> Iterator[tuple[int, Rollout]]:
    for count, text, _ in lines(path, given):
        if text.lstrip()[:2] == '{"' and (found := _sample(path, count, text, given)):
            yield found
