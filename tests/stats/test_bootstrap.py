import itertools
import math

import numpy as np
import pytest
from scipy.stats import bootstrap as scipy_bootstrap

from regrow.errors import ConfigError, DataError
from regrow.stats import resampling
from regrow.stats.bootstrap import both_bootstraps, paired_bootstrap, sign_p
from regrow.stats.resampling import draw_counts, resampled_means


def right(rate, items, seed, seeds=1):
    return (np.random.default_rng(seed).random((seeds, items)) < rate).astype(float)


def test_against_scipy_on_the_same_statistic():
    a, b = right(0.6, 80, 1)[0], right(0.45, 80, 2)[0]
    ours = paired_bootstrap(a, b, 0.7, metrics=("score",), resamples=20_000, generator=1)["score"]
    theirs = scipy_bootstrap(
        (a, b),
        lambda x, y, axis: (x.mean(axis=axis) - y.mean(axis=axis)) / 0.7,
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=20_000,
        rng=np.random.default_rng(2),
    )
    assert ours.difference == pytest.approx((a.mean() - b.mean()) / 0.7)
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.02)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.02)
    assert ours.standard_error == pytest.approx(theirs.standard_error, rel=0.03)


def test_item_level_against_exact_enumeration():
    """Two capabilities of three and two items: all 27 x 4 resamples are equally likely."""
    a = {"x": [1.0, 0.0, 1.0], "y": [1.0, 0.0]}
    b = {"x": [0.0, 1.0, 1.0], "y": [0.0, 0.0]}
    base = {"x": 0.5, "y": 0.8}
    exact = []
    for xs in itertools.product(range(3), repeat=3):
        for ys in itertools.product(range(2), repeat=2):
            kept = {}
            for side, given in (("a", a), ("b", b)):
                kept[side] = [
                    np.mean([given["x"][i] for i in xs]) / base["x"],
                    np.mean([given["y"][i] for i in ys]) / base["y"],
                ]
            exact.append(np.minimum(kept["a"], 1).mean() - np.minimum(kept["b"], 1).mean())
    exact = np.array(exact)
    found = paired_bootstrap(a, b, base, resamples=100_000, generator=4)["capped_mean"]
    assert found.p_value == pytest.approx(2 * min((exact <= 0).mean(), (exact >= 0).mean()), abs=0.01)
    assert found.standard_error == pytest.approx(exact.std(), rel=0.01)
    # The exact distribution has few steps, so the limits lie on the step that holds the quantile.
    assert (exact <= found.low - 1e-9).mean() <= 0.026 and (exact <= found.low + 1e-9).mean() >= 0.024
    assert (exact >= found.high + 1e-9).mean() <= 0.026 and (exact >= found.high - 1e-9).mean() >= 0.024


def test_seed_aware_against_exact_enumeration():
    """Two seeds and two items for each method: 4 x 4 x 4 equally likely draws."""
    a, b = np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 0.0], [1.0, 0.0]])
    exact = [
        a[np.ix_(sa, items)].mean() - b[np.ix_(sb, items)].mean()
        for sa in itertools.product(range(2), repeat=2)
        for sb in itertools.product(range(2), repeat=2)
        for items in itertools.product(range(2), repeat=2)
    ]
    found = paired_bootstrap(a, b, 1.0, seeds=True, metrics=("score",), resamples=100_000, generator=9)["score"]
    assert found.standard_error == pytest.approx(np.std(exact), rel=0.01)
    assert found.p_value == pytest.approx(2 * (np.array(exact) <= 0).mean(), abs=0.01)


def test_seed_aware_is_wider_when_seeds_differ():
    level = np.array([[0.2], [0.5], [0.8]])
    a = (np.random.default_rng(0).random((3, 400)) < level).astype(float)
    b = right(0.5, 400, 8, seeds=3)
    item = paired_bootstrap(a, b, 0.6)["capped_mean"].standard_error
    aware = paired_bootstrap(a, b, 0.6, seeds=True)["capped_mean"].standard_error
    assert aware > 3 * item


def test_both_at_once_are_the_two_by_themselves():
    a, b = right(0.5, 200, 1, seeds=3), right(0.4, 200, 2, seeds=2)
    both = both_bootstraps(a, b, 0.6, resamples=20_000)
    for together, seeds in ((both.item_level, False), (both.seed_aware, True)):
        alone = paired_bootstrap(a, b, 0.6, seeds=seeds, resamples=20_000, generator=1)["capped_mean"]
        assert together["capped_mean"].difference == alone.difference
        assert together["capped_mean"].standard_error == pytest.approx(alone.standard_error, rel=0.03)
    with pytest.raises(DataError, match="two seeds or more"):
        both_bootstraps(a, b[:1], 0.6)


def test_pairing_shrinks_the_interval():
    a = right(0.5, 300, 5)[0]
    b = a.copy()
    b[:12] = 1 - b[:12]
    paired = paired_bootstrap(a, b, 0.5, metrics=("score",))["score"]
    other = paired_bootstrap(a, right(0.5, 300, 6)[0], 0.5, metrics=("score",))["score"]
    assert paired.standard_error < 0.35 * other.standard_error


def test_a_count_of_zero_is_a_bound():
    found = paired_bootstrap(np.ones(50), np.zeros(50), 0.5)["capped_mean"]
    assert found.bound and found.p_value == 0.001
    assert sign_p([0.0, 0.0, 0.0]) == (1.0, False)
    assert sign_p([1.0] * 1999 + [-1.0]) == (0.001, False)


def test_same_generator_same_answer():
    values = right(0.5, 40, 1, seeds=2)
    first = resampled_means(values, 500, np.random.default_rng(3))
    np.testing.assert_array_equal(first, resampled_means(values, 500, np.random.default_rng(3)))
    assert (first != resampled_means(values, 500, np.random.default_rng(4))).any()


def test_many_small_pieces_are_one_bootstrap(monkeypatch):
    values = np.stack([right(0.5, 40, 1)[0], np.ones(40)])
    monkeypatch.setattr(resampling, "CELLS_AT_ONCE", 40 * 7)
    drawn = resampled_means(values, 5000, np.random.default_rng(3))
    assert drawn.shape == (5000, 2) and (drawn[:, 1] == 1).all()
    assert drawn[:, 0].std() == pytest.approx(values[0].std() / math.sqrt(40), rel=0.05)
    assert (draw_counts(40, 50, np.random.default_rng(3)).sum(axis=1) == 40).all()


def test_strata_are_balanced_and_drawn_by_themselves():
    scores = np.array([1.0] * 90 + [0.0] * 10)
    kinds = ["unsafe"] * 90 + ["benign"] * 10
    drawn = resampled_means(scores, 200, np.random.default_rng(0), strata=kinds)
    assert (drawn == 0.5).all()
    found = paired_bootstrap(scores, np.zeros(100), 0.5, strata={"score": kinds}, metrics=("score",))["score"]
    assert found.a == 1.0


def test_chance_floor():
    a, b = np.array([1.0, 1, 1, 0]), np.array([1.0, 1, 0, 0])
    found = paired_bootstrap(a, b, 0.75, floors={"score": 0.5}, metrics=("score",))["score"]
    assert (found.a, found.b) == (1.0, 0.0)


def test_undefined_base_is_nan_with_its_reason():
    a = {"math": np.ones(5), "knowledge": np.ones(5)}
    found = paired_bootstrap(a, a, {"math": 0.0, "knowledge": 0.5}, metrics=("capped_mean", "knowledge"))
    assert math.isnan(found["capped_mean"].p_value)
    assert found["capped_mean"].reason == "math: the unpruned score is 0"
    assert found["knowledge"].difference == 0 and found["knowledge"].p_value == 1


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (np.ones(3), np.ones(4), {}, "3 items against 4"),
        (np.ones((1, 3)), np.ones((2, 3)), {"seeds": True}, "two seeds or more"),
        ({"x": np.ones(3)}, {"y": np.ones(3)}, {}, "capabilities differ"),
        (np.array([1.0, np.nan]), np.ones(2), {}, "no score"),
        ({}, {}, {}, "no scores"),
        (np.ones(0), np.ones(0), {}, "no items"),
    ],
)
def test_bad_input_is_refused(a, b, options, message):
    base = dict.fromkeys(a, 1.0) if isinstance(a, dict) else 1.0
    with pytest.raises(DataError, match=message):
        paired_bootstrap(a, b, base, **options)


def test_unknown_metric_is_named():
    with pytest.raises(ConfigError, match="worst_cas") as caught:
        paired_bootstrap(np.ones(3), np.ones(3), 1.0, metrics=("worst_cas",))
    assert "did you mean 'worst_case'" in caught.value.hint


def test_scores_by_item_id_are_paired_by_id():
    rng = np.random.default_rng(0)
    one, other = rng.random((2, 30, 3)).round(2)
    ids = [f"item-{place}" for place in range(30)]
    straight = paired_bootstrap({"math": one.T}, {"math": other.T}, {"math": 0.7}, seeds=True, metrics=("mean",))
    shuffled = rng.permutation(30)
    by_id = paired_bootstrap(
        {"math": {ids[i]: one[i].tolist() for i in range(30)}},
        {"math": {ids[i]: other[i].tolist() for i in shuffled}},
        {"math": 0.7},
        seeds=True,
        metrics=("mean",),
    )
    assert by_id == straight


def test_items_that_differ_are_named():
    a = {"math": {f"m-{place}": 1.0 for place in range(9)}}
    with pytest.raises(DataError, match=r"only in the first method: m-3$"):
        paired_bootstrap(a, {"math": {i: 0.0 for i in a["math"] if i != "m-3"}}, {"math": 1.0})
    with pytest.raises(DataError, match=r"only in the first method: m-0, m-1, m-2, m-3, m-4 and 4 more"):
        paired_bootstrap(a, {"math": {"x": 1.0}}, {"math": 1.0})
    with pytest.raises(DataError, match="do not"):
        paired_bootstrap(a, {"math": [1.0] * 9}, {"math": 1.0})


def test_the_public_names_and_what_they_return():
    import inspect

    import regrow.stats as stats

    w, p_value, mean_ranks = stats.kendalls_w([[0.1, 0.2, 0.3], [0.2, 0.3, 0.9]])
    assert w == 1 and 0 < p_value < 1 and mean_ranks == (1, 2, 3)
    assert stats.retention(0.4, 0.8) == 0.5 and stats.chance_corrected(0.5, 0.75, 0.25) == 0.5
    assert list(inspect.signature(stats.retention).parameters) == ["score", "base"]
    assert list(inspect.signature(stats.chance_corrected).parameters) == ["score", "base", "floor"]
    assert list(inspect.signature(stats.paired_bootstrap).parameters)[:4] == ["a", "b", "base", "seeds"]
    assert stats.holm([0.001, 0.5], bounds=[True, False]).bounds.tolist() == [True, False]


@pytest.mark.parametrize("seeds", [False, True])
def test_senseless_resamples_and_levels_are_refused(seeds):
    scores = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    for resamples in (-5, 0, 1):
        with pytest.raises(ConfigError, match=f"{resamples} resamples are too few"):
            paired_bootstrap(scores, scores, 0.5, seeds=seeds, resamples=resamples)
    for level in (0.0, 1.0, 95.0, float("nan")):
        with pytest.raises(ConfigError, match="the level of the limits lies between 0 and 1"):
            paired_bootstrap(scores, scores, 0.5, seeds=seeds, level=level)
