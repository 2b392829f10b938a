"""Repairs end to end on real tiny models, judged by cases whose answer is known."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regrow.errors import ConfigError, DataError, ModelError
from regrow.models.bridges import bridges_of
from regrow.models.capture import observe_streams
from regrow.models.load import load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import RepairSpec
from regrow.repair.fit import fit_many, fit_possible, fit_repair
from tests.conftest import TINY_FAMILIES
from tests.repair.helpers import WIDTH, calibration_set, pair

EXACT = RepairSpec(method="lra", ridge=0.0)


def streams(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode(), observe_streams(model, lambda index, h: found.__setitem__(index, h.clone())):
        model(ids, attention_mask=mask)
    return found


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_zero_error_when_the_removed_block_is_affine(family: str) -> None:
    unpruned, pruned = pair([2], family, affine=[2])
    result = fit_repair(unpruned, pruned, calibration_set(), EXACT, removed=[2])
    (cut,) = result.row.cuts
    assert cut.held_out_before > 0.05 and cut.held_out < 1e-5 and cut.in_model < 1e-5
    ids = calibration_set(seed=9).input_ids[:4]
    assert torch.allclose(pruned.model(ids).logits, unpruned.model(ids).logits, rtol=1e-3, atol=2e-3)
    assert result.row.perplexity == pytest.approx(result.row.perplexity_unpruned, rel=1e-4)


@pytest.mark.parametrize(
    "removed", [[0], [5], [0, 1], [4, 5], [1, 2, 4], [0, 2, 5]], ids=["first", "last", "head", "tail", "gap", "three"]
)
@pytest.mark.parametrize("granularity", ["block", "span"])
@pytest.mark.parametrize("sequential", [False, True])
def test_zero_error_wherever_the_cut_is(removed: list[int], granularity: str, sequential: bool) -> None:
    unpruned, pruned = pair(removed, affine=removed)
    spec = EXACT.model_copy(update={"granularity": granularity, "sequential": sequential})
    result = fit_repair(unpruned, pruned, calibration_set(), spec, removed=removed)
    assert result.row.final_error_before > 0.05 and result.row.final_error < 1e-5
    assert [bridge.spans for bridge in result.bridges] == [cut.blocks for cut in result.row.cuts]
    assert len(bridges_of(pruned.model)) == len(result.bridges)


def test_it_is_least_squares_on_stored_streams() -> None:
    unpruned, pruned = pair([2, 3])
    calibration = calibration_set(rows=32)
    fit_repair(unpruned, pruned, calibration, EXACT.model_copy(update={"granularity": "span"}), removed=[2, 3])
    fitted_rows = [row for row in range(32) if row % 8 != 7]
    seen = streams(unpruned.model, calibration.input_ids[fitted_rows])
    x = seen[2].reshape(-1, WIDTH).double().numpy()
    y = seen[4].reshape(-1, WIDTH).double().numpy()
    expected, *_ = np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), y - x, rcond=None)
    bridge = bridges_of(pruned.model)[0].bridge
    assert np.allclose(bridge.weight.detach().numpy(), expected[:-1], atol=2e-5)
    assert np.allclose(bridge.bias.detach().numpy(), expected[-1], atol=2e-5)


def test_per_block_adapters_are_each_least_squares_then_merged() -> None:
    unpruned, pruned = pair([2, 3])
    calibration = calibration_set(rows=32)
    fit_repair(unpruned, pruned, calibration, EXACT, removed=[2, 3])
    seen = streams(unpruned.model, calibration.input_ids[[row for row in range(32) if row % 8 != 7]])
    total = np.eye(WIDTH + 1)
    for block in (2, 3):
        x = seen[block].reshape(-1, WIDTH).double().numpy()
        y = seen[block + 1].reshape(-1, WIDTH).double().numpy()
        solution, *_ = np.linalg.lstsq(np.hstack([x, np.ones((len(x), 1))]), y, rcond=None)
        step = np.eye(WIDTH + 1)
        step[:, :WIDTH] = solution
        total = total @ step
    bridge = bridges_of(pruned.model)[0].bridge
    assert np.allclose(bridge.weight.detach().numpy() + np.eye(WIDTH), total[:WIDTH, :WIDTH], atol=5e-5)
    assert np.allclose(bridge.bias.detach().numpy(), total[WIDTH, :WIDTH], atol=5e-5)


def test_sequential_per_block_ends_at_the_fit_of_the_whole_run() -> None:
    # An invertible affine image of X spans the same fits, so the merged map is the optimum of the whole run.
    bridges = []
    for spec in (
        EXACT.model_copy(update={"granularity": "span"}),
        EXACT.model_copy(update={"granularity": "block", "sequential": True}),
    ):
        unpruned, pruned = pair([2, 3, 4])
        fit_repair(unpruned, pruned, calibration_set(rows=48), spec, removed=[2, 3, 4])
        bridges.append(bridges_of(pruned.model)[0].bridge)
    assert torch.allclose(bridges[0].weight, bridges[1].weight, atol=1e-3)


def test_sequential_fits_what_the_repaired_model_really_sees() -> None:
    errors = {}
    for sequential in (False, True):
        unpruned, pruned = pair([1, 4], blocks=6)
        spec = EXACT.model_copy(update={"sequential": sequential})
        fit_repair(unpruned, pruned, calibration_set(rows=64), spec, removed=[1, 4])
        ids = calibration_set(rows=64).input_ids[[row for row in range(64) if row % 8 != 7]]
        target = streams(unpruned.model, ids)[5][:, 1:]
        # Pruned block 3 is block 3 + 1 removed: its output, bridged, enters pruned block 3.
        errors[sequential] = (streams(pruned.model, ids)[3][:, 1:] - target).norm().item()
    assert errors[True] < errors[False]


def test_padding_changes_nothing() -> None:
    plain = calibration_set(padded=True)
    from regrow.data.calibration import make_set

    wide_ids = torch.nn.functional.pad(plain.input_ids, (0, 9), value=0)
    wide = make_set("wider", wide_ids, torch.nn.functional.pad(plain.attention_mask, (0, 9), value=0))
    weights = []
    for calibration in (plain, wide):
        unpruned, pruned = pair([2, 3])
        fit_repair(unpruned, pruned, calibration, RepairSpec(), removed=[2, 3], measure=False)
        weights.append(bridges_of(pruned.model)[0].bridge.weight)
    assert torch.allclose(*weights, atol=1e-5)


def test_batch_size_changes_nothing() -> None:
    from regrow.repair.cuts import spans_of
    from regrow.repair.gather import gather, new_book
    from regrow.repair.method import Cut
    from regrow.repair.registry import REPAIRS

    unpruned, pruned = pair([2, 3])
    found = []
    for tokens in (48, 200, 5000):
        book = new_book(unpruned.model)
        cut = Cut(unpruned.model, pruned.model, spans_of([2, 3], 6), WIDTH, calibration_set())
        method = REPAIRS.get("lra")
        method.plan(book, cut, RepairSpec())
        assert gather(book, unpruned.model, calibration_set(), tokens_per_batch=tokens) == 24 * 48
        found.append(method.fit(book, cut, RepairSpec()).edits[0].bridge.weight)
    assert torch.allclose(found[0], found[1], atol=1e-5) and torch.allclose(found[0], found[2], atol=1e-5)


def test_counts_of_the_row() -> None:
    unpruned, pruned = pair([1, 3, 4])
    results, table = fit_many(
        unpruned,
        pruned,
        calibration_set(),
        [RepairSpec(), RepairSpec(rank=4), RepairSpec(method="ghost")],
        removed=[1, 3, 4],
    )
    full, low, ghost = table.rows
    assert full.added_parameters == 2 * (WIDTH * WIDTH + WIDTH) and full.flops_per_token == 2 * 2 * WIDTH * WIDTH
    assert low.added_parameters == 2 * (2 * WIDTH * 4 + WIDTH) and low.flops_per_token == 2 * 4 * WIDTH * 4
    assert ghost.added_parameters == 2 * WIDTH * WIDTH
    assert (full.tokens, table.calibration_tokens) == (21 * 48, 24 * 48)
    assert not any(row.portable for row in table.rows)
    assert bridges_of(pruned.model) == []
    assert [bridge.after_block for bridge in results[1].bridges] == [0, 1] and results[1].bridges[0].rank == 4


def test_fitting_together_equals_fitting_alone() -> None:
    specs = [
        RepairSpec(),
        RepairSpec(method="ghost"),
        RepairSpec(method="ridge-patch", rows="inverse-norm"),
        RepairSpec(method="generic-affine", rank=6, rank_weighting="activations"),
        RepairSpec(sequential=True),
        # These set tokens aside for their ridge, which must not take them from the others.
        RepairSpec(method="fold"),
        RepairSpec(ridge_choice="held-out"),
        RepairSpec(method="linear-patch"),
        RepairSpec(method="replace-me"),
    ]
    unpruned, pruned = pair([1, 2, 4])
    calibration = calibration_set()
    together, _ = fit_many(unpruned, pruned, calibration, specs, removed=[1, 2, 4])
    for spec, result in zip(specs, together, strict=True):
        unpruned, alone = pair([1, 2, 4])
        single = fit_repair(unpruned, alone, calibration, spec, removed=[1, 2, 4])
        result.apply(pruned)
        ids = calibration.input_ids[:2]
        assert torch.allclose(pruned.model(ids).logits, alone.model(ids).logits, atol=1e-3)
        result.undo(pruned)
        assert single.row.final_error == pytest.approx(result.row.final_error, rel=1e-3)


def test_a_repaired_checkpoint_survives_saving(tmp_path: Path) -> None:
    unpruned, pruned = pair([2, 3], "qwen3")
    result = fit_repair(unpruned, pruned, calibration_set(), RepairSpec(rank=8), removed=[2, 3])
    facts = CheckpointFacts(source="tiny", unpruned_blocks=6, removed_blocks=(2, 3), bridges=result.bridges)
    save_checkpoint(pruned, tmp_path / "out", facts)
    again = load_model(tmp_path / "out", dtype="float32", device="cpu")
    ids = calibration_set().input_ids[:2]
    assert torch.equal(again.model(ids).logits, pruned.model(ids).logits)
    assert again.facts is not None and again.facts.bridges[0].parameters == 2 * 8 * WIDTH + WIDTH


def test_removed_blocks_come_from_the_facts() -> None:
    unpruned, pruned = pair([2])
    pruned.facts = CheckpointFacts(source="tiny", unpruned_blocks=6, removed_blocks=(2,))
    assert fit_repair(unpruned, pruned, calibration_set(), RepairSpec()).row.cuts[0].blocks == (2,)


def test_what_one_method_cannot_do_does_not_keep_the_others_from_it() -> None:
    unpruned, pruned = pair([0])
    specs = [RepairSpec(), RepairSpec(method="fold"), RepairSpec(rank=WIDTH + 1), RepairSpec(method="ghost")]
    found, table = fit_possible(unpruned, pruned, calibration_set(), specs, removed=[0])
    assert [isinstance(one, ModelError) for one in found] == [False, True, True, False]
    assert [row.method for row in table.rows] == ["lra", "ghost"]
    assert bridges_of(pruned.model) == []
    # Too few tokens show only once they are read.
    few = calibration_set(rows=2, tokens=20)
    found, table = fit_possible(unpruned, pruned, few, [EXACT, RepairSpec()], removed=[0])
    assert isinstance(found[0], DataError) and len(table.rows) == 1


class TestRefusals:
    def test_fewer_tokens_than_the_width(self) -> None:
        unpruned, pruned = pair([2])
        few = calibration_set(rows=2, tokens=20)
        with pytest.raises(DataError, match="20 fitting tokens cannot determine 33 unknowns") as caught:
            fit_repair(unpruned, pruned, few, EXACT, removed=[2])
        assert "at least 40" in str(caught.value.hint)
        result = fit_repair(unpruned, pruned, few, RepairSpec(), removed=[2])
        assert any("20 fitting tokens for 33 unknowns" in warning for warning in result.warnings)

    def test_rank_above_the_width(self) -> None:
        unpruned, pruned = pair([2])
        with pytest.raises(ModelError, match="rank 33"):
            fit_repair(unpruned, pruned, calibration_set(), RepairSpec(rank=WIDTH + 1), removed=[2])
        assert bridges_of(pruned.model) == []

    def test_a_model_that_is_repaired_already(self) -> None:
        unpruned, pruned = pair([2])
        fit_repair(unpruned, pruned, calibration_set(), RepairSpec(), removed=[2])
        with pytest.raises(ModelError, match="already"):
            fit_repair(unpruned, pruned, calibration_set(), RepairSpec(), removed=[2])

    def test_models_that_do_not_belong_together(self) -> None:
        unpruned, pruned = pair([2])
        with pytest.raises(ModelError, match="but the pruned model has 5"):
            fit_repair(unpruned, pruned, calibration_set(), RepairSpec(), removed=[2, 3])
        other, _ = pair([2])
        with pytest.raises(ModelError, match="no block was removed"):
            fit_repair(unpruned, other, calibration_set(), RepairSpec())

    def test_unknown_names_and_unequal_calibration(self) -> None:
        unpruned, pruned = pair([2])
        with pytest.raises(ConfigError, match="unknown repair 'lar'") as caught:
            fit_repair(unpruned, pruned, calibration_set(), RepairSpec(method="lar"), removed=[2])
        assert "did you mean 'lra'" in str(caught.value.hint)
        with pytest.raises(ConfigError, match="calibration tokens"):
            fit_many(
                unpruned, pruned, calibration_set(), [RepairSpec(), RepairSpec(calibration_tokens=99)], removed=[2]
            )

    def test_no_sequence_for_choosing_the_ridge(self) -> None:
        unpruned, pruned = pair([2])
        with pytest.raises(ConfigError, match="too short to choose the ridge"):
            fit_repair(unpruned, pruned, calibration_set(rows=2), RepairSpec(ridge_choice="held-out"), removed=[2])

    def test_one_sequence_leaves_held_out_errors_undefined(self) -> None:
        unpruned, pruned = pair([2])
        row = fit_repair(unpruned, pruned, calibration_set(rows=1, tokens=80), RepairSpec(), removed=[2]).row
        assert math.isnan(row.cuts[0].held_out) and math.isnan(row.perplexity) and row.cuts[0].fitted < 1


def test_a_failed_sequential_fit_leaves_the_model_as_it_was() -> None:
    unpruned, pruned = pair([1, 4])
    few = calibration_set(rows=2, tokens=20)
    with pytest.raises(DataError):
        fit_repair(unpruned, pruned, few, EXACT.model_copy(update={"sequential": True}), removed=[1, 4])
    assert bridges_of(pruned.model) == []
