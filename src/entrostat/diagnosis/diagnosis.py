"""A run's diagnosis: verdict, onset, causes and remedies, for readers and for programs."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from .._text import printable
from ..logs.run import Run
from .causes import Cause, causes_of
from .remedies import Remedy, remedies_of
from .signals import NAMES, signal
from .verdict import FEWEST, SURE, Judged, judge


@dataclass(frozen=True)
class Diagnosis:
    """What became of a run's entropy, what went with it, and what to try.

    Attributes:
        run: the run's name.
        source: the trainer that wrote it.
        entropy_is: which entropy was logged, in words.
        judged: the verdict, its confidence and its onset.
        causes: the plainest first; empty of a run that held, or of which nothing can be said.
        remedies: at most three, the first first; empty likewise.
        broken: the iteration from which on entropy is NaN or infinite, to the log's end; None where
            it is a number. The verdict is on what was before.
    """

    run: str
    source: str
    entropy_is: str
    judged: Judged
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...]
    broken: int | None = None

    @property
    def verdict(self) -> str:
        """collapse, explosion, drift, held or cannot tell."""
        return self.judged.verdict

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `entrostat diagnose --json` prints them."""
        judged = self.judged
        onset = judged.onset
        return {
            "run": self.run,
            "source": self.source,
            "entropy_is": self.entropy_is,
            "verdict": judged.verdict,
            "confidence": round(judged.confidence, 3),
            "others": {name: round(share, 3) for name, share in judged.others},
            "onset": None if onset is None else onset.iteration,
            "onset_interval": None if onset is None else [onset.low, onset.high],
            "entropy": {
                "first": _plain(judged.first), "last": _plain(judged.last),
                "trend": _plain(judged.trend), "noise": _plain(judged.noise),
                "iterations": judged.iterations, "broken": self.broken,
            },
            "causes": [asdict(cause) for cause in self.causes],
            "remedies": [asdict(remedy) for remedy in self.remedies],
        }  # fmt: skip

    @property
    def headline(self) -> str:
        """The verdict with its numbers, in a sentence or two."""
        return f"{self.verdict.capitalize()}. {self.detail}"

    @property
    def detail(self) -> str:
        """The numbers of the verdict: how far entropy went, how sure that is, since when."""
        if self.broken is None:
            return self._course()
        return (
            f"{self._course()} From iteration {self.broken} on entropy is no finite number, and "
            "nothing is said of that: see first what broke there."
        )

    def _course(self) -> str:
        judged = self.judged
        if judged.verdict == "cannot tell":
            return f"{self._unknown()}."
        moved = (
            f"Entropy {_went(judged)} {judged.first:.3g} to {judged.last:.3g} nats per token "
            f"({judged.last / judged.first - 1:+.0%})" if judged.first > 0 else
            f"Entropy ended at {judged.last:.3g} nats per token"
        )  # fmt: skip
        sure = f"{judged.confidence:.0%} of resampled courses say the same"
        text = f"{moved} over {_span(judged)}; {sure}."
        if judged.onset is not None:
            onset = judged.onset
            span = f"90% interval {onset.low} to {onset.high}"
            text += f" It began at iteration {onset.iteration} ({span})."
        return text

    def _unknown(self) -> str:
        judged = self.judged
        if judged.iterations == 0:
            return "No entropy is logged"
        if judged.iterations < FEWEST:
            return f"{judged.iterations} iterations have an entropy, and {FEWEST} are needed"
        shares = ", ".join(f"{name} {share:.0%}" for name, share in judged.others[:3])
        return f"Resampled courses say {shares}; a verdict needs {SURE:.0%}"

    def lines(self) -> list[str]:
        """About ten lines for a terminal; text from files has no control characters left."""
        found = [f"{self.run} ({self.source}): {self.headline}"]
        for rank, cause in enumerate(self.causes[:3], 1):
            found.append(f"  {rank}. {cause.title} [{cause.weight:.2f}]: {cause.evidence}")
            found.append(f"     {cause.why} ({cause.source})")
        pasted = next((place for place, r in enumerate(self.remedies) if r.paste), 0)
        for remedy in self.remedies[: pasted + 1]:
            found.append(f"  try: {remedy.what}")
            found += [f"    {line}" for line in remedy.paste.splitlines()]
        if self.judged.verdict == "held" and not self.causes and self.broken is None:
            found.append("  Nothing to change.")
        return [printable(line) for line in found]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _span(judged: Judged) -> str:
    """The iterations that were looked at; the onset is counted as the trainer counts them."""
    (first, last), logged = judged.numbers, judged.iterations
    if (first, last) == (1, logged):
        return f"{logged} iterations"
    span = f"iterations {first} to {last}"
    return span if last - first + 1 == logged else f"{span}, {logged} of them logged"


def _went(judged: Judged) -> str:
    if judged.verdict == "held":
        return "went from"
    return "fell from" if judged.last < judged.first else "rose from"


def _plain(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _targets(run: Run) -> list[float]:
    """What controllers were to hold, where that is an entropy and not a perplexity."""
    methods = run.config.get("method")
    tables = [m for m in methods if isinstance(m, dict)] if isinstance(methods, list) else []
    if any(str(table.get("target")).startswith("perplexity") for table in tables):
        return []
    return run.series("control/target")[1]


def diagnose_run(run: Run) -> Diagnosis:
    """The diagnosis of a run that is already read.

    Args:
        run: ours or another trainer's (`entrostat.logs.importers.read`).
    """
    entropy, score = signal(run, "entropy"), signal(run, "score")
    target = _targets(run)
    if entropy is None:
        judged = Judged("cannot tell", 1.0)
    else:
        scores = [] if score is None else list(score.y)
        judged = judge([int(x) for x in entropy.x], list(entropy.y), scores, target)
    causes = causes_of(run, judged)
    remedies = remedies_of(run, judged, causes)
    broken = next((run.broken[name] for name in NAMES["entropy"] if name in run.broken), None)
    return Diagnosis(run.name, run.source, run.entropy_is, judged, causes, remedies, broken)
