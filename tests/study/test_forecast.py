"""What a study will cost, said without its data and its models: counts exact, hours an estimate that says so."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest

from regrow.capabilities.suites import suite
from regrow.errors import ConfigError
from regrow.models.families import parameter_count
from regrow.models.load import load_model
from regrow.protocols import SilentWatcher
from regrow.records.study_spec import StudySpec, read_study_spec
from regrow.studies import shipped
from regrow.study.forecast import (
    BANDWIDTH_SHARE,
    GPUS,
    READING_SHARE,
    START_SECONDS,
    TRAINING_SHARE,
    Rates,
    forecast,
    measured_rates,
)
from regrow.study.item_counts import item_counts
from regrow.study.model_size import model_size
from regrow.study.step import Step
from tests.study.tiny_study import steps_for, tiny_spec

RegrowCommand = Callable[..., tuple[int, str, str]]


@pytest.fixture
def nothing_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without data, without models, without a network."""
    monkeypatch.delenv("REGROW_DATA", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "home").mkdir()
    for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.mark.usefixtures("nothing_here")
@pytest.mark.parametrize("name", [name for name in shipped() if name.startswith("paper-")])
def test_a_published_study_is_planned_on_an_empty_machine(name: str, regrow: RegrowCommand) -> None:
    code, out, err = regrow("study", "plan", name, "--gpu", "a100", "--json")
    assert code == 0, err
    found = json.loads(out)
    spec = read_study_spec(shipped()[name])
    families = len(spec.families)
    light = sum(family.cut(light=True) is not None for family in spec.families)
    main = 3 * sum(len(family.rules or spec.rules) for family in spec.families)
    pilots, matched = 3_480_000, 3 * 4_480_000
    sweep, scopes = 3 * (250_000 + 4_000_000), 2 * 3 * 1_000_000
    assert found["training_tokens"] == families * (pilots + matched + sweep + scopes) + main * 1_000_000
    assert found["steps"]["heal"] == families * (21 + 3 + 6 + 6) + main
    assert found["evaluations"] == found["steps"]["heal"] + 4 * families + light
    assert found["hours_gpu"] > 0 and found["flops"] > 6e9 * found["training_tokens"]
    assert found["hours_here"] is None and found["measured"] is False
    assert (
        "parameters" in found["notes"][0] and "by its name" not in found["notes"][0] and "estimate" in found["notes"][1]
    )
    assert f"{TRAINING_SHARE:.0%} of its arithmetic peak" in found["notes"][1]
    assert err.count("is not on this machine") == families


@pytest.mark.usefixtures("nothing_here")
def test_the_plan_is_printed_as_an_estimate(regrow: RegrowCommand) -> None:
    code, out, _ = regrow("study", "plan", "paper-llama", "--gpu", "h100", "--no-probe")
    assert code == 0
    assert "on one h100         up to about" in out and "(estimate)" in out and "assumptions, not measurements" in out
    code, _, err = regrow("study", "plan", "paper-llama", "--gpu", "h1000", "--no-probe")
    assert code == 2 and "unknown GPU 'h1000'" in err and "h100" in err


@pytest.mark.usefixtures("nothing_here")
def test_items_are_counted_without_the_data() -> None:
    spec = read_study_spec(shipped()["paper-llama"])
    assert item_counts(spec, "test", None) == {
        "structured_output": 150,
        "function_calling": 200,
        "instruction_following": 300,
        "math": 200,
        "safety": 200,
        "knowledge": 300,
    }
    assert set(item_counts(spec, "dev", 60).values()) == {60}
    assert set(item_counts(spec, "test", 7).values()) == {7}


@pytest.mark.shared
def test_the_counts_are_those_of_the_data(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = read_study_spec(shipped()["paper-llama"])
    monkeypatch.setenv("REGROW_DATA", str(shared_data))
    for split in ("dev", "test"):
        read = {one.name: len(one.items(split)) for one in suite("full")}  # type: ignore[arg-type]
        assert item_counts(spec, split, None) == read


def test_the_counts_of_the_embedded_suite_are_its_items(model: Path) -> None:
    spec = tiny_spec(model, capabilities=None)
    assert item_counts(spec, "test", None) == {one.name: len(one.items("test")) for one in suite("mini")}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("unsloth/Llama-3.2-1B", 1e9),
        ("Qwen/Qwen2.5-1.5B", 1.5e9),
        ("HuggingFaceTB/SmolLM2-135M", 135e6),
        ("allenai/OLMo-2-0425-1B", 1e9),
        ("org/model_7b", 7e9),
        ("org/bert-base", math.nan),
        ("8B-org/gpt2", math.nan),
    ],
)
def test_a_model_that_is_not_here_is_as_large_as_its_name_says(name: str, size: float) -> None:
    found = model_size(name)
    assert not found.exact and found.parameters == pytest.approx(size, nan_ok=True)


@pytest.mark.parametrize(("study", "millions"), [("llama", 1236), ("qwen", 1544), ("smollm2", 1711), ("olmo", 1485)])
def test_the_published_models_are_known(study: str, millions: int) -> None:
    (family,) = read_study_spec(shipped()[f"paper-{study}"]).families
    found = model_size(family.model)
    assert found.exact and round(found.parameters / 1e6) == millions


def test_a_model_that_is_here_is_counted(model: Path) -> None:
    assert model_size(str(model)) == (float(parameter_count(load_model(str(model)).model)), True)


def one_step(spec: StudySpec, kind: str) -> Step:
    return next(step for step in steps_for(spec) if step.kind == kind)


def test_gpu_hours_follow_from_flops_and_the_shares_that_are_said(model: Path) -> None:
    spec = tiny_spec(model, capabilities=["math"], budgets=[1_000_000])
    heal = one_step(spec, "heal")
    rates = {"tiny": Rates(
        parameters=1e9,
        seconds_per_item={"math": 2.0},
        generated_per_item={"math": 100.0},
        prompt_per_item=50.0,
        training_rate=1_000.0,
        start_seconds=10.0,
    )}  # fmt: skip
    found = forecast(spec, [heal], [heal], rates, gpu="a100")
    assert found.measured and found.training_tokens == 1_000_000 and found.evaluations == 1
    assert found.generated_tokens == 2 * 100
    assert found.flops == pytest.approx(1e9 * (6 * 1_000_000 + 2 * (2 * 50 + 200)))
    assert found.hours_here == pytest.approx((2 * 2.0 + 1_000 + 10) / 3600)
    gpu = GPUS["a100"]
    seconds = 6e15 / (gpu.flops * TRAINING_SHARE) + 2e9 * 100 / (gpu.flops * READING_SHARE)
    seconds += 200 * 2e9 / 32 / (gpu.bandwidth * BANDWIDTH_SHARE) + START_SECONDS
    assert found.hours_gpu == pytest.approx(seconds / 3600)


def test_a_model_of_unknown_size_has_counts_and_no_hours(model: Path) -> None:
    spec = tiny_spec(model).model_copy(
        update={"families": (tiny_spec(model).families[0].model_copy(update={"model": "org/nameless"}),)}
    )
    steps = steps_for(spec, {"tiny": "x"})
    found = forecast(spec, steps, steps, {}, gpu="l4")
    assert found.training_tokens == 200 and math.isnan(found.flops) and math.isnan(found.hours_gpu)
    assert any("org/nameless: of unknown size" in note for note in found.notes)
    nothing = forecast(spec, steps, [], {}, gpu="l4")
    assert nothing.hours_gpu == 0 and nothing.hours_here == 0 and not any("nameless" in note for note in nothing.notes)


def test_an_unknown_gpu_is_refused(model: Path) -> None:
    with pytest.raises(ConfigError, match="unknown GPU 'a1000'"):
        forecast(tiny_spec(model), [], [], {}, gpu="a1000")


def test_a_measured_model_has_hours_here(model: Path) -> None:
    spec = tiny_spec(model)
    steps = steps_for(spec)
    rates = measured_rates(spec, watch=SilentWatcher())
    found = forecast(spec, steps, steps, rates)
    assert found.measured and found.hours_here > 0 and math.isnan(found.hours_gpu)
