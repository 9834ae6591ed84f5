"""Prompt/answer pairs from a JSONL or Parquet file, and graders by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..workers import Call
from .base import Example
from .graders import GRADERS, grade, make_grader, parse_number
from .graders import final_answer as final_answer
from .graders import grade_contains as grade_contains
from .graders import grade_exact as grade_exact
from .graders import grade_number as grade_number
from .rows import read_pairs


class JsonlTask:
    """A file with one object per line, {"prompt": ..., "answer": ...} in UTF-8; or a Parquet file.

    Args:
        path: the file.
        seed: unused; the run's seed shuffles.
        grader: "exact", "contains", "number", or MODULE:FUNCTION, your own of (response, answer).
        test: share of the lines (the last ones) held out as split `test`; where that is less than
            one line there is no such split, and nothing to evaluate on.
        max_new_tokens: tokens that an answer may take.
        fields: the file's own names for `prompt` and `answer`: {"answer": "solution"}.

    Raises:
        ValueError: no such file, no line, a line that is not such an object (with its number), an
            unknown grader or one that the answers do not suit.
    """

    def __init__(
        self,
        path: str,
        seed: int = 0,
        grader: str = "exact",
        test: float = 0.1,
        max_new_tokens: int = 256,
        fields: Mapping[str, str] | None = None,
    ) -> None:
        if not isinstance(grader, str):
            raise ValueError(f"task {path!r}: grader is a name, got {grader!r}")
        if fields is not None and not isinstance(fields, Mapping):
            raise ValueError(f"task {path!r}: fields is a table, got {fields!r}")
        try:
            make_grader(grader)
        except ValueError as error:
            raise ValueError(f"task {path!r}: {error}") from None
        if isinstance(test, str) or not 0 <= test < 1:
            raise ValueError(f"task {path!r}: test must be in [0, 1), got {test}")
        self.name = Path(path).stem
        self._max_new_tokens = max_new_tokens
        self._grader = grader
        examples = []
        for where, prompt, answer in read_pairs(path, fields):
            _check(path, where, grader, answer)
            examples.append(Example(prompt, answer))
        if not examples:
            raise ValueError(f"task {path!r}: the data set is empty")
        cut = len(examples) - int(len(examples) * test)
        self._examples = {"train": examples[:cut]}
        if cut < len(examples):
            self._examples["test"] = examples[cut:]
        self.splits = tuple(self._examples)

    def max_new_tokens(self, split: str) -> int:
        """As given."""
        return self._max_new_tokens

    def size(self, split: str) -> int | None:
        """Number of lines of a split."""
        return len(self._examples[split])

    def example(self, index: int, split: str) -> Example:
        """Line number `index` of a split."""
        return self._examples[split][index]

    def score(self, completion: str, example: Example) -> float:
        """What the grader says."""
        return grade(self._grader, completion, example.answer)

    def remote(self, completion: str, example: Example) -> Call | None:
        """The same for a worker process; None where the grader is ours, which cannot hang."""
        if self._grader in GRADERS:
            return None
        return Call("entrostat.tasks.graders:grade", (self._grader, completion, example.answer))

    def remote_setup(self) -> Call:
        """What a worker process starts with."""
        return Call("entrostat.tasks.graders:make_grader", (self._grader,))


def _check(path: str, where: str, grader: str, answer: str) -> None:
    """Refuse an answer that the grader could give no sense."""
    if grader == "number" and parse_number(answer) is None:
        raise ValueError(
            f"task {path!r}: {where}: grader 'number' needs a number, got {answer!r:.80}"
        )
    if grader == "contains" and not answer.strip():
        raise ValueError(
            f"task {path!r}: {where}: grader 'contains' needs a text: an empty one is everywhere"
        )
