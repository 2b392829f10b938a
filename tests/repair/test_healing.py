"""Repairs that heal: bridges stay as they were fitted, or train, and are part of the healed checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.heal.loop import heal
from regrow.models.bridges import bridges_of
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import RepairSpec
from regrow.repair.fit import fit_repair
from tests.heal.samples import sample_pools, sample_spec
from tests.repair.helpers import calibration_set, pair

REMOVED = [2, 4]


def repaired(rank: int | None = None) -> LoadedModel:
    """Return a model of 4 blocks with bridges after its blocks 1 and 2."""
    unpruned, pruned = pair(REMOVED)
    result = fit_repair(unpruned, pruned, calibration_set(), RepairSpec(rank=rank), removed=REMOVED, measure=False)
    pruned.facts = CheckpointFacts(
        source="tiny", unpruned_blocks=6, removed_blocks=tuple(REMOVED), bridges=result.bridges
    )
    return pruned


def bridge_weights(model: Any) -> dict[int, list[torch.Tensor]]:
    return {
        entry.after_block: [weight.detach().clone() for weight in entry.bridge.parameters()]
        for entry in bridges_of(model)
    }


@pytest.mark.parametrize("rank", [None, 4])
@pytest.mark.parametrize(
    ("scope", "trained"),
    [
        ("all-lora", []),
        ("cut-lora", []),
        ("bridges", [1, 2]),
        # Of the last two of four blocks, block 2 ends in a bridge: what these scopes train is the whole block.
        ("last-k", [2]),
        ("partial", [2]),
        ("full", [1, 2]),
    ],
)
def test_which_bridges_train(tmp_path: Path, scope: str, trained: list[int], rank: int | None) -> None:
    loaded = repaired(rank)
    before = bridge_weights(loaded.model)
    spec = sample_spec(tokens=600, scope=scope, last_blocks=2, learning_rate=1e-3)
    heal(loaded, sample_pools(6), spec, tmp_path / "run")
    after = bridge_weights(loaded.model)
    changed = [
        place
        for place in before
        if any(not torch.equal(mine, theirs) for mine, theirs in zip(before[place], after[place], strict=True))
    ]
    assert changed == trained


@pytest.mark.parametrize("scope", ["all-lora", "bridges"])
def test_the_healed_checkpoint_carries_its_bridges(tmp_path: Path, scope: str) -> None:
    loaded = repaired()
    heal(loaded, sample_pools(6), sample_spec(tokens=600, scope=scope), tmp_path / "run")
    assert loaded.facts is not None
    save_checkpoint(loaded, tmp_path / "out", loaded.facts)
    again = load_model(tmp_path / "out", dtype="float32", device="cpu")
    assert [entry.after_block for entry in bridges_of(again.model)] == [1, 2]
    ids = calibration_set().input_ids[:2]
    assert torch.equal(again.model(ids).logits, loaded.model(ids).logits)
