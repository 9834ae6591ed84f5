"""The tokens that change entropy: by probability and advantage, correctness, position and text."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from ..._text import counted, cut
from ..curves import CLOUD, FEW, at, figure, legible, panel, rows, thirds
from ..figures import BLACK, BLUE, GREEN, GREY, ORANGE, RED, Bars, Curve, Panel, Points

WORDS = "Which tokens carry the flow: by probability and advantage, correctness, place and text."
TOKENS = 20  # shown tokens of largest influence
TEXT = 24  # shown characters of a token
SIGNS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"})
# table of a line -> its rows, each with its label, color and dash
SPLITS = {
    "quadrants": (
        ("I", "I: A>0, p>.8", BLUE, "-"),
        ("II", "II: A>0, p<.2", GREEN, "-"),
        ("III", "III: A<0, p<.2", ORANGE, "-"),
        ("IV", "IV: A<0, p>.8", RED, "-"),
        ("rest", "the rest", GREY, "--"),
    ),
    "correct": (("right", "right", GREEN, "-"), ("wrong", "wrong", RED, "-")),
}


@dataclass(frozen=True)
class TokenRow:
    """One decoded token, over the analysed iterations that list it."""

    text: str  # its text, shortened, with visible whitespace
    count: int | None  # number of times it was sampled
    influence: float  # sum of its influences, nats
    change: float | None  # sum of the change at its states over N, nats; None if not logged
    left: float  # start and width of its bar, percent of the bars' width
    width: float


def panels_of(lines: list[Any]) -> tuple[Panel, ...]:
    bars, seen = _positions(lines)
    panels = [
        panel(
            lines, "Concentration of influence", "share",
            "Share of the sum of |influence| that the most influential tokens hold.",
            ("influence/top_1", "top 1 %", RED), ("influence/top_10", "top 10 %", BLUE),
            low=0, high=1,
        ),
        panel(
            lines, "Quadrants: share of tokens", "share of tokens",
            "Tokens by the sign of their advantage and their probability (STEER, Fig. 2).",
            *_split("quadrants", "share"), low=0,
        ),
        panel(
            lines, "Quadrants: influence", "nats",
            "What the gradients of each quadrant's tokens do to the batch's entropy. I and III "
            "are said to lower it, II and IV to raise it.", *_split("quadrants", "influence"),
        ),
        panel(
            lines, "Quadrants: change", "nats",
            "The part of the batch's change of entropy that lies on each quadrant's tokens.",
            *_split("quadrants", "change"),
        ),
        panel(
            lines, "Right and wrong: influence", "nats",
            "What the tokens of right and of wrong completions do to the batch's entropy by their "
            "gradients.", *_split("correct", "influence"),
        ),
        panel(
            lines, "Right and wrong: change", "nats",
            "The part of the batch's change of entropy that lies on right and on wrong "
            "completions.", *_split("correct", "change"),
        ),
        Panel(
            "By place in the completion",
            "Influence of the tokens at a place, and the part of the change of entropy that lies "
            f"there, summed over {counted(seen, 'analysed iteration')}.", "nats",
            bars=bars, across="token of the completion",
        ),
        *_cloud(lines),
        *_changes(lines),
        _clipped(lines),
        _weights(lines),
    ]  # fmt: skip
    return tuple(legible(one) for one in panels if not one.empty)


def _split(table: str, name: str) -> list[tuple[Any, ...]]:
    return [((table, key, name), *looks) for key, *looks in SPLITS[table]]


def _positions(lines: list[Any]) -> tuple[tuple[Bars, ...], int]:
    bins, seen = _bins_of(lines, "position", ("influence", "change"))
    # logged from 0 with an open end; shown from 1
    names = [_range_words(low + 1, high) for low, high in bins]
    sets = []
    for key, color in (("influence", BLUE), ("change", BLACK)):
        sums = [_sum(table, key) for table in bins.values()]
        if any(value is not None for value in sums):
            sets.append(Bars(key, names, [value or 0.0 for value in sums], color))
    return tuple(sets), seen


def _sum(table: list[dict[str, Any]], key: str) -> float | None:
    """Sum over the rows that have the key; None if none has."""
    known = [value for row in table if (value := figure(row.get(key))) is not None]
    return sum(known) if known else None


def _bins_of(
    lines: list[Any], key: str, names: tuple[str, ...]
) -> tuple[dict[tuple[float, float], list[dict[str, Any]]], int]:
    """Group rows by (from, to), over the last line with rows and the lines with compatible bins.

    Bins are compatible if no two overlap: a line may lack a bin, or have one that others lack.
    """
    found: dict[tuple[float, float], list[dict[str, Any]]] = {}
    seen = 0
    for line in reversed(lines):
        table = {
            (low, high): row
            for row in rows(line, key)
            if (low := figure(row.get("from"))) is not None
            and (high := figure(row.get("to"))) is not None
            and any(figure(row.get(name)) is not None for name in names)
        }
        apart = all(a == b or a[1] <= b[0] or b[1] <= a[0] for a in table for b in found)
        if not table or not apart:
            continue
        seen += 1
        for place, row in table.items():
            found.setdefault(place, []).append(row)
    return dict(sorted(found.items())), seen


def _range_words(low: float, high: float) -> str:
    if low == high:
        return f"{low:.3g}"
    return f"{low:.3g} to {high:.3g}" if low < 0 else f"{low:.3g}-{high:.3g}"


def _cloud(lines: list[Any]) -> list[Panel]:
    for line in reversed(lines):
        before, after = (_pairs(at(line, "cloud", key)) for key in ("before", "after"))
        if before or after:
            break
    else:
        return []
    sets = [("before", before, GREY, 4.4), ("after", after, BLUE, 2.6)]
    words = "before and after the methods' edits"
    if before == after:
        sets, words = [("", after, BLUE, 3.0)], "which the methods' edits leave as it is"
    return [
        Panel(
            "Advantage and log-prob",
            f"Some tokens of iteration {line['iteration']}: advantage and log-prob, {words}. "
            "Entropy falls by likely tokens with A > 0 and unlikely ones with A < 0.",
            "log p, nats",
            points=tuple(
                Points(label, [a for a, _ in some], [b for _, b in some], color, size, 0.55)
                for label, some, color, size in sets
                if some
            ),
            across="advantage A",
        )
    ]


def _changes(lines: list[Any]) -> list[Panel]:
    panels = []
    for key, title, across, words in (
        ("entropy", "Entropy of a token and its change", "entropy before, nats",
         "Are the changes largest where entropy is (STEER, Fig. 4)?"),
        ("omega", "STEER's estimate and the change", "estimate, without its step eta / L",
         "Line: means of tenths of the tokens (STEER, Fig. 12 and 13)."),
        ("cov", "Covariance and the change", "(log p - mean)(A - mean)",
         "Line: means of tenths of the tokens; COV has the change fall with it."),
    ):  # fmt: skip
        line = next((x for x in reversed(lines) if _pairs(at(x, "cloud", key))), None)
        if line is None:
            continue
        pairs = sorted(_pairs(line["cloud"][key]))
        cuts = [i * len(pairs) // 10 for i in range(11)]
        tenths = [pairs[a:b] for a, b in pairwise(cuts) if a < b]
        x, y = ([sum(p[k] for p in part) / len(part) for part in tenths] for k in (0, 1))
        panels.append(
            Panel(
                title,
                f"Some tokens of iteration {line['iteration']}: the change of the entropy at their "
                f"states by the iteration's updates. {words}",
                "change, nats",
                (Curve("mean", x, y, RED),),
                points=(Points("", [a for a, _ in pairs], [b for _, b in pairs], BLUE, 3.0, 0.5),),
                across=across,
            )
        )
    return panels


def _clipped(lines: list[Any]) -> Panel:
    bins, seen = _bins_of(lines, "clipped_by_probability", ("high", "low"))
    tokens, high, low = (
        [_sum(table, key) or 0.0 for table in bins.values()] for key in ("tokens", "high", "low")
    )
    names = [_range_words(*ends) for ends in bins]
    return Panel(
        "Clipped tokens by probability",
        "Share of the tokens of each probability (the old policy's) that the clip holds in an "
        f"update, over {counted(seen, 'analysed iteration')} (STEER, Fig. 3a).",
        "share of tokens",
        bars=tuple(
            Bars(label, names, [k / n if n else 0.0 for k, n in zip(held, tokens, strict=True)], c)
            for label, held, c in (("above", high, BLUE), ("below", low, RED))
            if any(high) or any(low)
        ),
        across="probability under the old policy",
    )


def _weights(lines: list[Any]) -> Panel:
    pairs = [
        (abs(change), weight)
        for line in lines
        if (weight := figure(line.get("weight/mean"))) is not None
        and (change := figure(line.get("change/mean"))) is not None
    ]
    if len({weight for _, weight in pairs}) < FEW:
        pairs = []
    return Panel(
        "Mean weight and change",
        "One point an analysed iteration: the mean weight that the methods give a token, against "
        "the size of the change of entropy (STEER, Fig. 9).",
        "mean weight",
        points=thirds([x for x, _ in pairs], [y for _, y in pairs]),
        across="|change of entropy|, nats",
    )


def _pairs(value: Any) -> list[tuple[float, float]]:
    if not isinstance(value, list):
        return []
    pairs = [(figure(v[0]), figure(v[1])) for v in value if isinstance(v, list) and len(v) == 2]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return known[:: max(1, -(-len(known) // CLOUD))]


def token_rows(lines: list[Any]) -> tuple[tuple[TokenRow, ...], float]:
    """Decoded tokens of largest |influence|, and the zero position of their bars (percent)."""
    by_text: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        for row in rows(line, "tokens"):
            text = row.get("text")
            if isinstance(text, str) and figure(row.get("influence")) is not None:
                by_text.setdefault(text, []).append(row)
    totals = {text: _sum(some, "influence") or 0.0 for text, some in by_text.items()}
    found = sorted(totals, key=lambda text: -abs(totals[text]))[:TOKENS]
    low, high = (end(0.0, *(totals[text] for text in found), 0.0) for end in (min, max))
    span = (high - low) or 1.0
    table = []
    for text in found:
        total, count = totals[text], _sum(by_text[text], "count")
        table.append(
            TokenRow(
                shown(text),
                None if count is None else round(count),
                total,
                _sum(by_text[text], "change"),
                100 * (min(0.0, total) - low) / span,
                100 * abs(total) / span,
            )
        )
    return tuple(table), 100 * -low / span


def shown(text: str) -> str:
    """A token's text on one short line, with visible whitespace."""
    short = cut(text, TEXT).translate(SIGNS)
    # characters without a glyph (bidi controls, lone surrogates) are written as escapes
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in short) or "(no text)"
