"""A spec becomes steps: the published counts, shared work once, ids that change with what shapes a result only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from regrow.errors import ConfigError
from regrow.planning.rule import STUDY_CAPABILITIES
from regrow.records.study_spec import StudySpec, read_study_spec
from regrow.studies import find_study, shipped
from regrow.study.design import planning_design, steps_of
from regrow.study.step import Step

POOLS = (*STUDY_CAPABILITIES[:-1], "general")


def steps(spec: StudySpec, identity: str = "sha") -> list[Step]:
    design = planning_design(spec, STUDY_CAPABILITIES, POOLS)
    return steps_of(spec, design, {family.name: identity + family.name for family in spec.families})


def spec_of(**values: Any) -> StudySpec:
    return StudySpec.model_validate(
        {"name": "s", "families": [{"name": "a", "model": "m", "remove": 2}], "suite": "full", **values}
    )


def test_the_papers_study_has_the_published_runs() -> None:
    made = steps(read_study_spec(shipped()["paper-llama"]))
    pilots = [step for step in made if step.title.startswith("pilot")]
    assert len(pilots) == 21
    assert sum(step.request["heal"]["tokens"] for step in pilots) == 3_480_000
    assert {step.request["heal"]["seed"] for step in pilots} == {42}
    matched = [step for step in made if step.place and step.place.get("rule") == "token-matched"]
    assert {step.request["heal"]["tokens"] for step in matched} == {4_480_000} and len(matched) == 3
    main = Counter(
        step.place["rule"]
        for step in made
        if step.place and step.place.get("budget") == 1_000_000 and step.place["scope"] == "all-lora"
    )
    assert main == {"uniform": 3, "damage-proportional": 3, "rah": 3, "rah-capped": 3, "slowest-first": 3}
    scopes = {step.place["scope"] for step in made if step.place and step.place.get("rule") == "uniform"}
    assert scopes == {"all-lora", "cut-lora", "last-k"}


def test_the_planners_are_compared_in_the_families_that_the_paper_names() -> None:
    made = steps(read_study_spec(shipped()["paper-all"]))
    healed = {
        (step.family, step.place["rule"]) for step in made if step.place and step.place.get("budget") == 1_000_000
    }
    families = {family for family, _ in healed}
    planners = {rule: {family for family, of in healed if of == rule} for rule in ("rah", "rah-capped")}
    assert len(families) == 4 and planners == {"rah": families, "rah-capped": families - {"Qwen2.5-1.5B"}}
    # Two baselines and two metrics each at the fixed budget, two metrics each against the token-matched heal.
    assert (4 * sum(map(len, planners.values())), 2 * sum(map(len, planners.values()))) == (28, 14)


def test_a_family_may_have_rules_of_its_own() -> None:
    two = [{"name": "a", "model": "m", "remove": 2}, {"name": "b", "model": "n", "remove": 2, "rules": ["uniform"]}]
    made = steps(spec_of(families=two, rules=["uniform", "damage-proportional"], pilots=None))
    rules = {(step.family, step.place["rule"]) for step in made if step.place and step.place.get("rule")}
    assert rules == {("a", "uniform"), ("a", "damage-proportional"), ("b", "uniform")}
    with pytest.raises(ValueError, match="names a value twice"):
        spec_of(families=[{**two[1], "rules": ["rah", "rah"]}])


def test_every_shipped_study_reads_and_its_steps_come_after_what_they_read() -> None:
    for name, file in shipped().items():
        made = steps(read_study_spec(file))
        seen: set[str] = set()
        for step in made:
            assert set(step.parents.values()) <= seen, (name, step.title)
            assert step.id not in seen
            seen.add(step.id)


def test_an_id_changes_with_what_shapes_the_result_only() -> None:
    ids = [step.id for step in steps(spec_of())]
    same = [
        spec_of(name="other"),
        spec_of(engine={"name": "ray", "workers": 8}),
        spec_of(keep_checkpoints=True),
        spec_of(heal={"microbatch_tokens": 64, "checkpoint_every_seconds": 1}),
    ]
    for changed in same:
        assert [step.id for step in steps(changed)] == ids
    kept = {"unpruned, test split", "cut: 2 by block-influence"}
    faster = steps(spec_of(heal={"learning_rate": 1e-3}))
    assert {step.title for step in faster if step.id in ids} >= kept
    assert not any(step.id in ids for step in faster if step.kind == "heal")
    assert not set(ids) & {step.id for step in steps(spec_of(), identity="other")}


def test_more_seeds_or_rules_keep_the_old_steps() -> None:
    ids = {step.id for step in steps(spec_of(seeds=[0]))}
    more = {step.id for step in steps(spec_of(seeds=[0, 1]))}
    assert ids < more
    rules = [*StudySpec.model_fields["rules"].default, "max-min"]
    wider = steps(spec_of(seeds=[0], rules=rules))
    assert ids < {step.id for step in wider}
    assert "rah-max-min" in {step.place["rule"] for step in wider if step.place and "rule" in step.place}


def test_a_sweep_over_a_main_budget_adds_its_rules() -> None:
    swept = {"sweep": [1_000_000], "sweep_rules": ["uniform", "damage-proportional"]}
    made = steps(spec_of(pilots=None, rules=["uniform"], seeds=[0], token_matched=False, **swept))
    assert [step.place["rule"] for step in made if step.place and "rule" in step.place] == [
        "uniform",
        "damage-proportional",
    ]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"families": [{"name": "a", "model": "m", "remove": 1}, {"name": "a", "model": "n", "remove": 1}]}, "two fam"),
        ({"families": [{"name": "a", "model": "m"}]}, "either 'blocks' or 'remove'"),
        ({"families": [{"name": "a b", "model": "m", "remove": 1}]}, "pattern"),
        ({"families": []}, "at least 1"),
        ({"seeds": [0, 0]}, "twice"),
        ({"budgets": ["1X"]}, "not a number of tokens"),
        ({"budgets": [0]}, "at least one token"),
        ({"budgets": [], "scopes": ["last-k"]}, "at least 1"),
        ({"capabilities": []}, "at least 1"),
        ({"families": {"mine": "somewhere"}}, "family 'mine' is 'somewhere'"),
        ({"pilots": {"budgets": [0, 100]}}, "two budgets or more"),
        ({"pilots": {"budgets": [100]}}, "two budgets or more"),
        ({"pilots": {"budgets": [100, 100]}}, "two budgets or more"),
        ({"pilots": {"scope_tokens": 0}}, "greater than or equal to 1"),
        ({"pilots": {"scopes": ["last-k"]}}, "all-lora among them"),
        ({"heal": {"tokens": 3}}, "set by the study"),
        ({"heal": {"learning_rte": 3}}, "learning_rte"),
        ({"engine": {"name": "kubernetes"}}, "engine"),
        ({"sed": [1]}, "unknown key 'sed'"),
    ],
)
def test_a_faulty_spec_is_refused(values: dict[str, Any], said: str, tmp_path: Path) -> None:
    import yaml

    file = tmp_path / "s.yaml"
    file.write_text(yaml.safe_dump({"families": [{"name": "a", "model": "m", "remove": 2}], **values}))
    with pytest.raises(ConfigError, match=said):
        read_study_spec(file)


def test_a_rule_without_its_pilots_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs 21 pilots, 2 evaluations, but the study has no 'pilots'"):
        steps(spec_of(pilots=None, rules=["rah"]))
    with pytest.raises(ConfigError, match="doremi"):
        steps(spec_of(rules=["doremi"]))
    with pytest.raises(ConfigError, match="unknown rule 'unifrom'"):
        steps(spec_of(rules=["unifrom"]))


@pytest.mark.parametrize(
    ("one", "other", "name"),
    [
        ("rah-capped", "RAH_capped", "rah-capped"),
        ("rah-max-min", "max-min", "rah-max-min"),
        ("slowest-first", "slowest-first(0.6)", "slowest-first"),
        ("slowest-first(0.50)", "slowest first( .5 )", "slowest-first(0.5)"),
    ],
)
def test_one_rule_under_two_spellings_is_refused(one: str, other: str, name: str) -> None:
    with pytest.raises(ConfigError, match="names one rule twice") as caught:
        steps(spec_of(rules=["uniform", one, other]))
    assert f"'{one}' and '{other}' are both {name}" in str(caught.value)
    ids = {rule: [step.id for step in steps(spec_of(rules=[rule]))] for rule in (one, other)}
    assert ids[one] == ids[other]


def test_rules_that_differ_in_their_number_are_two() -> None:
    made = steps(spec_of(rules=["slowest-first", "slowest-first(0.5)"], seeds=[0], token_matched=False))
    rules = [step.place["rule"] for step in made if step.place and "rule" in step.place]
    assert rules == ["slowest-first", "slowest-first(0.5)"]


def test_two_families_of_one_name_are_refused_in_either_form(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    for text, said in (
        ("families:\n  a: {model: m, remove: 2}\n  a: {model: n, remove: 2}\n", "'a' is given twice"),
        ("families:\n- {name: a, model: m, remove: 2}\n- {name: a, model: n, remove: 2}\n", "two families are called"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=said):
            read_study_spec(file)


def test_families_may_be_a_mapping(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text("families:\n  a: {model: m, remove: 2}\nbudgets: 60k\n")
    spec = read_study_spec(tmp_path / "s.yaml")
    assert spec.name == "s" and spec.families[0].name == "a" and spec.budgets == (60_000,)


def test_a_study_is_found_by_name_or_path(tmp_path: Path) -> None:
    assert find_study("smoke") == shipped()["smoke"]
    assert find_study("studies/smoke.yaml").resolve() == shipped()["smoke"].resolve()
    with pytest.raises(ConfigError, match="no study 'smok'") as caught:
        find_study("smok")
    assert "did you mean 'smoke'" in (caught.value.hint or "")
