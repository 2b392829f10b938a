"""Spectral clustering of a few dozen things from their affinities."""

from __future__ import annotations

import numpy as np

RESTARTS = 64
ROUNDS = 100


def spectral_clusters(affinity: np.ndarray, clusters: int, generator: np.random.Generator) -> np.ndarray:
    """Return a label per row, numbered by first appearance, from the normalised cut of a non-negative affinity matrix.

    The ``clusters`` leading eigenvectors of D^-1/2 A D^-1/2 (diagonal of A ignored), scaled back by D^-1/2, are grouped
    by k-means: k-means++ starts, the best of 64 runs, so the seed hardly matters.
    """
    weights = np.array(affinity, dtype=float)
    np.fill_diagonal(weights, 0.0)
    degree = weights.sum(axis=1)
    scale = 1.0 / np.sqrt(np.where(degree > 0, degree, 1.0))
    _, vectors = np.linalg.eigh(scale[:, None] * weights * scale[None, :])
    places = vectors[:, ::-1][:, :clusters] * scale[:, None]
    return by_first_appearance(_k_means(places, clusters, generator))


def by_first_appearance(labels: np.ndarray) -> np.ndarray:
    """Return the same grouping with labels 0, 1, 2 ... in the order in which they first occur."""
    new: dict[int, int] = {}
    return np.array([new.setdefault(int(label), len(new)) for label in labels])


def _k_means(points: np.ndarray, clusters: int, generator: np.random.Generator) -> np.ndarray:
    best, best_cost = np.zeros(len(points), dtype=int), np.inf
    for _ in range(RESTARTS):
        centres = _spread_centres(points, clusters, generator)
        labels = np.full(len(points), -1)
        for _ in range(ROUNDS):
            distance = ((points[:, None] - centres[None]) ** 2).sum(axis=2)
            found = distance.argmin(axis=1)
            if (found == labels).all():
                break
            labels = found
            for label in range(clusters):
                if (labels == label).any():
                    centres[label] = points[labels == label].mean(axis=0)
        cost = float(((points - centres[labels]) ** 2).sum())
        if cost < best_cost - 1e-12:
            best, best_cost = labels, cost
    return best


def _spread_centres(points: np.ndarray, clusters: int, generator: np.random.Generator) -> np.ndarray:
    chosen = [int(generator.integers(len(points)))]
    while len(chosen) < clusters:
        distance = ((points[:, None] - points[chosen][None]) ** 2).sum(axis=2).min(axis=1)
        total = distance.sum()
        share = distance / total if total > 0 else np.full(len(points), 1 / len(points))
        chosen.append(int(generator.choice(len(points), p=share)))
    return points[chosen].copy()
