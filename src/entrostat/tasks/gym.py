"""Any reasoning-gym data set by name, with its own scorer and parameters.

The scorers are written for answers of good will: given others, some raise, some take hours, some
take wrong for right. `guards` refuses what is known of the last; hosts run them in worker
processes, where the other two cost an answer and no more.
"""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, NamedTuple

from .._names import unknown
from ..errors import extra
from ..grading import as_reward, final_answer
from ..workers import Call
from ..workers.wire import is_plain
from .base import Example
from .guards import Guard, guard_of
from .guards import is_arithmetic as is_arithmetic
from .guards import is_not_code as is_not_code


class GymTask:
    """A reasoning-gym data set.

    The completion's last <answer>...</answer> (or, without one, all of it) goes to the data set's
    own scorer. Splits `train` and `test` are made from seeds that never meet.

    Args:
        name: the data set's name, as `chain_sum`.
        seed: of the training prompts.
        max_new_tokens: tokens that an answer may take.
        **params: fields of the data set's own configuration.
    """

    splits: tuple[str, ...] = ("train", "test")

    def __init__(self, name: str, seed: int = 0, max_new_tokens: int = 256, **params: Any) -> None:
        _, config = data_set(name)
        known = {field.name for field in fields(config)} - {"seed"}
        for key in params:
            if key not in known:
                raise ValueError(
                    f"task 'gym:{name}': {unknown('parameter', key, known | {'max_new_tokens'})}"
                )
        self.name: str = f"gym:{name}"
        self._max_new_tokens = max_new_tokens
        self._call = (name, params)
        # prompt i of a data set is made from seed + i: far apart, splits never share a prompt
        self._data = {
            "train": _make(name, params, (10_000_000 + seed * 1_000_003) % 2**31),
            "test": _make(name, params, 0),
        }
        self._scorer = _Scorer.of(name, self._data["train"])

    def max_new_tokens(self, split: str) -> int:
        return self._max_new_tokens

    def size(self, split: str) -> int | None:
        return len(self._data[split])

    def example(self, index: int, split: str) -> Example:
        entry = _plain(self._data[split][index])
        return Example(entry["question"], entry["answer"], {"entry": entry, "split": split})

    def score(self, completion: str, example: Example) -> float:
        """What the data set's own scorer says. It may raise, and take its time."""
        return self._scorer.grade(completion, example.data["entry"])

    def remote(self, completion: str, example: Example) -> Call:
        return Call("entrostat.tasks.gym:grade", (*self._call, completion, example.data["entry"]))

    def remote_setup(self) -> Call:
        return Call("entrostat.tasks.gym:prepare", self._call)


class _Scorer(NamedTuple):
    data: Any
    guard: Guard | None

    @classmethod
    def of(cls, name: str, data: Any) -> _Scorer:
        return cls(data, guard_of(name, inspect.getsource(type(data).score_answer)))

    def grade(self, completion: str, entry: dict[str, Any]) -> float:
        answer = final_answer(completion)
        seen = self.guard is None or self.guard(answer, entry)
        return as_reward(self.data.score_answer(answer if seen else None, entry))


_SCORERS: dict[str, _Scorer] = {}  # of this process: a worker knows those of its run


def prepare(name: str, params: dict[str, Any]) -> None:
    """Make a data set for its scorer, once per process."""
    _SCORERS[f"{name} {params!r}"] = _Scorer.of(name, _make(name, params, 0))


def grade(name: str, params: dict[str, Any], completion: str, entry: dict[str, Any]) -> float:
    """The reward of a completion; what workers call."""
    key = f"{name} {params!r}"
    if key not in _SCORERS:
        prepare(name, params)
    return _SCORERS[key].grade(completion, entry)


def data_set(name: str) -> tuple[Any, Any]:
    with extra("tasks", f"task 'gym:{name}'"):
        from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        listed = f"`entrostat tasks gym` lists all {len(DATASETS)}."
        raise ValueError(unknown("reasoning-gym data set", name, DATASETS, listed))
    return DATASETS[name]


def _make(name: str, params: dict[str, Any], seed: int) -> Any:
    cls, config = data_set(name)
    try:
        return cls(config(**params, seed=seed))
    except (AssertionError, TypeError, ValueError) as error:
        raise ValueError(f"task 'gym:{name}': its configuration says: {error}") from None


def _plain(value: Any) -> Any:
    """An entry with NumPy's numbers and texts as Python's own, so that it can go to a worker."""
    if is_plain(value):
        return value
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {_plain(key): _plain(of) for key, of in value.items()}
    for kind in (list, tuple, set, frozenset):
        if isinstance(value, kind):
            return kind(map(_plain, value))
    return str(value) if isinstance(value, str) else value
