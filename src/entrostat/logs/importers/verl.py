"""veRL: metrics from the console or the file logger, rollouts from `trainer.rollout_data_dir`.

Source: veRL 0.9.1. The console logger prints `step:12 - actor/entropy:0.43 - ...`
(`utils/logger/aggregate_logger.py`), the file logger writes {"step": 12, "data": {...}}
(`utils/tracking.py`), rollouts are N.jsonl of input, output, gts, score, step and what the reward
function returned (`RayPPOTrainer._write_generations`), as text only. docs/analyze.md defines
`actor/entropy`: `agg_loss` aggregates it by `loss_agg_mode`, like the loss.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..run import Run
from .names import fold, folded, renamed
from .rows import Row
from .source import Given, UnreadableError, clean, finite, lines, number, short, step_of
from .steps import Dumped, Rollout, finish, metrics_of, recorded

BEFORE = "actor/entropy_loss"  # its name in veRL up to 0.4
STEP = re.compile(r"(?:^|[\s)\]|])step:(\d{1,18}) - (?=[^\s:]+:)")
REPEATED = re.compile(r" \[repeated \d+x across cluster\].*$")
# settings that change the meaning of metrics, as printed at the start, as overrides or in W&B's
# JSON; of a name that occurs twice the first is the actor's
SETTING = re.compile(
    r"""(?<![\w-])(entropy_coeff|loss_agg_mode|ppo_mini_batch_size|train_batch_size|ppo_epochs
    |rollout_is|rollout_rs|bypass_mode|max_response_length|calculate_entropy|strategy|use_kl_loss
    |use_kl_in_reward|adv_estimator|clip_ratio_high|clip_ratio_low)
    \\?['"]?\s*[:=]\s*\\?['"]?([\w.+-]+)""",
    re.VERBOSE,
)
HEADER = "actor_rollout_ref"
WITHIN = 5000  # lines after its name, or after the start, that are searched for a configuration
LIMIT = math.log(2**24)  # nats: above the maximum entropy of any vocabulary

MODES = {
    "token-mean": "the mean over response tokens",
    "token-sum": "the sum over the batch's response tokens",
    "seq-mean-token-mean": "the mean over responses of the mean over a response's tokens",
    "seq-mean-token-sum": "the mean over responses of the sum over a response's tokens",
    "seq-mean-token-sum-norm": "the mean over responses of such a sum over a constant",
}
ENTROPY_IS = (
    "the full next-token entropy of logits divided by the rollout temperature (which the log does "
    "not name), in nats, {when}, aggregated as the loss is: {how}{old}"
)
OLD = (
    "; by its name veRL up to 0.4 wrote it, whose mean is wrong under use_dynamic_bsz: responses "
    "and masks are in another order"
)
UNSAID = (
    "the log does not say which loss_agg_mode; the default, token-mean, is the mean over "
    "response tokens"
)
TOO_LARGE = (
    "the log does not say which loss_agg_mode, but the values are too large for a token: they are "
    "sums over tokens"
)
OURS = (
    "exact: the mean over response tokens of the full next-token entropy, of logits divided by the "
    "rollout temperature, in nats, under the policy that sampled (entrostat's host for veRL)"
)


def is_line(text: str) -> bool:
    return "step:" in text and STEP.search(text) is not None


def settings_of(text: str) -> dict[str, str]:
    """Collect the settings in a text, each by its first occurrence."""
    return dict(reversed(SETTING.findall(text)))


def scan(path: Path, given: Given) -> Iterator[Row | Rollout]:
    settings: dict[str, str] = {}
    left, used = WITHIN, False
    for count, text, whole in lines(path, given):
        if text.lstrip()[:2] == '{"':
            yield from recorded(RECORDS, given, path, count, text)
        elif "step:" in text and (begin := STEP.search(text)):
            figures = _figures(path, count, text[begin.end() :], whole, given)
            yield Row(path, count, begin[1], figures, settings)
            used = True
        else:
            if HEADER in text:
                left = WITHIN
                if used:  # the next run's settings
                    settings, used = {}, False
            if left > 0:
                left -= 1
                for name, value in settings_of(text).items():
                    settings.setdefault(name, value)


def _metrics(path: Path, line: int, record: Mapping[str, Any]) -> Row:
    return Row(path, line, record["step"], record["data"])


def _rollout(path: Path, line: int, record: Mapping[str, Any]) -> Rollout:
    step, score = step_of(record["step"]), number(record["score"])
    if step is None:
        raise UnreadableError(f"step {short(record['step'])} is no step")
    prompt, reward = clean(record["input"]), math.nan if score is None else score
    return Rollout(path, step, reward, prompt, prompt, clean(record["output"]))


RECORDS = (
    ({"step": object, "data": dict}, _metrics),
    ({"input": str, "output": str, "score": object, "step": object}, _rollout),
)


def _figures(path: Path, line: int, text: str, whole: bool, given: Given) -> dict[str, Any]:
    """Parse `name:value - name:value`; without a line end, the last pair is dropped."""
    parts = REPEATED.sub("", text).removesuffix(" -").split(" - ")
    if not whole:
        cut = parts.pop()
        given.problem(path, line, f"the line has no end; its last figure {short(cut)} is left out")
    figures: dict[str, Any] = {}
    for part in parts:
        name, colon, value = part.rpartition(":")
        value = value.strip()
        if colon and name.strip() and (number(value) is not None or value in ("True", "False")):
            figures[name.strip()] = value
        elif part.strip():
            given.problem(path, line, f"{short(part.strip())} is not name:number")
    return figures


def run_of(rows: Sequence[Row], given: Given, dumped: Dumped | None = None) -> Run | None:
    """Build the run from rows with veRL's names; metrics of our veRL trainer take precedence."""
    settings = {k: v for row in reversed(rows) for k, v in row.settings.items()}
    keys = folded(dict.fromkeys(key for row in rows for key in row.values))
    now, before = keys.get("actor_entropy"), keys.get(fold(BEFORE))
    if before and not now:
        settings[BEFORE] = "logged"
    entropy_is, per_token = OURS, True
    if "entropy_exact" not in keys:
        values = finite(number(row.values.get(now or before or "")) for row in rows)
        entropy_is, per_token = _entropy(values, now is not None, settings.get("loss_agg_mode"))
    ours = "entropy/exact" if per_token else "entropy/logged"
    names = renamed(keys.values(), {ours: ("actor_entropy", fold(BEFORE))})
    metrics = metrics_of(given, names, rows)
    if not metrics and dumped:
        metrics = dumped.metrics()
        given.notes.append("There are rollouts, but no metrics; rewards are their means.")
    if dumped and dumped.where:
        given.notes.append("Rollouts are texts: veRL's dump has no tokens.")
    return finish(given, "veRL", entropy_is, metrics, dumped, settings=settings)


def _entropy(values: list[float], now: bool, mode: str | None) -> tuple[str, bool]:
    if mode is None:
        per_token = max(values, default=0.0) <= LIMIT
        how = UNSAID if per_token else TOO_LARGE
    else:
        per_token = mode in MODES and mode.endswith("token-mean")
        how = f"{MODES.get(mode, 'by a mode that is not known here')} (loss_agg_mode {mode})"
        how += "" if per_token else ", not an entropy per token"
    before = "under the policy before the iteration's updates"
    # older versions logged it during the updates, later ones before them
    when = before if now else f"{before} or during them"
    return ENTROPY_IS.format(when=when, how=how, old="" if now else OLD), per_token
