"""Correct answers to held-out prompts, before and after training.

They are read from a run's answers.jsonl; malformed lines are skipped. Answers come from a model, so
the page escapes them, and figures never parse them as mathematics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeGuard

from .._text import counted
from ..logs.run import Run
from .figures import BLUE, Image, address, short, styled
from .seeds import Entry

if TYPE_CHECKING:
    from .picture import Picture

_INK, _SOFT, _PALE = "#222222", "#5C6168", "#C9CDD2"
_LETTERS = 44  # characters that fit into a full bar
_TIMES = "\N{MULTIPLICATION SIGN}"
BEFORE = "#52606D"  # a color that no run has
RUNS = 4  # shown beside the policy before training
SHOWN, LISTED = 10, 64  # prompts in a figure, and in the table
_HUGE = 1_000_000  # upper limit for a plausible sample count
Key = tuple[int, str]  # a prompt: its index in the split, its label


@dataclass(frozen=True)
class Bar:
    label: str
    question: str  # the prompt's last line
    k: int  # samples
    right: tuple[tuple[str, int], ...]  # correct answers with counts, the most frequent first
    more: int  # number of other correct answers
    others: int  # samples that gave one of these
    wrong: int  # samples that were wrong

    @property
    def distinct(self) -> int:
        return len(self.right) + self.more


def words_of(answer: str, count: int) -> str:
    return short(answer, 28) + (f" {_TIMES}{count}" if count > 1 else "")


def picture_of_bars(bars: Sequence[Bar], color: str) -> Picture:
    """Draw the figure of some prompts, one row each; call it within `styled`."""
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
    """Draw one bar; answers that do not fit into it go below.

    Frequent answers are dark, so a policy that repeats one answer is easy to see.
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


Bars = Mapping[Key, Bar]  # the answers of one policy, by prompt
Column = tuple[str, str, Bars]  # one policy: its title, the color of its bars, its answers


@dataclass(frozen=True)
class BarFigure:
    """One policy's answers to draw, a bar per prompt; `caption` is about all prompts."""

    name: str
    title: str
    caption: str
    color: str
    bars: tuple[Bar, ...]


@dataclass(frozen=True)
class Answers:
    samples: int  # answers per prompt
    example: Bar  # a prompt's label and its last line
    figures: tuple[BarFigure, ...]  # one per column
    titles: tuple[str, ...]
    # the label of each listed prompt, and a bar per column
    table: tuple[tuple[str, tuple[Bar, ...]], ...]
    notes: tuple[str, ...]  # sentences about parts that are not shown

    @property
    def images(self) -> tuple[Image, ...]:
        return tuple(map(_drawn, self.figures))


def answers_of(run: Run) -> Answers | None:
    found = evaluations(run)
    last = max(found, default=0)
    columns = [("Before training", BEFORE, found[0])] if 0 in found else []
    if last > 0:
        columns.append((f"After {counted(last, 'iteration')}", BLUE, found[last]))
    return _section(columns, ())


def answers_of_all(runs: Sequence[Run], entries: Sequence[Entry]) -> Answers | None:
    """Answers before training, then of one run for the first `RUNS` entries; None if all wrong."""
    before: list[tuple[str, Bars]] = []
    columns: list[Column] = []
    notes: dict[str, None] = {}
    keys: set[Key] = set()
    for entry in entries:
        run = runs[entry.members[0]]
        found = evaluations(run)
        last = max(found, default=0)
        if last == 0:
            continue
        if len(columns) == RUNS:
            notes[f"The first {RUNS} settings are shown."] = None
            break
        if keys and keys.isdisjoint(found[last]):
            notes["Runs that were evaluated on other prompts are not shown."] = None
            continue
        keys = keys & found[last].keys() if keys else set(found[last])
        label = entry.label
        if entry.is_band:
            notes["Of several seeds one is shown."] = None
            label = f"{label}, seed {run.config.get('seed')}"
        after = f"{label}: after {counted(last, 'iteration')}"
        columns.append((after, entry.color, found[last]))
        if 0 in found:
            before.append((label, found[0]))
    if before:
        # other models or seeds answer differently before training
        same = all(bars == before[0][1] for _, bars in before)
        whose = "" if same else f" ({before[0][0]})"
        columns.insert(0, (f"Before training{whose}", BEFORE, before[0][1]))
    return _section(columns, tuple(notes))


def evaluations(run: Run) -> Mapping[int, Bars]:
    """Answers at each evaluation, for the split of the log's first line."""
    found: dict[int, dict[Key, Bar]] = {}
    split = None
    for line in run.answers:
        bar, place = bar_of(line), line.get("prompt")
        split = line.get("split") if split is None else split
        if bar is not None and type(place) is int and line.get("split") == split:
            found.setdefault(line["iteration"], {})[place, bar.label] = bar
    return found


def bar_of(line: Mapping[str, Any]) -> Bar | None:
    k, wrong, more, right, label, question = (
        line.get(key) for key in ("k", "wrong", "more", "right", "label", "question")
    )
    if not (_count(k, 1) and _count(wrong) and _count(more) and isinstance(right, dict)):
        return None
    if not isinstance(label, str) or not all(_count(n, 1) for n in right.values()):
        return None
    others = k - wrong - sum(right.values())
    if others < more or (others > 0 and not more):
        return None
    named = sorted(right.items(), key=lambda pair: -pair[1])
    question = question if isinstance(question, str) else ""
    return Bar(label, question, k, tuple(named), more, others, wrong)


def evenly(n: int, most: int) -> list[int]:
    """At most `most` of the indices 0 to n - 1, evenly spaced, including the first and the last.

    Example:
        >>> evenly(9, 3)
        [0, 4, 8]
    """
    if n <= most:
        return list(range(n))
    return [round(i * (n - 1) / (most - 1)) for i in range(most)]


def _section(columns: Sequence[Column], notes: tuple[str, ...]) -> Answers | None:
    if not columns:
        return None
    titles, _, policies = zip(*columns, strict=True)
    shared = sorted(set(policies[0]).intersection(*policies[1:]))
    if not any(bars[key].right for bars in policies for key in shared):
        return None  # all answers are wrong
    shown = [shared[i] for i in evenly(len(shared), SHOWN)]
    listed = [shared[i] for i in evenly(len(shared), LISTED)]
    if len(shown) < len(shared):
        notes = (f"The figures show {len(shown)} of the {len(shared)} prompts.", *notes)
    figures = []
    for place, (title, color, bars) in enumerate(columns, 1):
        every = [bars[key] for key in shared]
        right = 1 - sum(bar.wrong for bar in every) / sum(bar.k for bar in every)
        distinct = sum(bar.distinct for bar in every) / len(every)
        caption = (
            f"{100 * right:.0f} % of the answers are right; a prompt gets {distinct:.1f} different "
            f"right ones (mean of {len(every)} prompts)."
        )
        some = tuple(bars[key] for key in shown)
        figures.append(BarFigure(f"answers_{place}", title, caption, color, some))
    return Answers(
        policies[0][shown[0]].k,
        policies[-1][shown[0]],
        tuple(figures),
        titles,
        tuple((key[1], tuple(bars[key] for bars in policies)) for key in listed),
        notes,
    )


def _drawn(figure: BarFigure) -> Image:
    parts = [
        f"{bar.label}: {bar.distinct} different right of {bar.k}"
        + (f", most often {bar.right[0][0]} ({bar.right[0][1]})" if bar.right else "")
        for bar in figure.bars
    ]
    words = f"{figure.title}: {'; '.join(parts)}. The table below has all of them."
    with styled():
        src = address(picture_of_bars(figure.bars, figure.color))
    return Image(figure.title, figure.caption, f"Right answers. {words}", src)


def _count(value: Any, low: int = 0) -> TypeGuard[int]:
    return type(value) is int and low <= value <= _HUGE
