"""States kept below everything that trains: the same run as without them, whatever happens to the cache."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from regrow.heal.checkpoint import FOLDER
from regrow.heal.frozen_prefix import above, first_trained_block, rows_of, sequences_of, states_entering, why_not_reused
from regrow.heal.gradients import cut_into_microbatches
from regrow.heal.loop import HealResult, heal
from regrow.heal.packed_attention import packed_rows
from regrow.heal.plan import plan_heal
from regrow.heal.registry import SCOPES
from regrow.heal.response_logits import response_logits
from regrow.heal.tensor_cache import TensorCache
from regrow.models.bridges import AffineBridge, attach_bridge
from regrow.models.load import LoadedModel
from regrow.records.checkpoint import CheckpointFacts
from tests.conftest import TINY_FAMILIES
from tests.heal.samples import sample_model, sample_pools, sample_spec


def run(folder: Path, loaded: LoadedModel, *, on_progress: Any = None, **changes: Any) -> HealResult:
    given = {"scope": "last-k", "last_blocks": 1, "tokens": 4_000, **changes}
    return heal(loaded, sample_pools(8), sample_spec(**given), folder, on_progress=on_progress)


def weights_of(loaded: LoadedModel) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in loaded.model.named_parameters()}


def same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(first[name], second[name]) for name in first)


def bordered(removed: int = 3) -> LoadedModel:
    loaded = sample_model(blocks=5)
    loaded.facts = CheckpointFacts(source="tiny", unpruned_blocks=6, removed_blocks=(removed,))
    return loaded


@pytest.mark.parametrize("scope", ["last-k", "partial", "cut-lora"])
def test_a_run_with_kept_states_is_the_run_without(tmp_path: Path, scope: str) -> None:
    family = "olmo2" if scope == "partial" else "llama"
    results = []
    models = []
    for gigabytes in (1.0, 0.0):
        loaded = sample_model(family, blocks=5)
        loaded.facts = bordered().facts
        found = run(tmp_path / f"{gigabytes}", loaded, scope=scope, state_cache_gb=gigabytes)
        results.append(found)
        models.append(weights_of(loaded))
    assert [result.reuse for result in results] == ["", "no room is given to the cache"]
    losses = [[json.loads(line)["loss"] for line in result.log_file.read_text().splitlines()] for result in results]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    # Adam turns rounding of a tiny gradient into a step of its rate, so weights agree less closely than losses.
    gaps = [float((models[0][name] - models[1][name]).abs().max()) for name in models[0]]
    assert max(gaps) < 2e-3
    assert max(results[0].plan.cycles_by_pool.values()) > 1.5


def test_a_second_seed_reads_what_the_first_computed(tmp_path: Path, own_cache: Path, monkeypatch: Any) -> None:
    calls: list[int] = []

    def counted(*arguments: Any) -> torch.Tensor:
        calls.append(1)
        return states_entering(*arguments)

    run(tmp_path / "a", sample_model(), seed=0)
    files = sorted(own_cache.glob("heal-states/*/*"))
    # Everything that seed 1 can draw has been drawn by seed 0.
    assert len(files) == 24
    monkeypatch.setattr("regrow.heal.frozen_prefix.states_entering", counted)
    run(tmp_path / "b", sample_model(), seed=1)
    assert sorted(own_cache.glob("heal-states/*/*")) == files
    assert len(calls) == 1  # the check before the run
    # Other weights have states of their own.
    run(tmp_path / "c", sample_model(seed=3), seed=0)
    assert len(list(own_cache.glob("heal-states/*/*"))) == 48


def test_stopped_runs_and_damaged_caches_end_with_the_same_bits(tmp_path: Path, own_cache: Path) -> None:
    whole = sample_model()
    run(tmp_path / "whole", whole)

    def stop(update: int, *_: Any) -> None:
        if update == 3:
            raise KeyboardInterrupt

    for file in own_cache.rglob("*.safetensors"):
        file.unlink()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "broken", sample_model(), on_progress=stop)
    assert list((tmp_path / "broken" / FOLDER).iterdir())
    files = sorted(own_cache.rglob("*.safetensors"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-7])
    flipped = bytearray(files[2].read_bytes())
    flipped[-9] ^= 4
    files[2].write_bytes(bytes(flipped))
    files[3].write_bytes(b"")
    loaded = sample_model()
    assert run(tmp_path / "broken", loaded).resumed_at == 3
    assert same_bits(weights_of(whole), weights_of(loaded))


def test_a_cache_that_holds_a_part_changes_nothing_but_the_work(tmp_path: Path, own_cache: Path) -> None:
    whole, part = sample_model(), sample_model()
    first = run(tmp_path / "whole", whole, state_cache_gb=1.0)
    size = sum(file.stat().st_size for file in own_cache.rglob("*.safetensors"))
    for file in own_cache.rglob("*.safetensors"):
        file.unlink()
    second = run(tmp_path / "part", part, state_cache_gb=size / 2e9, microbatch_tokens=400)
    assert sum(file.stat().st_size for file in own_cache.rglob("*.safetensors")) <= size / 2
    assert first.loss == pytest.approx(second.loss, rel=1e-3)


def test_a_full_disk_does_not_stop_a_run(tmp_path: Path, own_cache: Path) -> None:
    (own_cache / "heal-states").write_text("no folder can be made here")
    assert run(tmp_path / "run", sample_model()).reuse == ""


def test_the_lowest_trained_block() -> None:
    def lowest(scope: str, loaded: LoadedModel, **changes: Any) -> int:
        loaded.model.requires_grad_(False)
        trained = SCOPES.get(scope)(loaded, sample_spec(scope=scope, **changes))
        return first_trained_block(loaded.model, trained.parameters.values())

    assert lowest("all-lora", sample_model()) == 0
    assert lowest("last-k", sample_model(blocks=6), last_blocks=2) == 4
    assert lowest("cut-lora", bordered()) == 2
    assert lowest("full", sample_model()) == 0
    assert lowest("partial", sample_model("olmo2"), last_blocks=1) == 3
    # A head that is tied to the embeddings moves them too.
    assert lowest("partial", sample_model("llama"), last_blocks=1) == 0
    repaired = sample_model()
    attach_bridge(repaired.model, 2, AffineBridge(32))
    assert lowest("bridges", repaired) == 2


@pytest.mark.parametrize("family", sorted(set(TINY_FAMILIES) - {"gpt_neo"}))
@pytest.mark.parametrize("packed", [True, False])
def test_every_family_starts_at_any_block(family: str, packed: bool) -> None:
    loaded = sample_model(family)
    spec = sample_spec(sequences_per_update=6, microbatch_tokens=400)
    examples = plan_heal(sample_pools(), spec, loaded.tokenizer).update(0)
    batches = cut_into_microbatches(examples, spec, packed=packed)
    for block in (1, 3):
        assert why_not_reused(loaded.model, block, batches) == ""


def test_states_go_into_rows_and_come_out_again() -> None:
    loaded = sample_model()
    spec = sample_spec(sequences_per_update=8)
    examples = plan_heal(sample_pools(), spec, loaded.tokenizer).update(0)
    for packed in (True, False):
        for batch in cut_into_microbatches(examples, spec, packed=packed):
            each = [torch.full((entry.tokens, 2), float(at)) for at, entry in enumerate(batch.examples)]
            each = [part + 0.001 * torch.arange(len(part))[:, None] for part in each]
            rows = rows_of(batch, each)
            assert rows.shape == (*batch.input_ids.shape, 2)
            again = sequences_of(batch, rows)
            for part, entry, back in zip(each, batch.examples, again, strict=True):
                assert back.shape == part.shape
                own = len(entry.prompt_ids) - 1
                assert torch.equal(back[own:], part[own:])


def test_what_is_below_does_not_run() -> None:
    loaded = sample_model(blocks=4)
    spec = sample_spec()
    (batch,) = cut_into_microbatches(plan_heal(sample_pools(), spec, loaded.tokenizer).update(0), spec, packed=True)
    ran: list[int] = []
    for index, block in enumerate(loaded.model.model.layers):
        block.mlp.register_forward_hook(lambda *_, index=index: ran.append(index))
    with torch.no_grad(), packed_rows(loaded.model, batch.layout):
        states = states_entering(loaded.model, 2, batch)
        assert ran == [0, 1]
        with above(loaded.model, 2, states):
            response_logits(loaded.model, batch)
    assert ran == [0, 1, 2, 3]
    assert not [block for block in loaded.model.model.layers if "forward" in vars(block)]


def test_the_cache_is_bounded_and_lets_the_oldest_go(tmp_path: Path) -> None:
    import os

    cache = TensorCache(tmp_path, 10_000)
    value = {"a": torch.arange(500, dtype=torch.float32)}  # 2,000 bytes and a header
    for at, key in enumerate("abcd"):
        TensorCache(tmp_path, 10_000).put(key * 4, value)
        os.utime(tmp_path / (key * 2) / f"{key * 4}.safetensors", (at, at))
    assert torch.equal(cache.get("aaaa")["a"], value["a"])  # type: ignore[index]
    assert cache.put("eeee", value)
    # "a" was read by this process and stays; "b" is the oldest of the others.
    assert cache.get("bbbb") is None
    assert cache.get("aaaa") is not None
    assert not cache.put("huge", {"a": torch.zeros(5_000)})
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) <= 10_000
    assert not list(tmp_path.rglob(".*.safetensors.*"))
    cache.clear()
    assert cache.get("aaaa") is None
