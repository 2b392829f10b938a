"""The rooms on an accelerator against the same work on the CPU, in float32; skipped where there is none.

The device is the first CUDA one, or what the variable REGROW_TEST_DEVICE names: mps, cuda:1, or cpu (with itself).
"""

from __future__ import annotations

import copy
import json
import os
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from regrow.capabilities.evaluate import evaluate
from regrow.criteria.similarity import similarity
from regrow.heal.loop import HealResult, heal
from regrow.models.load import LoadedModel, load_model
from regrow.models.save import save_checkpoint
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import EvalSpec, RepairSpec
from regrow.repair.fit import fit_many
from regrow.surgery import remove_blocks
from tests.capabilities.toys import Choice, HasSign, LongestChoice, loaded_toy
from tests.conftest import TINY_FAMILIES, tiny_model, tiny_tokenizer
from tests.heal.samples import sample_model, sample_pools, sample_spec
from tests.repair.helpers import calibration_set, pair

DEVICE = os.environ.get("REGROW_TEST_DEVICE", "cuda")
CUDA = torch.cuda.is_available()
pytestmark = pytest.mark.skipif(DEVICE == "cuda" and not CUDA, reason="there is no CUDA device here")
TEXT = "The tide comes in twice a day, and twice it goes.\nNobody on the pier has ever asked it why. " * 8


@pytest.fixture(autouse=True)
def exact_products() -> Any:
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def there(loaded: LoadedModel) -> LoadedModel:
    return replace(loaded, model=copy.deepcopy(loaded.model).to(DEVICE))


def losses_of(result: HealResult) -> list[float]:
    return [json.loads(line)["loss"] for line in result.log_file.read_text().splitlines()]


@pytest.mark.parametrize("family", sorted(TINY_FAMILIES))
def test_every_family_answers_and_weighs_as_on_the_cpu(family: str) -> None:
    here = loaded_toy(family)
    suite = [HasSign("e"), Choice(), LongestChoice()]
    spec = EvalSpec(batch_size=4)
    first, second = (evaluate(each, suite, spec, text=TEXT) for each in (here, there(here)))
    for one, other in zip(first.items, second.items, strict=True):
        assert one.response == other.response, one.item_id
        assert one.score == pytest.approx(other.score, abs=1e-4), one.item_id


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2"])
def test_the_similarity_record_is_the_same(family: str) -> None:
    here = LoadedModel(tiny_model(family), tiny_tokenizer(), family)
    first, second = (similarity(each.model, calibration_set()) for each in (here, there(here)))
    assert np.allclose(first.cosine, second.cosine, atol=1e-5)


def test_repairs_are_the_same_fit() -> None:
    specs = [RepairSpec(method=name) for name in ("lra", "ghost", "replace-me", "fold", "linear-patch")]
    tables = []
    for move in (lambda each: each, there):
        unpruned, pruned = (move(each) for each in pair([2, 4], affine=[2]))
        _, table = fit_many(unpruned, pruned, calibration_set(), specs, removed=[2, 4])
        tables.append([(row.cuts[0].held_out, row.perplexity) for row in table.rows])
    assert np.allclose(tables[0], tables[1], rtol=2e-3)


@pytest.mark.parametrize("scope", ["all-lora", "cut-lora", "last-k", "full"])
@pytest.mark.parametrize("dropout", [0.0, 0.05])
def test_healing_learns_the_same(scope: str, dropout: float, tmp_path: Path) -> None:
    rate = 1e-3 if scope in ("full", "last-k") else 1e-2
    spec = sample_spec(scope=scope, dropout=dropout, learning_rate=rate, last_blocks=2)
    losses = []
    for name, loaded in (("here", sample_model()), ("there", there(sample_model()))):
        loaded.facts = CheckpointFacts(source="tiny", unpruned_blocks=5, removed_blocks=(2,))
        losses.append(losses_of(heal(loaded, sample_pools(), spec, tmp_path / name)))
    # Dropout masks are drawn on the device, so with dropout the two runs are two draws.
    tolerance = 2e-3 if dropout == 0.0 else 0.2
    assert np.allclose(losses[0], losses[1], rtol=tolerance)


def test_healing_in_bfloat16_stays_near_float32(tmp_path: Path) -> None:
    ends = []
    for precision in ("float32", "bfloat16"):
        loaded = there(sample_model())
        result = heal(loaded, sample_pools(), sample_spec(precision=precision, dropout=0.0), tmp_path / precision)
        ends.append(losses_of(result)[-1])
    assert ends[1] == pytest.approx(ends[0], rel=0.1)


@pytest.mark.skipif(
    not CUDA or find_spec("bitsandbytes") is None, reason="there is no CUDA device or no bitsandbytes (extra 'qlora')"
)
def test_four_bits_train_and_merge(tmp_path: Path) -> None:
    loaded = there(sample_model("llama"))
    result = heal(loaded, sample_pools(), sample_spec(base_format="nf4"), tmp_path / "four")
    losses = losses_of(result)
    assert losses[-1] < losses[0]
    assert all(weight.dtype == torch.float32 for weight in loaded.model.parameters())


def test_a_pruned_model_is_saved_verified_and_loaded(tiny_folder: Any, tmp_path: Path) -> None:
    loaded = load_model(tiny_folder("qwen3"), device=DEVICE, dtype="float32")
    remove_blocks(loaded.model, [2, 3])
    facts = CheckpointFacts(source="tiny", unpruned_blocks=6, removed_blocks=(2, 3))
    save_checkpoint(loaded, tmp_path / "pruned", facts)
    again = load_model(tmp_path / "pruned", device="cpu", dtype="float32")
    ids = calibration_set().input_ids[:2]
    assert torch.allclose(again.model(ids).logits, loaded.model(ids.to(DEVICE)).logits.cpu(), atol=1e-4)
