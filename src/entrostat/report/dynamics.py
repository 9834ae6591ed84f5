"""The figures of entropy dynamics: what a run's `metrics` and `analysis` lines say, where they do.

Any part of a line may be missing, or be no number: it is left out, and so is a figure that has
nothing to show. `change` is what entropy did (after the iteration's updates minus before, at the
same states); `influence` is what a token's gradient does to the batch's mean entropy, to first
order.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from ..logs.run import Run, number
from .figures import (
    BLACK,
    BLUE,
    COLORS,
    DASHES,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    SKY,
    Band,
    Bars,
    Curve,
    Panel,
    Points,
)
from .panels import scale_of
from .runs import HUGE, drawable, entropy_key

EMA = 0.6
TINY = 1e-9  # nothing is shown as a share of less
FEW = 5  # iterations below which a cloud over the run says nothing
CLOUD = 400  # points of one set
TOKENS = 20  # shown of the tokens by influence
TEXT = 24  # characters shown of one
SIGNS = str.maketrans({" ": "␣", "\n": "↵", "\t": "⇥", "\r": "␍"})

# name -> what it is; methods.md section 5
ESTIMATORS = {
    "cov": "-(log p - mean)(A - mean): Clip-Cov's and KL-Cov's",
    "cov_pg": "-(log p - mean)(pA - mean): the same under policy gradient",
    "corollary1": "-A · L · p: REPO's",
    "omega": "STEER's, as its code estimates it",
    "omega_realised": "STEER's sum with only the sampled token",
    "opefo": "-A (1 - p)² (log p + H): OPEFO's",
    "tabular": "exact to first order where states share no weights",
    "first_order": "derivative along the real update, shared weights included",
    "simpson": "the same averaged along the step",
}
QUADRANTS = (
    ("I", "I: A>0, p>.8", BLUE, "-"),
    ("II", "II: A>0, p<.2", GREEN, "-"),
    ("III", "III: A<0, p<.2", ORANGE, "-"),
    ("IV", "IV: A<0, p>.8", RED, "-"),
    ("rest", "the rest", GREY, "--"),
)
_SPLITS = (("right", "right", GREEN, "-"), ("wrong", "wrong", RED, "-"))
_SOURCES = (
    ("influence", "influence", BLUE, "-"),
    ("change", "true change", BLACK, "-"),
    ("opefo", "OPEFO", ORANGE, "--"),
)


@dataclass(frozen=True)
class Section:
    """Panels under one heading; `anchor` is its place in the page."""

    anchor: str
    heading: str
    words: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Estimator:
    """One line of the estimators' table: averages over the analysed iterations, or None.

    Attributes:
        name: the estimator.
        words: what it is; empty for one that is not known here.
        where: against each token's change: mean squared error, the same scaled (after the best
            positive factor, over the truth's mean square), Pearson, Spearman.
        which: Pearson, Spearman, share of equal signs against each token's influence.
    """

    name: str
    words: str
    where: tuple[float | None, ...]
    which: tuple[float | None, ...]


@dataclass(frozen=True)
class TokenRow:
    """One decoded token, over the analysed iterations that list it.

    Attributes:
        text: what it says, shortened, blanks made visible.
        count: how often it was sampled.
        influence: sum of its influences, nats.
        change: sum of the change at its states over N, nats; None where not logged.
        left: where its bar begins, percent of the bars' width.
        width: how wide it is, percent.
    """

    text: str
    count: int | None
    influence: float
    change: float | None
    left: float
    width: float


@dataclass(frozen=True)
class Dynamics:
    """All there is to show; every part may be empty.

    Attributes:
        sections: those with a panel or a table.
        estimators: lines of the estimators' table.
        estimator_lines: analysed iterations that it averages.
        tokens: lines of the tokens' table.
        token_lines: analysed iterations that it sums.
        token_limit: tokens that the longest of their lists names.
        zero: where the tokens' bars have their zero, percent of their width.
    """

    sections: tuple[Section, ...]
    estimators: tuple[Estimator, ...]
    estimator_lines: int
    tokens: tuple[TokenRow, ...]
    token_lines: int
    token_limit: int
    zero: float


def dynamics_of(run: Run) -> Dynamics:
    """What a run's logs say about its entropy's dynamics."""
    lines = [
        line
        for line in run.analysis
        if isinstance(line, dict) and type(line.get("iteration")) is int
    ]
    sections = (
        Section("course", "Entropy and score", _COURSE, _course(run, lines)),
        Section("flow", "Entropy flow", _FLOW, _flow(run, lines)),
        Section("tokens", "Which tokens move entropy", _TOKENS, _tokens(lines)),
        Section("agreement", "Do the estimators agree?", _AGREEMENT, _agreement(lines)),
    )
    table, tokens = estimators(lines), token_rows(lines)
    tables = {"tokens": tokens, "agreement": table}
    low = min([0.0, *(row.influence for row in tokens)])
    high = max([0.0, *(row.influence for row in tokens)])
    listed = [n for line in lines if (n := len(rows(line, "tokens")))]
    return Dynamics(
        tuple(s for s in sections if s.panels or tables.get(s.anchor)),
        table,
        sum(isinstance(line.get("estimators"), dict) for line in lines),
        tokens,
        len(listed),
        max(listed, default=0),
        100 * -low / ((high - low) or 1.0),
    )


_COURSE = "How entropy and score went together, over the run and among its tokens."
_FLOW = (
    "What raised the entropy and what lowered it in each analysed iteration. Change: entropy after "
    "the iteration's updates minus before, at the same states. Influence: what a token's gradient "
    "does to the batch's mean entropy in one optimizer step, to first order. A token may lower the "
    "batch's entropy (influence) while its own rises (change)."
)
_TOKENS = "Which tokens carry the flow: by probability and advantage, correctness, place and text."
_AGREEMENT = (
    "Published estimators against what was measured, over the tokens of an iteration: where "
    "entropy moves (against each token's change), and which token's gradient moves it (against "
    "each token's influence). 1 is full agreement, 0 none. PCC: Pearson, of values; SRCC: "
    "Spearman, of ranks."
)


# --- reading


def at(value: Any, *path: str) -> Any:
    """What lies under keys of nested tables; None where there is no such table or key."""
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def figure(value: Any) -> float | None:
    """A finite number that an axis can show; None for anything else."""
    found = number(value)
    return found if found is not None and abs(found) < HUGE else None


def series(lines: Iterable[Any], *path: str) -> tuple[list[int], list[float]]:
    """Iterations and values of one figure, where a line has it."""
    pairs = [(line["iteration"], figure(at(line, *path))) for line in lines]
    kept = [(x, y) for x, y in pairs if y is not None]
    return [x for x, _ in kept], [y for _, y in kept]


def rows(line: Any, key: str) -> list[dict[str, Any]]:
    """The tables of a list; none where it is no list."""
    found = line.get(key)
    return [row for row in found if isinstance(row, dict)] if isinstance(found, list) else []


def _curve(lines: Iterable[Any], path: Sequence[str], label: str, color: str, dash: Any = "-",
           width: float = 1.7, sign: float = 1.0) -> tuple[Curve, ...]:  # fmt: skip
    x, y = series(lines, *path)
    return (Curve(label, x, [sign * v for v in y], color, dash, width),) if x else ()


def _logged(run: Run, key: str | None) -> dict[int, float]:
    return dict(zip(*drawable(run, key or ""), strict=True))


# --- entropy and score


def ema(values: Sequence[float], weight: float = EMA) -> list[float]:
    """Exponential moving average: e = weight e + (1 - weight) value, from the first value on."""
    smooth: list[float] = []
    for value in values:
        smooth.append(weight * smooth[-1] + (1 - weight) * value if smooth else value)
    return smooth


def _course(run: Run, lines: list[Any]) -> tuple[Panel, ...]:
    key = entropy_key(run)
    entropy, score = _logged(run, key), _logged(run, "reward/mean")
    kind = {"entropy/exact": "exact", "entropy/nll": "NLL"}.get(key or "", "as logged")
    panels: list[Panel] = []
    if len(entropy) >= FEW:
        x, y = list(entropy), list(entropy.values())
        panels.append(
            Panel(
                "Entropy, smoothed",
                f"Faint: {kind}. Line: its exponential moving average, {EMA:g} of the past and "
                f"{1 - EMA:g} of the present.",
                "nats a token",
                (
                    Curve("", x, y, BLUE, width=0.9, alpha=0.4),
                    Curve("moving average", x, ema(y), BLUE, width=2.0),
                ),
                low=0,
            )
        )
    both = [i for i in entropy if i in score]
    if len(both) >= FEW:
        panels += _against(both, entropy, score, kind)
    panels += _quantiles(lines)
    panels.append(
        Panel(
            "Entropy by outcome",
            "Mean entropy of the tokens of right completions (reward of 1 or more) and of wrong "
            "ones, and by the sign of their advantage.",
            "nats a token",
            (
                *_curve(lines, ("entropy", "right"), "right", GREEN),
                *_curve(lines, ("entropy", "wrong"), "wrong", RED),
                *_curve(lines, ("entropy", "positive"), "A > 0", GREEN, "--"),
                *_curve(lines, ("entropy", "negative"), "A < 0", RED, "--"),
            ),
            low=0,
        )
    )
    panels += _evaluations(run)
    return tuple(panel for panel in panels if not panel.empty)


def _against(
    both: Sequence[int], entropy: dict[int, float], score: dict[int, float], kind: str
) -> list[Panel]:
    """Entropy and score of the same iterations: by iteration, and one against the other."""
    h, r = [entropy[i] for i in both], [score[i] for i in both]
    panels = []
    if h[0] > TINY:
        panels.append(
            Panel(
                "Entropy and score",
                f"Entropy ({kind}) as a share of the first iteration's, and mean reward, on one "
                "axis. Where one is traded for the other, they part.",
                "share of the first; reward",
                (
                    Curve("entropy", both, [v / h[0] for v in h], BLUE),
                    Curve("score", both, r, ORANGE),
                ),
                low=0,
            )
        )
    total, cumulative = 0.0, []
    for value in h:
        total += value
        cumulative.append(total)
    for title, x, across, words in (
        (
            "Score against entropy",
            h,
            "entropy, nats a token",
            "One point an iteration.",
        ),
        (
            "Score against cumulative entropy",
            cumulative,
            "sum of entropies so far, nats a token",
            "The same scores against the sum of all entropies up to their iteration.",
        ),
    ):
        panels.append(
            Panel(
                title,
                f"{words} {_mutual(x, r)}".strip(),
                "reward",
                points=_thirds(x, r),
                across=across,
            )
        )
    return panels


def _mutual(x: Sequence[float], y: Sequence[float]) -> str:
    """Mutual information in words; bins so wide that a cell has a point or more on average."""
    from ..evaluate.metrics import mutual_information

    bins = max(2, min(10, math.isqrt(len(x))))
    shared = mutual_information(x, y, bins=bins, correct_bias=True)
    return f"Mutual information {shared:.2f} nats ({bins} by {bins} bins, corrected for chance)."


def _thirds(x: Sequence[float], y: Sequence[float]) -> tuple[Points, ...]:
    """The run's thirds in shades of their own."""
    n = len(x)
    cuts = (0, n // 3, 2 * n // 3, n)
    looks = (("first third", SKY), ("second", BLUE), ("last", BLACK))
    clouds = []
    for (start, end), (label, color) in zip(pairwise(cuts), looks, strict=True):
        step = max(1, -(-(end - start) // (CLOUD // 3)))
        if end > start:
            size = 3.2 if n > 60 else 5.0
            clouds.append(Points(label, x[start:end:step], y[start:end:step], color, size))
    return tuple(clouds)


def _quantiles(lines: list[Any]) -> list[Panel]:
    bands = []
    for low, high, label, alpha in (
        ("0.05", "0.95", "5 % to 95 %", 0.15),
        ("0.25", "0.75", "25 % to 75 %", 0.25),
    ):
        known = [
            (line["iteration"], a, b)
            for line in lines
            if (a := figure(at(line, "quantiles", low))) is not None
            and (b := figure(at(line, "quantiles", high))) is not None
        ]
        if known:
            x, a, b = (list(column) for column in zip(*known, strict=True))
            bands.append(Band(label, x, a, b, BLUE, alpha))
    curves = (
        *_curve(lines, ("quantiles", "0.5"), "median", BLUE, width=2.0),
        *_curve(lines, ("quantiles", "0.99"), "99 %", RED, "--", 1.2),
    )
    return [
        Panel(
            "Entropy of tokens",
            "The quantiles of the tokens' entropies: most tokens are all but certain, a few are "
            "forks.",
            "nats",
            curves,
            low=0,
            bands=tuple(bands),
        )
    ]


def _evaluations(run: Run) -> list[Panel]:
    """What the evaluations' splits say, where there are several evaluations."""
    splits: dict[str, list[Any]] = {}
    for line in run.evaluation:
        if isinstance(line, dict) and type(line.get("iteration")) is int:
            splits.setdefault(str(line.get("split", "held out")), []).append(line)
    relative, scores = [], []
    ks = {k for line in run.evaluation if isinstance(line, dict) and (k := figure(line.get("k")))}
    k = f"{ks.pop():g}" if len(ks) == 1 else "k"
    for i, (split, found) in enumerate(splits.items()):
        color = COLORS[i % len(COLORS)]
        x, y = series(found, "entropy")
        start = next((v for it, v in zip(x, y, strict=True) if it == 0), None)
        if start is not None and start > TINY and len(x) > 1:
            relative.append(Curve(split, x, [v / start for v in y], color, width=1.9, marked=True))
        for metric, dash in ((f"avg@{k}", "-"), (f"pass@{k}", DASHES[1])):
            x, y = series(found, metric.replace(f"@{k}", "@k"))
            if len(x) > 1:
                scores.append(Curve(f"{metric}, {split}", x, y, color, dash, marked=True))
    return [
        Panel(
            "Entropy of held-out prompts",
            "Entropy of the evaluation's samples relative to that before training (1), by split: "
            "does it fall where the policy is not trained, too?",
            "share of that at iteration 0",
            tuple(relative),
            low=0,
        ),
        Panel(
            "Scores of held-out prompts",
            "avg@k: mean score of all samples. pass@k: share of prompts with a right answer among "
            "k samples. Where entropy is lost, the two approach each other.",
            "score",
            tuple(scores),
            low=0,
            high=1,
        ),
    ]


# --- flow


def _flow(run: Run, lines: list[Any]) -> tuple[Panel, ...]:
    panels = [
        Panel(
            "Change of entropy",
            "What an iteration's updates did to the batch's mean entropy (true), what follows "
            "from the parameters' real change (first order, Simpson's rule), and the sum of the "
            "influences, which take one step on the whole batch.",
            "nats an iteration",
            (
                *_curve(lines, ("change/mean",), "true", BLACK, width=2.2),
                *_curve(lines, ("change/first_order",), "first order", BLUE, width=1.2),
                *_curve(lines, ("change/simpson",), "Simpson", GREEN, "--", 1.4),
                *_curve(lines, ("influence/sum",), "influences", ORANGE, width=1.2),
            ),
        )
    ]
    for key, title, words, unit in (
        ("influence", "Flow by influence", "Sums over the tokens of what their gradients do to the "
         "batch's mean entropy", "nats"),
        ("change", "Flow by true change", "Sums over the tokens of how their own entropy moved",
         "nats, summed over tokens"),
        ("opefo", "Flow by OPEFO's estimate", "The same by OPEFO's Eq. 6, a number a token",
         "no unit"),
    ):  # fmt: skip
        panels.append(
            Panel(
                title,
                f"{words}: those that raise it, those that lower it (drawn below 0), the net.",
                unit,
                (
                    *_curve(lines, ("flow", key, "increase"), "increase", GREEN),
                    *_curve(lines, ("flow", key, "decrease"), "decrease", RED, sign=-1),
                    *_curve(lines, ("flow", key, "net"), "net", BLACK, width=2.0),
                ),
            )
        )
    panels.append(
        Panel(
            "Flow seen by OPEFO",
            "What the method itself logged every iteration, a trained token: estimates that raise "
            "entropy and (below 0) lower it.",
            "no unit",
            (
                *_curve(run.metrics, ("flow/increase",), "increase", GREEN),
                *_curve(run.metrics, ("flow/decrease",), "decrease", RED, sign=-1),
            ),
        )
    )
    balances = [
        curve
        for key, label, color, dash in _SOURCES
        for curve in _curve(lines, ("flow", key, "balance"), label, color, dash)
    ]
    balances += _curve(run.metrics, ("flow/balance",), "the method's own", PURPLE, width=1.0)
    panels.append(
        Panel(
            "Balance λ",
            "(S- - S+) / (S- + S+): above 0 what lowers entropy outweighs, 0 is balance, below 0 "
            "what raises it does. 1 + λ on the raising side and 1 - λ on the lowering one would "
            "balance them.",
            "λ",
            tuple(balances),
        )
    )
    panels += _covariance(lines)
    panels.append(
        Panel(
            "Change at clipped tokens",
            "The part of the entropy's change that lies on tokens which the ratio's upper (high) "
            "or lower bound (low) clips once the updates are done.",
            "nats",
            (
                *_curve(lines, ("clipped", "high", "change"), "high", RED),
                *_curve(lines, ("clipped", "low", "change"), "low", BLUE),
            ),
        )
    )
    return tuple(_legible(panel) for panel in panels if not panel.empty)


def _legible(panel: Panel) -> Panel:
    """A symlog axis where one iteration, the first say, would flatten all others."""
    sizes = sorted(abs(v) for v in panel.values if v)
    if panel.scale != "linear" or panel.bars or panel.points or not sizes:
        return panel
    if sizes[-1] <= 20 * sizes[len(sizes) // 2]:
        return panel
    words = f"{panel.caption} Axis: logarithmic on both sides of 0."
    return replace(panel, scale="symlog", floor=0.01, caption=words)


def _covariance(lines: list[Any]) -> list[Panel]:
    shares = (
        ("0.0002", "top 0.02 %", RED), ("0.002", "top 0.2 %", ORANGE), ("0.02", "top 2 %", GREEN),
        ("0.2", "top 20 %", BLUE), ("1", "all", BLACK),
    )  # fmt: skip
    curves = [
        curve
        for key, label, color in shares
        for curve in _curve(lines, ("covariance", key), label, color)
    ]
    pairs = []
    for line in lines:
        cov = figure(line.get("cov/mean"))
        cov = figure(at(line, "covariance", "1")) if cov is None else cov
        change = figure(line.get("change/mean"))
        if cov is not None and change is not None:
            pairs.append((cov, -change))
    bars, seen = _difficulty(lines)
    return [
        Panel(
            "Covariance of log-prob and advantage",
            "(log p - mean)(A - mean) of a token, averaged over the tokens where it is largest: a "
            "few carry most of it.",
            "covariance",
            tuple(curves),
            scale_of(y for curve in curves for y in curve.y),
        ),
        Panel(
            "Loss of entropy against covariance",
            "One point an analysed iteration: entropy lost in its updates against the tokens' mean "
            f"covariance, which is to predict it.{_pearson(pairs)}",
            "-change of entropy, nats",
            points=_thirds([x for x, _ in pairs], [y for _, y in pairs]),
            across="mean covariance",
        ),
        Panel(
            "Covariance by difficulty",
            "Mean covariance of the prompts' tokens, by the mean reward of a prompt's group (hard "
            f"prompts left), over {_iterations(seen)}.",
            "covariance",
            bars=bars,
            across="mean reward of the group",
        ),
    ]


def _pearson(pairs: Sequence[tuple[float, float]]) -> str:
    from statistics import StatisticsError, correlation

    if len(pairs) < FEW:
        return ""
    try:
        r = correlation([x for x, _ in pairs], [y for _, y in pairs])
    except (StatisticsError, OverflowError, ZeroDivisionError):
        return ""
    return f" Pearson {r:.2f}." if abs(r) <= 1.001 else ""


def _iterations(n: int) -> str:
    return f"{n} analysed iteration{'s' if n != 1 else ''}"


def _bins(
    lines: list[Any], key: str, names: Sequence[str]
) -> tuple[dict[tuple[float, float], list[dict[str, Any]]], int]:
    """Rows by (from, to), of the last line that has any and of those whose bins fit with its own.

    They do where no two bins overlap: a line may lack a bin, and have one that others lack.
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


def _range(low: float, high: float) -> str:
    return (
        f"{low:.3g}"
        if low == high
        else f"{low:.3g} to {high:.3g}"
        if low < 0
        else f"{low:.3g}-{high:.3g}"
    )


def _difficulty(lines: list[Any]) -> tuple[tuple[Bars, ...], int]:
    """Covariance by bins of reward, the prompts of all iterations taken together."""
    bins, seen = _bins(lines, "difficulty", ("cov",))
    names, values = [], []
    for place, table in bins.items():
        pairs = [(figure(row.get("prompts")), figure(row.get("cov"))) for row in table]
        known = [(n, v) for n, v in pairs if n is not None and n > 0 and v is not None]
        if known:
            names.append(_range(*place))
            values.append(sum(n * v for n, v in known) / sum(n for n, _ in known))
    return ((Bars("", names, values, BLUE),) if names else ()), seen


# --- tokens


def _tokens(lines: list[Any]) -> tuple[Panel, ...]:
    def split(
        table: str, name: str, parts: Iterable[tuple[str, str, str, Any]]
    ) -> tuple[Curve, ...]:
        return tuple(
            curve
            for key, label, color, dash in parts
            for curve in _curve(lines, (table, key, name), label, color, dash)
        )

    bars, seen = _positions(lines)
    panels = [
        Panel(
            "Concentration of influence",
            "Share of the sum of |influence| that the most influential tokens hold.",
            "share",
            (
                *_curve(lines, ("influence/top_1",), "top 1 %", RED),
                *_curve(lines, ("influence/top_10",), "top 10 %", BLUE),
            ),
            low=0,
            high=1,
        ),
        Panel(
            "Quadrants: share of tokens",
            "Tokens by the sign of their advantage and their probability (STEER, Fig. 2).",
            "share of tokens",
            split("quadrants", "share", QUADRANTS),
            low=0,
        ),
        Panel(
            "Quadrants: influence",
            "What the gradients of each quadrant's tokens do to the batch's entropy. I and III "
            "are held to lower it, II and IV to raise it.",
            "nats",
            split("quadrants", "influence", QUADRANTS),
        ),
        Panel(
            "Quadrants: change",
            "The part of the batch's change of entropy that lies on each quadrant's tokens.",
            "nats",
            split("quadrants", "change", QUADRANTS),
        ),
        Panel(
            "Right and wrong: influence",
            "What the tokens of right and of wrong completions do to the batch's entropy by their "
            "gradients.",
            "nats",
            split("correct", "influence", _SPLITS),
        ),
        Panel(
            "Right and wrong: change",
            "The part of the batch's change of entropy that lies on right and on wrong "
            "completions.",
            "nats",
            split("correct", "change", _SPLITS),
        ),
        Panel(
            "By place in the completion",
            "Influence of the tokens at a place, and the part of the change of entropy that lies "
            f"there, summed over {_iterations(seen)}.",
            "nats",
            bars=bars,
            across="token of the completion",
        ),
        *_cloud(lines),
    ]
    return tuple(_legible(panel) for panel in panels if not panel.empty)


def _positions(lines: list[Any]) -> tuple[tuple[Bars, ...], int]:
    bins, seen = _bins(lines, "position", ("influence", "change"))
    # logged from 0 with an open end; people count from 1
    names = [_range(low + 1, high) for low, high in bins]
    sets = []
    for key, label, color in (("influence", "influence", BLUE), ("change", "change", BLACK)):
        values = [[figure(row.get(key)) for row in table] for table in bins.values()]
        if any(v is not None for column in values for v in column):
            sums = [sum(v for v in column if v is not None) for column in values]
            sets.append(Bars(label, names, sums, color))
    return tuple(sets), seen


def _cloud(lines: list[Any]) -> list[Panel]:
    """Advantage and log-prob of the last iteration's tokens, before and after the methods."""
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


def _pairs(value: Any) -> list[tuple[float, float]]:
    if not isinstance(value, list):
        return []
    pairs = [(figure(v[0]), figure(v[1])) for v in value if isinstance(v, list) and len(v) == 2]
    known = [(a, b) for a, b in pairs if a is not None and b is not None]
    return known[:: max(1, -(-len(known) // CLOUD))]


def token_rows(lines: list[Any]) -> tuple[TokenRow, ...]:
    """Decoded tokens of largest |influence|, summed over the lines, the largest first."""
    sums: dict[str, list[list[float]]] = {}
    for line in lines:
        for row in rows(line, "tokens"):
            text, influence = row.get("text"), figure(row.get("influence"))
            if isinstance(text, str) and influence is not None:
                parts = sums.setdefault(text, [[], [], []])
                parts[0].append(influence)
                for part, key in zip(parts[1:], ("change", "count"), strict=True):
                    if (value := figure(row.get(key))) is not None:
                        part.append(value)
    found = sorted(sums.items(), key=lambda item: -abs(sum(item[1][0])))[:TOKENS]
    low = min([0.0, *(sum(parts[0]) for _, parts in found)])
    high = max([0.0, *(sum(parts[0]) for _, parts in found)])
    span = (high - low) or 1.0
    table = []
    for text, (influences, changes, counts) in found:
        total = sum(influences)
        table.append(
            TokenRow(
                shown(text),
                round(sum(counts)) if counts else None,
                total,
                sum(changes) if changes else None,
                100 * (min(0.0, total) - low) / span,
                100 * abs(total) / span,
            )
        )
    return tuple(table)


def shown(text: str) -> str:
    """A token's text on one short line, its blanks visible."""
    short = text if len(text) <= TEXT else f"{text[: TEXT - 1]}…"
    short = short.translate(SIGNS)
    # what has no sign of its own (a change of direction, half of a surrogate pair) is spelled out
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in short) or "(no text)"


# --- estimators


def _names(lines: list[Any]) -> list[str]:
    found = {
        name: None
        for line in lines
        if isinstance(table := line.get("estimators"), dict)
        for name, row in table.items()
        if isinstance(name, str) and isinstance(row, dict)
    }
    known = [name for name in ESTIMATORS if name in found]
    return known + [name for name in found if name not in ESTIMATORS][:12]


def estimators(lines: list[Any]) -> tuple[Estimator, ...]:
    """The estimators' agreement, each figure averaged over the lines that have it."""

    def mean(*path: str) -> float | None:
        values = series(lines, "estimators", *path)[1]
        return sum(values) / len(values) if values else None

    table = [
        Estimator(
            name,
            ESTIMATORS.get(name, ""),
            tuple(mean(name, "where", key) for key in ("mse", "scaled_mse", "pcc", "srcc")),
            tuple(mean(name, "which", key) for key in ("pcc", "srcc", "sign")),
        )
        for name in _names(lines)
    ]
    return tuple(
        row for row in table if any(value is not None for value in (*row.where, *row.which))
    )


def _agreement(lines: list[Any]) -> tuple[Panel, ...]:
    if sum(isinstance(line.get("estimators"), dict) for line in lines) < 2:
        return ()  # the table says it all
    names = _names(lines)
    panels = []
    for kind, against in (
        ("where", "each token's change of entropy"),
        ("which", "each token's influence on the batch's entropy"),
    ):
        for key, title, words in (
            ("pcc", "Pearson", "of the estimates"),
            ("srcc", "Spearman", "of their ranks"),
        ):
            curves = tuple(
                curve
                for i, name in enumerate(names)
                for curve in _curve(
                    lines,
                    ("estimators", name, kind, key),
                    name,
                    COLORS[i % len(COLORS)],
                    DASHES[i // len(COLORS) % len(DASHES)],
                    1.4,
                )
            )
            panels.append(
                Panel(
                    f"{kind.capitalize()}: {title}",
                    f"Correlation {words} with {against}, over an iteration's tokens.",
                    "correlation",
                    curves,
                    low=0,
                    high=1,
                )
            )
    return tuple(panel for panel in panels if not panel.empty)
