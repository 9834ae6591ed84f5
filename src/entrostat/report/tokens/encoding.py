"""Encode rollouts as JSON within a byte limit, with texts shortened for the page.

`js/tokens_data.js` reads it.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ...logs.rollouts import Rollouts

CHARACTERS = 4000  # of one prompt, or of a completion as plain text
PIECE = 200  # characters of one token
LONGEST = 2000  # tokens of one completion
FULL = 0.98  # quantile of a measure's non-zero magnitudes that gets full shading
MEASURES = ("entropy", "change", "influence", "advantage")  # measures for the shading of tokens
VALUES = ("logp", "sampler_logp", *MEASURES)
# characters that may end a script element or its line, mislead a reader, or be invalid
_UNSAFE = re.compile(
    "[<>&\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)

EACH = 4  # number of correct rollouts, and of wrong ones
TOKENS = 600  # maximum tokens of a completion in the static sample
OBSERVED = "said by the environment: read by the policy, not trained on"


@dataclass(frozen=True)
class Part:
    """An iteration as JSON, with each measure's finite non-zero magnitudes for the scales."""

    data: str
    kept: int
    count: int
    cut: int
    magnitudes: dict[str, np.ndarray]


def page_json(parts: list[Part]) -> str:
    return (
        f'{{"scales":{json.dumps(_scales(parts))},"longest":{LONGEST},'
        f'"iterations":[{",".join(part.data for part in parts)}]}}'
    )


def encode_within(r: Rollouts, iteration: int, limit: int) -> Part:
    """Encode an iteration with every rollout, or with few enough groups to fit `limit` bytes."""
    lengths = r.start.diff().clamp(max=LONGEST)
    known = sum(bool(v.isfinite().any()) for n in VALUES if (v := getattr(r, n)) is not None)
    # four characters per number: smaller steps cannot fit, and encoding a large dump is slow
    step = min(len(r), max(1, 4 * (1 + known) * int(lengths.sum()) // limit))
    while True:
        part = encode(r, iteration, step)
        size = len(part.data.encode("utf-8"))
        if size <= limit or step >= len(r):
            return part
        step = min(len(r), max(step + 1, math.ceil(step * size / limit)))


def every(r: Rollouts, step: int) -> list[int]:
    """About one of `step` rollouts: whole groups, which are compared; the first if few groups."""
    of_rollout = r.group.tolist()
    groups = list(dict.fromkeys(of_rollout))
    kept = set(groups[::step])
    rows = [i for i, group in enumerate(of_rollout) if group in kept]
    return rows[:: math.ceil(step / len(groups))]


def encode(r: Rollouts, iteration: int, step: int) -> Part:
    import numpy as np

    rows = every(r, step)
    spans = [r.rows(i) for i in rows]
    places = np.concatenate(
        [np.arange(s.start, min(s.stop, s.start + LONGEST), dtype=np.int64) for s in spans]
    )
    ids, index = np.unique(r.tokens.numpy()[places], return_inverse=True)
    prompts = {r.prompts[i]: None for i in rows}
    number = {text: k for k, text in enumerate(prompts)}
    values = {
        name: v.detach().float().numpy() for name in VALUES if (v := getattr(r, name)) is not None
    }
    shown = {name: v[places] for name, v in values.items()}
    influence = values.get("influence", np.full(len(r.tokens), np.nan))
    lengths = [s.stop - s.start for s in spans]
    data = {
        "iteration": iteration,
        "count": len(r),
        "place": rows,
        "prompts": [shortened(text) for text in prompts],
        "pieces": [r.pieces.get(int(i), "")[:PIECE] for i in ids],
        "ids": pack(ids),
        "prompt": [number[r.prompts[i]] for i in rows],
        "completion": [None if spelled(r, i) else shortened(r.completions[i]) for i in rows],
        "reward": [digits(float(r.rewards[i])) for i in rows],
        "finished": [int(r.finished[i]) for i in rows],
        "trained": [int(r.trained[i]) for i in rows],
        "length": lengths,
        # number of observation tokens
        "observed": [0 if r.sampled is None else int((~r.sampled[s]).sum()) for s in spans],
        "group": [int(r.group[i]) + 1 for i in rows],
        "entropy": [_of_finite(values["entropy"][s], np.mean) for s in spans],
        "advantage": [_of_finite(values["advantage"][s], np.mean) for s in spans],
        "influence": [_of_finite(np.abs(influence[s]), np.sum) for s in spans],
        "tokens": pack(index),
        # 1 for sampled tokens, 0 for observation tokens; None if all were sampled
        "sampled": None if r.sampled is None else pack(r.sampled.numpy()[places]),
        # a field that the dump lacks is omitted, not stored as NaN
        "values": {name: pack(v) for name, v in shown.items() if np.isfinite(v).any()},
    }  # fmt: skip
    sizes = {name: np.abs(shown.get(name, np.zeros(0))) for name in MEASURES}
    magnitudes = {name: v[np.isfinite(v) & (v > 0)] for name, v in sizes.items()}
    cut = sum(length > LONGEST for length in lengths)
    return Part(script_json(data), len(rows), len(r), cut, magnitudes)


def pack(values: np.ndarray) -> str:
    """Encode numbers as base64 of three little-endian bytes each: four characters per number.

    Integers are stored exactly (0 to 2^24 - 1). A float32 is rounded to its upper three bytes, with
    a relative error of at most 2^-16.
    """
    import numpy as np

    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.float32("nan"), values.astype(np.float32))
        # in 64 bits, since rounding the bits of a negative number may overflow 32
        words = (values.view(np.uint32).astype(np.uint64) + 0x80) >> 8
    else:
        words = values.astype(np.uint64)
    data = words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return base64.b64encode(data).decode("ascii")


def script_json(value: Any) -> str:
    """Encode JSON that is safe inside a script element, for any text in it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _scales(parts: list[Part]) -> dict[str, float]:
    """The magnitude at which each measure has full shading, the same for all iterations."""
    import numpy as np

    scales = {}
    for name in MEASURES:
        values = np.concatenate([np.zeros(0), *(part.magnitudes[name] for part in parts)])
        if len(values):
            scales[name] = float(f"{np.quantile(values, FULL, method='higher'):.6g}")
    return scales


def digits(value: float) -> float | None:
    """Round to six significant digits; None for non-finite values, which JSON cannot express."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _of_finite(values: np.ndarray, measure: Callable[..., Any]) -> float | None:
    """Apply `measure`, such as the mean, to the finite values; None if there are none."""
    import numpy as np

    finite = values[np.isfinite(values)]
    return digits(float(measure(finite, dtype=np.float64))) if len(finite) else None


def shortened(text: str) -> str:
    """Cut a long text and append the number of characters left out."""
    if len(text) <= CHARACTERS:
        return text
    return f"{text[:CHARACTERS]} [... {len(text) - CHARACTERS} more characters]"


def spelled(r: Rollouts, i: int) -> bool:
    """Whether the tokens' texts, none of them cut, add up to the completion."""
    ids = r.tokens[r.rows(i)].tolist()
    body = ids[:-1] if r.finished[i] else ids
    texts = [r.pieces.get(token, "") for token in body]
    return "".join(texts) == r.completions[i] and max(map(len, texts), default=0) <= PIECE


def samples_of(r: Rollouts, iteration: int) -> dict[str, Any]:
    """The sample of an iteration; `top` is its highest token entropy (nats), fully shaded."""
    finite = r.entropy[r.entropy.isfinite()]
    top = float(finite.max()) if len(finite) else 0.0
    rollouts = [_sample(r, i, top) for i in choose(r)]
    return {"iteration": iteration, "count": len(r), "top": top, "rollouts": rollouts}


def choose(rollouts: Rollouts) -> list[int]:
    """Choose up to four correct rollouts (reward of 1 or more), then up to four others.

    The choice is fixed: the first rollout of its kind in each group, groups with both kinds first;
    if too few groups have the kind, further rollouts of the same groups.
    """
    pairs = list(zip((rollouts.rewards >= 1).tolist(), rollouts.group.tolist(), strict=True))
    there = set(pairs)
    chosen = []
    for kind in (True, False):
        seen: Counter[int] = Counter()
        ranked = []
        for i, (ok, group) in enumerate(pairs):
            if ok is kind:
                seen[group] += 1
                ranked.append((seen[group], (not kind, group) not in there, i))
        chosen += [i for _, _, i in sorted(ranked)[:EACH]]
    return chosen


def _sample(r: Rollouts, i: int, top: float) -> dict[str, Any]:
    """One rollout: for each token its shade (0 to 1) and its values in words.

    `plain` is the completion as one text. It is empty if the tokens' texts, all shown, add up to
    it; a character that spans several tokens prevents that.
    """
    rows = r.rows(i)
    ids = r.tokens[rows].tolist()
    tokens = []
    for place, token in enumerate(ids[:TOKENS]):
        at = rows.start + place
        logp, entropy, advantage = (float(t[at]) for t in (r.logp, r.entropy, r.advantage))
        sampled = r.sampled is None or bool(r.sampled[at])
        figures = (
            f"log-prob {_number(logp)}, entropy {_number(entropy)}, "
            f"advantage {_number(advantage, '+')}"
        )
        shade = entropy / top if top > 0 and math.isfinite(entropy) else 0.0
        tokens.append({
            # a visible sign before a line break, so that its shading shows
            "text": r.pieces.get(token, "")[:PIECE].replace("\n", "↵\n") or f"[{token}]",
            "shade": min(1.0, max(0.0, shade)),
            "figures": figures if sampled else OBSERVED,
            "end": bool(r.finished[i]) and place == len(ids) - 1,
            "observed": not sampled,
        })  # fmt: skip
    return {
        "prompt": shortened(r.prompts[i]), "tokens": tokens,
        "plain": "" if spelled(r, i) and len(ids) <= TOKENS else shortened(r.completions[i]),
        "left_out": max(0, len(ids) - TOKENS), "reward": digits(float(r.rewards[i])),
        "finished": bool(r.finished[i]), "trained": bool(r.trained[i]),
    }  # fmt: skip


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if math.isfinite(value) else "—"
