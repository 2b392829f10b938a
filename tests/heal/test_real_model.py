"""Healing the real SmolLM2-135M with a cut."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.data.pools import Example, Pool
from regrow.heal.gradients import GradientMaker
from regrow.heal.loop import heal
from regrow.heal.objective import objective_of
from regrow.heal.packing_check import why_not_packed
from regrow.heal.plan import plan_heal
from regrow.models.load import LoadedModel
from regrow.records.specs import HealSpec
from regrow.surgery import remove_blocks

pytestmark = pytest.mark.slow


def sums(count: int = 40) -> Pool:
    shots = "".join(f"Q: What is {a} + {a + 3}? A: {2 * a + 3}\n" for a in range(5, 20))
    rows = (
        Example("sums", f"{a}", f"{shots}Q: What is {a} + {a + 1}? A:", f" {2 * a + 1}") for a in range(30, 30 + count)
    )
    return Pool("sums", tuple(rows))


@pytest.fixture
def pruned(smollm2: Any) -> LoadedModel:
    model = copy.deepcopy(smollm2.model)
    remove_blocks(model, [13, 14])
    return LoadedModel(model, smollm2.tokenizer, "smollm2 cut")


def test_packed_rows_compute_the_same_on_real_weights(pruned: LoadedModel) -> None:
    spec = HealSpec(tokens=4_000, sequences_per_update=8, precision="float32", microbatch_tokens=600)
    examples = plan_heal([sums()], spec, pruned.tokenizer).update(0)
    assert why_not_packed(pruned.model, examples, share_prefix=True) == ""
    norm = pruned.model.model.norm.weight
    found = []
    for packed in (True, False):
        pruned.model.zero_grad()
        maker = GradientMaker(pruned.model, objective_of(spec.loss), spec, torch.float32, packed=packed)
        with maker.ready():
            result = maker.add(0, examples)
        found.append((result, norm.grad.clone()))
    assert found[0][0].loss == pytest.approx(found[1][0].loss, rel=1e-5)
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-3, atol=1e-5)
    assert found[0][0].computed_tokens < 0.4 * sum(entry.tokens for entry in examples)


def test_a_short_heal_lowers_the_loss(pruned: LoadedModel, tmp_path: Path) -> None:
    spec = HealSpec(tokens=8_000, sequences_per_update=8, learning_rate=1e-3)
    losses: list[float] = []
    heal(pruned, [sums()], spec, tmp_path / "run", on_progress=lambda *facts: losses.append(facts[4]))
    assert losses[-1] < 0.7 * losses[0]
