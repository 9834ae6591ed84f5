"""The only place that prints text, with control characters made visible.

Names of methods, files and runs, exception texts and model output may contain anything: a terminal
obeys control characters, and direction marks make a text look like another one.
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

# C0 except tab and line break, DEL, C1, direction marks and overrides, line separators, the byte
# order mark, lone surrogates; report/js/text.js has the same
_UNSAFE = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: str) -> str:
    r"""The text with control characters made visible.

    Controls become their symbols, characters without a symbol their code point.

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
    """Print one or several lines through `printable`; a stream of None is stdout.

    If the reader is gone (`head`, a closed terminal), the program continues without output.
    """
    stream = stream or sys.stdout
    try:
        print(printable(str(text)), file=stream, flush=True)
    except BrokenPipeError:
        _without_reader(stream)


def counted(n: int, word: str) -> str:
    return f"{n} {word}{'' if n == 1 else 's'}"


def cut(text: str, most: int) -> str:
    """A text of at most `most` characters, the last an ellipsis if it was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


_ENDLESS = 10_000  # columns


def console(stream: Any = None) -> Console:
    """A rich console that escapes text like `say`; its own colours and cursor control work."""
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
    """Print a rich table without truncation, wider than the terminal if necessary."""
    from rich.measure import Measurement

    screen = console()
    endless = screen.options.update(max_width=_ENDLESS)
    screen.width = max(screen.width, Measurement.get(screen, endless, table).minimum)
    screen.print(table)


def open_streams() -> None:
    """Make the standard streams writable, however this process was started.

    The next opened file would take the descriptor of a closed stream (`>&-`) and receive its text.
    An ASCII terminal shows ? for an arrow.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free descriptor: this one
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
