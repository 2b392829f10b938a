"""Grouping of prompts by what they begin with."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from regrow.capabilities.prefix_groups import PrefixGroup, group_by_prefix, shared_tokens

PROMPTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=25)


@given(PROMPTS, st.integers(1, 20))
def test_groups_hold_every_prompt_once_and_share_what_they_say(prompts: list[list[int]], worthwhile: int) -> None:
    groups = group_by_prefix(prompts, worthwhile=worthwhile)
    assert sorted(index for group in groups for index in group.members) == list(range(len(prompts)))
    assert [min(group.members) for group in groups] == sorted(min(group.members) for group in groups)
    for group in groups:
        members = [prompts[index] for index in group.members]
        assert all(member[: group.shared] == members[0][: group.shared] for member in members)
        assert group.shared < min(map(len, members))
        assert [len(member) for member in members] == sorted(map(len, members), reverse=True)


@given(PROMPTS)
def test_one_group_shares_all_that_it_can(prompts: list[list[int]]) -> None:
    groups = group_by_prefix(prompts, worthwhile=10**9)
    assert len(groups) == min(1, len(prompts))
    if len(prompts) > 1:
        common = min(shared_tokens(prompts[0], other) for other in prompts)
        assert groups[0].shared == min(common, min(map(len, prompts)) - 1)


def test_sets_with_long_prefixes_of_their_own_part() -> None:
    system = [1] * 20
    shots = {name: [*system, *([name] * 200)] for name in (5, 6)}
    prompts = [[*shots[5 + at % 2], 9, at] for at in range(10)]
    groups = group_by_prefix(prompts)
    assert groups == [PrefixGroup((0, 2, 4, 6, 8), 221), PrefixGroup((1, 3, 5, 7, 9), 221)]
    # One prompt more of a kind saves too little to be a group: the system turn is all that the rest shares.
    lone = [*system, 7, 7, 7, 7]
    assert group_by_prefix([*prompts, lone])[-1] == PrefixGroup((10,), 0)


def test_parts_that_save_little_stay_together() -> None:
    prompts = [[1, 2, 3, at % 3, at] for at in range(12)]
    assert group_by_prefix(prompts) == [PrefixGroup(tuple(range(12)), 3)]
