"""`entrostat subset`: a part of a task's prompts as a file to train on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._names import unknown
from ..config import TrainConfig
from ..data.prompts import example
from ..logs.files import atomic
from ..logs.lines import JsonLines
from ..tasks import Example, Task, make_task
from .subset import Chosen, at_random, by_clusters, by_pass_rate


@dataclass
class SubsetConfig:
    """What `entrostat subset` takes."""

    by: str = "random"
    """kmeans: the prompts of the largest clusters (PAR 6.3); random: as many at random; pass_rate:
    those that a policy answers right at times (REPO)."""
    size: int | None = None
    """Prompts of the subset; pass_rate takes all within the bounds without it."""
    output: str = ""
    """File to write; empty for TASK-BY-SIZE.jsonl."""
    split: str | None = None
    """Split to choose from; None takes the first, which is trained on."""
    prompts: int | None = None
    """Only the first so many of the split; a task without an end needs it."""
    seed: int = 0
    """Of the clusters' starting points and of what is drawn at random."""
    model: str | None = None
    """Of kmeans: whose embeddings: a directory, or a name as of `train --model`."""
    clusters: int | None = None
    """Of kmeans: K; None takes 1,000 (PAR's), or a 17th of the prompts where that is less."""
    responses: str | None = None
    """Of pass_rate: responses/SET.jsonl of `entrostat eval`, or the directory that has one."""
    low: float | None = None
    """Of pass_rate: the least share of right responses; None takes all above 0."""
    high: float | None = None
    """Of pass_rate: the largest share of right responses; None takes all below 1."""


@dataclass(frozen=True)
class Subset:
    """A file of prompts: `size` of the `of` that were chosen from."""

    path: Path
    size: int
    of: int
    grader: str | None


def run_subset(task: Mapping[str, Any], config: SubsetConfig) -> Subset:
    """Choose prompts of a task and write them, one JSON object per line.

    A line has `prompt` and `answer`, as FILE.jsonl tasks take them, and `index` (its place in the
    split), `split` and `why`.
    """
    if config.by not in _WAYS:
        raise ValueError(unknown("way to choose, --by", config.by, _WAYS))
    source = make_task(**dict(task))
    split = source.splits[0] if config.split is None else config.split
    if split not in source.splits:
        raise ValueError(unknown(f"split of task {source.name!r}:", split, source.splits))
    size = source.size(split)
    if size is None and config.prompts is None:
        raise ValueError(f"task {source.name!r} has no end: say how many to choose from, --prompts")
    count = min(x for x in (size, config.prompts) if x is not None)
    examples = [example(source, i, split) for i in range(count)]
    for i, one in enumerate(examples):
        if not isinstance(one.answer, str | int | float):
            raise ValueError(
                f"task {source.name!r}: the answer to prompt {i} is neither text nor a number, and "
                f"a file could not hold it: {one.answer!r:.80}"
            )
    chosen = _WAYS[config.by](source, examples, config)
    lines = [
        {
            "prompt": examples[one.index].prompt, "answer": examples[one.index].answer,
            "index": one.index, "split": split, "why": one.why,
        }
        for one in chosen
    ]  # fmt: skip
    name = f"{source.name}-{config.by}-{len(lines)}.jsonl".replace("/", "_").replace(":", "_")
    path = Path(config.output or name)
    with atomic(path) as part:
        text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
        part.write_text(text, encoding="utf-8")
    return Subset(path, len(lines), count, getattr(source, "grader", None))


def _kmeans(task: Task, examples: Sequence[Example], config: SubsetConfig) -> list[Chosen]:
    if config.model is None:
        raise ValueError("--by kmeans takes a model's embeddings: name it with --model")
    if config.size is None:
        raise ValueError("--by kmeans needs --size")
    from ..data.prompts import encode
    from ..models.loading import load_policy
    from ..models.policy_evaluator import embed

    settings = TrainConfig(model=config.model, task={"name": task.name})
    settings.prompt.chat = False  # a template's tokens, the same in all, would hide what differs
    policy = load_policy(settings)
    prompts = encode(policy, settings, examples, 0, ValueError)
    return by_clusters(embed(policy, prompts), config.size, config.clusters, config.seed)


def _random(task: Task, examples: Sequence[Example], config: SubsetConfig) -> list[Chosen]:
    if config.size is None:
        raise ValueError("--by random needs --size")
    return at_random(len(examples), config.size, config.seed)


def _pass_rate(task: Task, examples: Sequence[Example], config: SubsetConfig) -> list[Chosen]:
    if config.responses is None:
        raise ValueError(
            "--by pass_rate takes responses: `entrostat eval MODEL --on TASK/SPLIT --output DIR`, "
            "then --responses DIR"
        )
    path = _responses(Path(config.responses))
    scores: dict[int, list[float]] = {}
    for line in JsonLines(path).read():
        i, given = line.get("problem"), line.get("scores")
        if type(i) is not int or not isinstance(given, list):
            raise ValueError(
                f"{path}: a line has no problem and scores, as `entrostat eval` writes"
            )
        if i >= len(examples):
            continue
        if line.get("prompt") != examples[i].prompt:
            raise ValueError(
                f"{path}: its problem {i} is not prompt {i} of task {task.name!r}, split "
                f"{config.split or task.splits[0]!r}: they are of another task, split or seed"
            )
        scores[i] = [float(score) for score in given]
    if not scores:
        raise ValueError(f"{path}: no responses to the prompts that are chosen from")
    return by_pass_rate(scores, config.size, config.low, config.high, config.seed)


def _responses(path: Path) -> Path:
    if path.is_file():
        return path
    found = sorted(path.rglob("responses/*.jsonl"))
    if len(found) == 1:
        return found[0]
    there = ", ".join(str(p.relative_to(path)) for p in found[:4])
    raise ValueError(
        f"--responses {str(path)!r}: "
        + (f"name one of its files: {there}" if found else "there is no responses/SET.jsonl")
    )


_WAYS: dict[str, Callable[[Task, Sequence[Example], SubsetConfig], list[Chosen]]] = {
    "kmeans": _kmeans, "random": _random, "pass_rate": _pass_rate,
}  # fmt: skip
