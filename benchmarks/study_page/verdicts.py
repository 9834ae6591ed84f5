"""Tables of the claims: those that are decided, and what leaves the others open."""

from __future__ import annotations

from pathlib import Path

from entrostat.study.claims import VERDICTS, Decided, decide, read_claims

from .cells import bare, rows_of, short
from .record import Record

MARKS = {True: "", False: " (†)"}  # behind a verdict, by `Decided.robust`


def decided_by(record: Record, file: Path) -> list[Decided]:
    """The claims of a file; those of experiments that are not whole are not decided."""
    return decide(
        read_claims(file), record.figure, record.seeds, planned_of=record.planned
    )  # fmt: skip


def verdicts(record: Record, file: Path) -> list[str]:
    """The claims that are decided, and how many are not."""
    decided = decided_by(record, file)
    rows = [
        [
            one.claim.says, f"{one.claim.paper} {one.claim.where}",
            f"**{one.verdict}**{MARKS[one.robust]}",
            reach(one), bare(f"{one.claim.least:g}"), str(len(one.effects)),
        ]
        for verdict in VERDICTS[:2] for one in decided if one.verdict == verdict
    ]  # fmt: skip
    counts = {verdict: sum(one.verdict == verdict for one in decided) for verdict in VERDICTS}
    lead = (
        f"Of {len(decided)} claims {counts[VERDICTS[0]]} hold, {counts[VERDICTS[1]]} do not, and "
        f"{counts[VERDICTS[2]]} cannot be told so far."
    )
    head = ["claim", "who", "verdict", "effect, 95% interval", "counts from", "seeds"]
    return [lead, "", *rows_of(head, rows)]


def open_claims(record: Record, file: Path) -> list[str]:
    """The claims that cannot be told, with what was seen."""
    rows = [
        [
            one.claim.says, one.claim.paper, reach(one), bare(f"{one.claim.least:g}"),
            str(len(one.effects)), still_open(one, record),
        ]
        for one in decided_by(record, file) if one.verdict == VERDICTS[2]
    ]  # fmt: skip
    head = ["claim", "who", "effect, 95% interval", "counts from", "seeds", "left open by"]
    return rows_of(head, rows)


def of_fresh_seeds(record: Record, file: Path) -> list[str]:
    """All claims of a file whose seeds had no part in what it claims, and which seeds these are."""
    decided = decided_by(record, file)
    seeds = sorted({seed for one in decided for seed in one.effects})
    rows = [
        [
            one.claim.says, f"**{one.verdict}**{MARKS[one.robust]}", reach(one),
            bare(f"{one.claim.least:g}"), str(len(one.effects)),
        ]
        for one in decided
    ]  # fmt: skip
    head = ["claim", "verdict", "effect, 95% interval", "counts from", "seeds"]
    return [f"Seeds {seeds[0]} to {seeds[-1]}.", "", *rows_of(head, rows)]


def still_open(one: Decided, record: Record) -> str:
    """Why a claim cannot be told: runs to come, the number of claims, or its own interval."""
    experiment = one.claim.experiment
    planned = max(len(record.planned(experiment, group)) for group in one.claim.every_group)
    if len(one.effects) < planned:
        return "seeds to come"
    if one.low is None or one.high is None or one.low <= one.claim.least <= one.high:
        return "its interval"
    return f"the other claims (alone: {VERDICTS[one.high < one.claim.least]})"


def reach(one: Decided) -> str:
    """A claim's effect with its interval; empty without runs."""
    if one.estimate is None:
        return ""
    return f"{short(one.estimate)} ({one.interval(short) or '—'})"
