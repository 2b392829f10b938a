"""What sets each repair apart, and what all of them share."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.errors import ConfigError, ModelError
from regrow.models.bridges import ScalingBridge, bridges_of
from regrow.models.capture import observe_streams
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import RepairSpec
from regrow.repair.affine import GHOST
from regrow.repair.fit import fit_many, fit_repair
from regrow.repair.hadamard import hadamard, reachable
from regrow.repair.operators import identity
from regrow.repair.projections import writing_projection
from regrow.repair.registry import REPAIRS
from regrow.repair.reservoir import Reservoir
from regrow.repair.signals import stream
from regrow.repair.solve import least_squares
from regrow.repair.sums import NormalSums
from tests.conftest import tiny_model
from tests.repair.helpers import WIDTH, calibration_set, pair

FOLDABLE = ["llama", "qwen3", "mistral", "smollm3", "phi3", "gpt_neox", "gpt2"]
POST_NORM = ["gemma2", "gemma3", "olmo2"]


def streams(model: Any, ids: torch.Tensor) -> dict[int, torch.Tensor]:
    found: dict[int, torch.Tensor] = {}
    with torch.inference_mode(), observe_streams(model, lambda index, h: found.__setitem__(index, h.clone())):
        model(ids)
    return found


def fitted_ids(rows: int = 64) -> torch.Tensor:
    return calibration_set(rows=rows).input_ids[[row for row in range(rows) if row % 8 != 7]]


class TestEveryMethod:
    """The contract: what is promised of any repair."""

    @pytest.mark.parametrize("name", REPAIRS.names())
    def test_it_leaves_the_pruned_model_as_it_was_and_repeats(self, name: str) -> None:
        unpruned, pruned = pair([2, 3])
        ids = calibration_set(rows=10).input_ids[:2]
        before = pruned.model(ids).logits
        config = copy.deepcopy(pruned.model.config.to_dict())
        trained = [weight.requires_grad for weight in pruned.model.parameters()]
        spec = RepairSpec(method=name)
        first, _ = fit_many(unpruned, pruned, calibration_set(rows=10), [spec], removed=[2, 3])
        assert torch.equal(pruned.model(ids).logits, before)
        assert pruned.model.config.to_dict() == config
        assert [weight.requires_grad for weight in pruned.model.parameters()] == trained
        second, _ = fit_many(unpruned, pruned, calibration_set(rows=10), [spec], removed=[2, 3])
        once = _logits_with(first[0], pruned, ids)
        assert torch.equal(once, _logits_with(second[0], pruned, ids))
        assert torch.isfinite(once).all() and not torch.equal(once, before)

    @pytest.mark.parametrize("name", REPAIRS.names())
    def test_its_row_is_complete(self, name: str) -> None:
        unpruned, pruned = pair([2, 3])
        row = fit_repair(unpruned, pruned, calibration_set(rows=10), RepairSpec(method=name), removed=[2, 3]).row
        assert row.method == name and row.cuts[0].blocks == (2, 3)
        for value in (row.final_error, row.perplexity, row.cuts[0].in_model, row.cuts[0].in_model_before):
            assert np.isfinite(value)
        # A block put back is plain and costs what a block costs; every other portable repair costs nothing.
        assert row.portable == (row.flops_per_token == 0 or row.method == "streamline-block")
        assert json.loads(row.model_dump_json())["method"] == name

    @pytest.mark.parametrize("name", [name for name in REPAIRS.names() if name != "streamline-block"])
    def test_the_error_from_sums_is_that_of_the_running_model(self, name: str) -> None:
        # One run, so the stream that meets the operator is the unpruned model's own.
        unpruned, pruned = pair([2, 3])
        (cut,) = fit_repair(
            unpruned, pruned, calibration_set(rows=10), RepairSpec(method=name), removed=[2, 3]
        ).row.cuts
        assert cut.held_out == pytest.approx(cut.in_model, rel=1e-3)
        assert cut.held_out_before == pytest.approx(cut.in_model_before, rel=1e-3)

    @pytest.mark.parametrize("name", REPAIRS.names())
    def test_half_precision_models_can_be_repaired(self, name: str) -> None:
        unpruned, pruned = pair([2, 3])
        unpruned.model.to(torch.bfloat16)
        pruned.model.to(torch.bfloat16)
        row = fit_repair(unpruned, pruned, calibration_set(rows=10), RepairSpec(method=name), removed=[2, 3]).row
        assert np.isfinite(row.perplexity)
        assert {weight.dtype for weight in pruned.model.parameters()} == {torch.bfloat16}

    @pytest.mark.parametrize("name", REPAIRS.names())
    def test_options_without_effect_are_refused(self, name: str) -> None:
        options = {
            "ridge": 0.5,
            "ridge_choice": "held-out",
            "rank": 4,
            "rank_weighting": "activations",
            "granularity": "block" if name == "ridge-patch" else "span",
            "sequential": True,
            "rows": "inverse-norm",
            "passes": 3,
            "skip_first": 2,
        }
        plain = _logits_after(RepairSpec(method=name))
        heeded = 0
        for option, value in options.items():
            more = {"rank": 4} if option == "rank_weighting" else {}
            spec = RepairSpec(method=name, **{option: value, **more})
            try:
                changed = _logits_after(spec)
            except ConfigError as error:
                assert option in str(error) or "rank" in str(error)
                continue
            reference = _logits_after(RepairSpec(method=name, **more)) if more else plain
            already_so = (name, option) == ("fold", "ridge_choice")
            assert already_so or not torch.equal(changed, reference), f"{name} ignored {option}"
            heeded += 1
        assert heeded


def _logits_after(spec: RepairSpec) -> torch.Tensor:
    removed = [3, 4] if spec.method == "streamline-block" else [1, 3, 4]
    unpruned, pruned = pair(removed)
    fit_repair(unpruned, pruned, calibration_set(rows=10), spec, removed=removed, measure=False)
    return pruned.model(calibration_set().input_ids[:2]).logits.detach()


def _logits_with(result: Any, pruned: LoadedModel, ids: torch.Tensor) -> torch.Tensor:
    result.apply(pruned)
    try:
        return pruned.model(ids).logits.detach()
    finally:
        result.undo(pruned)


class TestGhost:
    @given(seed=st.integers(0, 10_000), rows=st.integers(30, 200))
    @settings(max_examples=30, deadline=None)
    def test_no_diagonal_or_hadamard_scaling_fits_better(self, seed: int, rows: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(rows, 12, generator=generator).double() * torch.rand(12, generator=generator) * 10
        y = x + torch.tanh(x @ torch.randn(12, 12, generator=generator).double()) + 0.5
        sums = NormalSums(12, {"y": 12})
        sums.add(x, {"y": y})
        problem = sums.problem("y")
        ghost = least_squares(problem, GHOST.ridge, intercept=False, toward_identity=True).operator
        best = problem.squared_error(ghost.matrix)
        bases = [torch.eye(12).double(), torch.from_numpy(hadamard(12)).double() / 12**0.5]
        for basis in bases:
            # The best factors in this basis, and the ones LinearPatch takes.
            u, v = x @ basis, y @ basis
            for scale in ((u * v).sum(0) / (u * u).sum(0), v.abs().mean(0) / u.abs().mean(0)):
                assert best <= problem.squared_error(basis * scale @ basis.T) * (1 + 1e-9)

    def test_one_run_gets_one_operator_and_several_are_composed_per_block(self) -> None:
        unpruned, pruned = pair([2, 3])
        fit_repair(unpruned, pruned, calibration_set(rows=64), RepairSpec(method="ghost"), removed=[2, 3])
        seen = streams(unpruned.model, fitted_ids())
        x, y = (seen[at].reshape(-1, WIDTH).double() for at in (2, 4))
        expected = torch.linalg.lstsq(x, y - x).solution
        assert torch.allclose(bridges_of(pruned.model)[0].bridge.weight.double(), expected, atol=1e-4)

        unpruned, pruned = pair([0, 2, 3])
        fit_repair(unpruned, pruned, calibration_set(rows=64), RepairSpec(method="ghost"), removed=[0, 2, 3])
        seen = streams(unpruned.model, fitted_ids())
        total = identity(WIDTH).matrix
        for block in (2, 3):
            x, y = (seen[at].reshape(-1, WIDTH).double() for at in (block, block + 1))
            total = total @ torch.linalg.lstsq(x, y).solution
        assert torch.allclose(
            bridges_of(pruned.model)[1].bridge.weight.double() + identity(WIDTH).matrix, total, atol=1e-3
        )


class TestHadamard:
    @pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 28, 36, 52, 60, 76, 100, 244, 576, 896, 960, 1536])
    def test_rows_are_orthogonal(self, order: int) -> None:
        matrix = hadamard(order).astype(np.float64)
        assert set(np.unique(matrix)) <= {-1, 1}
        assert np.array_equal(matrix @ matrix.T, order * np.eye(order))

    def test_powers_of_two_are_sylvesters(self) -> None:
        from scipy.linalg import hadamard as sylvester

        assert np.array_equal(hadamard(64), sylvester(64))

    def test_widths_of_known_models_are_reached(self) -> None:
        widths = [
            576,
            768,
            896,
            960,
            1024,
            1152,
            1536,
            1600,
            2048,
            2304,
            2560,
            2880,
            3072,
            3584,
            4096,
            5120,
            6144,
            8192,
        ]
        assert all(reachable(width) for width in widths)

    @pytest.mark.parametrize("order", [0, 3, 6, 92, 3776])
    def test_other_orders_are_refused_with_a_way_out(self, order: int) -> None:
        with pytest.raises(ConfigError, match=str(order)) as caught:
            hadamard(order)
        assert "linear-patch-diag" in str(caught.value.hint)


class TestLinearPatch:
    @pytest.mark.parametrize("rotated", [True, False])
    def test_it_is_the_formula_on_stored_streams(self, rotated: bool) -> None:
        unpruned, pruned = pair([2, 3])
        name = "linear-patch" if rotated else "linear-patch-diag"
        fit_repair(unpruned, pruned, calibration_set(rows=64), RepairSpec(method=name), removed=[2, 3])
        seen = streams(unpruned.model, fitted_ids())
        basis = torch.from_numpy(hadamard(WIDTH)).double() / WIDTH**0.5 if rotated else identity(WIDTH).matrix
        x, y = (seen[at].double() @ basis for at in (2, 4))
        scale = (y.abs().mean(dim=1) / x.abs().mean(dim=1)).mean(dim=0)
        bridge = bridges_of(pruned.model)[0].bridge
        rows = torch.randn(7, WIDTH, generator=torch.Generator().manual_seed(3))
        expected = rows.double() @ (basis * scale) @ basis.T
        assert torch.allclose(bridge(rows).double(), expected, atol=1e-4)
        assert isinstance(bridge, ScalingBridge) is not rotated

    def test_padding_does_not_count(self) -> None:
        from regrow.data.calibration import make_set

        plain = calibration_set(padded=True)
        wide = make_set(
            "wide",
            torch.nn.functional.pad(plain.input_ids, (0, 5)),
            torch.nn.functional.pad(plain.attention_mask, (0, 5)),
        )
        found = []
        for calibration in (plain, wide):
            unpruned, pruned = pair([2])
            fit_repair(unpruned, pruned, calibration, RepairSpec(method="linear-patch-diag"), removed=[2])
            found.append(bridges_of(pruned.model)[0].bridge.scale)
        assert torch.allclose(*found, atol=1e-5)

    def test_distilling_brings_the_probabilities_nearer(self) -> None:
        unpruned, pruned = pair([2, 3])
        ids = calibration_set(rows=64).input_ids[7::8]
        told = unpruned.model(ids).logits.log_softmax(-1)
        gaps = []
        for spec in (
            RepairSpec(method="linear-patch"),
            RepairSpec(method="linear-patch-distilled", passes=1),
            RepairSpec(method="linear-patch-distilled", passes=12),
        ):
            (result,), _ = fit_many(unpruned, pruned, calibration_set(rows=64), [spec], removed=[2, 3])
            given_ = _logits_with(result, pruned, ids).log_softmax(-1)
            gaps.append((told.exp() * (told - given_)).sum(-1).mean().item())
        assert gaps[2] < gaps[1] < gaps[0]


class TestFolding:
    @pytest.mark.parametrize("family", FOLDABLE)
    def test_the_writing_projection_is_found(self, family: str) -> None:
        model = tiny_model(family)
        found = writing_projection(model, 2)
        assert found.path.rsplit(".", 1)[-1] in ("down_proj", "dense_4h_to_h", "c_proj") and "mlp" in found.path
        assert found.matrix.shape == (found.inputs, WIDTH)

    @pytest.mark.parametrize("family", POST_NORM)
    def test_a_norm_behind_it_is_noticed(self, family: str) -> None:
        unpruned, pruned = pair([2, 3], family)
        for name in ("fold", "replace-me"):
            with pytest.raises(ModelError, match="norm or a gate"):
                fit_repair(unpruned, pruned, calibration_set(), RepairSpec(method=name), removed=[2, 3])

    def test_a_cut_at_block_0_has_nothing_to_fold_into(self) -> None:
        unpruned, pruned = pair([0, 1])
        for name in ("fold", "replace-me", "replace-me-cosine"):
            with pytest.raises(ModelError, match="no block before it"):
                fit_repair(unpruned, pruned, calibration_set(), RepairSpec(method=name), removed=[0, 1])

    @pytest.mark.parametrize("family", FOLDABLE)
    def test_replace_me_is_the_formula_on_stored_streams(self, family: str) -> None:
        unpruned, pruned = pair([2, 3], family)
        old = writing_projection(unpruned.model, 1)
        outputs: list[torch.Tensor] = []
        handle = old.module.register_forward_hook(lambda _m, _a, out: outputs.append(out.detach().double()))
        seen = streams(unpruned.model, fitted_ids())
        handle.remove()
        m = outputs[-1].reshape(-1, WIDTH)
        x, y = (seen[at].reshape(-1, WIDTH).double() for at in (2, 4))
        transform = torch.linalg.lstsq(m, y - (x - m)).solution
        fit_repair(unpruned, pruned, calibration_set(rows=64), RepairSpec(method="replace-me"), removed=[2, 3])
        new = writing_projection(pruned.model, 1)
        assert torch.allclose(new.matrix.double(), old.matrix.double() @ transform, atol=1e-3)

    @pytest.mark.parametrize("family", FOLDABLE)
    def test_fold_fits_no_worse_than_replace_me(self, family: str) -> None:
        unpruned, pruned = pair([2, 3], family)
        specs = [RepairSpec(method="fold", ridge=0.0, skip_first=1), RepairSpec(method="replace-me", skip_first=1)]
        _, table = fit_many(unpruned, pruned, calibration_set(rows=64), specs, removed=[2, 3])
        fold, replace_me = (row.cuts[0] for row in table.rows)
        assert fold.fitted <= replace_me.fitted * (1 + 1e-9)
        assert replace_me.fitted < replace_me.held_out_before

    def test_fold_is_exact_when_the_run_is_linear_in_what_it_may_change(self) -> None:
        # The removed block adds exactly u E for the u of the block before it, so D + E restores the model.
        model = tiny_model("llama")
        donor = copy.deepcopy(model)
        extra = 0.2 * torch.randn(2 * WIDTH, WIDTH, generator=torch.Generator().manual_seed(1))
        whole = writing_projection(donor, 2)
        whole.write(whole.matrix + extra)
        target, pruned_like = donor, model
        calibration = calibration_set(rows=64)
        rows: list[torch.Tensor] = []
        probe = writing_projection(pruned_like, 2).module
        handle = probe.register_forward_hook(lambda _m, args, _o: rows.append(args[0].detach()))
        with torch.inference_mode():
            pruned_like(calibration.input_ids)
        handle.remove()
        u = rows[-1].reshape(-1, 2 * WIDTH).double()
        gap = (streams(target, calibration.input_ids)[3] - streams(pruned_like, calibration.input_ids)[3]).double()
        sums = NormalSums(2 * WIDTH, {"y": WIDTH})
        sums.add(u, {"y": gap.reshape(-1, WIDTH)})
        from regrow.repair.solve import Ridge

        fit = least_squares(sums.problem("y"), Ridge(0.0), intercept=False, toward_identity=False)
        assert torch.allclose(fit.operator.matrix.float(), extra, atol=1e-3)

    def test_cosine_comes_nearer_in_angle(self) -> None:
        unpruned, pruned = pair([2, 3])
        target = streams(unpruned.model, fitted_ids())[4]

        def angle() -> float:
            reached = streams(pruned.model, fitted_ids())[2]
            return (1 - torch.cosine_similarity(reached, target, dim=-1)).mean().item()

        before = angle()
        spec = RepairSpec(method="replace-me-cosine", passes=40)
        fit_repair(unpruned, pruned, calibration_set(rows=64), spec, removed=[2, 3])
        after = angle()
        assert after < before

    def test_the_sample_is_bounded_and_uniform(self) -> None:
        from regrow.repair.book import Rows
        from regrow.repair.signals import Signal

        counts = np.zeros(400)
        for seed in range(200):
            reservoir = Reservoir((stream(0),), 0, seed, most=40)
            for start in range(0, 400, 50):
                values = torch.arange(start, start + 50).float()[None, :, None]
                mask = torch.ones(1, 50, dtype=torch.bool)
                rows = Rows(mask, mask.long().cumsum(1) - 1, ["fit"], {Signal("stream", 0): values})
                reservoir.add(rows)
            (kept,) = reservoir.rows()
            assert len(kept) == 40 and len(set(kept.flatten().tolist())) == 40
            counts[kept.flatten().long().numpy()] += 1
        # 200 draws with chance 0.1 each: mean 20, standard deviation 4.2.
        assert counts.mean() == 20 and counts.std() < 6
        assert counts.min() > 5 and counts.max() < 40
        assert abs(counts[:100].mean() - counts[-100:].mean()) < 2.5


class TestStreamlineBlock:
    @pytest.mark.parametrize("family", ["llama", "gemma3", "gpt_neox", "gpt2"])
    def test_one_block_comes_back_and_learns(self, family: str, tmp_path: Path) -> None:
        removed = [1, 2, 4, 5]
        unpruned, pruned = pair(removed, family, blocks=8)
        spec = RepairSpec(method="streamline-block", passes=6)
        result = fit_repair(unpruned, pruned, calibration_set(rows=64), spec, removed=removed)
        assert len(blocks_of(pruned.model)) == 6 and result.removed_blocks == (2, 5)
        assert result.row.cuts[0].in_model < result.row.cuts[0].in_model_before
        # Better than putting the first block of each run back untrained.
        untrained, same = pair([2, 5], family, blocks=8)
        ids = calibration_set(rows=64).input_ids[7::8]
        target = streams(unpruned.model, ids)[3][:, 1:]
        assert (streams(pruned.model, ids)[2][:, 1:] - target).norm() < (
            streams(same.model, ids)[2][:, 1:] - target
        ).norm()
        facts = CheckpointFacts(source="tiny", unpruned_blocks=8, removed_blocks=result.removed_blocks)
        save_checkpoint(pruned, tmp_path / "out", facts)
        assert len(blocks_of(load_model(tmp_path / "out", device="cpu").model)) == 6
        del untrained

    def test_runs_of_one_stay_bare(self) -> None:
        unpruned, pruned = pair([1, 3, 4])
        result = fit_repair(
            unpruned, pruned, calibration_set(), RepairSpec(method="streamline-block"), removed=[1, 3, 4]
        )
        assert result.removed_blocks == (1, 4) and "block 1" in result.warnings[0]
        bare, mended = result.row.cuts
        assert bare.in_model == pytest.approx(bare.in_model_before) and mended.in_model < mended.in_model_before
        unpruned, pruned = pair([2])
        with pytest.raises(ConfigError, match="every run is a single block"):
            fit_repair(unpruned, pruned, calibration_set(), RepairSpec(method="streamline-block"), removed=[2])


def test_the_list_of_repairs_is_told_without_torch() -> None:
    code = (
        "import sys; from regrow.repair.registry import REPAIRS;"
        "print(len(list(REPAIRS)), all(e.summary and e.paper for e in REPAIRS), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [str(len(REPAIRS.names())), "True", "False"], done.stderr


def test_declared_facts_are_true() -> None:
    for entry in REPAIRS:
        assert dict(entry.facts)["portable"] == ("yes" if REPAIRS.get(entry.name).portable else "no")
