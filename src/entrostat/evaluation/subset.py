"""Subsets of training prompts, written to a file: by clusters, at random, or by pass rate.

PAR 6.3 and App. D.3 study how the diversity of training data affects entropy. Each prompt is
embedded as the mean of its tokens' last hidden states, and K-means clusters the prompts. A subset
has the prompts of the largest clusters; the more diverse control has as many random prompts. K is
missing from the paper's text; public notes give 1,000 for DAPO-Math's 17,000 prompts. The paper's
subsets (616, 1246, 2538, ... prompts) look like whole clusters. Here a subset has the requested
size: its last cluster contributes the prompts nearest to the centre.

REPO trains on a "quality-filtered" part of a set and does not specify the filter. A pass rate
between 0 and 1 keeps prompts whose groups have an advantage.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .._names import unknown
from ..config import TrainConfig
from ..config.ranges import check_ranges, within
from ..data.prompts import example
from ..errors import extra
from ..logs.files import atomic
from ..logs.lines import JsonLines
from ..tasks import Example, Task, make_task

CLUSTERS = 1000
_EACH = 17  # prompts per cluster by default, at least
_STARTS = 10  # K-means restarts; the best is used


@dataclass(frozen=True)
class Chosen:
    """A prompt of a subset: its index in the split, and the reason for its selection."""

    index: int
    why: str


def by_clusters(
    embeddings: ArrayLike, size: int, clusters: int | None = None, seed: int = 0
) -> list[Chosen]:
    """The `size` prompts of the largest clusters; of the last cluster, those nearest to its centre.

    `embeddings` [n, D] has a row per prompt. `clusters` is K, 1 to n; None takes 1,000 or n / 17,
    whichever is less. `seed` sets K-means' starting points.
    """
    x = np.asarray(embeddings, np.float64)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"embeddings must be finite, [n, D], got the shape {x.shape}")
    _check_size(size, len(x))
    if clusters is None:
        clusters = min(CLUSTERS, max(1, len(x) // _EACH))
    if not 1 <= clusters <= len(x):
        raise ValueError(f"--clusters must be at least 1 and at most {len(x)}, got {clusters}")
    with extra("eval", "clusters of prompts"):
        from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # sums over several threads differ in their last bits
        found = KMeans(clusters, n_init=_STARTS, random_state=seed).fit(x)
    distance = np.linalg.norm(x - found.cluster_centers_[found.labels_], axis=1)
    _, first, label, count = np.unique(
        found.labels_, return_index=True, return_inverse=True, return_counts=True
    )
    # clusters by size; equal ones by their first prompt
    rank = np.argsort(np.lexsort((first, -count)))
    order = np.lexsort((distance, rank[label])).tolist()
    return [
        Chosen(
            i,
            f"kmeans: cluster {rank[label[i]] + 1} of {clusters} by size ({count[label[i]]} "
            f"prompts), {distance[i]:.4g} from its centre, seed {seed}",
        )
        for i in sorted(order[:size])
    ]


def at_random(prompts: int, size: int, seed: int = 0) -> list[Chosen]:
    """`size` random prompts, without repetition: PAR's control."""
    _check_size(size, prompts)
    found = np.random.default_rng(seed).choice(prompts, size, replace=False)
    return [Chosen(i, f"random: seed {seed}") for i in sorted(found.tolist())]


def by_pass_rate(
    scores: Mapping[int, Sequence[float]], size: int | None = None, low: float | None = None,
    high: float | None = None, seed: int = 0,
) -> list[Chosen]:  # fmt: skip
    """Prompts whose pass rate is within [low, high]; `size` random ones of them, or all.

    `scores` maps a prompt's index to the scores of its responses; a response is right from 1 on.
    None as `low` means above 0, None as `high` below 1.
    """
    for name, value in (("low", low), ("high", high)):
        if value is not None and not 0 <= value <= 1:
            raise ValueError(f"--{name} must be in [0, 1], got {value}")
    empty = [index for index, row in scores.items() if not row]
    if empty:
        raise ValueError(f"prompt {empty[0]} has no responses")
    rates = {index: sum(s >= 1 for s in row) / len(row) for index, row in sorted(scores.items())}
    found = [
        index
        for index, rate in rates.items()
        if (rate > 0 if low is None else rate >= low)
        and (rate < 1 if high is None else rate <= high)
    ]
    if not found:
        raise ValueError(
            f"no prompt of {len(rates)} has a pass rate from {_bound(low, 'above 0')} to "
            f"{_bound(high, 'below 1')}; widen --low and --high"
        )
    if size is not None:
        _check_size(size, len(found))
        found = [found[chosen.index] for chosen in at_random(len(found), size, seed)]
    return [Chosen(i, f"pass_rate: {rates[i]:.4g} of {len(scores[i])} responses") for i in found]


def _bound(value: float | None, otherwise: str) -> str:
    return otherwise if value is None else f"{value:g}"


def _check_size(size: int, most: int) -> None:
    if not 1 <= size <= most:
        raise ValueError(f"--size must be at least 1 and at most {most}, got {size}")


@dataclass
class SubsetConfig:
    """Settings of `entrostat subset`."""

    by: str = "random"
    """kmeans: the prompts of the largest clusters (PAR 6.3); random: random prompts; pass_rate:
    prompts that a policy sometimes answers right (REPO)."""
    size: int | None = None
    """Number of prompts; without it, pass_rate takes all within the bounds."""
    output: str = ""
    """File to write; empty for TASK-BY-SIZE.jsonl."""
    split: str | None = None
    """Split to choose from; None takes the first, the training split."""
    prompts: int | None = within(None, 1)
    """Use only the first prompts of the split, this many; required for an endless task."""
    seed: int = within(0, 0)
    """Random seed of the clusters' starting points and of random prompts."""
    model: str | None = None
    """For kmeans: model of the embeddings, a directory or a name as for `train --model`."""
    clusters: int | None = None
    """For kmeans: K; None takes 1,000 (PAR's) or a 17th of the prompts, whichever is less."""
    responses: str | None = None
    """For pass_rate: responses/SET.jsonl of `entrostat eval`, or the directory that has one."""
    low: float | None = None
    """For pass_rate: smallest share of right responses; None takes all above 0."""
    high: float | None = None
    """For pass_rate: largest share of right responses; None takes all below 1."""


@dataclass(frozen=True)
class Subset:
    """A written subset: `size` prompts, chosen from `of`."""

    path: Path
    size: int
    of: int
    grader: str | None


def run_subset(task: Mapping[str, Any], config: SubsetConfig) -> Subset:
    """Choose prompts of a task and write them, one JSON object per line.

    A line has `prompt` and `answer`, as FILE.jsonl tasks read them, and `index` (in the split),
    `split` and `why`.
    """
    check_ranges(config, "--")
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
    from ..data.prompts import encode
    from ..models.loading import load_policy
    from ..models.policy_evaluator import embed

    settings = TrainConfig(model=config.model, task={"name": task.name})
    settings.prompt.chat = False  # a template's tokens, equal in all prompts, hide differences
    policy = load_policy(settings)
    prompts = encode(policy, settings, examples, 0, ValueError)
    return by_clusters(embed(policy, prompts), _size(config), config.clusters, config.seed)


def _size(config: SubsetConfig) -> int:
    if config.size is None:
        raise ValueError(f"--by {config.by} needs --size")
    return config.size


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
    "kmeans": _kmeans,
    "random": lambda task, examples, config: at_random(len(examples), _size(config), config.seed),
    "pass_rate": _pass_rate,
}
