"""Curves drawn from the counts' likelihood: against importance sampling, in coverage, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from regrow.errors import ConfigError
from regrow.planning.curves import SHAPES, Curves
from regrow.planning.least_squares import TAU_HIGH, TAU_LOW
from regrow.planning.likelihood import TRANSFER_SCALE, CurveDraws, draw_curves
from regrow.planning.misfit import misfits
from regrow.planning.outlook import outlooks
from regrow.planning.pilots import Pilots
from regrow.planning.plan_spread import PlanSpread, plan_spread
from regrow.planning.worth import worth_of_pilots


def one_capability(pilots: Pilots, kept: int) -> Pilots:
    """Return the pilots of one capability over two pools: its own and the general one."""
    own = pilots.own[kept]
    pools = [own, 5]
    return Pilots(
        "one",
        (pilots.capabilities[kept],),
        tuple(pilots.pools[p] for p in pools),
        pilots.budgets,
        pilots.unpruned[[kept]],
        pilots.pruned[[kept]],
        pilots.healed[pools][:, :, [kept]],
        pilots.dev_items[[kept]],
    )


def by_importance(pilots: Pilots, draws: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Return posterior means and deviations from weighted draws of the prior: an independent implementation."""
    n, score = pilots.dev_items[0], pilots.unpruned[0] / pilots.dev_items[0]
    start = rng.beta(pilots.pruned[0] + 0.5, n - pilots.pruned[0] + 0.5, draws) / score
    gain = rng.random(draws) * np.maximum(1e-3, 1.2 - start)
    tau = np.exp(rng.uniform(np.log(TAU_LOW), np.log(TAU_HIGH), draws))
    transfer = np.abs(rng.normal(0, TRANSFER_SCALE, draws))
    logs = np.zeros(draws)
    for p, share in enumerate((np.ones(draws), transfer)):
        for b, tokens in enumerate(pilots.budgets):
            r = start + gain * SHAPES["exponential"].rise(share * tokens / tau)
            chance = np.clip(score * np.minimum(r, 1.2), 1e-6, 1 - 1e-6)
            right = pilots.healed[p, b, 0]
            logs += right * np.log(chance) + (n - right) * np.log1p(-chance)
    weights = np.exp(logs - logs.max())
    weights /= weights.sum()
    found = {}
    for name, values in {"gain": gain, "log_tau": np.log(tau), "transfer": transfer}.items():
        mean = weights @ values
        found[name] = np.array([mean, np.sqrt(weights @ (values - mean) ** 2)])
    return found


@pytest.mark.parametrize("capability", [0, 1, 3])
def test_the_grid_against_importance_sampling(capability: int, published_pilots: dict[str, Pilots]) -> None:
    pilots = one_capability(published_pilots["llama"], capability)
    drawn = draw_curves(pilots, draws=8000)
    known = by_importance(pilots, 1_200_000, np.random.default_rng(0))
    ours = {
        "gain": drawn.curves.gain[:, 0],
        "log_tau": np.log(drawn.curves.tau[:, 0]),
        "transfer": drawn.curves.transfer[:, 0, 1],
    }
    for name, (mean, deviation) in known.items():
        assert ours[name].mean() == pytest.approx(mean, abs=0.1 * deviation), name
        assert ours[name].std() == pytest.approx(deviation, rel=0.12), name


def test_intervals_cover_the_curves_that_made_the_counts(pilots_from: Callable[..., Pilots]) -> None:
    """Parameters drawn from the prior, counts from them: 90 % intervals hold the truth about 90 % of the time."""
    rng = np.random.default_rng(12)
    inside = []
    for _ in range(30):
        start = rng.uniform(0.1, 0.8, 6)
        truth = Curves(
            start,
            rng.random(6) * (1.2 - start),
            np.exp(rng.uniform(np.log(TAU_LOW), np.log(TAU_HIGH), 6)),
            np.clip(np.abs(rng.normal(0, TRANSFER_SCALE, (6, 6))), 0, 3) * (1 - np.eye(6)) + np.eye(6),
        )
        drawn = draw_curves(pilots_from(truth, rng=rng), draws=400)
        _, low, high = drawn.interval(drawn.curves.gain)
        inside.append((low <= truth.gain) & (truth.gain <= high))
    # 180 intervals at 90 %: 0.90 +- 0.022; three deviations, and the grid's coarseness.
    assert np.mean(inside) == pytest.approx(0.9, abs=0.075)


def test_more_items_narrow_the_intervals(pilots_from: Callable[..., Pilots]) -> None:
    truth = Curves(np.full(6, 0.2), np.full(6, 0.6), np.full(6, 1e5), np.eye(6))
    widths = []
    for items in (60, 960):
        drawn = draw_curves(pilots_from(truth, items=items), draws=600)
        _, low, high = drawn.interval(np.log(drawn.curves.tau))
        widths.append((high - low).mean())
    assert widths[1] < 0.5 * widths[0]


def test_pilots_not_run_are_not_data(published_pilots: dict[str, Pilots]) -> None:
    """With no pilot at all the prior of the gain comes back; with them it does not."""
    pilots = published_pilots["qwen"]
    nothing = draw_curves(pilots.with_healed(np.full(pilots.healed.shape, np.nan)), draws=4000)
    share = nothing.curves.gain / np.maximum(1e-3, 1.2 - nothing.curves.start)
    np.testing.assert_allclose(np.quantile(share[:, 0], [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.05)
    known = draw_curves(pilots, draws=1000)
    assert known.curves.gain[:, 0].std() < 0.6 * nothing.curves.gain[:, 0].std()


def test_draws_are_reproducible_and_separate(published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["llama"]
    one, two, other = (draw_curves(pilots, draws=50, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.curves.tau, two.curves.tau)
    assert (one.curves.tau != other.curves.tau).all()
    counts = pilots.healed.copy()
    counts[:, :, 0] = 0.0
    changed = draw_curves(pilots.with_healed(counts), draws=50)
    np.testing.assert_array_equal(one.curves.gain[:, 1:], changed.curves.gain[:, 1:])


def test_without_transfer_other_pools_do_not_speak(published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["llama"]
    drawn = draw_curves(pilots, draws=50, transfer="none")
    np.testing.assert_array_equal(drawn.curves.transfer, np.broadcast_to(np.eye(6), (50, 6, 6)))
    counts = pilots.healed.copy()
    counts[1:, :, 0] = 0.0
    again = draw_curves(pilots.with_healed(counts), draws=50, transfer="none")
    np.testing.assert_array_equal(drawn.curves.gain[:, 0], again.curves.gain[:, 0])


def test_signed_transfer_can_be_negative(published_pilots: dict[str, Pilots]) -> None:
    drawn = draw_curves(published_pilots["qwen"], draws=400, transfer="signed")
    safety = drawn.curves.transfer[:, 4]
    assert (safety[:, 0] < 0).mean() > 0.8 and (safety[:, 5] > 0).mean() > 0.8  # structured output hurts, general helps


def test_misfit_is_seen_and_not_imagined(pilots_from: Callable[..., Pilots]) -> None:
    rng = np.random.default_rng(5)
    truth = Curves(np.full(6, 0.2), np.full(6, 0.6), np.full(6, 6e4), np.eye(6))
    pilots = pilots_from(truth, rng=rng)
    fine = misfits(draw_curves(pilots, draws=300))
    assert min(one.p_value for one in fine) > 0.02
    counts = pilots.healed.copy()
    counts[0, :, 0] = [46, 5, 46]  # up, down, up: no saturating curve does that
    broken = misfits(draw_curves(pilots.with_healed(counts), draws=300))
    assert broken[0].p_value < 0.01
    assert broken[0].worst is not None and broken[0].worst.pool == "structured_output"
    assert abs(broken[0].deviation) > 2.5


def test_slow_and_stuck_are_told_apart(pilots_from: Callable[..., Pilots]) -> None:
    """Many items, so that the data speak: a slow curve, one that levels off low, one that is back."""
    truth = Curves(
        np.array([0.1, 0.1, 0.3, 0.5, 0.5, 0.5]),
        np.array([1.0, 0.2, 0.7, 0.5, 0.5, 0.5]),
        np.array([1.5e6, 2e4, 3e4, 3e4, 3e4, 3e4]),
        np.eye(6),
    )
    found = {one.capability: one for one in outlooks(draw_curves(pilots_from(truth, items=3000), draws=400))}
    assert found["structured_output"].slow > 0.95 and found["structured_output"].slow_not_stuck > 0.95
    assert found["function_calling"].stuck > 0.95 and found["function_calling"].slow_not_stuck < 0.05
    assert found["instruction_following"].recovered > 0.95
    for one in found.values():
        assert one.slow + one.stuck + one.recovered == pytest.approx(1.0)


def test_published_pilots_leave_math_slow_rather_than_stuck(published_pilots: dict[str, Pilots]) -> None:
    found = {one.capability: one for one in outlooks(draw_curves(published_pilots["llama"]))}
    assert found["math"].slow_not_stuck > 0.8
    assert found["function_calling"].slow_not_stuck < 0.2


def test_undefined_capabilities_stay_undefined(published_pilots: dict[str, Pilots]) -> None:
    pilots = published_pilots["llama"]
    gone, counts, before = pilots.unpruned.copy(), pilots.healed.copy(), pilots.pruned.copy()
    gone[2], counts[:, :, 2], before[2] = 0.0, 0.0, 0.0
    pilots = replace(pilots, unpruned=gone, healed=counts, pruned=before)
    drawn = draw_curves(pilots, draws=60)
    assert np.isnan(drawn.curves.gain[:, 2]).all() and np.isfinite(np.delete(drawn.curves.gain, 2, axis=1)).all()
    assert np.isnan(outlooks(drawn)[2].slow)
    assert np.isnan(misfits(drawn)[2].p_value) and misfits(drawn)[2].reason
    spread = plan_spread(drawn, 1e6, draws=20)
    assert np.isfinite(spread.tokens).all()
    assert np.isfinite(worth_of_pilots(drawn, spread).perfect)


def test_plans_spread_as_far_as_the_pilots_leave_open(pilots_from: Callable[..., Pilots]) -> None:
    truth = Curves(np.full(6, 0.2), np.full(6, 0.6), np.array([2e4, 5e4, 1e5, 2e5, 3e5, 5e5]), np.eye(6))
    moved = []
    for items in (60, 6000):
        spread = plan_spread(draw_curves(pilots_from(truth, items=items), draws=80), 1e6, draws=80)
        np.testing.assert_allclose(spread.tokens.sum(axis=1), 1e6, rtol=1e-9)
        assert (spread.tokens >= 0).all() and (spread.tokens <= 6e5 * (1 + 1e-9)).all()
        moved.append(spread.moved)
    assert moved[1] < 0.5 * moved[0]
    far = plan_spread(draw_curves(pilots_from(truth), draws=10), 4e6, draws=10)
    np.testing.assert_allclose(far.tokens, 4e6 / 6)
    assert far.moved == pytest.approx(0.0) and (far.unused == 0).all()


def test_knowing_more_is_worth_nothing_when_nothing_is_open(published_pilots: dict[str, Pilots]) -> None:
    drawn = draw_curves(published_pilots["llama"], draws=40)
    same = Curves(*(np.repeat(part[:1], 40, axis=0) for part in _parts(drawn.curves)))
    known = CurveDraws(same, drawn.pilots, drawn.transfer)
    worth = worth_of_pilots(known, plan_spread(known, 1e6, draws=40))
    assert worth.perfect == pytest.approx(0.0, abs=1e-9)
    assert all(one.knowledge == pytest.approx(0.0, abs=1e-9) for one in worth.pilots)
    assert worth.pilots[0].healing > 0 and not worth.pilots[0].pays


def _parts(curves: Curves) -> tuple[np.ndarray, ...]:
    return curves.start, curves.gain, curves.tau, curves.transfer


def test_a_pilot_that_tells_two_worlds_apart_is_worth_what_it_saves() -> None:
    """In half of the worlds math can be healed, safety always half as well: a pilot of math tells for sure, one of
    safety tells nothing."""
    pilots = Pilots(
        "two",
        ("math", "safety"),
        ("math", "safety"),
        (300_000,),
        np.array([50.0, 50.0]),
        np.array([5.0, 5.0]),
        np.full((2, 1, 2), 5.0),
        np.array([60.0, 60.0]),
    )
    draws = 40
    gain = np.column_stack([np.arange(draws) % 2 * 1.0, np.full(draws, 0.5)])
    curves = Curves(
        np.full((draws, 2), 0.1), gain, np.full((draws, 2), 4e5), np.broadcast_to(np.eye(2), (draws, 2, 2)).copy()
    )
    known = CurveDraws(curves, pilots, "none")
    spread = plan_spread(known, 6e5, draws=draws)
    worth = worth_of_pilots(known, spread)

    def kept(math_tokens: float, can: float) -> float:
        return can * (1 - np.exp(-math_tokens / 4e5)) + 0.5 * (1 - np.exp(-(6e5 - math_tokens) / 4e5))

    plans = np.unique(np.vstack([spread.tokens, spread.tokens.mean(axis=0)])[:, 0])
    before = max((kept(t, 0) + kept(t, 1)) / 2 for t in plans)
    after = (max(kept(t, 0) for t in plans) + max(kept(t, 1) for t in plans)) / 2
    assert worth.perfect == pytest.approx((after - before) / 2, abs=1e-6)
    told = {one.run.pool: one.knowledge for one in worth.pilots}
    assert told["math"] == pytest.approx(worth.perfect, rel=0.5) and told["math"] > 0.01
    assert told["safety"] == pytest.approx(0.0, abs=1e-9)


def test_worth_refuses_the_worst_case(published_pilots: dict[str, Pilots]) -> None:
    drawn = draw_curves(published_pilots["llama"], draws=20)
    spread = plan_spread(drawn, 1e6, objective="min", draws=20)
    assert isinstance(spread, PlanSpread)
    with pytest.raises(ConfigError, match="sums of retentions"):
        worth_of_pilots(drawn, spread)


def test_on_the_published_pilots_no_pilot_pays(published_pilots: dict[str, Pilots]) -> None:
    """Healing on a further pilot's tokens beats what it could tell, by far: the study's finding from its pilots."""
    for pilots in published_pilots.values():
        drawn = draw_curves(pilots)
        worth = worth_of_pilots(drawn, plan_spread(drawn, 1e6))
        assert worth.perfect < 0.02
        assert not any(one.pays for one in worth.pilots)
        assert worth.pilots[0].healing > 2 * worth.perfect
