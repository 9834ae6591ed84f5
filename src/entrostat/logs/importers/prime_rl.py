"""prime-rl: the trainer's token export, and the annotations that took its place.

Three layouts of one JSON object per sequence, all from PrimeIntellect-ai/prime-rl:

- token export, first form (pull requests 2592 and 2596, `trainer/rl/token_export.py`,
  schema_version 1): `token_exports/step_N/rank_R.jsonl` with `training_mode` and aligned lists
  `token_ids`, `loss_mask`, `advantages`, `rewards`, `inference_logprobs`, `trainer_logprobs`,
  `entropy`, `mismatch_kl`, `is_masked`, ...
- token export, later form (pull request 2641 and after, schema_version 1 too): the same lists with
  null where unknown, `export_step`, `run_id`, and `losses`, one object per token.
- annotations (`trainer/rl/trace_annotations.py`, later `annotations.py`, version 1):
  {"trace_id", "info": {"train": {"trained_at_step"}}, "branches": [{"index", "trainer_logprobs",
  "entropies"}]} in `traces/step_N/train/annotations/trainer.jsonl`: no token ids, no rewards.

Entropies are exact, of logits divided by each token's temperature, shifted so that position t has
those of the distribution that token t was drawn from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..run import Run
from .source import Given, clean, finite, json_lines, short, step_of
from .steps import Dumped, Means, Rollout, column, finish, token_ids

ENTROPY_IS = (
    "exact: the full next-token entropy of logits divided by the token's sampling temperature "
    "(which the export does not name), in nats, under the policy that was trained on the token; "
    "here its mean over the tokens of the loss mask"
)
ALL_TOKENS = (
    "exact per token, of logits divided by the sampling temperature, in nats; but these "
    "annotations do not say which tokens were trained, so the mean includes the prompts'"
)
EXTRA = ("mismatch_kl", "importance_ratio", "is_masked", "is_masked_high", "is_masked_low")
FOLDER = re.compile(r"step_(\d{1,15})")


def is_record(record: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a sequence of the token export, or an annotation."""
    return _is_export(record) or _is_annotation(record)


def _is_export(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("token_ids"), list) and "trainer_logprobs" in record


def _is_annotation(record: Mapping[str, Any]) -> bool:
    return isinstance(record.get("branches"), list) and "trace_id" in record


def runs_of(files: Sequence[Path], given: Given) -> list[Run]:
    """The runs of all `files`, by their `run_id`: one rank and step each, or all in one."""
    notes, exports = Dumped(), dict[str, Dumped]()
    masked = True
    for path in files:
        for count, record in _records(path, given):
            if _is_annotation(record):
                masked &= _annotation(path, count, record, notes.means, given)
                continue
            if (found := _sequence(record)) is None:
                given.problem(path, count, _fault(record))
                continue
            step, rollout, extra = found
            dumped = exports.setdefault(_run_id(record), Dumped())
            dumped.add(path, step, rollout)
            for name, values in extra.items():
                dumped.means.add(step, name, values)
    runs = []
    for name, dumped in exports.items():
        own = replace(given, notes=[*given.notes])
        own.notes.append(
            "The token export has ids, not texts; rollouts are grouped by equal prompts."
        )
        dumps = dumped.of(own, partial(_rollouts, run=name))
        run = finish(own, "prime-rl", ENTROPY_IS, dumped.metrics(), dumps)
        if run is not None:
            runs.append(replace(run, label=clean(name) if len(exports) > 1 else None))
    if exports:
        return runs
    metrics = notes.metrics()
    if not masked:
        name = {"entropy/exact": "entropy/logged"}
        metrics = [{name.get(k, k): v for k, v in row.items()} for row in metrics]
    given.notes.append("Annotations have no token ids and no rewards: there are no rollouts.")
    run = finish(given, "prime-rl", ENTROPY_IS if masked else ALL_TOKENS, metrics)
    return [] if run is None else [run]


def _run_id(record: Mapping[str, Any]) -> str:
    run = record.get("run_id")
    return run if isinstance(run, str) else ""


def _records(path: Path, given: Given) -> Iterator[tuple[int, dict[str, Any]]]:
    for count, record in json_lines(path, given):
        if isinstance(record, dict) and is_record(record):
            yield count, record
        else:
            given.problem(path, count, "neither a token export nor an annotation of prime-rl")


def _fault(record: Mapping[str, Any]) -> str:
    step = record.get("export_step", record.get("step"))
    if step_of(step) is None:
        return f"step {short(step)} is not a whole number from 0"
    if token_ids(record.get("token_ids")) is None:
        return "token_ids are not all ids"
    return "loss_mask is not one true or false per token, or nothing was trained"


def _sequence(
    record: Mapping[str, Any],
) -> tuple[int, Rollout, dict[str, list[float | None]]] | None:
    """Step, trained tokens of a sequence, further values per token; None if it cannot be read."""
    step = step_of(record.get("export_step"))
    step = step_of(record.get("step")) if step is None else step
    ids, mask = token_ids(record.get("token_ids")), record.get("loss_mask")
    if step is None or ids is None or not isinstance(mask, list) or len(mask) != len(ids):
        return None
    trained = [i for i, keep in enumerate(mask) if keep is True]
    if not trained:
        return None

    def kept(key: str) -> list[float | None]:
        values = column(record, key, len(ids))
        return [values[i] for i in trained]

    def flags(key: str) -> list[float | None]:
        values = record.get(key)
        if not isinstance(values, list) or len(values) != len(ids):
            return []
        return [float(values[i]) for i in trained if isinstance(values[i], bool)]

    reward = next(iter(finite(kept("rewards"))), math.nan)
    rollout = Rollout(
        reward,
        group=tuple(ids[: trained[0]]),
        tokens=[ids[i] for i in trained],
        logp=kept("trainer_logprobs"),
        sampler_logp=kept("inference_logprobs"),
        entropy=kept("entropy"),
        advantage=kept("advantages"),
    )
    extra = {key: flags(key) if key.startswith("is_") else kept(key) for key in EXTRA}
    return step, rollout, extra


def _rollouts(path: Path, given: Given, run: str) -> Iterator[tuple[int, Rollout]]:
    for _, record in _records(path, given):
        if _is_export(record) and _run_id(record) == run and (found := _sequence(record)):
            yield found[0], found[1]


def _annotation(
    path: Path, line: int, record: Mapping[str, Any], means: Means, given: Given
) -> bool:
    """Add an annotation; whether nulls tell which tokens were trained."""
    info = record.get("info")
    train = info.get("train") if isinstance(info, dict) else None
    step = step_of(train.get("trained_at_step")) if isinstance(train, dict) else None
    if step is None:
        folders = [m for part in path.parts if (m := FOLDER.fullmatch(part))]
        step = int(folders[-1][1]) if folders else None
    if step is None:
        given.problem(path, line, "no trained_at_step, and no folder step_N around the file")
        return True
    masked = True
    for branch in record["branches"]:
        if not isinstance(branch, dict) or not isinstance(branch.get("entropies"), list):
            continue
        length = len(branch["entropies"])
        entropy = column(branch, "entropies", length)
        # the first position is null in both forms: its value crosses the packing boundary
        masked &= length < 2 or entropy[1] is None
        means.add(step, "entropy/exact", entropy)
        logp = column(branch, "trainer_logprobs", length)
        means.add(step, "entropy/nll", [-v for v in finite(logp)])
        means.add(step, "rollout/length_mean", [float(len(finite(entropy)))])
    return masked
