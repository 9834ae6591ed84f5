"""The token view: which rollouts a page holds, how they are encoded, a sample for no script.

A page holds the rollouts of some iterations as JSON, and `token_view.js` makes the view of it.
Both are bounded by bytes, for a run may hold far more tokens than a page can; `TokenView.shown`
says what was left out. Rollouts come from `Run.dumps`, so another trainer's run works as well.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from ..logs.rollouts import Rollouts
    from ..logs.run import Run

BYTES = 8_000_000  # of JSON, all iterations together
MOST = 16  # iterations of a page
LEAST = 3  # however long the completions are
ENOUGH = 64  # rollouts of an iteration that matter more than a further iteration
LONGEST = 2000  # tokens of one completion
FULL = 0.98  # quantile of a measure's non-zero magnitudes that is shaded fully

EACH = 4  # of the static sample: right ones, and as many wrong ones
TOKENS = 600  # of the static sample's completions
CHARACTERS = 4000  # of one prompt, or of a completion as plain text
PIECE = 200  # characters of one token

MEASURES = ("entropy", "change", "influence", "advantage")  # what a token can be shaded by
_VALUES = ("logp", "sampler_logp", *MEASURES)

# what could end a script element or a line of it, lead a reader's eye astray, or not be written
_UNSAFE = re.compile(
    "[<>&\u007f-\u009f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)


@dataclass(frozen=True)
class Token:
    """One token: its text, how strongly to shade it (0 to 1), its figures in words."""

    text: str
    shade: float
    figures: str
    end: bool


@dataclass(frozen=True)
class Sample:
    """One rollout of the static sample; `reward` is None where the dump does not say.

    `plain` is the completion as one text, empty where the tokens' texts already make it up (they do
    not where a character takes several tokens); `left_out` counts the tokens not shown.
    """

    prompt: str
    plain: str
    tokens: tuple[Token, ...]
    left_out: int
    reward: float | None
    finished: bool
    trained: bool


@dataclass(frozen=True)
class Samples:
    """Some rollouts of an iteration; `top` is its highest token entropy (nats), shaded fully."""

    iteration: int
    count: int
    top: float
    rollouts: tuple[Sample, ...]


@dataclass(frozen=True)
class TokenView:
    """What the page needs.

    Attributes:
        data: JSON that is safe inside a script element; empty where there is nothing to show.
        shown: sentences on what is shown and what was left out.
        samples: what a reader without JavaScript sees; None where there is nothing to show.
        notes: sentences on what is missing or cannot be read.
        script: the text of token_view.js.
        policy: the source expression that lets a Content-Security-Policy run that text alone.
    """

    data: str
    shown: str
    samples: Samples | None
    notes: tuple[str, ...]
    script: str
    policy: str


@dataclass(frozen=True)
class _Part:
    """An iteration as JSON, with each measure's finite non-zero magnitudes for the scales."""

    data: str
    step: int
    kept: int
    count: int
    cut: int
    magnitudes: dict[str, np.ndarray]


def token_view(run: Run) -> TokenView:
    """Choose, read and encode a run's rollouts.

    A dump that cannot be read is left out, with a note.
    """
    if not run.dumps:
        return _view(notes=("No rollouts were dumped.",))
    failed: dict[int, str] = {}
    newest = None
    last = 0
    for last in sorted(run.dumps, reverse=True):
        newest = _read(run, last, failed)
        if newest is not None:
            break
    if newest is None:
        return _view(notes=_failures(failed))
    whole = len(_encode(newest, last, 1).data)
    enough = whole * min(1, ENOUGH / len(newest))
    most = int(min(MOST, max(LEAST, BYTES // enough)))
    analysed = {line["iteration"] for line in run.analysis}
    parts: dict[int, _Part] = {}
    while True:  # again where a chosen dump could not be read
        chosen = choose_iterations(run.dumps.keys() - failed.keys(), analysed, most)
        unread = [i for i in chosen if i not in parts]
        if not unread:
            break
        for i in unread:
            rollouts = newest if i == last else _read(run, i, failed)
            if rollouts is not None:
                parts[i] = _within(rollouts, i, BYTES // min(most, len(run.dumps)))
    kept = [parts[i] for i in chosen]
    return _view(
        data=f'{{"scales":{json.dumps(_scales(kept))},"longest":{LONGEST},'
        f'"iterations":[{",".join(part.data for part in kept)}]}}',
        shown=_shown(chosen, kept, len(run.dumps), len(failed)),
        samples=_samples(newest, last),
        notes=_failures(failed),
    )


def choose_iterations(dumped: Collection[int], analysed: Collection[int], most: int) -> list[int]:
    """At most `most` of the dumped iterations: the first, the last, and evenly between.

    Between, the analysed iteration nearest to each place is taken where one is near enough.
    """
    there = sorted(dumped)
    if len(there) <= most:
        return there
    gap = (there[-1] - there[0]) / (most - 1)
    chosen = {there[0], there[-1]}
    for k in range(1, most - 1):
        place = there[0] + k * gap
        near = [i for i in there if i in analysed and abs(i - place) <= gap / 2]
        chosen.add(min(near or there, key=lambda i: (abs(i - place), i)))
    return sorted(chosen)


def pack(values: np.ndarray) -> str:
    """Numbers as base64 of three bytes each, little end first: four characters a number.

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


def choose(rollouts: Rollouts) -> list[int]:
    """Up to four right rollouts (reward of 1 or more), then up to four others.

    They are not picked by hand: the first of its kind in each group, groups that have both kinds
    first; where too few groups have it, further ones of the same groups.
    """
    right, group = (rollouts.rewards >= 1).tolist(), rollouts.group.tolist()
    both = {g for g, ok in zip(group, right, strict=True) if ok} & {
        g for g, ok in zip(group, right, strict=True) if not ok
    }
    chosen = []
    for kind in (True, False):
        seen: dict[int, int] = {}
        ranked = []
        for i, (g, ok) in enumerate(zip(group, right, strict=True)):
            if ok is kind:
                seen[g] = seen.get(g, -1) + 1
                ranked.append((seen[g], g not in both, i))
        chosen += [i for _, _, i in sorted(ranked)[:EACH]]
    return chosen


def shortened(text: str) -> str:
    """The first characters of a long text, with a word on how many follow."""
    if len(text) <= CHARACTERS:
        return text
    return f"{text[:CHARACTERS]} [... {len(text) - CHARACTERS} more characters]"


def visible(text: str) -> str:
    """Line breaks get a sign before them: a shaded token has to be seen."""
    return text.replace("\n", "↵\n")


def _view(
    data: str = "", shown: str = "", samples: Samples | None = None, notes: tuple[str, ...] = ()
) -> TokenView:
    package = resources.files(__name__.rpartition(".")[0])
    # line breaks as HTML reads them, for the hash is taken of what the browser reads
    script = "\n".join(package.joinpath("token_view.js").read_text("utf-8").splitlines())
    digest = base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
    return TokenView(data, shown, samples, notes, script, f"'sha256-{digest}'")


def _read(run: Run, iteration: int, failed: dict[int, str]) -> Rollouts | None:
    """An iteration's rollouts; None, and an entry in `failed`, where they cannot be read."""
    try:
        rollouts = run.dumps[iteration]()
        if not _consistent(rollouts):
            raise ValueError("its parts do not fit together")
        if not len(rollouts):
            raise ValueError("it holds no rollouts")
    except ValueError as error:
        # the page may be passed on: it names files from the run's directory on
        failed[iteration] = str(error).replace(f"{run.path}/", "")
        return None
    return rollouts


def _consistent(r: Rollouts) -> bool:
    B, n = len(r.completions), len(r.tokens)
    values = [v for name in _VALUES if (v := getattr(r, name)) is not None]
    return (
        len(r.prompts) == B
        and all(len(t) == B for t in (r.rewards, r.group, r.finished, r.trained))
        and all(len(t) == n for t in values)
        and len(r.start) == B + 1
        and int(r.start[0]) == 0
        and int(r.start[-1]) == n
        and bool((r.start.diff() >= 0).all())
        and (n == 0 or 0 <= int(r.tokens.min()) <= int(r.tokens.max()) < 2**24)
    )


def _failures(failed: dict[int, str]) -> tuple[str, ...]:
    if not failed:
        return ()
    first = min(failed)
    if len(failed) == 1:
        return (f"The rollouts of iteration {first} cannot be read: {failed[first]}",)
    return (
        f"The rollouts of {len(failed)} iterations ({_listed(sorted(failed))}) cannot be read; "
        f"of iteration {first}: {failed[first]}",
    )


def _listed(numbers: Iterable[int]) -> str:
    words = [str(i) for i in numbers]
    return ", ".join(words if len(words) <= 20 else [*words[:10], "...", *words[-3:]])


def _shown(chosen: list[int], parts: list[_Part], dumped: int, failed: int) -> str:
    """What a page holds of a run, in words."""
    sentences = []
    if len(chosen) + failed < dumped:
        sentences.append(
            f"Shown are iterations {_listed(chosen)}, {len(chosen)} of the {dumped} dumped."
        )
    few = [(i, part) for i, part in zip(chosen, parts, strict=True) if part.step > 1]
    if few:
        shares = [f"{part.kept} of {part.count}" for _, part in few]
        if len(few) == len(parts) and len(set(shares)) == 1:
            of = f"{shares[0]} in each iteration"
        else:
            of = ", ".join(f"{s} in iteration {i}" for s, (i, _) in zip(shares, few, strict=True))
        sentences.append(f"To keep this page small, not every rollout is on it: {of}.")
    if cut := sum(part.cut for part in parts):
        rollouts = "rollout is" if cut == 1 else "rollouts are"
        sentences.append(f"{cut} {rollouts} shown up to token {LONGEST}.")
    return " ".join(sentences)


def _scales(parts: list[_Part]) -> dict[str, float]:
    """The magnitude at which each measure is shaded fully, one for all iterations."""
    import numpy as np

    scales = {}
    for name in MEASURES:
        values = np.concatenate([np.zeros(0), *(part.magnitudes[name] for part in parts)])
        if len(values):
            scales[name] = float(f"{np.quantile(values, FULL, method='higher'):.6g}")
    return scales


def _within(r: Rollouts, iteration: int, limit: int) -> _Part:
    """An iteration with every rollout, or with every k-th so that it takes `limit` bytes."""
    lengths = r.start.diff().clamp(max=LONGEST)
    known = sum(bool(v.isfinite().any()) for n in _VALUES if (v := getattr(r, n)) is not None)
    # four characters a number: no smaller step can do, and encoding a large dump takes its time
    step = min(len(r), max(1, 4 * (1 + known) * int(lengths.sum()) // limit))
    while True:
        part = _encode(r, iteration, step)
        size = len(part.data.encode("utf-8"))
        if size <= limit or step >= len(r):
            return part
        step = min(len(r), max(step + 1, math.ceil(step * size / limit)))


def _encode(r: Rollouts, iteration: int, step: int) -> _Part:
    """Every `step`-th rollout of an iteration as JSON."""
    import numpy as np

    rows = range(0, len(r), step)
    spans = [r.rows(i) for i in rows]
    places = np.concatenate(
        [np.arange(s.start, min(s.stop, s.start + LONGEST), dtype=np.int64) for s in spans]
    )
    ids, index = np.unique(r.tokens.numpy()[places], return_inverse=True)
    prompts = {r.prompts[i]: None for i in rows}
    number = {text: k for k, text in enumerate(prompts)}
    values = {
        name: v.detach().float().numpy() for name in _VALUES if (v := getattr(r, name)) is not None
    }
    shown = {name: v[places] for name, v in values.items()}
    lengths = [s.stop - s.start for s in spans]
    data = {
        "iteration": iteration,
        "count": len(r),
        "step": step,
        "prompts": [shortened(text) for text in prompts],
        "pieces": [r.pieces.get(int(i), "")[:PIECE] for i in ids],
        "ids": pack(ids),
        "prompt": [number[r.prompts[i]] for i in rows],
        "completion": [None if _spelled(r, i) else shortened(r.completions[i]) for i in rows],
        "reward": [_digits(float(r.rewards[i])) for i in rows],
        "finished": [int(r.finished[i]) for i in rows],
        "trained": [int(r.trained[i]) for i in rows],
        "length": lengths,
        "entropy": [_mean(values["entropy"][s]) for s in spans],
        "influence": [_total(values["influence"][s]) for s in spans] if "influence" in values else
        [None] * len(spans),
        "tokens": pack(index),
        # what a dump does not say is left out, not carried as a row of NaN
        "values": {name: pack(v) for name, v in shown.items() if np.isfinite(v).any()},
    }  # fmt: skip
    magnitudes = {}
    for name in MEASURES:
        v = np.abs(shown.get(name, np.zeros(0)))
        magnitudes[name] = v[np.isfinite(v) & (v > 0)]
    cut = sum(length > LONGEST for length in lengths)
    return _Part(script_json(data), step, len(rows), len(r), cut, magnitudes)


def _spelled(r: Rollouts, i: int) -> bool:
    """Whether the tokens' texts make up the completion."""
    ids = r.tokens[r.rows(i)].tolist()
    body = ids[:-1] if r.finished[i] else ids
    texts = [r.pieces.get(token, "") for token in body]
    return "".join(texts) == r.completions[i] and max(map(len, texts), default=0) <= PIECE


def _digits(value: float) -> float | None:
    """Six significant digits; None for what is not finite, which JSON cannot say."""
    return float(f"{value:.6g}") if math.isfinite(value) else None


def _mean(values: np.ndarray) -> float | None:
    """The mean of the finite ones."""
    import numpy as np

    finite = values[np.isfinite(values)]
    return _digits(float(finite.mean(dtype=np.float64))) if len(finite) else None


def _total(values: np.ndarray) -> float | None:
    """The sum of the finite ones' magnitudes."""
    import numpy as np

    finite = np.abs(values[np.isfinite(values)])
    return _digits(float(finite.sum(dtype=np.float64))) if len(finite) else None


def _samples(r: Rollouts, iteration: int) -> Samples:
    finite = r.entropy[r.entropy.isfinite()]
    top = float(finite.max()) if len(finite) else 0.0
    return Samples(iteration, len(r), top, tuple(_sample(r, i, top) for i in choose(r)))


def _sample(r: Rollouts, i: int, top: float) -> Sample:
    rows = r.rows(i)
    ids = r.tokens[rows].tolist()
    values = [t[rows].tolist() for t in (r.logp, r.entropy, r.advantage)]
    ends = bool(r.finished[i]) and bool(ids)
    tokens = [
        Token(
            visible(r.pieces.get(token, "")[:PIECE]) or f"[{token}]",
            min(1.0, max(0.0, entropy / top)) if top > 0 and math.isfinite(entropy) else 0.0,
            f"log-prob {_number(logp)}, entropy {_number(entropy)}, "
            f"advantage {_number(advantage, '+')}",
            ends and place == len(ids) - 1,
        )
        for place, (token, logp, entropy, advantage) in enumerate(
            zip(ids[:TOKENS], *(v[:TOKENS] for v in values), strict=True)
        )
    ]
    return Sample(
        prompt=shortened(r.prompts[i]),
        plain="" if _spelled(r, i) and len(ids) <= TOKENS else shortened(r.completions[i]),
        tokens=tuple(tokens),
        left_out=max(0, len(ids) - TOKENS),
        reward=_digits(float(r.rewards[i])),
        finished=bool(r.finished[i]),
        trained=bool(r.trained[i]),
    )


def _number(value: float, sign: str = "") -> str:
    return f"{value:{sign}.3f}" if math.isfinite(value) else "—"
