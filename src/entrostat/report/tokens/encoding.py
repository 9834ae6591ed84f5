"""Rollouts as JSON within a budget of bytes, texts cut to what a page can hold.

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
FULL = 0.98  # quantile of a measure's non-zero magnitudes that is shaded fully
MEASURES = ("entropy", "change", "influence", "advantage")  # what a token can be shaded by
VALUES = ("logp", "sampler_logp", *MEASURES)
# what could end a script element or a line of it, lead a reader's eye astray, or not be written
_UNSAFE = re.compile(
    "[<>&\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)

EACH = 4  # right ones, and as many wrong ones
TOKENS = 600  # of the static sample's completions
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
    """An iteration with every rollout, or with as few groups that it takes `limit` bytes."""
    lengths = r.start.diff().clamp(max=LONGEST)
    known = sum(bool(v.isfinite().any()) for n in VALUES if (v := getattr(r, n)) is not None)
    # four characters per number: no smaller step can do, and encoding a large dump takes its time
    step = min(len(r), max(1, 4 * (1 + known) * int(lengths.sum()) // limit))
    while True:
        part = encode(r, iteration, step)
        size = len(part.data.encode("utf-8"))
        if size <= limit or step >= len(r):
            return part
        step = min(len(r), max(step + 1, math.ceil(step * size / limit)))


def every(r: Rollouts, step: int) -> list[int]:
    """About one of `step` rollouts: whole groups, which are compared; of few groups the first."""
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
        # how many of its tokens an environment said
        "observed": [0 if r.sampled is None else int((~r.sampled[s]).sum()) for s in spans],
        "group": [int(r.group[i]) + 1 for i in rows],
        "entropy": [_of_finite(values["entropy"][s], np.mean) for s in spans],
        "advantage": [_of_finite(values["advantage"][s], np.mean) for s in spans],
        "influence": [_of_finite(np.abs(influence[s]), np.sum) for s in spans],
        "tokens": pack(index),
        # an environment's tokens; none where the policy sampled all
        "sampled": None if r.sampled is None else pack(r.sampled.numpy()[places]),
        # what a dump does not say is left out, not carried as a row of NaN
        "values": {name: pack(v) for name, v in shown.items() if np.isfinite(v).any()},
    }  # fmt: skip
    sizes = {name: np.abs(shown.get(name, np.zeros(0))) for name in MEASURES}
    magnitudes = {name: v[np.isfinite(v) & (v > 0)] for name, v in sizes.items()}
    cut = sum(length > LONGEST for length in lengths)
    return Part(script_json(data), len(rows), len(r), cut, magnitudes)


def pack(values: np.ndarray) -> str:
    """Numbers as base64 of three bytes each, little end first: four characters per number.

    Integers are taken as they are (0 to 2^24 - 1); of a float32 the lowest byte is rounded away,
    which leaves a relative error of 2^-16 at most.
    """
    import numpy as np

    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.float32("nan"), values.astype(np.float32))
        # in 64 bits, for the bits of a negative number reach the top of 32
        words = (values.view(np.uint32).astype(np.uint64) + 0x80) >> 8
    else:
        words = values.astype(np.uint64)
    data = words.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    return base64.b64encode(data).decode("ascii")


def script_json(value: Any) -> str:
    """JSON that is safe inside a script element, whatever the texts in it hold."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _scales(parts: list[Part]) -> dict[str, float]:
    """The magnitude at which each measure is shaded fully, one for all iterations."""
    import numpy as np

    scales = {}
    for name in MEASURES:
        values = np.concatenate([np.zeros(0), *(part.magnitudes[name] for part in parts)])
        if len(values):
            scales[name] = float(f"{np.quantile(values, FULL, method='higher'):.6g}")
    return scales


def digits(value: float) -> float | None:
    """Six significant digits; None for what is not finite, which JSON cannot say."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _of_finite(values: np.ndarray, measure: Callable[..., Any]) -> float | None:
    """The mean, say, of the finite ones; None where there are none."""
    import numpy as np

    finite = values[np.isfinite(values)]
    return digits(float(measure(finite, dtype=np.float64))) if len(finite) else None


def shortened(text: str) -> str:
    """The first characters of a long text, with a word on how many follow."""
    if len(text) <= CHARACTERS:
        return text
    return f"{text[:CHARACTERS]} [... {len(text) - CHARACTERS} more characters]"


def spelled(r: Rollouts, i: int) -> bool:
    """Whether the tokens' texts make up the completion."""
    ids = r.tokens[r.rows(i)].tolist()
    body = ids[:-1] if r.finished[i] else ids
    texts = [r.pieces.get(token, "") for token in body]
    return "".join(texts) == r.completions[i] and max(map(len, texts), default=0) <= PIECE


def samples_of(r: Rollouts, iteration: int) -> dict[str, Any]:
    """The sample of an iteration; `top` is its highest token entropy (nats), shaded fully."""
    finite = r.entropy[r.entropy.isfinite()]
    top = float(finite.max()) if len(finite) else 0.0
    rollouts = [_sample(r, i, top) for i in choose(r)]
    return {"iteration": iteration, "count": len(r), "top": top, "rollouts": rollouts}


def choose(rollouts: Rollouts) -> list[int]:
    """Up to four right rollouts (reward of 1 or more), then up to four others.

    They are not picked by hand: the first of its kind in each group, groups that have both kinds
    first; where too few groups have it, further ones of the same groups.
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
    """One rollout, of each token its shade (0 to 1) and its figures in words.

    `plain` is the completion as one text, empty where the tokens' texts already make it up (they do
    not where a character takes several tokens).
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
            # a sign before a line break: a shaded token has to be seen
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
