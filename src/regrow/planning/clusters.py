"""Clusters of points by k-means."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def kmeans(points: Floats, count: int, generator: np.random.Generator, *, restarts: int = 8) -> NDArray[np.intp]:
    """Return a label 0..k-1 for each point (n, d), k <= ``count`` clusters, none empty; the best of several starts."""
    best, least = np.zeros(len(points), np.intp), np.inf
    for _ in range(restarts):
        labels, spread = _once(points, count, generator)
        if spread < least - 1e-12:
            best, least = labels, spread
    # Labels in order of first appearance, without gaps: the answer must not depend on how centres were numbered.
    _, first, inverse = np.unique(best, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.intp)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[inverse], np.intp)


def _once(points: Floats, count: int, generator: np.random.Generator) -> tuple[NDArray[np.intp], float]:
    centres = points[generator.integers(len(points))][None]
    while len(centres) < count:  # k-means++: far points are likelier
        distance = _squared(points, centres).min(axis=1)
        if distance.sum() <= 0:
            break
        centres = np.vstack([centres, points[generator.choice(len(points), p=distance / distance.sum())]])
    labels = _squared(points, centres).argmin(axis=1)
    for _ in range(100):
        for k in range(len(centres)):
            if (labels == k).any():
                centres[k] = points[labels == k].mean(axis=0)
        moved = _squared(points, centres).argmin(axis=1)
        if (moved == labels).all():
            break
        labels = moved
    return labels, float(_squared(points, centres).min(axis=1).sum())


def _squared(points: Floats, centres: Floats) -> Floats:
    return np.asarray(((points[:, None] - centres[None]) ** 2).sum(axis=-1))
