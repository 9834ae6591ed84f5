"""Which prompts to train on: subsets by clusters, at random, by pass rate. Pure functions.

PAR 6.3 and App. D.3 ask what the diversity of training data does to entropy. Each prompt is the
mean of its tokens' embeddings in a model's last layer; K-means makes clusters of them; a subset is
the prompts of the largest clusters, which is less diverse than as many at random, the control. K is
lost in the paper's text, 1,000 for DAPO-Math's 17,000 prompts in public notes on it; its subsets
(616, 1246, 2538, ... prompts) look like whole clusters. Here a subset has the size asked for, and
of the cluster that it ends in those nearest to the centre.

REPO trains on a "quality-filtered" part of a set of problems and does not say by what; a pass rate
between 0 and 1 is what leaves prompts whose groups have an advantage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..errors import extra

CLUSTERS = 1000
_EACH = 17  # prompts per cluster at least, where nothing else is asked for
_STARTS = 10  # of K-means, of which the best is taken


@dataclass(frozen=True)
class Chosen:
    """A prompt of a subset: its place in the split, and why it is in it."""

    index: int
    why: str


def by_clusters(
    embeddings: ArrayLike, size: int, clusters: int | None = None, seed: int = 0
) -> list[Chosen]:
    """The prompts of the largest clusters, of the last one those nearest to its centre.

    Args:
        embeddings: [n, D], a row per prompt, finite.
        size: prompts of the subset, 1 to n.
        clusters: K, 1 to n; None takes 1,000, or n / 17 where that is less.
        seed: of K-means' starting points.

    Returns:
        `size` prompts in the order of their places.
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

    with threadpool_limits(1):  # sums of several threads differ in their last bits
        found = KMeans(clusters, n_init=_STARTS, random_state=seed).fit(x)
    label = found.labels_
    distance = np.linalg.norm(x - found.cluster_centers_[label], axis=1)
    count = np.bincount(label, minlength=clusters)
    rank = np.empty(clusters, int)  # of a cluster by its size, of equal ones by its first prompt
    first = [int(np.flatnonzero(label == c)[0]) if count[c] else len(x) for c in range(clusters)]
    rank[sorted(range(clusters), key=lambda c: (-count[c], first[c]))] = np.arange(clusters)
    order = sorted(range(len(x)), key=lambda i: (rank[label[i]], distance[i], i))
    return [
        Chosen(
            i,
            f"kmeans: cluster {rank[label[i]] + 1} of {clusters} by size ({count[label[i]]} "
            f"prompts), {distance[i]:.4g} from its centre, seed {seed}",
        )
        for i in sorted(order[:size])
    ]


def at_random(prompts: int, size: int, seed: int = 0) -> list[Chosen]:
    """As many prompts at random, without repetition: PAR's control."""
    _check_size(size, prompts)
    found = np.random.default_rng(seed).choice(prompts, size, replace=False)
    return [Chosen(i, f"random: seed {seed}") for i in sorted(found.tolist())]


def by_pass_rate(
    scores: Mapping[int, Sequence[float]],
    size: int | None = None,
    low: float | None = None,
    high: float | None = None,
    seed: int = 0,
) -> list[Chosen]:
    """Prompts whose share of right responses lies within bounds.

    Args:
        scores: of a prompt's responses, by its place; from 1 on a response is right.
        size: of those that qualify, so many at random; None takes all.
        low: least share; None takes what is above 0.
        high: largest share; None takes what is below 1.
        seed: of the choice.
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
