"""Prompt/answer pairs from a JSONL file, and graders by name."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path

from .._names import unknown
from .base import Example

_NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d{1,3})?")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def final_answer(completion: str) -> str:
    """What stands in the last <answer>...</answer>, or the whole text, stripped."""
    tagged = _TAG.findall(completion)
    return (tagged[-1] if tagged else completion).strip()


def grade_exact(completion: str, answer: str) -> float:
    """1 where the final answer is the expected text."""
    return float(final_answer(completion) == answer.strip())


def grade_contains(completion: str, answer: str) -> float:
    """1 where the expected text occurs in the final answer."""
    return float(answer.strip() in final_answer(completion))


def grade_number(completion: str, answer: str) -> float:
    """1 where the last number of the final answer equals the expected number."""
    found = _NUMBER.findall(final_answer(completion))
    if not found:
        return 0.0
    try:
        return float(_decimal(found[-1]) == _decimal(answer))
    except InvalidOperation:
        return 0.0


def _decimal(text: str) -> Decimal:
    return Decimal(text.replace(",", "").strip())


GRADERS: dict[str, Callable[[str, str], float]] = {
    "exact": grade_exact,
    "contains": grade_contains,
    "number": grade_number,
}


class JsonlTask:
    """A file with one object a line: {"prompt": ..., "answer": ...}, in UTF-8.

    Args:
        path: the file.
        seed: unused; the run's seed shuffles.
        grader: "exact", "contains" or "number".
        test: share of the lines (the last ones) held out as split `test`; where that is less than
            one line there is no such split, and nothing to evaluate on.
        max_new_tokens: tokens that an answer may take.

    Raises:
        ValueError: no such file, no line, a line that is not such an object (with its number), an
            unknown grader.
    """

    def __init__(
        self,
        path: str,
        seed: int = 0,
        grader: str = "exact",
        test: float = 0.1,
        max_new_tokens: int = 256,
    ) -> None:
        if grader not in GRADERS:
            raise ValueError(f"task {path!r}: {unknown('grader', grader, GRADERS)}")
        if not 0 <= test < 1:
            raise ValueError(f"task {path!r}: test must be in [0, 1), got {test}")
        self.name = Path(path).stem
        self._max_new_tokens = max_new_tokens
        self._grade = GRADERS[grader]
        examples = _read(path, check=_decimal if grader == "number" else None)
        held_out = int(len(examples) * test)
        cut = len(examples) - held_out
        self._examples = {"train": examples[:cut]}
        if held_out:
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
        return self._grade(completion, example.answer)


def _read(path: str, check: Callable[[str], Decimal] | None) -> list[Example]:
    try:
        lines = Path(path).read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise ValueError(f"task {path!r}: cannot read it: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"task {path!r}: not UTF-8 (byte {error.start})") from None
    examples = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            json.dumps(row, ensure_ascii=False).encode()  # a lone surrogate is no text
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", None) or str(error)
            raise ValueError(f"task {path!r}: line {number} is not JSON: {reason}") from None
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str):
            raise ValueError(f"task {path!r}: line {number} needs a prompt (text)")
        if not isinstance(row.get("answer"), str | int | float):
            raise ValueError(f"task {path!r}: line {number} needs an answer (text or number)")
        answer = str(row["answer"])
        if check is not None:
            try:
                finite = check(answer).is_finite()
            except InvalidOperation:
                finite = False
            if not finite:
                raise ValueError(
                    f"task {path!r}: line {number}: grader 'number' needs a number, got {answer!r}"
                ) from None
        examples.append(Example(row["prompt"], answer))
    if not examples:
        raise ValueError(f"task {path!r}: the data set is empty")
    return examples
