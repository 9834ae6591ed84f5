"""How many different things k responses mean, by the policy's own embeddings."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike


def clusters(embeddings: ArrayLike, distance: float) -> list[int]:
    """A number for the meaning of each response, counted in the order of their appearance.

    Agglomerative clustering with average linkage: two clusters become one while the mean cosine
    distance between their members is at most `distance`.

    Args:
        embeddings: [k, D], one per response, finite; a row of zeros is at distance 1 from others.
        distance: in [0, 2]; at 0 only equal directions are one.

    Raises:
        ValueError: not [k, D], or not finite.

    Example:
        >>> clusters([[1, 0], [0, 1], [1, 0.01]], 0.1)
        [0, 1, 0]
    """
    x = np.asarray(embeddings, dtype=float)
    if x.ndim != 2 or not np.isfinite(x).all():
        raise ValueError(f"clusters: embeddings must be finite, [k, D], got the shape {x.shape}")
    if len(x) < 2:
        return [0] * len(x)
    from scipy.cluster.hierarchy import fcluster, linkage

    unit = x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), np.finfo(float).tiny)
    apart = np.clip(1 - unit @ unit.T, 0, 2)[np.triu_indices(len(x), 1)]
    found = fcluster(linkage(apart, "average"), distance, "distance").tolist()
    order = {label: i for i, label in enumerate(dict.fromkeys(found))}
    return [order[label] for label in found]
