"""prime-rl: the trainer's token export, and the annotations that replaced it.

One JSON object per sequence in three layouts, all from PrimeIntellect-ai/prime-rl:

- token export, first form (pull requests 2592 and 2596, `trainer/rl/token_export.py`):
  `token_exports/step_N/rank_R.jsonl` with aligned lists `token_ids`, `loss_mask`, `entropy`, ...
- token export, later form (pull request 2641 and after): the same lists with null where unknown,
  `export_step`, `run_id`, and `losses`, one object per token.
- annotations (`trainer/rl/trace_annotations.py`, later `annotations.py`): {"trace_id", "info",
  "branches": [{"index", "trainer_logprobs", "entropies"}]} in
  `traces/step_N/train/annotations/trainer.jsonl`: no token ids, no rewards.

Entropies are exact, from logits divided by each token's temperature. They are shifted: position t
has the entropy of the distribution that token t was drawn from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..run import Run
from .rows import Row
from .source import Given, UnreadableError, finite, step_of
from .steps import Dumped, Rollout, all_recorded, column, finish, token_ids, trained

ENTROPY_IS = (
    "the full next-token entropy of logits divided by the token's sampling temperature "
    "(which the export does not name), in nats, under the policy that was trained on the token; "
    "here its mean over the tokens of the loss mask"
)
ALL_TOKENS = (
    "exact per token, of logits divided by the sampling temperature, in nats; but these "
    "annotations do not say which tokens were trained, so the mean includes the prompts'"
)
EXPORT = {
    "logp": "trainer_logprobs", "sampler_logp": "inference_logprobs", "entropy": "entropy",
    "advantage": "advantages", "rewards": "rewards",
}  # fmt: skip
EXTRA = ("mismatch_kl", "importance_ratio", "is_masked", "is_masked_high", "is_masked_low")
FOLDER = re.compile(r"step_(\d{1,15})")
NOTES = "annotations"  # annotations form a run of their own


def _sequence(path: Path, line: int, record: Mapping[str, Any]) -> Rollout:
    steps = (step_of(record.get(key)) for key in ("export_step", "step"))
    step = next((step for step in steps if step is not None), None)
    ids, mask = token_ids(record["token_ids"]), record.get("loss_mask")
    if step is None:
        raise UnreadableError("neither export_step nor step is a whole number from 0")
    if not isinstance(mask, list) or len(mask) != len(ids) or True not in mask:
        raise UnreadableError(
            "loss_mask is not one true or false per token, or nothing was trained"
        )
    found = trained(record, ids, mask, EXPORT | {key: key for key in EXTRA})
    run = record.get("run_id")
    return Rollout(
        path, step, next(iter(finite(found.pop("rewards"))), math.nan),
        group=tuple(ids[: mask.index(True)]),
        extra={key: found.pop(key) for key in EXTRA},
        run=run if isinstance(run, str) else "", **found,
    )  # fmt: skip


def _branches(path: Path, line: int, record: Mapping[str, Any]) -> list[Rollout]:
    """Return an annotation's branches; the record or a parent folder gives the step."""
    try:
        step = step_of(record["info"]["train"]["trained_at_step"])
    except (LookupError, TypeError):
        step = None
    folders = [int(m[1]) for part in path.parts if (m := FOLDER.fullmatch(part))]
    step = folders[-1] if step is None and folders else step
    if step is None:
        raise UnreadableError("no trained_at_step, and no folder step_N around the file")
    found = []
    for branch in record["branches"]:
        if not isinstance(branch, dict) or not isinstance(branch.get("entropies"), list):
            continue
        length = len(branch["entropies"])
        entropy = column(branch, "entropies", length)
        # the first position is null in both forms, as its value crosses the packing boundary; if
        # the second is not null, nulls do not mark the untrained tokens
        unmasked = length >= 2 and entropy[1] is not None
        extra = {
            "entropy/logged" if unmasked else "entropy/exact": entropy,
            "entropy/nll": [-v for v in finite(column(branch, "trainer_logprobs", length))],
            "rollout/length_mean": [float(len(finite(entropy)))],
        }
        found.append(Rollout(path, step, extra=extra, run=NOTES))
    return found


RECORDS = (
    ({"token_ids": list, "trainer_logprobs": object}, _sequence),
    ({"branches": list, "trace_id": object}, _branches),
)
scan = partial(all_recorded, RECORDS)


def run_of(rows: Sequence[Row], given: Given, dumped: Dumped | None = None) -> Run | None:
    """Build the run of a token export or of annotations; all its data comes from the dump."""
    metrics, entropy_is = dumped.metrics() if dumped else [], ENTROPY_IS
    if dumped and dumped.where:
        note = "The token export has ids, not texts; rollouts are grouped by equal prompts."
    else:
        note = "Annotations have no token ids and no rewards: there are no rollouts."
        if any("entropy/logged" in row for row in metrics):
            entropy_is = ALL_TOKENS
    given.notes.append(note)
    return finish(given, "prime-rl", entropy_is, metrics, dumped)
