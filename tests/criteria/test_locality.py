"""LoRP: published locality scores, clusters that are there, and the two stages step by step."""

from __future__ import annotations

import numpy as np
import pytest

from regrow.criteria.clustering import by_first_appearance, spectral_clusters
from regrow.criteria.locality import Grouping, cluster_count, group_blocks, representation_locality, thin_out
from regrow.criteria.ranking import score_blocks
from regrow.criteria.similarity import similarity


@pytest.mark.parametrize(
    ("mean", "score", "groups"),
    [(0.451, 1.149, 2), (0.521, 0.941, 3), (0.526, 0.926, 3), (0.622, 0.685, 4), (0.640, 0.644, 4)],
)
def test_the_published_scores_follow_from_the_mean_similarity(mean, score, groups):
    matrix = np.full((16, 16), mean)
    np.fill_diagonal(matrix, 1.0)
    assert representation_locality(matrix) == pytest.approx(score, abs=0.0015)
    assert cluster_count(representation_locality(matrix), 16) == groups


def test_a_mean_that_is_not_positive_is_least_local():
    assert cluster_count(representation_locality(-np.eye(4) * 0.5), 30) == 2
    assert cluster_count(0.1, 3) == 3


def test_planted_groups_are_found_whatever_the_seed():
    generator = np.random.default_rng(0)
    truth = np.array([0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 3, 3])
    affinity = np.where(truth[:, None] == truth[None, :], 0.9, 0.4) + generator.normal(0, 0.02, (13, 13))
    affinity = (affinity + affinity.T) / 2
    for seed in range(5):
        assert spectral_clusters(affinity, 4, np.random.default_rng(seed)).tolist() == truth.tolist()


def test_the_cut_between_two_groups_is_the_minimal_normalised_one():
    generator = np.random.default_rng(1)
    for _ in range(5):
        points = np.concatenate([generator.normal(0, 1, (4, 3)), generator.normal(4, 1, (5, 3))])
        affinity = np.exp(-((points[:, None] - points[None]) ** 2).sum(-1) / 8)
        found = spectral_clusters(affinity, 2, generator)
        best = min(range(1, 2**8), key=lambda code: _normalised_cut(affinity, [code >> bit & 1 for bit in range(9)]))
        expected = by_first_appearance(np.array([best >> bit & 1 for bit in range(9)]))
        assert found.tolist() == expected.tolist()


def _normalised_cut(affinity, labels):
    weights = affinity - np.diag(affinity.diagonal())
    inside = np.array(labels, dtype=bool)
    across = weights[inside][:, ~inside].sum()
    return across / weights[inside].sum() + across / weights[~inside].sum()


def test_labels_follow_the_first_depth():
    assert by_first_appearance(np.array([2, 2, 0, 1, 0])).tolist() == [0, 0, 1, 2, 1]


def test_redundancy_is_the_mean_similarity_to_the_rest_of_the_group():
    matrix = np.full((6, 6), 0.1)
    matrix[:3, :3] = [[1, 0.9, 0.8], [0.9, 1, 0.7], [0.8, 0.7, 1]]
    matrix[3:5, 3:5] = [[1, 0.6], [0.6, 1]]
    matrix[5, 5] = 1
    grouping = group_blocks(matrix, clusters=3)
    assert grouping.labels == (0, 0, 0, 1, 1, 2)
    assert grouping.redundancy[:5] == pytest.approx((0.85, 0.8, 0.75, 0.6, 0.6))
    assert np.isnan(grouping.redundancy[5])


def test_the_two_stages_by_hand():
    matrix = np.full((8, 8), 0.1)
    matrix[:4, :4] = [[1, 0.9, 0.8, 0.7], [0.9, 1, 0.6, 0.9], [0.8, 0.6, 1, 0.5], [0.7, 0.9, 0.5, 1]]
    matrix[4:7, 4:7] = [[1, 0.95, 0.4], [0.95, 1, 0.7], [0.4, 0.7, 1]]
    matrix[7, 7] = 1
    labels = (0, 0, 0, 0, 1, 1, 1, 2)
    redundancy = tuple(
        float(np.mean([matrix[i, j] for j in range(8) if j != i and labels[i] == labels[j]] or [np.nan]))
        for i in range(8)
    )
    grouping = Grouping(1.0, labels, redundancy)
    # Stage 1 in label order: 1 (redundancy .80; 0 has .80 as well but is protected), then 5 (.825).
    # Then group 0 holds 0, 2, 3 with mean pair (.8 + .7 + .5)/3 = .667, group 1 holds 4, 6 with .4: 3 goes (.70).
    # Then group 0 holds 0, 2 with .8: 2 goes. Then group 1, .4: 4 goes (.675) and 6 last.
    assert thin_out(matrix, grouping, [1, 2, 3, 4, 5, 6]) == [1, 5, 3, 2, 4, 6]


def test_lorp_reads_the_inputs_of_the_blocks_and_keeps_both_ends(make_tiny, even):
    model = make_tiny("llama")
    record = similarity(model, even)
    answer = score_blocks("lorp", model, even, remove=2, record=record)
    grouping = group_blocks(record.matrix()[:6, :6])
    assert answer.order == tuple(thin_out(record.matrix()[:6, :6], grouping, [1, 2, 3, 4]))
    assert answer.protected == (0, 5)
    assert answer.reasons["groups"] == " ".join(map(str, grouping.labels))


def test_on_scikit_learns_own_embedding_our_groups_are_at_least_as_tight():
    cluster = pytest.importorskip("sklearn.cluster")
    manifold = pytest.importorskip("sklearn.manifold")
    generator = np.random.default_rng(3)
    equal = 0
    for _ in range(10):
        angles = np.cumsum(np.abs(generator.normal(0, 0.15, 24)))
        affinity = (np.cos(np.subtract.outer(angles, angles)) + 1) / 2
        for count in (2, 3, 4):
            theirs = cluster.SpectralClustering(count, affinity="precomputed", random_state=0).fit_predict(affinity)
            ours = spectral_clusters(affinity, count, np.random.default_rng(0))
            points = manifold.spectral_embedding(affinity, n_components=count, drop_first=False, random_state=0)
            assert _spread(points, ours) <= _spread(points, theirs) + 1e-9
            equal += ours.tolist() == by_first_appearance(theirs).tolist()
    assert equal >= 25


def _spread(points, labels):
    return sum(((points[labels == label] - points[labels == label].mean(0)) ** 2).sum() for label in set(labels))
