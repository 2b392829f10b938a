"""Rows that come and go, against a list of what each should hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from regrow.capabilities.kv_rows import NO_PREFIX, KeyValueRows, Prefix

HEADS, WIDTH, LAYERS = 2, 3, 2
CPU = torch.device("cpu")


def value_of(row: int, position: int) -> float:
    """Return what a test row stores for a token: its own number and its position, readable again."""
    return 1000.0 * row + position


def prefix_of(tokens: int) -> Prefix:
    keys = torch.arange(tokens).float()[None, :, None].expand(HEADS, tokens, WIDTH).contiguous()
    return Prefix(tokens, (keys,) * LAYERS, (-keys,) * LAYERS)


class Twin:
    """Does with a plain list of rows what KeyValueRows does with its storage, and compares."""

    def __init__(self, rows: KeyValueRows) -> None:
        self.rows = rows
        self.live: list[tuple[int, int, Prefix]] = []
        self.next = 1

    def write(self, number: int, lengths: list[int], width: int) -> None:
        """Give every layer the states of ``width`` tokens for the shown rows."""
        states = torch.zeros(len(lengths), HEADS, width, WIDTH)
        positions = self.rows.positions(width)
        for at, (row, length) in enumerate(zip(range(number, number + len(lengths)), lengths, strict=True)):
            for column in range(width):
                position = length - width + column
                states[at, :, column] = value_of(row, position)
                if position >= 0:
                    assert positions[at, column] == position
        for layer in self.rows.layers:
            layer.update(states, -states)
        self.rows.advance(width)

    def open(self, prefix: Prefix, lengths: list[int]) -> None:
        width = max(lengths) - prefix.tokens
        self.rows.open(prefix, lengths, width)
        self.write(self.next, lengths, width)
        self.live += [(self.next + at, length, prefix) for at, length in enumerate(lengths)]
        self.next += len(lengths)

    def step(self) -> None:
        self.rows.next_column()
        states = torch.zeros(len(self.live), HEADS, 1, WIDTH)
        for at, (row, length, _) in enumerate(self.live):
            states[at] = value_of(row, length)
        assert self.rows.positions(1)[:, 0].tolist() == [length for _, length, _ in self.live]
        for layer in self.rows.layers:
            layer.update(states, -states)
        self.rows.advance(1)
        self.live = [(row, length + 1, prefix) for row, length, prefix in self.live]

    def drop(self, at: int) -> None:
        for to, origin in self.rows.drop(at):
            self.live[to] = self.live[origin]
        self.live.pop()

    def check(self) -> None:
        self.rows.next_column()
        mask = self.rows.mask(0)
        for layer in self.rows.layers:
            for at, (row, length, prefix) in enumerate(self.live):
                seen = slice(self.rows.first, self.rows.column)
                keys = layer.keys[at, 0, seen, 0][mask[at]]
                expected = [
                    position if position < prefix.tokens else value_of(row, position) for position in range(length)
                ]
                got = keys.tolist()
                assert len(got) == len(expected)
                for position, (found, wanted) in enumerate(zip(got, expected, strict=True)):
                    # The last prefix tokens of a row may have been run again with the row instead of copied.
                    assert found == wanted or (position < prefix.tokens and found == value_of(row, position))
                assert torch.equal(layer.values[at], -layer.keys[at])


@pytest.mark.parametrize("seed", range(6))
def test_rows_keep_what_they_were_given(seed: int) -> None:
    draw = np.random.default_rng(seed)
    prefixes = [prefix_of(4), prefix_of(9), NO_PREFIX, prefix_of(2)]
    twin = Twin(KeyValueRows(LAYERS, 6, 45, device=CPU))
    for prefix in prefixes:
        for _ in range(12):
            free = 6 - len(twin.live)
            if free and draw.random() < 0.5:
                count = int(draw.integers(1, free + 1))
                lengths = sorted((prefix.tokens + draw.integers(1, 9, size=count)).tolist(), reverse=True)
                twin.open(prefix, lengths)
            if twin.live and draw.random() < 0.8:
                twin.step()
            while twin.live and (draw.random() < 0.3 or max(length for _, length, _ in twin.live) > 25):
                twin.drop(int(draw.integers(len(twin.live))))
            if twin.live:
                twin.check()
    assert twin.next > 12


def test_the_last_row_takes_the_place_of_one_that_is_dropped() -> None:
    rows = KeyValueRows(LAYERS, 9, 20, device=CPU)
    Twin(rows).open(prefix_of(1), [5, 5, 5])
    assert rows.drop(0) == [(0, 2)]
    assert rows.drop(1) == []


def test_a_branch_continues_chosen_rows_and_leaves_them_alone() -> None:
    twin = Twin(KeyValueRows(LAYERS, 3, 20, device=CPU))
    twin.open(prefix_of(3), [8, 6, 5])
    branch = twin.rows.branch([0, 0, 2], 2)
    before = [layer.keys.clone() for layer in twin.rows.layers]
    states = torch.full((3, HEADS, 2, WIDTH), 7.0)
    keys, values = branch.layers[0].update(states, states)
    assert keys.shape == (3, HEADS, 10, WIDTH) and values.shape == keys.shape
    assert torch.equal(keys[0], keys[1])
    assert branch.positions(2).tolist() == [[8, 9], [8, 9], [5, 6]]
    assert branch.mask(2).sum(1).tolist() == [10, 10, 7]
    assert all(torch.equal(layer.keys, held) for layer, held in zip(twin.rows.layers, before, strict=True))


def test_rows_longer_than_the_storage_are_a_bug_that_shows() -> None:
    rows = KeyValueRows(LAYERS, 3, 10, device=CPU)
    with pytest.raises(ValueError, match="columns"):
        rows.open(NO_PREFIX, [11], 11)


def test_released_storage_is_gone() -> None:
    twin = Twin(KeyValueRows(LAYERS, 2, 10, device=CPU))
    twin.open(NO_PREFIX, [4])
    twin.rows.release()
    assert all(layer.keys is None and layer.values is None for layer in twin.rows.layers)
