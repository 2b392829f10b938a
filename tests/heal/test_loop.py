"""Whole healing runs on tiny models."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model

from regrow.data.pools import Pool
from regrow.errors import ConfigError, ModelError, StudyError
from regrow.heal.adapter import merge_adapter
from regrow.heal.checkpoint import FOLDER, clear_checkpoints
from regrow.heal.loop import HealResult, heal
from regrow.models.bridges import AffineBridge, attach_bridge
from regrow.models.load import LoadedModel
from regrow.records.checkpoint import CheckpointFacts
from regrow.seeding import derive_seed
from tests.forked import forked, pipe
from tests.heal.samples import sample_model, sample_pools, sample_spec


def weights_of(model: Any) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def logits_of(model: Any) -> torch.Tensor:
    ids = torch.randint(3, 90, (3, 40), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return model(input_ids=ids, use_cache=False).logits


def equal(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def run(folder: Path, loaded: LoadedModel | None = None, *, on_progress: Any = None, **changes: Any) -> HealResult:
    given = loaded or sample_model()
    return heal(given, sample_pools(), sample_spec(**changes), folder, on_progress=on_progress)


def test_it_is_the_recipe_written_plainly(tmp_path: Path) -> None:
    """An independent loop: PEFT's own layers, one padded-free sequence at a time, torch's schedule written out."""
    loaded = sample_model()
    twin = copy.deepcopy(loaded.model)
    spec = sample_spec(dropout=0.0, tokens=2_500)
    result = heal(loaded, sample_pools(), spec, tmp_path / "run")

    torch.manual_seed(derive_seed(spec.seed, "adapter"))
    names = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    model = get_peft_model(twin, LoraConfig(r=4, lora_alpha=32, target_modules=names)).eval()
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=1e-2, weight_decay=0.0)
    losses = []
    updates = result.plan.updates
    for step in range(updates):
        examples = result.plan.update(step)
        count = sum(len(entry.response_ids) for entry in examples)
        loss = torch.zeros(())
        for entry in examples:
            ids = torch.tensor([entry.prompt_ids + entry.response_ids])
            scores = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
            start = len(entry.prompt_ids) - 1
            loss = loss - scores[start:].gather(-1, ids[0, start + 1 :, None]).sum() / count
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        warm = min(1.0, (step + 1) / max(1, int(0.05 * updates)))
        optimizer.param_groups[0]["lr"] = 1e-2 * warm * (1 + math.cos(math.pi * step / updates)) / 2
        optimizer.step()
        losses.append(float(loss.detach()))

    logged = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    assert [line["loss"] for line in logged] == pytest.approx(losses, rel=2e-4)
    assert losses[-1] < 0.8 * losses[0]
    expected = weights_of(model.merge_and_unload())
    found = weights_of(loaded.model)
    assert found.keys() == expected.keys()
    for name, weight in expected.items():
        assert float((found[name] - weight).abs().max()) < 2e-3, name


def test_merged_equals_unmerged_and_the_rest_is_the_same_bits(tmp_path: Path) -> None:
    loaded = sample_model()
    base = copy.deepcopy(loaded.model)
    result = run(tmp_path / "run", loaded)
    assert result.adapter_folder is not None
    unmerged = PeftModel.from_pretrained(copy.deepcopy(base), str(result.adapter_folder)).eval()
    healed = logits_of(loaded.model)
    assert float((logits_of(unmerged) - healed).abs().max()) < 1e-4
    assert float((logits_of(base) - healed).abs().max()) > 0.05
    before, after = weights_of(base), weights_of(loaded.model)
    assert before.keys() == after.keys()
    for name, weight in before.items():
        changed = name.endswith("_proj.weight")
        assert torch.equal(weight, after[name]) != changed, name
    assert type(loaded.model) is type(base)
    assert not loaded.model.training
    assert all(weight.requires_grad for weight in loaded.model.parameters())


OTHERS = ["cut-lora", "last-k", "partial", "bridges", "all-lora+bridges", "last-k+bridges", "partial+bridges", "full"]


@pytest.mark.parametrize("scope", OTHERS)
def test_other_scopes_learn_and_leave_the_rest_alone(tmp_path: Path, scope: str) -> None:
    loaded = sample_model(blocks=4)
    attach_bridge(loaded.model, 1, AffineBridge(32))
    loaded.facts = CheckpointFacts(source="tiny", unpruned_blocks=5, removed_blocks=(2,))
    before = weights_of(loaded.model)
    rate = 3e-3 if scope == "full" else 1e-2
    result = run(tmp_path / "run", loaded, scope=scope, last_blocks=1, learning_rate=rate, tokens=4_000)
    after = weights_of(loaded.model)
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    operators = {name for name in before if "exit_bridge" in name}
    if scope == "full":
        assert changed == set(before)
    elif scope == "bridges":
        assert changed == operators
    elif scope == "all-lora+bridges":
        assert changed == operators | {name for name in before if name.endswith("_proj.weight")}
    elif scope == "cut-lora":
        assert changed == {name for name in before if name.endswith("_proj.weight") and name.split(".")[2] in "12"}
    else:
        expected = {name for name in before if ".layers.3." in name} | {"model.norm.weight"}
        expected |= operators if scope.endswith("+bridges") else set()
        assert changed == expected | ({"model.embed_tokens.weight"} if scope.startswith("partial") else set())
    assert (result.adapter_folder is None) == ("lora" not in scope)
    lines = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    assert lines[-1]["loss"] < lines[0]["loss"]


def test_budget_log_and_outcome_agree(tmp_path: Path) -> None:
    calls: list[tuple[Any, ...]] = []
    result = run(tmp_path / "run", on_progress=lambda *facts: calls.append(facts))
    lines = [json.loads(line) for line in result.log_file.read_text().splitlines()]
    assert [line["update"] for line in lines] == list(range(1, result.updates + 1))
    sizes = [sum(entry.tokens for entry in result.plan.update(index)) for index in range(result.updates)]
    assert [line["tokens"] for line in lines] == [sum(sizes[: at + 1]) for at in range(len(sizes))]
    assert lines[-1]["tokens"] == result.tokens == result.plan.tokens == sum(result.plan.tokens_by_pool.values())
    assert all(line["computed_tokens"] < size for line, size in zip(lines, sizes, strict=True))
    assert [call[:4] for call in calls] == [
        (at + 1, len(sizes), line["tokens"], result.tokens) for at, line in enumerate(lines)
    ]
    assert calls[-1][-1] == 0
    json.dumps(result.outcome, allow_nan=False)
    assert result.outcome["loss"] == lines[-1]["loss"]


def test_the_same_seed_gives_the_same_bits_and_another_seed_others(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        loaded = sample_model()
        run(tmp_path / name, loaded, seed=seed)
        found.append(weights_of(loaded.model))
    assert equal(found[0], found[1])
    assert not equal(found[0], found[2])


def test_bfloat16_is_repeatable_and_near_float32(tmp_path: Path) -> None:
    results, models = [], []
    for name, precision in (("a", "bfloat16"), ("b", "bfloat16"), ("c", "float32")):
        loaded = sample_model()
        results.append(run(tmp_path / name, loaded, precision=precision, learning_rate=3e-3))
        models.append(weights_of(loaded.model))
    assert equal(models[0], models[1])
    assert {weight.dtype for weight in models[0].values()} == {torch.float32}
    assert results[0].loss == pytest.approx(results[2].loss, rel=0.05)
    assert results[0].loss != results[2].loss


def test_a_bfloat16_model_is_healed_and_stays_one(tmp_path: Path) -> None:
    for scope in ("all-lora", "last-k"):
        loaded = sample_model()
        loaded.model.bfloat16()
        result = run(tmp_path / scope, loaded, precision="auto", scope=scope)
        assert result.precision == "bfloat16"
        assert {weight.dtype for weight in loaded.model.parameters()} == {torch.bfloat16}
        assert result.loss is not None
        assert math.isfinite(result.loss)


def test_recomputed_activations_change_nothing(tmp_path: Path) -> None:
    found = []
    for name, checkpointing in (("a", False), ("b", True)):
        loaded = sample_model()
        run(tmp_path / name, loaded, gradient_checkpointing=checkpointing, dropout=0.2)
        found.append(weights_of(loaded.model))
        assert not any(module.training for module in loaded.model.modules())
    assert equal(found[0], found[1])


class Stop(Exception):
    """Raised by a test in the middle of a run."""


def stop_at(update: int, error: type[BaseException]) -> Any:
    def stop(done: int, *_: Any) -> None:
        if done == update:
            raise error

    return stop


@pytest.mark.parametrize("scope", ["all-lora", "last-k"])
def test_a_stopped_run_ends_with_the_same_bits(tmp_path: Path, scope: str) -> None:
    whole = sample_model()
    unbroken = run(tmp_path / "whole", whole, scope=scope, last_blocks=1)
    folder = tmp_path / "broken"
    for update in (2, 3, 5):
        loaded = sample_model()
        with pytest.raises(KeyboardInterrupt):
            run(folder, loaded, scope=scope, last_blocks=1, on_progress=stop_at(update, KeyboardInterrupt))
        assert [path.name for path in sorted((folder / FOLDER).iterdir())][-1] == f"update-{update:06d}"
        if scope == "all-lora":
            assert equal(weights_of(loaded.model), weights_of(sample_model().model))
    loaded = sample_model()
    resumed = run(folder, loaded, scope=scope, last_blocks=1)
    assert (resumed.resumed_at, unbroken.resumed_at) == (5, 0)
    assert equal(weights_of(loaded.model), weights_of(whole.model))
    assert resumed.tokens == unbroken.tokens
    kept = ("update", "tokens", "loss", "learning_rate", "gradient_norm")
    logs = [
        [{key: json.loads(line)[key] for key in kept} for line in result.log_file.read_text().splitlines()]
        for result in (resumed, unbroken)
    ]
    assert logs[0] == logs[1]


def test_a_finished_run_is_loaded_not_repeated(tmp_path: Path) -> None:
    first = sample_model()
    run(tmp_path / "run", first)
    again = sample_model()
    calls: list[Any] = []
    result = run(tmp_path / "run", again, on_progress=lambda *facts: calls.append(facts))
    assert calls == []
    assert result.resumed_at == result.updates
    assert equal(weights_of(first.model), weights_of(again.model))
    clear_checkpoints(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["adapter", "healing.json", "log.jsonl"]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", on_progress=stop_at(1, KeyboardInterrupt))
    with pytest.raises(StudyError, match="rank: 4 there, 8 now"):
        run(tmp_path / "run", rank=8)
    with pytest.raises(StudyError, match="other examples or other weights"):
        run(tmp_path / "run", sample_model(seed=5))
    (tmp_path / "file").write_text("")
    with pytest.raises(StudyError, match="is a file"):
        run(tmp_path / "file")
    # How often it is saved is no part of what is asked.
    assert run(tmp_path / "run", checkpoint_every_seconds=5.0).resumed_at == 1


def test_a_loss_that_is_not_a_number_names_update_and_examples_and_keeps_the_checkpoint(tmp_path: Path) -> None:
    loaded = sample_model()
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(folder, on_progress=stop_at(2, KeyboardInterrupt))

    def spoil(update: int, *_: Any) -> None:
        if update == 3:
            with torch.no_grad():
                loaded.model.model.norm.weight.fill_(float("nan"))

    with pytest.raises(StudyError, match="healing stopped at update 4: the loss is nan") as caught:
        run(folder, loaded, on_progress=spoil)
    fourth = run(tmp_path / "other").plan.update(3)
    assert all(f"{entry.pool}/{entry.example_id}" in str(caught.value) for entry in fourth)
    assert [path.name for path in (folder / FOLDER).iterdir()] == ["update-000002"]
    assert run(folder).resumed_at == 2


def test_a_run_that_diverges_stops(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="loss is above"):
        run(tmp_path / "run", scope="full", learning_rate=30.0, tokens=6_000)


def test_impossible_requests_leave_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(ConfigError, match="unknown scope"):
        run(folder, scope="everything")
    with pytest.raises(ConfigError, match="unknown loss"):
        run(folder, loss="hinge")
    with pytest.raises(ConfigError, match="less than one update"):
        run(folder, tokens=300, sequences_per_update=16)
    with pytest.raises(ConfigError, match="unknown mixture"):
        run(folder, mixture="unifrom")
    assert not folder.exists()


def test_a_mixture_file_decides_the_pools(tmp_path: Path) -> None:
    (tmp_path / "mix.yaml").write_text("sums: 1500\ntalk: 500\n")
    result = run(tmp_path / "run", mixture=str(tmp_path / "mix.yaml"))
    assert list(result.plan.tokens_by_pool) == ["sums", "talk"]
    assert result.plan.draws[0].quota_tokens == 1500


def test_an_adapter_belongs_to_its_base(tmp_path: Path) -> None:
    healed = sample_model()
    folder = run(tmp_path / "run", healed).adapter_folder
    assert folder is not None
    assert equal(weights_of(merge_adapter(sample_model(), folder).model), weights_of(healed.model))
    with pytest.raises(ModelError, match="trained on other weights"):
        merge_adapter(sample_model(seed=4), folder)
    (folder / "regrow_base.json").unlink()
    with pytest.raises(ModelError, match="does not fit"):
        merge_adapter(sample_model("gpt2"), folder)


def test_a_padded_run_gives_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = sample_model()
    run(tmp_path / "packed", packed, dropout=0.0)
    padded = sample_model()
    monkeypatch.setattr("regrow.heal.setup.why_not_packed", lambda *_, **__: "for the test")
    result = run(tmp_path / "padded", padded, dropout=0.0)
    assert result.packing == "for the test"
    for name, weight in weights_of(packed.model).items():
        assert float((weight - padded.model.get_parameter(name)).abs().max()) < 2e-3


def heal_until_interrupted(folder: Path, told: Any) -> None:
    torch.set_num_threads(1)
    spec = sample_spec(tokens=60_000)
    try:
        heal(sample_model(), sample_pools(), spec, folder, on_progress=lambda update, *_: told.send(update))
    except KeyboardInterrupt:
        sys.exit(130)


def test_ctrl_c_saves_and_ends(tmp_path: Path) -> None:
    told, telling = pipe()
    process = forked(heal_until_interrupted, tmp_path / "run", telling)
    telling.close()
    last = [told.recv() for _ in range(3)][-1]
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    with contextlib.suppress(EOFError):
        while True:
            last = told.recv()
    process.join()
    assert process.exitcode == 130
    assert sorted(path.name for path in (tmp_path / "run" / FOLDER).iterdir())[-1] == f"update-{last:06d}"


class Recorder:
    """A watcher that writes down what it is told."""

    def __init__(self) -> None:
        self.said: list[tuple[str, Any]] = []

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self.said.append(("begin", (task, total, unit)))

    def advance(self, done: float, **facts: Any) -> None:
        self.said.append(("advance", (done, facts)))

    def end(self, summary: str = "") -> None:
        self.said.append(("end", summary))

    def note(self, text: str) -> None:
        self.said.append(("note", text))


def test_progress_is_told_from_where_the_session_began(tmp_path: Path) -> None:
    spec = sample_spec()
    with pytest.raises(KeyboardInterrupt):
        heal(sample_model(), sample_pools(), spec, tmp_path / "a", on_progress=stop_at(2, KeyboardInterrupt))
    watch = Recorder()
    result = heal(sample_model(), sample_pools(), spec, tmp_path / "a", watch=watch)
    first = sum(entry.tokens for index in range(2) for entry in result.plan.update(index))
    kind, (task, total, unit) = watch.said[0]
    assert (kind, unit) == ("begin", "tokens")
    assert f"after update 2 of {result.updates}" in task
    assert total == result.tokens - first
    done = [what[0] for kind, what in watch.said if kind == "advance"]
    assert len(done) == result.updates - 2
    assert done[-1] == total
    assert watch.said[-1] == ("end", f"{result.tokens:,} tokens, {result.updates} updates")
    padded = Recorder()
    heal(sample_model("mistral", sliding_window=16), sample_pools(), spec, tmp_path / "b", watch=padded)
    assert padded.said[0][0] == "note"
    assert "padded instead of packed" in padded.said[0][1]


def test_pools_may_come_as_a_list(tmp_path: Path) -> None:
    pools: list[Pool] = list(sample_pools().values())
    by_list, by_name = sample_model(), sample_model()
    heal(by_list, pools, sample_spec(), tmp_path / "a")
    heal(by_name, sample_pools(), sample_spec(), tmp_path / "b")
    assert equal(weights_of(by_list.model), weights_of(by_name.model))


def test_a_stopped_run_gives_the_bridges_back_as_they_were(tmp_path: Path) -> None:
    loaded = sample_model(blocks=4)
    attach_bridge(loaded.model, 1, AffineBridge(32))
    loaded.facts = CheckpointFacts(source="tiny", unpruned_blocks=5, removed_blocks=(2,))
    before = weights_of(loaded.model)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "run", loaded, scope="all-lora+bridges", on_progress=stop_at(3, KeyboardInterrupt))
    assert equal(weights_of(loaded.model), before)
    unbroken = sample_model(blocks=4)
    attach_bridge(unbroken.model, 1, AffineBridge(32))
    unbroken.facts = loaded.facts
    resumed = run(tmp_path / "run", loaded, scope="all-lora+bridges")
    run(tmp_path / "whole", unbroken, scope="all-lora+bridges")
    assert resumed.resumed_at > 0 and equal(weights_of(loaded.model), weights_of(unbroken.model))


def test_a_model_that_learns_nothing_any_more_stops_the_run(tmp_path: Path) -> None:
    """A huge rate leaves weights so large that every answer is the same and the gradient exactly 0."""
    with pytest.raises(StudyError, match="the gradient is exactly 0 for 3 updates"):
        run(tmp_path / "run", learning_rate=100.0, tokens=6_000)
