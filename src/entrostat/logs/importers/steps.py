"""What the formats come to: a log of steps, sequences of tokens, and the run that they make."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..run import Run, broken, broken_notes
from .source import Given, clean, finite, number, short, step_of

if TYPE_CHECKING:
    from ..rollouts import Rollouts

METRICS = 2000
"""Most metrics of one step."""
WORDS = {"true", "false", "none", "null", ""}


class Log:
    """Numbers of steps, from lines in any order.

    Lines of one step are joined (an evaluation, say, or a second file of the same run); of a
    metric that a step has twice the later value counts.

    Args:
        given: takes the problems.
        names: source's name -> ours; where several of one of ours occur, the first of them.
    """

    def __init__(self, given: Given, names: Mapping[str, str]) -> None:
        self.given, self.names = given, names
        self.rows: dict[int, dict[str, float]] = {}
        self.path: Path | None = None
        self.last = -1
        self.again: set[int] = set()
        self.disordered = False
        self.infinite: dict[int, dict[str, float]] = {}

    def add(self, path: Path, line: int | None, step: Any, values: Mapping[str, Any]) -> None:
        """Add what a line says of a step."""
        found = step_of(step)
        if found is None:
            self.given.problem(path, line, f"step {short(step)} is not a whole number from 0")
            return
        row, infinite = self._row(path, line, values)
        self.infinite.setdefault(found, {}).update(infinite)
        if not row:
            self.given.problem(path, line, f"step {found} has no finite number")
            return
        self.disordered |= path == self.path and found < self.last
        self.path, self.last = path, found
        before = self.rows.setdefault(found, {})
        if any(before.get(name, value) != value for name, value in row.items() if name != "epoch"):
            self.again.add(found)
        before |= row

    def _row(
        self, path: Path, line: int | None, values: Mapping[str, Any]
    ) -> tuple[dict[str, float], dict[str, float]]:
        """Its finite numbers, and the others, by our names."""
        row: dict[str, float] = {}
        infinite: dict[str, float] = {}
        taken: dict[str, str] = {}
        for key, name in self.names.items():
            if values.get(key) is not None:
                taken.setdefault(name, key)
        renamed = {key: name for name, key in taken.items()}
        if len(values) > METRICS:
            self.given.problem(path, line, f"more than {METRICS} metrics; the first are read")
        for key, value in list(values.items())[:METRICS]:
            name = renamed.get(key, clean(key)[:200])
            if name == "iteration" or (name in taken and key not in renamed):
                continue
            figure = number(value)
            if figure is None:
                if key in renamed and str(value).strip().lower() not in WORDS:
                    self.given.problem(path, line, f"{clean(key)} {short(value)} is not a number")
            elif math.isfinite(figure):
                row[name] = figure
            else:
                infinite[name] = figure
        return row, infinite

    def metrics(self) -> list[dict[str, Any]]:
        """One object per step, sorted; what was odd, and what broke, goes to `given`."""
        notes = self.given.notes
        if self.again:
            steps = sorted(self.again)
            which = f"Step {steps[0]} is" if len(steps) == 1 else (
                f"{len(steps)} steps ({steps[0]} to {steps[-1]}) are"
            )  # fmt: skip
            notes.append(f"{which} logged more than once (a restart?); the later values count.")
        if self.disordered:
            notes.append("Steps were not in order in the log; they are sorted here.")
        if count := sum(map(len, self.infinite.values())):
            notes.append(f"Values that were not finite are left out: {count}.")
            self.given.broken = broken([
                {"iteration": step, **self.infinite.get(step, {}), **self.rows.get(step, {})}
                for step in sorted(self.infinite.keys() | self.rows.keys())
            ])  # fmt: skip
        return [{"iteration": step, **self.rows[step]} for step in sorted(self.rows)]


def finish(
    given: Given,
    source: str,
    entropy_is: str,
    metrics: list[dict[str, Any]],
    dumps: Mapping[int, Callable[[], Rollouts]] | None = None,
    planned: int | None = None,
    settings: Mapping[str, str] | None = None,
) -> Run | None:
    """A run; None where there is no step in it."""
    if not metrics:
        return None
    done = metrics[-1]["iteration"]
    notes = [*broken_notes(given.broken), *given.notes]
    if planned is not None and done < planned:
        notes = [f"Unfinished: {done} of {planned} iterations are logged.", *notes]
    config = {} if planned is None else {"iterations": planned}
    return Run(
        given.root, config, "", "", metrics, [], tuple(dict.fromkeys(notes)),
        dumps=dict(dumps or {}), source=source, entropy_is=entropy_is, problems=given.problems,
        broken=given.broken, settings=dict(settings or {}),
    )  # fmt: skip


MAX_TOKEN = 2**31


@dataclass
class Rollout:
    """One sequence of another trainer's dump; lists are as long as `tokens`, None is unknown.

    `reward` is NaN where unknown; rollouts of one `group` had the same prompt.
    """

    reward: float
    group: Hashable
    prompt: str = ""
    completion: str = ""
    tokens: Sequence[int] = ()
    logp: Sequence[float | None] = ()
    sampler_logp: Sequence[float | None] = ()
    entropy: Sequence[float | None] = ()
    advantage: Sequence[float | None] = ()


class Means:
    """Means of sequences and tokens, step by step."""

    def __init__(self) -> None:
        self.sums: dict[int, dict[str, tuple[float, int]]] = {}

    def add(self, step: int, name: str, values: Sequence[float | None]) -> None:
        """Values of a step; what is unknown or not finite does not count."""
        known = finite(values)
        if known:
            total, count = self.sums.setdefault(step, {}).get(name, (0.0, 0))
            self.sums[step][name] = (total + math.fsum(known), count + len(known))

    def rollout(self, step: int, rollout: Rollout) -> None:
        """What any dump says of a sequence."""
        self.sums.setdefault(step, {})
        self.add(step, "reward/mean", [rollout.reward])
        if rollout.tokens:
            self.add(step, "rollout/length_mean", [float(len(rollout.tokens))])
            self.add(step, "entropy/exact", rollout.entropy)
            self.add(step, "entropy/nll", [-v for v in finite(rollout.logp)])

    def rows(self) -> dict[int, dict[str, float]]:
        """Step -> metric -> mean."""
        return {
            step: {name: total / count for name, (total, count) in sums.items()}
            for step, sums in self.sums.items()
        }


Sequences = Callable[[Path, Given], Iterable[tuple[int, Rollout]]]


class Dumped:
    """Rollouts of dumps: their means by step, and which files hold them.

    Args:
        keep: whether the rollouts themselves are kept, as `kept`, and nothing else.
    """

    def __init__(self, keep: bool = False) -> None:
        self.means, self.where = Means(), dict[int, list[Path]]()
        self.kept: list[tuple[int, Rollout]] | None = [] if keep else None

    def add(self, path: Path, step: int, rollout: Rollout) -> None:
        """Add a rollout of a file."""
        if self.kept is not None:
            self.kept.append((step, rollout))
            return
        self.means.rollout(step, rollout)
        if path not in self.where.setdefault(step, []):
            self.where[step].append(path)

    def __bool__(self) -> bool:
        return bool(self.where)

    def metrics(self) -> list[dict[str, Any]]:
        """Means, one object per step."""
        rows = self.means.rows()
        return [{"iteration": step, **rows[step]} for step in sorted(rows)]

    def of(self, given: Given, sequences: Sequences) -> dict[int, Callable[[], Rollouts]]:
        """What reads the rollouts of each step."""
        return {
            step: partial(read_dump, given.root, self.where[step], step, sequences)
            for step in sorted(self.where)
        }


def read_dump(path: Path, files: Sequence[Path], step: int, sequences: Sequences) -> Rollouts:
    """Rollouts of one step.

    Args:
        path: the path that the user named.
        files: those that hold rollouts of the step.
        step: which one.
        sequences: yields (step, rollout) of a file.

    Raises:
        ValueError: they are gone, or changed since they were first read.
    """
    import torch

    from ..rollouts import Rollouts

    given = Given(path)
    found = [r for file in files for at, r in sequences(file, given) if at == step]
    if not found:
        raise ValueError(f"{str(path)!r} no longer holds rollouts of step {step}")
    order: dict[Hashable, int] = {}
    group = [order.setdefault(r.group, len(order)) for r in found]
    lengths = torch.tensor([0, *(len(r.tokens) for r in found)])

    def flat(name: str) -> torch.Tensor:
        values = [v for r in found for v in getattr(r, name)]
        known = [math.nan if v is None else v for v in values]
        return torch.tensor(known, dtype=torch.float32)

    tokens = [t for r in found for t in r.tokens]
    return Rollouts(
        iteration=step,
        prompts=[r.prompt for r in found],
        completions=[r.completion for r in found],
        rewards=torch.tensor([r.reward for r in found], dtype=torch.float32),
        group=torch.tensor(group, dtype=torch.int32),
        finished=torch.zeros(len(found), dtype=torch.bool),
        trained=torch.ones(len(found), dtype=torch.bool),
        start=lengths.cumsum(0),
        tokens=torch.tensor(tokens, dtype=torch.int32),
        logp=flat("logp"),
        sampler_logp=flat("sampler_logp"),
        entropy=flat("entropy"),
        advantage=flat("advantage"),
        pieces={},
    )


def column(record: Mapping[str, Any], key: str, length: int) -> list[float | None]:
    """[length] numbers of a record's list; None where it has none, or not that many."""
    values = record.get(key)
    if not isinstance(values, list) or len(values) != length:
        return [None] * length
    return [number(v) if not isinstance(v, str) else None for v in values]


def token_ids(values: Any) -> list[int] | None:
    """A list of token ids, or None."""
    if not isinstance(values, list):
        return None
    good = all(type(v) is int and 0 <= v < MAX_TOKEN for v in values)
    return values if good else None
