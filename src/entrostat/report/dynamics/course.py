"""Entropy and score: their relation over the run and among its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from ...logs.run import Run, is_line
from ..curves import FEW, figure, panel, series, thirds
from ..figures import BLACK, BLUE, COLORS, DASHES, GREEN, ORANGE, RED, Band, Curve, Panel, Points
from ..runs import entropy_key

EMA = 0.6
TINY = 1e-9  # shares of smaller values are not shown
WORDS = "How entropy and score went together, over the run and among its tokens."


def panels_of(run: Run, lines: list[Any]) -> tuple[Panel, ...]:
    key = entropy_key(run)
    entropy, score = (
        dict(zip(*series(run.metrics, name), strict=True)) for name in (key or "", "reward/mean")
    )
    kind = {"entropy/exact": "exact", "entropy/nll": "NLL"}.get(key or "", "as logged")
    panels: list[Panel] = []
    if len(entropy) >= FEW:
        x, y = list(entropy), list(entropy.values())
        curves = (
            Curve("", x, y, BLUE, width=0.9, alpha=0.4, name=kind),
            Curve("moving average", x, ema(y), BLUE, width=2.0),
        )
        words = (
            f"Faint: {kind}. Line: its exponential moving average, {EMA:g} of the past and "
            f"{1 - EMA:g} of the present."
        )
        panels.append(Panel("Entropy, smoothed", words, "nats per token", curves, low=0))
    both = [i for i in entropy if i in score]
    if len(both) >= FEW:
        panels += _against(both, entropy, score, kind)
    panels += [
        panel(
            lines, "Entropy of tokens", "nats",
            "The quantiles of the tokens' entropies: most tokens are all but certain, a few are "
            "forks.",
            (("quantiles", "0.5"), "median", BLUE, "-", 2.0),
            (("quantiles", "0.99"), "99 %", RED, "--", 1.2), low=0, bands=_quantiles(lines),
        ),
        panel(
            lines, "Entropy by outcome", "nats per token",
            "Mean entropy of the tokens of right completions (reward of 1 or more) and of wrong "
            "ones, and by the sign of their advantage.",
            (("entropy", "right"), "right", GREEN), (("entropy", "wrong"), "wrong", RED),
            (("entropy", "positive"), "A > 0", GREEN, "--"),
            (("entropy", "negative"), "A < 0", RED, "--"), low=0,
        ),
        panel(
            lines, "Calibration", "nats per token",
            "Mean log-prob per token of right responses (reward of 1 or more) and of wrong ones: a "
            "calibrated policy finds right ones likelier.",
            (("calibration", "right"), "right", GREEN), (("calibration", "wrong"), "wrong", RED),
        ),
        panel(
            lines, "Diversity of responses", "share",
            "Among one prompt's responses, means over prompts: the share of distinct n-grams "
            "(1 to 4), and Self-BLEU, which is 1 where all are alike.",
            (("diversity", "ngram"), "distinct n-grams", BLUE),
            (("diversity", "self_bleu"), "Self-BLEU", ORANGE), low=0, high=1,
        ),
        *_evaluations(run),
    ]  # fmt: skip
    return tuple(one for one in panels if not one.empty)


def ema(values: Sequence[float]) -> list[float]:
    """Exponential moving average, from the first value on."""
    return list(accumulate(values, lambda past, now: EMA * past + (1 - EMA) * now))


def _against(
    both: Sequence[int], entropy: dict[int, float], score: dict[int, float], kind: str
) -> list[Panel]:
    h, r = [entropy[i] for i in both], [score[i] for i in both]
    curves = ()
    if h[0] > TINY:
        shares = Curve("entropy", both, [v / h[0] for v in h], BLUE)
        curves = (shares, Curve("score", both, r, ORANGE))
    return [
        Panel(
            "Entropy and score",
            f"Entropy ({kind}) as a share of the first iteration's, and mean reward, on one axis. "
            "Where one is traded for the other, they part.",
            "share of the first; reward", curves, low=0,
        ),
        Panel(
            "Score against entropy", f"One point per iteration. {_mutual(h, r)}", "reward",
            points=thirds(h, r), across="entropy, nats per token",
        ),
        Panel(
            "Score against cumulative entropy",
            # within one run the sum rises with the iteration, so it repeats the iteration
            "The same scores against the sum of all entropies up to their iteration. What it says "
            "beyond the iteration's number shows over several runs: see their comparison.",
            "reward", points=thirds(list(accumulate(h)), r),
            across="sum of entropies so far, nats per token",
        ),
    ]  # fmt: skip


def _mutual(x: Sequence[float], y: Sequence[float]) -> str:
    from ...evaluation.checkpoint_correlation import bins_for
    from ...evaluation.metrics import mutual_information

    bins = bins_for(len(x))
    shared = mutual_information(x, y, bins=bins, correct_bias=True)
    return f"Mutual information {shared:.2f} nats ({bins} by {bins} bins, corrected for chance)."


def _quantiles(lines: list[Any]) -> tuple[Band, ...]:
    bands = []
    for label, *ends, alpha in (
        ("5 % to 95 %", "0.05", "0.95", 0.15),
        ("25 % to 75 %", "0.25", "0.75", 0.25),
    ):
        low, high = (dict(zip(*series(lines, "quantiles", end), strict=True)) for end in ends)
        x = [i for i in low if i in high]
        if x:
            bands.append(Band(label, x, [low[i] for i in x], [high[i] for i in x], BLUE, alpha))
    return tuple(bands)


def _evaluations(run: Run) -> list[Panel]:
    splits: dict[str, list[Any]] = {}
    rows = list(filter(is_line, run.evaluation))
    for line in rows:
        splits.setdefault(str(line.get("split", "held out")), []).append(line)
    scores = []
    ks = {k for line in rows if (k := figure(line.get("k")))}
    k = f"{ks.pop():g}" if len(ks) == 1 else "k"
    for i, (split, found) in enumerate(splits.items()):
        color = COLORS[i % len(COLORS)]
        for metric, dash in ((f"avg@{k}", "-"), (f"pass@{k}", DASHES[1])):
            x, y = series(found, metric.replace(f"@{k}", "@k"))
            if len(x) > 1:
                scores.append(Curve(f"{metric}, {split}", x, y, color, dash, marked=True))

    def relative(key: str) -> tuple[Curve, ...]:
        """One metric relative to its value before training, a curve per split."""
        curves = []
        for i, (split, found) in enumerate(splits.items()):
            x, y = series(found, key)
            start = next((v for it, v in zip(x, y, strict=True) if it == 0), None)
            if start is not None and start > TINY and len(x) > 1:
                color, shares = COLORS[i % len(COLORS)], [v / start for v in y]
                curves.append(Curve(split, x, shares, color, width=1.9, marked=True))
        return tuple(curves)

    share = "share of that at iteration 0"
    return [
        Panel(
            "Entropy of held-out responses",
            "Mean entropy of the tokens that the policy samples for the evaluation's prompts, "
            "relative to that before training (1), by split: does it fall where the policy is not "
            "trained, too?", share, relative("entropy"), low=0,
        ),
        Panel(
            "Entropy on held-out prompts",
            "Entropy of the policy on the evaluation's prompts themselves (PAR App. C.2): the mean "
            "over a prompt's own tokens, then over prompts, relative to that before training (1), "
            "by split. No sampled token is in it.", share, relative("prompt_entropy"), low=0,
        ),
        Panel(
            "Scores of held-out prompts",
            "avg@k: mean score of all samples. pass@k: share of prompts with a right answer among "
            "k samples. Where entropy is lost, the two approach each other.", "score",
            tuple(scores), low=0, high=1, points=_best(run) if scores else (),
        ),
    ]  # fmt: skip


def _best(run: Run) -> tuple[Points, ...]:
    name, _, key = ("" if run.best is None else run.best["figure"]).rpartition("/")
    if run.best is None or key not in ("avg@k", "pass@k") or figure(run.best["value"]) is None:
        return ()
    at, value = run.best["iteration"], run.best["value"]
    return (Points(f"best: {key}, {name}", [at], [value], BLACK, 7.0, 1.0),)
