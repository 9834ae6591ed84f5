"""Which iterations a page holds, and which rollouts its static sample."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ...logs.rollouts import Rollouts

EACH = 4  # of the static sample: right ones, and as many wrong ones


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
