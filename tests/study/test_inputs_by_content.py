"""A result belongs to the content of its inputs: what was remade, damaged or answered by another model is noticed."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from regrow.capabilities.suites import healing_suite
from regrow.data.pools import Example, Pool, save_pool
from regrow.errors import ConfigError, DataError, ModelError, StudyError
from regrow.models.identity import model_identity
from regrow.records.specs import EvalSpec, HealSpec, PruneSpec, RepairSpec
from regrow.study.quickstart import QuickstartPlan, quickstart
from regrow.study.stages.evaluate import evaluate
from regrow.study.stages.heal import heal
from regrow.study.stages.pools import pools_of
from regrow.study.stages.prune import prune
from regrow.study.stages.repair import repair
from tests.conftest import tiny_model, tiny_tokenizer


class Notes:
    """A watcher that keeps what it was told."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def begin(self, task: str, total: float | None = None, unit: str = "") -> None:
        self.said.append(task)

    def advance(self, done: float, **facts: Any) -> None: ...

    def end(self, summary: str = "") -> None: ...

    def note(self, text: str) -> None:
        self.said.append(text)


def write_model(folder: Path, seed: int) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    tiny_model("llama", seed=seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model", 0)


SMALL = EvalSpec(items=1, capabilities=("knowledge",), perplexity=False)


def write_pools(folder: Path, *, teacher_sha256: str = "", examples: int = 6) -> Path:
    for capability in healing_suite("mini"):
        rows = tuple(Example(capability.name, f"{n}", f"[user] {n}<eos>[assistant] ", f"{n}") for n in range(examples))
        save_pool(
            Pool(capability.name, rows, teacher="t", teacher_weights_sha256=teacher_sha256), folder / capability.name
        )
    return folder


def test_an_evaluation_is_not_taken_for_that_of_a_remade_model(model: Path, tmp_path: Path) -> None:
    watch = Notes()
    first, _ = evaluate(str(model), SMALL, tmp_path / "out", watch=watch)
    moved = tmp_path / "elsewhere"
    shutil.copytree(model, moved)
    again, _ = evaluate(str(moved), SMALL, tmp_path / "out", watch=watch)
    assert again.provenance == first.provenance and any("already holds" in text for text in watch.said)
    write_model(model, 1)
    with pytest.raises(StudyError, match="another model"):
        evaluate(str(model), SMALL, tmp_path / "out", watch=watch)


def test_a_damaged_evaluation_is_measured_again(model: Path, tmp_path: Path) -> None:
    first, items = evaluate(str(model), SMALL, tmp_path / "out", watch=Notes())
    for name in ("result.json", "items.jsonl"):
        (tmp_path / "out" / name).write_text("{")
        watch = Notes()
        again, found = evaluate(str(model), SMALL, tmp_path / "out", watch=watch)
        assert any("damaged" in text for text in watch.said)
        assert [item.score for item in found] == [item.score for item in items] and again.label == first.label


def test_a_checkpoint_is_not_taken_for_that_of_a_remade_input(model: Path, tmp_path: Path) -> None:
    spec, cut = PruneSpec(blocks=(2,)), tmp_path / "cut"
    first = prune(str(model), spec, cut, watch=Notes())
    assert prune(str(model), spec, cut, watch=Notes()).steps == first.steps
    repaired = repair(str(cut), RepairSpec(calibration_tokens=512), tmp_path / "repaired", watch=Notes())
    assert repaired.bridges
    weights = cut / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4] + b"\0\0\0\0")
    with pytest.raises(StudyError, match="sha256 differs"):
        prune(str(model), spec, cut, watch=Notes())
    with pytest.raises(StudyError, match="another input"):
        repair(str(cut), RepairSpec(calibration_tokens=512), tmp_path / "repaired", watch=Notes())
    weights.write_bytes(whole)
    (cut / "tokenizer.json").rename(tmp_path / "kept")
    with pytest.raises(StudyError, match="sha256 differs"):
        prune(str(model), spec, cut, watch=Notes())
    (tmp_path / "kept").rename(cut / "tokenizer.json")
    (tmp_path / "repaired" / "regrow.json").unlink()
    with pytest.raises(ModelError, match=r"no regrow\.json"):
        evaluate(str(tmp_path / "repaired"), SMALL, tmp_path / "e", watch=Notes())
    with pytest.raises(StudyError, match="inside the input folder"):
        prune(str(model), spec, model / "cut", watch=Notes())
    write_model(model, 1)
    with pytest.raises(StudyError, match="another input"):
        prune(str(model), spec, cut, watch=Notes())


def test_a_calibration_file_counts_by_its_content(model: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("one two three four five six seven eight nine ten " * 20)
    spec = PruneSpec(remove=1, calibration=str(text), calibration_tokens=128, chunk_tokens=32)
    prune(str(model), spec, tmp_path / "cut", watch=Notes())
    prune(str(model), spec, tmp_path / "cut", watch=Notes())
    text.write_text("ten nine eight seven six five four three two one " * 20)
    with pytest.raises(StudyError, match="another calibration"):
        prune(str(model), spec, tmp_path / "cut", watch=Notes())


def test_a_refused_heal_leaves_the_folder_free(model: Path, tmp_path: Path) -> None:
    prune(str(model), PruneSpec(blocks=(2,)), tmp_path / "cut", watch=Notes())
    pools = write_pools(tmp_path / "pools")

    def run(**options: Any) -> Any:
        spec = HealSpec(**{"tokens": 400, "sequences_per_update": 2, "learning_rate": 1e-3, **options})
        return heal(str(tmp_path / "cut"), spec, tmp_path / "healed", watch=Notes(), pools_folder=pools)

    for wrong in ({"scope": "al-lora"}, {"loss": "cross"}, {"mixture": "unifrom"}, {"tokens": 1}, {"scope": "bridges"}):
        with pytest.raises(ConfigError):
            run(**wrong)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == ["cut", "model", "pools"]
    assert run().healing_tokens >= 400
    assert run().healing_tokens >= 400
    (pools / "math" / "pool.json").unlink()
    lines = (pools / "math" / "examples.jsonl").read_text().splitlines()
    (pools / "math" / "examples.jsonl").write_text("\n".join(lines[1:]) + "\n")
    with pytest.raises(StudyError, match="another pools"):
        run()


def test_a_quickstart_that_cannot_be_is_refused_before_it_begins(model: Path, tmp_path: Path) -> None:
    for remove in ("99", "6", "0"):
        plan = QuickstartPlan.of(remove=remove, tokens=100, items=1, seed=0, pool_examples=1)
        with pytest.raises(ConfigError, match="cannot remove"):
            quickstart(str(model), plan, tmp_path / "quick", watch=Notes())
    assert not (tmp_path / "quick").exists()


def no_teacher() -> Any:
    raise AssertionError("the teacher was asked")


def test_a_users_damaged_or_foreign_pool_is_refused_before_anything_is_answered(tmp_path: Path) -> None:
    pools = write_pools(tmp_path / "pools", teacher_sha256="a" * 64)
    options: dict[str, Any] = {"source": "m", "examples": 6, "watch": Notes(), "folder": pools}
    found = pools_of("mini", no_teacher, weights_sha256="a" * 64, **options)
    assert {len(pool.examples) for pool in found.values()} == {6}
    with pytest.raises(DataError, match="was answered by 't'"):
        pools_of("mini", no_teacher, weights_sha256="b" * 64, **options)
    (pools / "safety" / "examples.jsonl").write_text("{half")
    with pytest.raises(DataError, match="safety"):
        pools_of("mini", no_teacher, weights_sha256="a" * 64, **options)
    assert (pools / "safety" / "examples.jsonl").read_text() == "{half"


def test_a_damaged_pool_of_the_run_is_kept_aside_and_made_again(
    tiny_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from regrow.models.load import load_model
    from regrow.study.stages import pools as place

    one = [capability for capability in healing_suite("mini") if capability.name == "safety"]
    monkeypatch.setattr(place, "healing_suite", lambda name, **_: one)
    pools = write_pools(tmp_path / "pools")
    (pools / "safety" / "examples.jsonl").write_text("{half")
    watch = Notes()
    found = pools_of(
        "mini",
        lambda: load_model(tiny_folder()),
        source="m",
        weights_sha256="a" * 64,
        examples=1,
        watch=watch,
        folder=pools,
        owned=True,
    )
    assert found["safety"].teacher_weights_sha256 == "a" * 64 and found["safety"].asked == 1
    assert (pools / ".safety.damaged-1" / "examples.jsonl").read_text() == "{half"
    assert any("made again" in text for text in watch.said)


def test_identity_is_content_not_name(model: Path, tmp_path: Path) -> None:
    before = model_identity(model)
    shutil.copytree(model, tmp_path / "copy")
    assert model_identity(tmp_path / "copy") == before
    config = tmp_path / "copy" / "tokenizer_config.json"
    config.write_text(config.read_text().replace("512", "256"))
    changed = model_identity(tmp_path / "copy")
    assert changed.weights_sha256 == before.weights_sha256 and changed.sha256 != before.sha256
    with pytest.raises(ModelError, match="no model at"):
        model_identity("./absent")
