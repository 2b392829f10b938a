"""Content addresses: what changes an output is in the id of its step, what does not is not."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.planning.rule import STUDY_CAPABILITIES
from regrow.records.study_spec import StudySpec
from regrow.study.design import planning_design, steps_of
from regrow.study.step import Step

POOLS = (*STUDY_CAPABILITIES[:-1], "general")
BASE: dict[str, Any] = {
    "name": "s",
    "families": [{"name": "a", "model": "m", "remove": 2}],
    "suite": "full",
    "rules": ["uniform", "damage-proportional"],
    "seeds": [0, 1],
    "pilots": None,
    "token_matched": False,
    "repair": {"calibration_tokens": 512},
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text("xyz", min_size=1, max_size=2), inner, max_size=3)
    ),
    max_leaves=8,
)
REQUESTS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), VALUES, min_size=1, max_size=4)

FREE = st.one_of(
    st.fixed_dictionaries({"name": st.text("abc", min_size=1, max_size=5)}),
    st.fixed_dictionaries({"keep_checkpoints": st.booleans()}),
    st.fixed_dictionaries({"device": st.sampled_from(["auto", "cpu", "cuda", "mps"])}),
    st.fixed_dictionaries(
        {
            "engine": st.fixed_dictionaries(
                {"name": st.sampled_from(["serial", "subprocess", "ray", "slurm"]), "workers": st.integers(1, 64)},
                optional={
                    "threads": st.integers(1, 8),
                    "gpus_per_run": st.integers(0, 8),
                    "processes_per_heal": st.integers(1, 8),
                    "timeout_minutes": st.floats(0.1, 1e4),
                    "address": st.sampled_from(["auto", "there:6379"]),
                },
            )
        }
    ),
    st.fixed_dictionaries(
        {
            "heal": st.fixed_dictionaries(
                {},
                optional={
                    "microbatch_tokens": st.integers(1, 4096),
                    "checkpoint_every_seconds": st.floats(0.01, 1e3),
                    "share_prefix": st.booleans(),
                    "state_cache_gb": st.floats(0, 64),
                    "gradient_checkpointing": st.sampled_from([True, False, "auto"]),
                },
            )
        }
    ),
)
"""Changes of a study that change no result."""

HEALS = {"heal"}
CUTS = {"prune", "repair", "heal"}
"""With a cut, whatever is made from it is another."""
SHAPING = st.one_of(
    st.tuples(st.just(HEALS), st.fixed_dictionaries({"heal": st.fixed_dictionaries({"rank": st.integers(17, 99)})})),
    st.tuples(
        st.just(HEALS),
        st.fixed_dictionaries({"heal": st.fixed_dictionaries({"learning_rate": st.floats(1e-6, 1e-1)})}),
    ),
    st.tuples(
        st.just(HEALS), st.fixed_dictionaries({"budgets": st.lists(st.integers(1, 999_999), min_size=1, max_size=1)})
    ),
    st.tuples(
        st.just({"repair", "heal"}),
        st.fixed_dictionaries({"repair": st.fixed_dictionaries({"calibration_tokens": st.integers(513, 9_999)})}),
    ),
    st.tuples(
        st.just(CUTS),
        st.integers(3, 9).map(lambda count: {"families": [{"name": "a", "model": "m", "remove": count}]}),
    ),
    st.tuples(
        st.just({"pools", *CUTS}),
        st.fixed_dictionaries({"pool_examples": st.integers(1, 999)}),
    ),
    st.tuples(
        st.just({"pools", "evaluate", *CUTS}),
        st.fixed_dictionaries({"dtype": st.sampled_from(["float32", "bfloat16", "float16"])}),
    ),
)
"""The kinds of step that a change makes anew, every one of them, and the change."""


def steps(changes: dict[str, Any], identity: str = "sha") -> list[Step]:
    spec = StudySpec.model_validate({**BASE, **changes})
    return steps_of(spec, planning_design(spec, STUDY_CAPABILITIES, POOLS), {"a": identity})


@settings(max_examples=60, deadline=None)
@given(FREE)
def test_what_changes_no_result_is_in_no_id(changes: dict[str, Any]) -> None:
    assert [step.id for step in steps(changes)] == [step.id for step in steps({})]


@settings(max_examples=60, deadline=None)
@given(SHAPING, FREE)
def test_what_shapes_a_result_is_in_the_id_of_all_it_shapes(
    shaping: tuple[set[str], dict[str, Any]], free: dict[str, Any]
) -> None:
    kinds, changes = shaping
    both = {**free, **changes}
    if "heal" in free and "heal" in changes:
        both["heal"] = {**free["heal"], **changes["heal"]}
    before = {step.id: step for step in steps({})}
    after = {step.id: step for step in steps(both)}
    for step_id, step in after.items():
        if step.kind in kinds:
            assert step_id not in before, step.title
        elif step.kind != "evaluate":  # an evaluation is new with what it measures
            assert step_id in before, step.title
        else:
            assert (step_id in before) == all(parent in before for parent in step.parents.values()), step.title


def test_another_model_is_another_study_throughout() -> None:
    assert not {step.id for step in steps({})} & {step.id for step in steps({}, identity="other")}


@settings(max_examples=100, deadline=None)
@given(REQUESTS, st.randoms(use_true_random=False), st.text(max_size=5), st.text(max_size=5))
def test_an_id_is_of_the_content_alone(request: dict[str, Any], order: Any, family: str, title: str) -> None:
    first = Step("heal", "a", "t", request, {"checkpoint": "x"})
    keys = list(request)
    order.shuffle(keys)
    shuffled = {key: request[key] for key in keys}
    other = Step("heal", family, title, shuffled, {"checkpoint": "x"}, place={"family": family}, also=(title,))
    assert first.id == other.id == Step("heal", "a", "t", json.loads(json.dumps(request)), {"checkpoint": "x"}).id
    assert len(first.id) == 16 and int(first.id, 16) >= 0


@settings(max_examples=100, deadline=None)
@given(REQUESTS, REQUESTS)
def test_other_content_is_another_id(one: dict[str, Any], other: dict[str, Any]) -> None:
    ids = {Step("heal", "a", "t", request, {}).id for request in (one, other)}
    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (len(ids) == 1) == same
    step = Step("heal", "a", "t", one, {"checkpoint": "x"})
    for changed in (
        Step("evaluate", "a", "t", one, {"checkpoint": "x"}),
        Step("heal", "a", "t", one, {"checkpoint": "y"}),
        Step("heal", "a", "t", one, {"pools": "x"}),
        Step("heal", "a", "t", {**one, "more": 1}, {"checkpoint": "x"}),
    ):
        assert changed.id != step.id
