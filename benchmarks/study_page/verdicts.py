"""Tables of the claims: those that are decided, and what leaves the others open."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

from entrostat.study.claims import VERDICTS, Decided, decide, read_claims
from entrostat.study.results import spread

from .cells import bare, rows_of, short, signed, within
from .record import Record

MARKS = {True: "", False: " (†)"}  # behind a verdict, by `Decided.robust`
DIGITS = 2  # of an effect on both policies
TASKS = {"llm_words": "`words`", "llm_arithmetic": "`arithmetic`", "llm_gym": "`gym`"}
ON_BOTH = {  # claims whose settings the language model has, word for word, and where
    "par-clip-higher-prevents": tuple(TASKS), "cov-clip-cov-keeps": tuple(TASKS),
    "cov-kl-cov-keeps": tuple(TASKS), "steer-scores": tuple(TASKS),
    "steer-weights-score": tuple(TASKS), "steer-estimate-ranks": ("estimators_llm",),
    "steer-estimate-correlates": ("estimators_llm",), "opefo-on-policy-scores": tuple(TASKS),
    "opefo-on-policy-collapses": tuple(TASKS), "opefo-keeps": tuple(TASKS),
    "opefo-does-not-inflate": tuple(TASKS), "opefo-scores": tuple(TASKS),
}  # fmt: skip


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
    each = ", ".join(f"{verdict} {count}" for verdict, count in counts.items())
    lead = f"Verdicts on {len(decided)} claims: {each}."
    head = ["claim", "source", "verdict", "effect, 95% interval", "minimum effect", "seeds"]
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
    head = ["claim", "source", "effect, 95% interval", "minimum effect", "seeds", "left open by"]
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
    head = ["claim", "verdict", "effect, 95% interval", "minimum effect", "seeds"]
    return [f"Seeds {seeds[0]} to {seeds[-1]}.", "", *rows_of(head, rows)]


def on_both(record: Record, file: Path) -> list[str]:
    """What claims come to on the tiny policy and on the language model, each taken alone."""
    claims = read_claims(file)
    tiny = {one.claim.id: one for one in decided_by(record, file)}
    moved = [
        replace(tiny[name].claim, experiment=experiment)
        for name, experiments in ON_BOTH.items() for experiment in experiments
    ]  # fmt: skip
    found = {
        (one.claim.id, one.claim.experiment): one
        for one in decide(replace(claims, claims=tuple(moved)), record.figure, record.seeds)
    }
    rows = []
    for name, experiments in ON_BOTH.items():
        claim = tiny[name].claim
        cells = dict.fromkeys(TASKS, "") | {
            # `estimators_llm` is on `words`, as the first of the tasks
            (each if each in TASKS else next(iter(TASKS))): alone(found[name, each])
            for each in experiments
        }
        rows.append(
            [claim.says, claim.paper, bare(f"{claim.least:g}"), alone(tiny[name]), *cells.values()]
        )
    return rows_of(["claim", "source", "minimum effect", "tiny policy", *TASKS.values()], rows)


def side_by_side(record: Record, file: Path, other: Path) -> list[str]:
    """Claims of another file, each beside the one of this file that it repeats."""
    mine = {one.claim.id: one for one in decided_by(record, file)}
    rows = []
    for one in decided_by(record, other):
        first = mine[one.claim.id.removeprefix("own-")]
        both = [[seen(each), str(len(each.effects))] for each in (first, one)]
        rows.append([one.claim.says, bare(f"{one.claim.least:g}"), *both[0], *both[1]])
    head = ["claim", "minimum effect", "mean over tokens", "seeds", "1/\\|tau\\|", "seeds"]
    return rows_of(head, rows)


def seen(one: Decided) -> str:
    """`alone` of three seeds or more, the mean of fewer, nothing of none."""
    if len(one.effects) >= 3:
        return alone(one)
    return signed(mean(one.effects.values()), DIGITS) if one.effects else ""


def alone(one: Decided) -> str:
    """A claim's effect with its own 95% interval: bold where that says it holds, slanting if not.

    Student's interval: of five seeds the bootstrap's, which the verdicts have, goes on and on.
    """
    effect = spread(list(one.effects.values()))
    assert effect is not None  # the page is of experiments that have seeds
    text = within(effect, DIGITS, sign=True)
    if effect.mean - effect.half > one.claim.least:
        return f"**{text}**"
    if effect.mean + effect.half < one.claim.least:
        return f"*{text}*"
    return text


def still_open(one: Decided, record: Record) -> str:
    """Why a claim cannot be told: runs to come, the number of claims, or its own interval."""
    experiment = one.claim.experiment
    planned = max(len(record.planned(experiment, group)) for group in one.claim.every_group)
    if len(one.effects) < planned:
        return "seeds to come"
    if one.low is None or one.high is None or one.low <= one.claim.least <= one.high:
        return "its interval"
    return f"the correction (alone: {VERDICTS[one.high < one.claim.least]})"


def reach(one: Decided) -> str:
    """A claim's effect with its interval; empty without runs."""
    if one.estimate is None:
        return ""
    return f"{short(one.estimate)} ({one.interval(short) or '—'})"
