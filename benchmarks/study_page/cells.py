"""How the page writes numbers, seeds and tables of Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from entrostat.study.results import Interval


def plain(number: float, digits: int) -> str:
    """A number as the page writes it: no 0 before the point."""
    text = f"{number:.{digits}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return bare(text)


def short(number: float | None) -> str:
    """Two digits, as the page writes them."""
    if number is None:
        return "—"
    return "0" if number == 0 else bare(f"{number:#.2g}".removesuffix("."))


def bare(number: str) -> str:
    """Without the 0 before the point."""
    return re.sub(r"^(-?)0\.", r"\1.", number)


def signed(number: float, digits: int) -> str:
    """With a plus before what is above 0."""
    return ("+" if round(number, digits) > 0 else "") + plain(number, digits)


def ranged(values: Sequence[float], digits: int = 2) -> str:
    """From the lowest to the highest."""
    return f"{plain(min(values), digits)} to {plain(max(values), digits)}"


def within(
    some: Interval | None, digits: int = 2, sign: bool = False, unit: str = "", half: bool = True
) -> str:  # fmt: skip
    """A mean with half of its interval, which one seed does not have; empty without any."""
    if some is None:
        return ""
    mean = (signed if sign else plain)(some.mean, digits) + unit
    return mean + (f" ± {plain(some.half, digits)}" if half and some.n > 1 else "")


def said(seeds: Sequence[int]) -> str:
    """Which seeds, in words."""
    if len(seeds) == 1:
        return f"Seed {seeds[0]}."
    runs = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"Seeds {seeds[0]} to {seeds[-1]}." if runs else f"Seeds {', '.join(map(str, seeds))}."


def rows_of(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table of Markdown."""
    return [
        f"| {' | '.join(each)} |" for each in (head, ["---"] * len(head), *rows)
    ]  # fmt: skip
