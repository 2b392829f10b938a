import math

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import bootstrap as scipy_bootstrap

from regrow.stats.intervals import balanced_rate, mean_interval, percentile, perplexity_interval, wilson


@pytest.mark.parametrize(("x", "n"), [(0, 60), (3, 60), (30, 60), (60, 60), (1, 1)])
def test_wilson_against_scipy(x, n):
    ours = wilson(x, n)
    theirs = binomtest(x, n).proportion_ci(method="wilson")
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_wilson_covers():
    rng = np.random.default_rng(0)
    hits = rng.binomial(60, 0.1, size=2000)
    covered = np.mean([(i := wilson(int(x), 60)).low <= 0.1 <= i.high for x in hits])
    assert covered > 0.93


def test_nothing_measured_has_no_interval():
    assert math.isnan(wilson(0, 0).value) and wilson(0, 0).reason == "no items"
    assert mean_interval([], np.random.default_rng(0)).reason == "no items"
    assert balanced_rate([1, 0], [1, 0]).reason
    assert perplexity_interval([], [], np.random.default_rng(0)).reason


def test_balanced_rate_keeps_its_width_where_the_bootstrap_loses_it():
    scores = np.array([1.0] * 30 + [0.0] * 30)
    kinds = ["unsafe"] * 30 + ["benign"] * 30
    drawn = mean_interval(scores, np.random.default_rng(0), strata=kinds)
    assert drawn.low == drawn.high == 0.5
    ours = balanced_rate([30, 0], [30, 30])
    assert ours.value == 0.5 and ours.high - ours.low > 0.1


def test_balanced_rate_agrees_with_the_bootstrap_away_from_the_edges():
    scores = np.array([1.0] * 70 + [0.0] * 30 + [1.0] * 40 + [0.0] * 60)
    kinds = ["unsafe"] * 100 + ["benign"] * 100
    drawn = mean_interval(scores, np.random.default_rng(0), strata=kinds, resamples=20_000)
    ours = balanced_rate([70, 40], [100, 100])
    assert ours.value == drawn.value == pytest.approx(0.55)
    assert ours.low == pytest.approx(drawn.low, abs=0.01) and ours.high == pytest.approx(drawn.high, abs=0.01)


def test_mean_interval_against_scipy():
    values = np.random.default_rng(5).random(70)
    ours = mean_interval(values, np.random.default_rng(1), resamples=20_000)
    theirs = scipy_bootstrap((values,), np.mean, method="percentile", n_resamples=20_000, rng=np.random.default_rng(2))
    assert ours.low == pytest.approx(theirs.confidence_interval.low, abs=0.003)
    assert ours.high == pytest.approx(theirs.confidence_interval.high, abs=0.003)


def test_perplexity_weighs_windows_by_their_tokens():
    rng = np.random.default_rng(0)
    tokens = np.array([511] * 20 + [37])
    nll = tokens * (3.5 + rng.normal(0, 0.2, tokens.size))
    found = perplexity_interval(nll, tokens, rng, resamples=20_000)
    assert found.value == pytest.approx(math.exp(nll.sum() / tokens.sum()))
    assert found.low < found.value < found.high
    # The delta method for a ratio of sums.
    mean = nll.sum() / tokens.sum()
    spread = math.sqrt(((nll - mean * tokens) ** 2).sum()) / tokens.sum()
    assert math.log(found.high / found.low) == pytest.approx(2 * 1.96 * spread, rel=0.1)


def test_undefined_resamples_leave_the_limits_undefined():
    found = percentile([1.0, math.nan, 2.0], 1.5)
    assert found.value == 1.5 and math.isnan(found.low) and found.reason
