"""The one place where text is printed, and what printing takes away from it.

Names of methods, files and runs, exception texts and model output may hold anything: a terminal
obeys control characters, and a change of direction shows a reader another text than there is.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

Say = Callable[[str], None]  # shows a line

# C0 but tab and line break, DEL, C1, marks and changes of direction, line separators, the byte
# order mark, halves of surrogate pairs; report/js/text.js has the same
_UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""A text that shows what is in it, and does nothing else.

    Controls become the signs that stand for them, what has no sign its number.

    Example:
        >>> printable("\x1b[2J\u202etxt\n")
        '␛[2J[U+202E]txt\n'
    """
    return _UNSAFE.sub(_sign, text)


def _sign(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 32:
        return chr(0x2400 + code)
    return "\u2421" if code == 127 else f"[U+{code:04X}]"


def say(text: object = "", stream: Any = None) -> None:
    """Print a line, or several, as `printable` has it; a stream of None is stdout.

    Whoever read it may have gone (`head`, a closed terminal): the work goes on without a reader.
    """
    stream = stream or sys.stdout
    try:
        print(printable(str(text)), file=stream, flush=True)
    except BrokenPipeError:
        _without_reader(stream)


def counted(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def cut(text: str, most: int) -> str:
    """A text of at most so many characters, the last an ellipsis where it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_ENDLESS = 10_000  # columns


def console(stream: Any = None) -> Console:
    """A rich console with the properties of `say`; its own colours and movements still work."""
    from rich.console import Console
    from rich.segment import Segment

    class Printable(Console):
        def render(self, renderable: Any, options: Any = None) -> Iterable[Segment]:
            for part in super().render(renderable, options):
                yield part if part.control else Segment(printable(part.text), part.style)

        def on_broken_pipe(self) -> None:
            _without_reader(self.file)

    return Printable(file=stream)


def print_whole(table: Any) -> None:
    """Print a table of rich's with nothing cut off: wider than the terminal, if it has to be."""
    from rich.measure import Measurement

    screen = console()
    endless = screen.options.update(max_width=_ENDLESS)
    screen.width = max(screen.width, Measurement.get(screen, endless, table).minimum)
    screen.print(table)


def open_streams() -> None:
    """Have standard streams that can be written to, however this process was started.

    A closed one (`>&-`) would give its number to the next file opened, and its text with it. An
    ASCII terminal shows ? for an arrow.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _without_reader(stream: Any) -> None:
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)
