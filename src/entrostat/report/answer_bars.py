"""A bar per prompt: its samples, cut into the different right answers and the wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .figures import address, short, styled

if TYPE_CHECKING:
    from .picture import Picture

# in points; the page shows a figure a little larger
_WIDTH, _TOP, _ROW, _BAR = 338.0, 18.0, 36.0, 19.0
_LEFT, _RIGHT = 76.0, 24.0  # most for the labels; for the count at the bar's end
_TEXT, _LEAST, _SMALL = 8.5, 7.4, 7.8
_INK, _PAPER, _SOFT, _PALE = "#222222", "#ffffff", "#5C6168", "#C9CDD2"
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


def shade(color: str, share: float) -> tuple[str, str]:
    """The colour of a part that is `share` of a bar, and that of the text on it.

    A frequent answer is dark: one look tells a policy that always says the same.

    Example:
        >>> shade("#000000", 1.0)
        ('#000000', '#ffffff')
    """
    depth = 0.28 + 0.72 * share**0.7
    mixed = [round(255 - depth * (255 - part)) for part in _parts(color)]
    fill = "#" + "".join(f"{part:02x}" for part in mixed)
    return fill, max(_PAPER, _INK, key=lambda ink: contrast(ink, fill))


def contrast(one: str, other: str) -> float:
    """How well two colours can be told apart, 1 to 21 (WCAG 2).

    Example:
        >>> round(contrast("#000000", "#ffffff"), 6)
        21.0
    """
    dark, light = sorted(map(_luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


def _luminance(color: str) -> float:
    shares = [part / 255 for part in _parts(color)]
    linear = [s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def _parts(color: str) -> list[int]:
    return [int(color[i : i + 2], 16) for i in (1, 3, 5)]


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

    height = _TOP + _ROW * len(bars)
    figure = Picture(figsize=(_WIDTH / 72, height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_axis_off()
    axes.set(xlim=(0, _WIDTH), ylim=(height, 0))  # points, from the top
    labels = [short(bar.label, 24) for bar in bars]
    widths = [max(1.0, width_of(label, 9, bold=True)) for label in labels]
    left = min(_LEFT, max(widths)) + 12
    end = _WIDTH - _RIGHT
    head: dict[str, Any] = {"fontsize": _SMALL, "color": _SOFT, "va": "center"}
    samples = {bar.k for bar in bars}
    count = f"{samples.pop()} answers" if len(samples) == 1 else "all answers"
    axes.text(left, 8, count, ha="left", **head)
    axes.text(_WIDTH - 3, 8, "different", ha="right", **head)
    for i, (bar, label, width) in enumerate(zip(bars, labels, widths, strict=True)):
        top = _TOP + i * _ROW
        middle = top + _BAR / 2
        axes.text(
            left - 7, middle, label, ha="right", va="center_baseline",
            fontsize=9 * min(1.0, _LEFT / width),
            fontweight="bold", color=_INK,
        )  # fmt: skip
        axes.text(
            _WIDTH - 3, middle, str(bar.distinct), ha="right", va="center_baseline",
            fontsize=9, fontweight="bold", color=_INK,
        )  # fmt: skip
        _draw(axes, bar, color, left, end, top)
    return figure


def _draw(axes: Any, bar: Bar, color: str, left: float, end: float, top: float) -> None:
    """One bar, and under it the words that found no room in it."""
    from matplotlib.patches import Rectangle

    unit = (end - left) / bar.k
    at, outside = left, []
    for answer, count in bar.right:
        fill, ink = shade(color, count / bar.k)
        axes.add_patch(
            Rectangle((at, top), unit * count, _BAR, facecolor=fill, edgecolor=_PAPER, linewidth=1)
        )
        words = words_of(answer, count)
        size = min(_TEXT, _TEXT * (unit * count - 3.5) / max(1.0, width_of(words, _TEXT)))
        if size >= _LEAST:
            axes.text(
                at + unit * count / 2, top + _BAR / 2, words, ha="center", va="center_baseline",
                fontsize=size, color=ink,
            )  # fmt: skip
        else:
            outside.append(words)
        at += unit * count
    if bar.others:
        axes.add_patch(
            Rectangle((at, top), unit * bar.others, _BAR, facecolor=shade(color, 0)[0],
                      edgecolor=_PAPER, linewidth=1)
        )  # fmt: skip
        at += unit * bar.others
    if bar.wrong:
        axes.add_patch(
            Rectangle((at, top + 0.5), end - at, _BAR - 1, facecolor=_PAPER, edgecolor=_PALE,
                      linewidth=0.6, hatch="/////")
        )  # fmt: skip
        words = f"{bar.wrong} wrong"
        if width_of(words, _SMALL) + 8 <= end - at:
            axes.text(
                (at + end) / 2, top + _BAR / 2, words, ha="center", va="center_baseline",
                fontsize=_SMALL, color=_SOFT,
                bbox={"facecolor": _PAPER, "edgecolor": "none", "pad": 1.2},
            )  # fmt: skip
    line = fitting(outside, bar.more, end + _RIGHT - 3 - left)
    axes.text(left, top + _BAR + 7, line, ha="left", va="center", fontsize=_SMALL, color=_SOFT)


def fitting(words: Sequence[str], more: int, room: float) -> str:
    """As many of the words as there is room for, and how many more there are."""
    for n in range(len(words), -1, -1):
        rest = len(words) - n + more
        line = ", ".join([*words[:n], *([f"{rest} more"] if rest else [])])
        if not n or width_of(line, _SMALL) <= room:
            return line
    return ""


def width_of(text: str, size: float, bold: bool = False) -> float:
    """Width of a text in points, to be called within `styled`."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    font = FontProperties(size=size, weight="bold" if bold else "normal")
    return float(text_to_path.get_text_width_height_descent(text, font, ismath=False)[0])
