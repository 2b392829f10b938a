"""LoRP: blocks grouped by the similarity of their inputs, each group thinned out, none emptied first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from regrow.criteria.clustering import spectral_clusters
from regrow.criteria.finite import non_finite
from regrow.criteria.order import candidates, select
from regrow.criteria.similarity import similarity
from regrow.data.calibration import CalibrationSet
from regrow.records.results import LayerScores
from regrow.records.similarity import SimilarityRecord

MOST_LOCAL, LOCAL = 1.0, 0.7


@dataclass(frozen=True)
class Grouping:
    """How LoRP sees a model: ``labels`` per block by depth, ``redundancy`` per block (NaN: alone in its group)."""

    locality: float
    labels: tuple[int, ...]
    redundancy: tuple[float, ...]

    @property
    def clusters(self) -> int:
        return max(self.labels) + 1


def representation_locality(similarities: np.ndarray) -> float:
    """Return RLS = -log2 of the mean similarity of all pairs of blocks; infinite when that mean is not positive."""
    mean = float(similarities[np.triu_indices(len(similarities), 1)].mean())
    return -math.log2(mean) if mean > 0 else math.inf


def cluster_count(locality: float, blocks: int) -> int:
    """Return the number of groups: 2 for a locality of at least 1, 3 for at least 0.7, else 4 (at most one a block)."""
    return min(2 if locality >= MOST_LOCAL else 3 if locality >= LOCAL else 4, blocks)


def group_blocks(similarities: np.ndarray, *, clusters: int | None = None, seed: int = 0) -> Grouping:
    """Return the groups of blocks and the redundancy of each, the mean similarity to the other members of its group.

    ``similarities`` (N, N) is symmetric with values from -1 to 1; the affinity is (S + 1)/2.
    """
    matrix = np.array(similarities, dtype=float)
    np.fill_diagonal(matrix, 1.0)
    locality = representation_locality(matrix)
    count = clusters or cluster_count(locality, len(matrix))
    labels = spectral_clusters((matrix + 1) / 2, count, np.random.default_rng(seed))
    redundancy = []
    for block, label in enumerate(labels):
        others = [other for other in np.flatnonzero(labels == label) if other != block]
        redundancy.append(float(matrix[block, others].mean()) if others else math.nan)
    return Grouping(locality, tuple(int(label) for label in labels), tuple(redundancy))


def thin_out(similarities: np.ndarray, grouping: Grouping, allowed: Sequence[int]) -> list[int]:
    """Return all allowed blocks in the order in which LoRP removes them.

    Stage 1 takes the most redundant allowed block of each group, in label order. Stage 2 goes on with the group whose
    remaining members (also those that may not go) have the highest mean pairwise similarity, again by redundancy; a
    group with one member left comes last.
    """
    labels = np.array(grouping.labels)
    waiting = {
        label: sorted(
            (block for block in allowed if labels[block] == label),
            key=lambda block: (-_or_lowest(grouping.redundancy[block]), block),
        )
        for label in range(grouping.clusters)
    }
    order: list[int] = [blocks.pop(0) for blocks in waiting.values() if blocks]
    while any(waiting.values()):
        tightness = {}
        for label, blocks in waiting.items():
            members = [block for block in np.flatnonzero(labels == label) if block not in order]
            pairs = similarities[np.ix_(members, members)][np.triu_indices(len(members), 1)]
            if blocks:
                tightness[label] = float(pairs.mean()) if pairs.size else -math.inf
        label = min(tightness, key=lambda label: (-tightness[label], label))
        order.append(waiting[label].pop(0))
    return order


def lorp(
    model: Any,
    calibration: CalibrationSet,
    *,
    remove: int,
    protect: Sequence[int] = (0,),
    contiguous: bool = False,
    generator: np.random.Generator | None = None,
    record: SimilarityRecord | None = None,
    clusters: int | None = None,
) -> LayerScores:
    """Return LoRP's cut: similar blocks are grouped and each group is thinned out by redundancy.

    Similarity of blocks i and j: mean token cosine of their INPUTS h_i and h_j. The number of groups follows from the
    representation locality score; ``clusters`` overrides it. The first and the last block stay. Score of a block: minus
    its redundancy (1 when it is alone in its group); the order is that of the two stages, not of the scores. Definition
    as in the authors' code (spectral clustering seeded with 0).
    """
    record = record or similarity(model, calibration)
    matrix = record.matrix()[:-1, :-1]
    if not np.isfinite(matrix).all():
        raise non_finite(int(np.flatnonzero(~np.isfinite(matrix.diagonal()))[0]) - 1)
    return by_groups(
        "lorp",
        matrix,
        remove=remove,
        protect=protect,
        contiguous=contiguous,
        clusters=clusters,
        fingerprint=record.data_fingerprint,
    )


def by_groups(
    criterion: str,
    similarities: np.ndarray,
    *,
    remove: int,
    protect: Sequence[int],
    contiguous: bool,
    clusters: int | None = None,
    fingerprint: str = "",
) -> LayerScores:
    """Return the cut that grouping and thinning out give on any similarity matrix (N, N) of blocks."""
    allowed = candidates(criterion, len(similarities), remove=remove, protect=protect, own=(0, -1))
    grouping = group_blocks(similarities, clusters=clusters)
    return select(
        criterion,
        [-_or_lowest(value) for value in grouping.redundancy],
        remove=remove,
        allowed=allowed,
        contiguous=contiguous,
        order=thin_out(similarities, grouping, allowed),
        fingerprint=fingerprint,
        reasons={
            "locality": f"representation locality score {grouping.locality:.3f}, {grouping.clusters} groups",
            "groups": " ".join(str(label) for label in grouping.labels),
        },
    )


def _or_lowest(redundancy: float) -> float:
    return redundancy if math.isfinite(redundancy) else -1.0
