"""A run's diagnosis: what happened, causes and remedies, for readers and for programs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .._text import printable
from ..logs.run import ENTROPIES, Run, broken_notes
from .causes import Cause
from .checks import causes_of
from .events import WORST, Event, Severity, events_of, sentence
from .remedies import Remedy, remedies_of
from .signals import signal
from .verdict import FEWEST, SURE, Judged, judge

# metrics that could show a cause, where a run does not log them -> keys of `ALIASES`
WANTED = {
    "the gradient norm": ["gradient"], "the KL of an update": ["step_kl"],
    "the clipped share": ["clip"], "the learning rate": ["rate"], "response lengths": ["length"],
    "the share cut at the limit": ["truncated"],
    "the share of groups without a signal": ["no_signal"],
    "log-probs of the sampler beside the trainer's":
        ["mismatch_kl", "mismatch_logp", "mismatch_prob"],
}  # fmt: skip
CONSEQUENCES = ("score_lost", "length_collapse")  # these need a cause themselves
MISSING = 4  # most metrics suggested at once
BAD: dict[Severity, str] = {
    "broken": "the run is lost from there on",
    "bad": "that is bad",
    "watch": "no harm is seen yet, watch it",
    "unknown": "nothing can be said",
    "fine": "nothing is wrong",
}


@dataclass(frozen=True)
class Diagnosis:
    """Diagnosis of a run: its events, the verdict on its entropy, likely causes, and what to try.

    Attributes:
        run: the run's name.
        source: the trainer that wrote it.
        entropy_is: which entropy was logged, in words.
        judged: the verdict on entropy, its confidence and its onset.
        causes: the largest weight first; if entropy held, only causes of other losses.
        remedies: at most three, in the order to try them.
        broken: the iteration from which entropy is NaN or infinite to the end of the log; None if
            it stays finite. The verdict covers the iterations before.
        events: what happened, the worst first; includes the verdict on entropy.
        missing: metrics to log next, if no cause was found.
        notes: for another trainer's log, what was left out or corrected.
    """

    run: str
    source: str
    entropy_is: str
    judged: Judged
    causes: tuple[Cause, ...]
    remedies: tuple[Remedy, ...]
    broken: int | None
    events: tuple[Event, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def verdict(self) -> str:
        """Verdict on entropy: collapse, explosion, drift, held or cannot tell."""
        return self.judged.verdict

    @property
    def severity(self) -> Severity:
        """Severity of the worst event: broken, bad, watch, unknown or fine."""
        return self.events[0].severity

    @property
    def rank(self) -> tuple[int, float]:
        """Sort key: the worst diagnosis first, then the larger entropy movement."""
        first, last = self.judged.first, self.judged.last
        moved = abs(math.log(max(last, 1e-9) / first)) if first > 0 else 0.0
        return WORST.index(self.severity), -moved if math.isfinite(moved) else 0.0

    def to_dict(self) -> dict[str, Any]:
        """JSON values, as `entrostat diagnose --json` prints them (docs/diagnosis.schema.json)."""
        judged, onset = self.judged, self.judged.onset
        known = [(name, getattr(judged, name)) for name in ("first", "last", "trend", "noise")]
        return {
            "run": self.run,
            "source": self.source,
            "entropy_is": self.entropy_is,
            "severity": self.severity,
            "headline": self.headline,
            "happened": [asdict(event) for event in self.events],
            "verdict": judged.verdict,
            "confidence": round(judged.confidence, 3),
            "others": {name: round(share, 3) for name, share in judged.others},
            "onset": None if onset is None else onset.iteration,
            "onset_interval": None if onset is None else [onset.low, onset.high],
            "entropy": {
                **{name: None if math.isnan(value) else float(value) for name, value in known},
                "peak": None if judged.peak is None else list(judged.peak),
                "iterations": judged.iterations, "broken": self.broken,
            },
            "causes": [asdict(cause) for cause in self.causes],
            "remedies": [asdict(remedy) for remedy in self.remedies],
            "log_next": list(self.missing),
            "notes": list(self.notes),
        }  # fmt: skip

    @property
    def headline(self) -> str:
        """What happened, its severity and what to do, the worst event first; then the numbers."""
        return f"{self.word}. {self.detail}"

    @property
    def detail(self) -> str:
        """The headline without its first sentence, `word`."""
        other = [e for e in self.events if e.name != self.verdict and e.what]
        worst = self.events[0]
        told = [sentence(e.what) for e in other]
        if worst not in other:
            return " ".join([self._course(worst), *(f"{text}." for text in told)])
        bad = "nothing was learnt" if worst.name == "no_learning_signal" else BAD[worst.severity]
        course = [] if worst.name == "not_computed" else [self._course(None)]
        first = f"{told[0]}: {bad}{self._advice}."
        return " ".join([first, *(f"{text}." for text in told[1:]), *course])

    @property
    def word(self) -> str:
        """Short name of what happened, the worst event first."""
        worst = [e for e in self.events if e.severity == self.severity]
        words = [e.word for e in worst if e.name != "cannot tell"] or ["Cannot tell"]
        if self.verdict in ("collapse", "explosion", "drift") and worst[0].name != self.verdict:
            own = next(e.word for e in self.events if e.name == self.verdict)
            words = [*(word for word in words if word != own), f"entropy {self.verdict}"]
        words = [words[0], *(word.lower() for word in words[1:])]
        return " and ".join([", ".join(words[:-1]), words[-1]]) if words[1:] else words[0]

    @property
    def _short(self) -> str | None:
        return next((remedy.short for remedy in self.remedies if remedy.short), None)

    @property
    def _advice(self) -> str:
        return f"; try: {self._short}" if self._short else ""

    def _course(self, event: Event | None) -> str:
        """Text on the entropy curve; with severity and advice if `event` is the entropy event."""
        if self.verdict == "cannot tell":
            score = f"; {event.what}" if event and event.what else ""
            return f"{self._unknown}{score}{self._advice if event else ''}."
        judged = self.judged
        first, last = judged.first, judged.last
        if first > 0:
            still = judged.verdict == "held" or judged.peak is not None
            went = "went" if still else "fell" if last < first else "rose"
            text = f"Entropy {went} from {first:.3g} to {last:.3g} nats per token"
            text += f" ({last / first - 1:+.0%})"
        else:
            text = f"Entropy ended at {last:.3g} nats per token"
        text += f" over {_span(judged)}"
        if judged.peak is not None:
            at, value = judged.peak
            kind = "a peak" if value > max(first, last) else "a low"
            text += f", through {kind} of {value:.3g} near iteration {at}"
        sure = f"{judged.confidence:.0%} of resampled courses say the same."
        if event is None or event.severity == "fine":
            text += f"; {sure}"
        else:
            unknown = event.what == "no score is logged"
            bad = "nobody can say what it cost" if unknown else BAD[event.severity]
            text += f"; {event.what}, so {bad}{self._advice}. {sure}"
        if (onset := judged.onset) is not None:
            text += f" {self._movement(onset.iteration)} began at iteration {onset.iteration}"
            text += f" (90% interval {onset.low} to {onset.high})."
        return text

    def _movement(self, onset: int) -> str:
        """Name of the movement that began at the onset; with a peak or a low there are two."""
        if self.judged.peak is None:
            return "It"
        at, value = self.judged.peak
        falls = bool(self.judged.falling)
        high = value > max(self.judged.first, self.judged.last)
        after = " from there" if high == falls and onset >= 0.9 * at else ""
        return f"The {'fall' if falls else 'rise'}{after}"

    @property
    def _unknown(self) -> str:
        judged = self.judged
        if judged.iterations == 0:
            why = self.entropy_is.partition(": ")[2] if "--entropy" in self.entropy_is else ""
            return f"No entropy is logged{f' ({why})' if why else ''}"
        if judged.iterations < FEWEST:
            has = f"{judged.iterations} iteration{'s have' if judged.iterations != 1 else ' has'}"
            return f"{has} an entropy, and {FEWEST} are needed"
        if judged.others and judged.others[0][1] >= SURE:
            change = judged.last / judged.first - 1
            return (
                f"Entropy went from {judged.first:.3g} to {judged.last:.3g} nats per token "
                f"({change:+.0%}) over {_span(judged)}, too few to tell a trend from noise"
            )
        shares = ", ".join(f"{name} {share:.0%}" for name, share in judged.others[:3])
        return f"Resampled courses say {shares}; a verdict needs {SURE:.0%}"

    @property
    def log_next(self) -> str:
        """Sentence on what to log if no cause was found; else ""."""
        if not self.missing or any(cause.name not in CONSEQUENCES for cause in self.causes):
            return ""
        listed = ", ".join(self.missing)
        return f"No cause is plain in what was logged. Log next, to find one: {listed}."

    def lines(self) -> list[str]:
        """About ten lines for a terminal, with control characters removed from text of files."""
        found = [f"{self.run} ({self.source}): {self.headline}"]
        for rank, cause in enumerate(self.causes[:3], 1):
            found.append(f"  {rank}. {cause.title} [{cause.weight:.2f}]: {cause.evidence}")
            found.append(f"     {cause.why} ({cause.source})")
        if self.log_next:
            found.append(f"  {self.log_next}")
        pasted = next((place for place, r in enumerate(self.remedies) if r.paste), 0)
        for remedy in self.remedies[: pasted + 1]:
            found.append(f"  try: {remedy.what}")
            found += [f"    {line}" for line in remedy.paste.splitlines()]
        if self.severity == "fine":
            found.append("  Nothing to change.")
        found += [f"  note: {note}" for note in self.notes]
        return [printable(line) for line in found]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def table(found: Sequence[Diagnosis]) -> list[str]:
    """One line per run, the worst first."""
    rows = [("how bad", "run", "what happened", "entropy", "since", "try")]
    for each in sorted(found, key=lambda one: one.rank):
        judged = each.judged
        known = judged.iterations >= FEWEST
        entropy = f"{judged.first:.3g} to {judged.last:.3g}" if known else "-"
        since = next((str(e.since) for e in each.events[:1] if e.since is not None), "-")
        rows.append((each.severity, each.run, each.word, entropy, since, each._short or "-"))
    rows = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [min(max(map(len, column)), 48) for column in zip(*rows, strict=True)]
    return [
        "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def _span(judged: Judged) -> str:
    """The iterations examined, numbered as the trainer numbers them."""
    (first, last), logged = judged.numbers, judged.iterations
    if (first, last) == (1, logged):
        return f"{logged} iterations"
    span = f"iterations {first} to {last}"
    return span if last - first + 1 == logged else f"{span}, {logged} of them logged"


def diagnose(
    run: str | Path | Run, format: str | None = None, columns: Mapping[str, str] | None = None
) -> Diagnosis:
    """Diagnose a run's entropy: the verdict, likely causes, and what to try.

    Args:
        run: a run directory, another trainer's log or output directory, or a run already read.
        format: how to read it; None detects the format (`entrostat report --help`).
        columns: a table's own column names for "step", "entropy" and "score".

    Raises:
        ValueError: nothing in it can be read.

    Example:
        >>> import entrostat as es
        >>> print(es.diagnose("outputs/checkpoint-500"))  # doctest: +SKIP
    """
    if not isinstance(run, Run):
        from ..logs.importers import read

        run = read(run, format, columns)
    entropy, score = signal(run, "entropy"), signal(run, "score")
    if entropy is None:
        judged = Judged("cannot tell", 1.0)
    elif len(entropy) >= FEWEST and entropy.y.max() <= 0:  # entropy was not computed
        judged = Judged("cannot tell", 1.0, iterations=len(entropy), first=0.0, last=0.0)
    else:
        scores = [] if score is None else list(score.y)
        targets = [str(table.get("target")) for table in run.method_tables]
        other = any(target.startswith("perplexity") for target in targets)  # runs of older versions
        goal = [] if other else run.series("control/target")[1]
        judged = judge([int(x) for x in entropy.x], list(entropy.y), scores, goal)
    events = events_of(run, judged)
    causes = causes_of(run, judged, events)
    remedies = remedies_of(run, judged, causes, events)
    broken = next((run.broken[name] for name in ENTROPIES if name in run.broken), None)
    missing = [w for w, names in WANTED.items() if not any(signal(run, name) for name in names)]
    if judged.verdict in ("held", "cannot tell"):
        missing = []
    return Diagnosis(
        run.name, run.source, run.entropy_is, judged, causes, remedies, broken, events,
        tuple(missing[:MISSING]), _notes(run),
    )  # fmt: skip


def _notes(run: Run) -> tuple[str, ...]:
    """For another trainer's log: notes not reported as events, and what was left out."""
    if run.source == "entrostat":
        return ()
    notes = [note for note in run.notes if note not in broken_notes(run.broken)]
    for first in run.problems[:1]:
        more = f" ({len(run.problems)} in all)" if run.problems[1:] else ""
        notes.append(f"left out: {first}{more}")
    return tuple(notes)
