"""Which sequences share a prefix, and where the micro-batches put them."""

from __future__ import annotations

from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from regrow.data.pools import Example
from regrow.heal.microbatch import packed_microbatches, padded_microbatches
from regrow.heal.prefixes import LEAST_SHARED_TOKENS, group_by_prefix, split_group


def example(at: int, prompt: tuple[int, ...], response: tuple[int, ...]) -> Example:
    return Example("p", f"{at}", "", "", prompt, response)


@st.composite
def updates(draw: st.DrawFn, most: int = 6) -> list[Example]:
    """Sequences that begin with one of a few stems, which begin alike themselves."""
    stems = draw(st.lists(st.lists(st.integers(3, 4), min_size=1, max_size=30), min_size=1, max_size=3))
    rows = draw(
        st.lists(
            st.tuples(
                st.sampled_from(stems),
                st.lists(st.integers(3, 5), min_size=1, max_size=6),
                st.lists(st.integers(6, 8), min_size=1, max_size=4),
            ),
            min_size=1,
            max_size=most,
        )
    )
    return [example(at, tuple(stem + rest), tuple(answer)) for at, (stem, rest, answer) in enumerate(rows)]


def partitions(items: list[Example]) -> Iterator[list[list[Example]]]:
    if not items:
        yield []
        return
    first, rest = items[0], items[1:]
    for smaller in partitions(rest):
        yield [[first], *smaller]
        for at in range(len(smaller)):
            yield [*smaller[:at], [first, *smaller[at]], *smaller[at + 1 :]]


def cost(group: list[Example]) -> int:
    shared = 0
    if len(group) > 1:
        shortest = min(len(entry.prompt_ids) for entry in group) - 1
        while shared < shortest and len({entry.prompt_ids[shared] for entry in group}) == 1:
            shared += 1
        shared = shared if shared >= LEAST_SHARED_TOKENS else 0
    return shared + sum(entry.tokens - shared for entry in group)


@settings(max_examples=60, deadline=None)
@given(updates())
def test_no_partition_computes_fewer_positions(rows: list[Example]) -> None:
    groups = group_by_prefix(rows)
    assert sorted(entry.example_id for group in groups for entry in group.examples) == sorted(
        entry.example_id for entry in rows
    )
    for group in groups:
        assert len({entry.prompt_ids[: group.prefix_tokens] for entry in group.examples}) == 1
        assert all(group.prefix_tokens < len(entry.prompt_ids) for entry in group.examples)
    best = min(sum(cost(group) for group in partition) for partition in partitions(rows))
    assert sum(group.computed_tokens for group in groups) == best


@settings(max_examples=60, deadline=None)
@given(updates(most=12), st.integers(5, 120), st.booleans())
def test_rows_hold_every_sequence_and_label_once(rows: list[Example], limit: int, share: bool) -> None:
    batches = packed_microbatches(rows, limit, share_prefix=share)
    seen = [entry.example_id for batch in batches for entry in batch.examples]
    assert sorted(seen) == sorted(entry.example_id for entry in rows)
    for batch in batches:
        assert batch.layout is not None
        assert batch.position_ids is not None
        ids, where = batch.input_ids[0].tolist(), batch.position_ids[0].tolist()
        fits = len(batch.examples) == 1 or batch.computed_tokens <= limit
        assert fits
        at = 0
        rebuilt = []
        for group in batch.layout.groups:
            assert where[group.start : group.start + group.prefix] == list(range(group.prefix))
            for branch in group.branches.tolist():
                own = sorted(set(branch))
                rebuilt.append(tuple(ids[group.start : group.start + group.prefix] + [ids[place] for place in own]))
                assert [where[place] for place in own] == list(range(group.prefix, group.prefix + len(own)))
        assert rebuilt == [entry.prompt_ids + entry.response_ids for entry in batch.examples]
        labels = [token for entry in batch.examples for token in entry.response_ids]
        assert batch.labels.tolist() == labels
        # The position before a label holds the token before it (the last of the prompt or of the response so far).
        before = [token for entry in batch.examples for token in (entry.prompt_ids[-1:] + entry.response_ids)[:-1]]
        assert [ids[place] for place in batch.positions.tolist()] == before
        at += 1


def test_a_shared_prefix_is_computed_once() -> None:
    rows = [example(at, (7,) * 100 + (at, 3), (4, 2)) for at in range(4)]
    shared = packed_microbatches(rows, 1_000, share_prefix=True)
    apart = packed_microbatches(rows, 1_000, share_prefix=False)
    assert [batch.computed_tokens for batch in shared] == [100 + 4 * 4]
    assert [batch.computed_tokens for batch in apart] == [4 * 104]
    parts = split_group(group_by_prefix(rows)[0], 109)
    assert [(len(part.examples), part.prefix_tokens) for part in parts] == [(2, 100), (2, 100)]
    assert [part.prefix_tokens for part in split_group(group_by_prefix(rows)[0], 10)] == [0, 0, 0, 0]


def test_padded_batches_hold_sequences_of_similar_length() -> None:
    rows = [example(at, (7,) * length, (4, 2)) for at, length in enumerate((50, 3, 48, 4, 49, 5))]
    batches = padded_microbatches(rows, 160)
    assert [batch.input_ids.shape for batch in batches] == [(3, 52), (3, 7)]
    assert [int(batch.attention_mask.sum()) for batch in batches] == [50 + 48 + 49 + 6, 3 + 4 + 5 + 6]
    flat = batches[0].input_ids.flatten()
    assert flat[batches[0].positions].tolist() == [7, 4, 7, 4, 7, 4]
    assert batches[0].labels.tolist() == [4, 2] * 3
