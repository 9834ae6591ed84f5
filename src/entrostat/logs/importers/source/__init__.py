"""What the importers share: text of any kind, a log of steps, sequences of tokens, one `Run`.

Nothing here trusts a file: lines may be cut, doubled, huge, nested without end or not text at all.
What cannot be read becomes a `Problem`; nothing is unpickled or evaluated.
"""

from .problems import Given
from .sequences import Means, Rollout, column, read_dump, token_ids
from .steps import Log, finish
from .text import ANSI, UnreadableError, document, json_lines, lines, objects, parse, records
from .values import clean, finite, number, short, step_of

__all__ = [
    "ANSI",
    "Given",
    "Log",
    "Means",
    "Rollout",
    "UnreadableError",
    "clean",
    "column",
    "document",
    "finish",
    "finite",
    "json_lines",
    "lines",
    "number",
    "objects",
    "parse",
    "read_dump",
    "records",
    "short",
    "step_of",
    "token_ids",
]
