"""A bar per prompt: its samples, cut into the different right answers and the wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .figures import address, short, styled

if TYPE_CHECKING:
    from .picture import Picture

_INK, _SOFT, _PALE = "#222222", "#5C6168", "#C9CDD2"
_LETTERS = 44  # that a whole bar has room for
_TIMES = "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Bar:
    """The answers to one prompt.

    Attributes:
        question: the prompt's last line.
        k: samples.
        right: right answers with their counts, the most frequent first.
        more: how many other right answers there are.
        others: samples that gave one of those.
        wrong: samples that were not right.
    """

    label: str
    question: str
    k: int
    right: tuple[tuple[str, int], ...]
    more: int
    others: int
    wrong: int

    @property
    def distinct(self) -> int:
        return len(self.right) + self.more


def words_of(answer: str, count: int) -> str:
    """An answer, and how often it was given if more than once."""
    return short(answer, 28) + (f" {_TIMES}{count}" if count > 1 else "")


def draw_bars(bars: Sequence[Bar], color: str) -> str:
    """The figure of some prompts as an SVG image in a `data:` address."""
    with styled():
        return address(picture_of_bars(bars, color))


def picture_of_bars(bars: Sequence[Bar], color: str) -> Picture:
    """The figure of some prompts, a row each, to be called within `styled`."""
    from .picture import Picture

    figure = Picture(figsize=(4.7, 0.3 + 0.5 * len(bars)), layout="constrained")
    axes = figure.add_subplot()
    axes.set(xlim=(0, 1.07), ylim=(len(bars) - 0.3, -0.4), xticks=[])
    axes.set_yticks(range(len(bars)), [short(bar.label, 24) for bar in bars], fontweight="bold")
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)
    samples = {bar.k for bar in bars}
    count = f"{samples.pop()} answers" if len(samples) == 1 else "all answers"
    for place, text in (("left", count), ("right", "different")):
        axes.set_title(text, loc=place, fontsize=8, color=_SOFT)
    for row, bar in enumerate(bars):
        _draw(axes, row, bar, color)
    return figure


def _draw(axes: Any, row: int, bar: Bar, color: str) -> None:
    """One bar, and under it the words that found no room in it.

    A frequent answer is dark: one look tells a policy that always says the same.
    """
    words: dict[str, Any] = {"fontsize": 8, "va": "center_baseline"}
    at, below = 0.0, []
    for answer, count in bar.right:
        share, said = count / bar.k, words_of(answer, count)
        looks = {"facecolor": (color, 0.15 + 0.4 * share), "edgecolor": "white"}
        axes.barh(row, share, 0.5, at, **looks)
        if len(said) <= _LETTERS * share:
            axes.text(at + share / 2, row, said, ha="center", color=_INK, **words)
        else:
            below.append(said)
        at += share
    axes.barh(row, bar.others / bar.k, 0.5, at, facecolor=(color, 0.15))
    wrong = bar.wrong / bar.k
    axes.barh(row, wrong, 0.5, 1 - wrong, color="none", edgecolor=_PALE, hatch="/////", linewidth=0)
    said = f"{bar.wrong} wrong"
    if len(said) <= _LETTERS * wrong:
        ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.2}
        axes.text(1 - wrong / 2, row, said, ha="center", color=_SOFT, bbox=ground, **words)
    below += [f"{bar.more} more"] * bool(bar.more)
    axes.text(0, row + 0.42, short(", ".join(below), 52), color=_SOFT, **words)
    axes.text(1.07, row, str(bar.distinct), ha="right", fontweight="bold", color=_INK, **words)
