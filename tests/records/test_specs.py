"""What is said about a faulty file of options: the whole path of the key, the nearest known one, no consequences."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from regrow.errors import ConfigError
from regrow.records.specs import EvalSpec, HealSpec, PruneSpec, RepairSpec, build
from regrow.records.study_spec import EngineSpec, FamilySpec, PilotsSpec, StudySpec, read_study_spec

FAMILY = {"name": "a", "model": "m", "remove": 2}


def refusal(file: Path, **values: Any) -> tuple[str, str]:
    file.write_text(yaml.safe_dump({"families": [FAMILY], **values}))
    with pytest.raises(ConfigError) as caught:
        read_study_spec(file)
    return str(caught.value).replace(str(file), "FILE"), caught.value.hint or ""


@pytest.mark.parametrize(
    ("values", "said", "near"),
    [
        ({"families": [FAMILY, {**FAMILY, "name": "b", "critrion": 1}]}, "families[1].critrion", "criterion"),
        ({"families": {"mine": {"model": "m", "remve": 2}}}, "families.mine.remve", "remove"),
        ({"families": [{"nmae": "a", "model": 3, "remove": 2}]}, "families[0].nmae", "name"),
        ({"pilots": {"budget": [1, 2]}}, "pilots.budget", "budgets"),
        ({"engine": {"worker": 2}}, "engine.worker", "workers"),
        ({"repair": {"methd": "lra"}}, "repair.methd", "method"),
        ({"heal": {"learning_rte": 1e-3}}, "heal.learning_rte", "learning_rate"),
        ({"sed": [1]}, "sed", "seeds"),
    ],
)
def test_an_unknown_key_is_named_with_its_path_at_any_depth(
    values: dict[str, Any], said: str, near: str, tmp_path: Path
) -> None:
    told, hint = refusal(tmp_path / "s.yaml", **values)
    assert told == f"unknown key '{said}' in 'FILE'" and hint.startswith(f"did you mean '{near}'?")


def test_an_unknown_key_is_found_in_every_part_of_a_study(tmp_path: Path) -> None:
    values = StudySpec.model_validate({"name": "s", "families": [FAMILY]}).model_dump(mode="json")
    parts = {"families[0]": FamilySpec, "pilots": PilotsSpec, "engine": EngineSpec, "repair": RepairSpec, "": StudySpec}
    for part, kind in parts.items():
        changed: dict[str, Any] = {**deepcopy(values), "families": [dict(FAMILY)], "repair": {}}
        place = {"": changed, "families[0]": changed["families"][0]}[part] if part not in changed else changed[part]
        place["zzz"] = {"x": 1}
        with pytest.raises(ConfigError) as caught:
            build(StudySpec, changed)
        assert f"unknown key '{part}{'.' if part else ''}zzz' in" in str(caught.value)
        assert all(name in (caught.value.hint or "") for name in kind.model_fields)


def test_several_unknown_keys_are_all_named(tmp_path: Path) -> None:
    told, hint = refusal(tmp_path / "s.yaml", sed=[1], pilots={"budget": [1, 2], 3: 4}, engine={"worker": 2})
    assert told == "unknown keys 'sed', 'pilots.budget', 'pilots.3', 'engine.worker' in 'FILE'"
    assert "for 'engine.worker': did you mean 'workers'" in hint


@pytest.mark.parametrize(
    ("values", "said", "hint"),
    [
        ({"engine": {"name": "subproces"}}, "engine.name: input should be", "did you mean 'subprocess'"),
        ({"repair": {"granularity": "blok"}}, "repair.granularity: input should be", "did you mean 'block'"),
        ({"heal": {"gradient_checkpointing": "atuo"}}, "heal.gradient_checkpointing: input", "did you mean 'auto'"),
        ({"families": [{"name": "a", "model": "m"}]}, "families[0]: family 'a' says either", "regrow study show"),
        ({"families": [FAMILY, FAMILY]}, "'FILE': two families are called 'a'; give each its own", "regrow study show"),
        ({"families": [{"name": "a", "remove": 2}]}, "families[0].model: field required", "regrow study show"),
        ({"engine": "ray"}, "engine: a mapping (key: value lines) is wanted here (got 'ray')", "regrow study show"),
        ({"dtype": {"a": 1}}, "dtype: input should be a valid string (got a mapping)", "regrow study show"),
        ({"seeds": ["x"]}, "seeds[0]: input should be a valid integer", "regrow study show"),
        ({"heal": {"rank": 0}}, "heal.rank: input should be greater than 0 (got 0)", "regrow study show"),
    ],
)
def test_a_fault_is_one_sentence_with_its_path_and_without_what_follows_from_it(
    values: dict[str, Any], said: str, hint: str, tmp_path: Path
) -> None:
    told, remedy = refusal(tmp_path / "s.yaml", **values)
    assert said in told and hint in remedy, (told, remedy)
    assert "{" not in told and "at least 1 item" not in told and "it:" not in told and "; " not in told[:-40]


def test_options_typed_are_told_of_the_commands_help() -> None:
    typed: list[tuple[Any, dict[str, Any]]] = [(PruneSpec, {"seed": "x"}), (EvalSpec, {"items": 0})]
    for kind, values in [*typed, (HealSpec, {"tokens": "6k", "rank": "x"})]:
        with pytest.raises(ConfigError) as caught:
            build(kind, values)
        assert caught.value.hint == "see the command's --help for what is allowed"
    with pytest.raises(ConfigError) as caught:
        build(HealSpec, {"tokens": 1, "precision": "bf16"})
    assert "did you mean 'bfloat16'" in (caught.value.hint or "")
