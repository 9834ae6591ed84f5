"""Read and check claims.toml (docs/claims.md): statistics of a study's runs, and their sources.

The file is written before the runs are looked at; the report states its hash. A claim based on some
seeds names the other seeds that decide it: `seeds = [3, 4, 5]`, of a claim or, beside alpha, of all
claims. All of these seeds then decide, regardless of other seeds on record.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..._names import nearest, unknown
from ...config import load
from ...logs.lines import number
from ..figures import Figure, read_figure, refuse_keys

LEAST = 3  # minimum number of seeds for a verdict
PAPERS = ("REPO", "COV", "OPEFO", "STEER", "PAR", "OURS")
# per statistic: its groups' keys, and its two directions, of which the first is positive
STATISTICS = {
    "difference": (("a", "b"), ("above", "below")),
    "ratio": (("a", "b"), ("above", "below")),
    "interaction": (("a", "b", "c", "d"), ("above", "below")),
    "level": (("a",), ("above", "below")),
    "margin": (("a",), ("above", "below")),
    "trend": (("groups",), ("rises", "falls")),
    "correlation": (("groups",), ("positive", "negative")),
}
_MORE = {"correlation": ("with",), "margin": ("with",), "level": ("than",)}
_LEAST_GROUPS = {"trend": 3, "correlation": 4}
_KEYS = ("id", "paper", "where", "says", "experiment", "figure", "statistic", "direction", "least")


@dataclass(frozen=True)
class Claim:
    id: str
    paper: str  # one of `PAPERS`; OURS is the author of the file
    where: str  # section, figure or table
    says: str  # in our own words
    experiment: str  # the study file's stem
    figure: Figure
    statistic: str  # one of `STATISTICS` (`decide.effect`)
    # by the statistic's keys; several groups under one key are averaged
    groups: Mapping[str, tuple[str, ...]]
    direction: str
    least: float  # smallest effect that counts, at least 0, in the statistic's unit
    other: Figure | None = None  # second figure of a correlation or margin
    than: float = 0.0  # reference value of a level
    # all seeds that decide; None for every seed with runs
    seeds: tuple[int, ...] | None = None

    @property
    def sign(self) -> int:
        """1 if `direction` is the statistic's first direction, else -1."""
        return 1 if self.direction == STATISTICS[self.statistic][1][0] else -1

    @property
    def figures(self) -> tuple[Figure, ...]:
        return (self.figure,) if self.other is None else (self.figure, self.other)

    @property
    def every_group(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for names in self.groups.values() for name in names))


@dataclass(frozen=True)
class Claims:
    alpha: float  # family-wise error of "holds", and separately of "does not hold"
    claims: tuple[Claim, ...]
    sha256: str  # of the file's bytes
    path: Path


def read_claims(path: str | Path) -> Claims:
    """Read a file of claims; a ValueError names the claim and the error."""
    path, data = Path(path), load(path)
    where = f"claims {str(path)!r}"
    refuse_keys(where, data, ("alpha", "claims", "seeds"))
    alpha = number(data.get("alpha", 0.05))
    if alpha is None or not 0 < alpha < 0.5:
        raise ValueError(f"{where}: alpha is between 0 and .5, got {data['alpha']!r}")
    tables = data.get("claims")
    if not isinstance(tables, list) or not tables:
        raise ValueError(f"{where} has no [[claims]]")
    seeds = _seeds(where, data.get("seeds"))
    claims = tuple(_claim(f"{where}, claim {i}", table, seeds) for i, table in enumerate(tables, 1))
    ids = [claim.id for claim in claims]
    if twice := [one for one in ids if ids.count(one) > 1]:
        raise ValueError(f"{where}: two claims have the id {twice[0]!r}")
    return Claims(alpha, claims, hashlib.sha256(path.read_bytes()).hexdigest(), path)


def check_claims(
    claims: Claims, groups: Mapping[str, Sequence[str]],
    seeds: Mapping[str, Collection[int]] | None = None,
) -> None:  # fmt: skip
    """Raise on claims about groups or seeds (None: any) that a given experiment lacks."""
    for claim in claims.claims:
        where = f"claims {str(claims.path)!r}, {claim.id!r}"
        for group in claim.every_group:
            if group not in groups.get(claim.experiment, claim.every_group):
                near = nearest(group, groups[claim.experiment])
                hint = f"; did you mean {near!r}?" if near else "."
                raise ValueError(
                    f"{where}: {claim.experiment!r} has no group {group!r}{hint} Its groups are "
                    f"{', '.join(groups[claim.experiment])}"
                )
        there = set((seeds or {}).get(claim.experiment, claim.seeds or ()))
        if claim.seeds is not None and (none := set(claim.seeds) - there):
            raise ValueError(
                f"{where}: seeds {sorted(claim.seeds)} decide it, and {claim.experiment!r} has no "
                f"seed {', '.join(map(str, sorted(none)))}"
            )


def misspelt_experiments(claims: Claims, given: Collection[str]) -> list[str]:
    """List claims about experiments that are not given but are spelled like a given one."""
    names = dict.fromkeys(claim.experiment for claim in claims.claims)
    return [
        f"claims {str(claims.path)!r}: no study file {name!r} among those given; {near!r} is"
        for name in names
        if name not in given and (near := nearest(name, given))
    ]


def _claim(where: str, table: Any, seeds: tuple[int, ...] | None) -> Claim:
    if not isinstance(table, Mapping):
        raise ValueError(f"{where} is a table, got {table!r}")
    where = f"{where} ({table.get('id', 'without id')})"
    statistic = table.get("statistic")
    if statistic is None:
        raise ValueError(f"{where} has no statistic; there are {', '.join(STATISTICS)}")
    if not isinstance(statistic, str) or statistic not in STATISTICS:
        raise ValueError(f"{where}: {unknown('statistic', str(statistic), STATISTICS)}")
    places, directions = STATISTICS[statistic]
    needed = (*_KEYS, *places, *_MORE.get(statistic, ()))
    refuse_keys(where, table, (*needed, "seeds"))
    if missing := [key for key in needed if key not in table]:
        raise ValueError(f"{where} has no {', '.join(missing)}, which {statistic!r} needs")
    for key in ("id", "paper", "where", "says", "experiment"):
        if not isinstance(table[key], str) or not table[key].strip():
            raise ValueError(f"{where}: {key} is text, got {table[key]!r}")
    if table["paper"] not in PAPERS:  # OURS is the author of the file
        raise ValueError(f"{where}: {unknown('paper', table['paper'], PAPERS)}")
    if table["direction"] not in directions:
        raise ValueError(
            f"{where}: direction of a {statistic} is {' or '.join(directions)}, got "
            f"{table['direction']!r}"
        )
    least, than = number(table["least"]), number(table.get("than", 0.0))
    if least is None or least < 0:
        raise ValueError(f"{where}: least is a number from 0, got {table['least']!r}")
    if than is None:
        raise ValueError(f"{where}: than is a number, got {table['than']!r}")
    groups = {key: _groups(f"{where}: {key}", table[key], statistic) for key in places}
    for first, second in zip(places[::2], places[1::2], strict=False):  # a and b, c and d
        if set(groups[first]) == set(groups[second]):
            raise ValueError(f"{where}: {first} and {second} are the same group")
    return Claim(
        table["id"], table["paper"], table["where"], table["says"], table["experiment"],
        read_figure(f"{where}: figure", table["figure"]), statistic,
        groups, table["direction"], least,
        read_figure(f"{where}: with", table["with"]) if "with" in table else None, than,
        _seeds(where, table["seeds"]) if "seeds" in table else seeds,
    )  # fmt: skip


def _seeds(where: str, given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    if not isinstance(given, list) or not all(type(seed) is int and seed >= 0 for seed in given):
        raise ValueError(f"{where}: seeds is a list of whole numbers from 0, got {given!r}")
    if len(given) < LEAST or len(set(given)) < len(given):
        raise ValueError(
            f"{where}: seeds are {LEAST} different ones or more, below which nothing is decided, "
            f"got {given!r}"
        )
    return tuple(given)


def _groups(where: str, given: Any, statistic: str) -> tuple[str, ...]:
    names = [given] if isinstance(given, str) and statistic not in _LEAST_GROUPS else given
    least = _LEAST_GROUPS.get(statistic, 1)
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or len(set(names)) < max(least, len(names))
    ):
        raise ValueError(f"{where} takes at least {least} different groups, got {given!r}")
    return tuple(names)
