"""Keys and values of rows of different lengths, in storage allocated once, where rows come, grow and go.

Each row fills columns from the first one on and ends at its own length; nothing is padded. A call of the model takes
any number of new tokens of each row, all in one line; what it writes beyond a row's length counts only once it is kept,
so tokens that were drafted and turned out wrong are simply written over. Rows begin with one of several prefixes, whose
keys and values are kept once for all of them. Rows with the same prefix stand together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from transformers.cache_utils import Cache

from regrow.capabilities.kv_rows import Prefix
from regrow.capabilities.one_line_layer import OneLineLayer

_BLOCK_BYTES = {"cpu": 3 << 19}
"""Bytes of scores computed at a time: on a CPU what stays in a core's second-level cache (best measured: 1-2 MiB)."""
_BLOCK_BYTES_ELSEWHERE = 256 << 20

_LEAST_QUERIES = 16
"""New tokens of a row that are handled at a time at least, however many columns they look at."""

_PADDING = {"cpu": 1.25}
"""Rows are looked at together as long as the longest one's columns are this much of what they hold; elsewhere fewer
calls are worth more than fewer columns."""
_PADDING_ELSEWHERE = 4.0


@dataclass(frozen=True)
class Part:
    """Tokens handled by one product: the next token of each of several rows, or several tokens of one row."""

    tokens: slice
    rows: slice
    columns: int


@dataclass(frozen=True)
class Stretch:
    """Neighbouring tokens of a call whose scores go through one softmax, all after the same prefix.

    ``hidden`` (tokens x 1 x 1 x columns) says which columns a token does not see.
    """

    prefix: Prefix
    tokens: slice
    parts: tuple[Part, ...]
    hidden: torch.Tensor


class RaggedLayer(OneLineLayer):
    """One layer of :class:`RaggedRows`, as transformers sees it."""

    def __init__(self, rows: RaggedRows, index: int) -> None:
        super().__init__()
        self.rows, self.index = rows, index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            # Zeros, not empty: a hidden column weighs 0, and 0 times a stray NaN would be NaN (see RaggedRows._clean).
            states.new_zeros(self.rows.most, states.shape[1], self.rows.capacity, states.shape[-1])
            for states in (key_states, value_states)
        )
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows
        rows.updated = self
        rows.updates += 1
        self.keys[rows.row_T, :, rows.column_T] = key_states[0].transpose(0, 1)
        self.values[rows.row_T, :, rows.column_T] = value_states[0].transpose(0, 1)
        return key_states, value_states


class RaggedRows:
    """Storage for up to ``most`` rows of up to ``capacity`` tokens after their prefix.

    ``lengths[r]`` is the number of tokens that live row r holds, ``prefixes[r]`` what it begins with. Of the call that
    was announced last, ``places[i]`` are the places of the tokens of its i-th row, ``row_T``, ``column_T`` and
    ``position_T`` say where each token belongs. ``updates`` and ``attended`` count the layers' writes and the calls of
    the attention, which must be as many.
    """

    def __init__(self, layers: int, most: int, capacity: int, *, device: torch.device) -> None:
        self.most, self.capacity, self.device = most, capacity, device
        self.lengths: list[int] = []
        self.prefixes: list[Prefix] = []
        self.places: list[list[int]] = []
        self.row_T = self.column_T = self.position_T = torch.zeros(0, dtype=torch.long, device=device)
        self.updated: RaggedLayer | None = None
        self.updates = self.attended = 0
        self.layers = [RaggedLayer(self, index) for index in range(layers)]
        self.cache = Cache(layers=list(self.layers))
        self._written = [0] * most
        """The number of columns of each place for a row that may hold anything but zeros."""
        self._pieces: list[tuple[slice, slice]] = []
        self._stretches: list[Stretch] | None = None

    def open(self, prefix: Prefix, lengths: Sequence[int]) -> None:
        """Add rows that begin with ``prefix`` and announce a call of all the ``lengths`` tokens that follow it in
        each."""
        first = len(self.lengths)
        if first + len(lengths) > self.most or max(lengths) > self.capacity:
            raise ValueError(
                f"{len(lengths)} rows of up to {max(lengths)} tokens do not fit {self.most} x {self.capacity}"
            )
        for row in range(first, first + len(lengths)):
            self._clean(row, 0)
        self.prefixes += [prefix] * len(lengths)
        self.lengths += [0] * len(lengths)
        self.places, pieces, begin = [], [], 0
        for row, length in enumerate(lengths, start=first):
            pieces.append((slice(begin, begin + length), slice(row, row + 1)))
            self.places.append(list(range(begin, begin + length)))
            begin += length
        self._announce(pieces, range(first, first + len(lengths)))

    def grow(self, new: Sequence[int]) -> None:
        """Announce a call of the next ``new[r]`` tokens of each live row, at least one of each: first the next token of
        every row, then the further ones row by row."""
        count = len(self.lengths)
        if any(length + more > self.capacity for length, more in zip(self.lengths, new, strict=True)):
            raise ValueError(f"a row would hold more than {self.capacity} tokens")
        pieces = [(slice(0, count), slice(0, count))]
        self.places, begin = [], count
        for row, tokens in enumerate(new):
            self.places.append([row, *range(begin, begin + tokens - 1)])
            if tokens > 1:
                pieces.append((slice(begin, begin + tokens - 1), slice(row, row + 1)))
                begin += tokens - 1
        self._announce(pieces, range(count))

    def keep(self, tokens: Sequence[int]) -> None:
        """Note that of the call's tokens the first ``tokens[i]`` of its i-th row belong to it now."""
        first = len(self.lengths) - len(tokens)
        for row, count in enumerate(tokens, start=first):
            self.lengths[row] += count

    def drop(self, row: int) -> list[tuple[int, int]]:
        """Remove live row ``row`` and return the moves that close the gap, in order: (to, from).

        The last row of those with its prefix takes its place, the last one of the next prefix that one's, and so on.
        """
        moves: list[tuple[int, int]] = []
        hole = row
        for _, rows in _by_prefix(self.prefixes):
            if rows.stop - 1 > hole:
                moves.append((hole, rows.stop - 1))
                hole = rows.stop - 1
        for to, origin in moves:
            used = slice(0, self.lengths[origin])
            for layer in self.layers:
                layer.keys[to, :, used] = layer.keys[origin, :, used]
                layer.values[to, :, used] = layer.values[origin, :, used]
            self.lengths[to], self.prefixes[to] = self.lengths[origin], self.prefixes[origin]
            self._clean(to, self.lengths[to])
        self.lengths.pop()
        self.prefixes.pop()
        return moves

    def release(self) -> None:
        """Let go of the storage at once: rows and layers refer to each other, so it would wait for a collection."""
        for layer in self.layers:
            layer.keys = layer.values = None  # type: ignore[assignment]
        self.lengths, self.prefixes, self._stretches, self.updated = [], [], None, None

    def stretches(self, query_heads: int, element_bytes: int) -> list[Stretch]:
        """Return how the announced call's attention is computed, piece by piece."""
        if self._stretches is None:
            limit = _BLOCK_BYTES.get(self.device.type, _BLOCK_BYTES_ELSEWHERE) // (query_heads * element_bytes)
            parts = [part for tokens, rows in self._pieces for part in self._parts(tokens, rows, limit)]
            self._stretches = self._joined(parts, limit)
        return self._stretches

    def _clean(self, row: int, length: int) -> None:
        """Set the columns from ``length`` on to zero: what another row left there may not be finite."""
        stale = slice(length, self._written[row])
        if stale.stop > stale.start:
            for layer in self.layers:
                if layer.is_initialized:
                    layer.keys[row, :, stale] = 0
                    layer.values[row, :, stale] = 0
        self._written[row] = length

    def _announce(self, pieces: list[tuple[slice, slice]], rows: range) -> None:
        row_of, column_of = {}, {}
        for row, places in zip(rows, self.places, strict=True):
            self._written[row] = max(self._written[row], self.lengths[row] + len(places))
            for at, place in enumerate(places):
                row_of[place], column_of[place] = row, self.lengths[row] + at
        row_T = [row_of[place] for place in range(len(row_of))]
        self._columns = [column_of[place] for place in range(len(row_of))]
        self.row_T = torch.tensor(row_T, device=self.device)
        self.column_T = torch.tensor(self._columns, device=self.device)
        before = torch.tensor([self.prefixes[row].tokens for row in row_T], device=self.device)
        self.position_T = self.column_T + before
        self._pieces, self._stretches = pieces, None

    def _parts(self, tokens: slice, rows: slice, limit: int) -> list[Part]:
        """Split a piece so that its scores keep to the limit and the columns of rows taken together are alike."""
        found: list[Part] = []
        if rows.stop - rows.start == 1:
            before, own = self.prefixes[rows.start].tokens, self._columns[tokens.stop - 1] + 1
            at_once = max(_LEAST_QUERIES, limit // (before + own))
            for begin in range(tokens.start, tokens.stop, at_once):
                part = slice(begin, min(begin + at_once, tokens.stop))
                # Columns of later tokens are hidden anyway.
                found.append(Part(part, rows, self._columns[part.stop - 1] + 1))
            return found
        wasted = _PADDING.get(self.device.type, _PADDING_ELSEWHERE)
        for prefix, segment in _by_prefix(self.prefixes[rows]):
            begin, longest, held = segment.start, 0, 0
            for row in range(segment.start, segment.stop):
                columns = self._columns[tokens.start + row] + 1
                wide, count = max(longest, columns), row + 1 - begin
                full = count * (wide + prefix.tokens) > limit or count * wide > wasted * (held + columns)
                if count > 1 and full:
                    found.append(_shifted(begin, row, longest, tokens, rows))
                    begin, wide, held = row, columns, 0
                longest, held = wide, held + columns
            found.append(_shifted(begin, segment.stop, longest, tokens, rows))
        return found

    def _joined(self, parts: list[Part], limit: int) -> list[Stretch]:
        """Join neighbours with one prefix as long as their scores keep to the limit."""
        found: list[Stretch] = []
        begin = 0
        for end in range(1, len(parts) + 1):
            if end < len(parts) and self._fit([*parts[begin:end], parts[end]], limit):
                continue
            group = parts[begin:end]
            tokens = slice(group[0].tokens.start, group[-1].tokens.stop)
            columns = torch.arange(max(part.columns for part in group), device=self.device)
            hidden = columns[None] > self.column_T[tokens, None]
            found.append(Stretch(self.prefixes[group[0].rows.start], tokens, tuple(group), hidden[:, None, None]))
            begin = end
        return found

    def _fit(self, parts: list[Part], limit: int) -> bool:
        prefix = self.prefixes[parts[0].rows.start]
        tokens = parts[-1].tokens.stop - parts[0].tokens.start
        columns = max(part.columns for part in parts) + prefix.tokens
        return self.prefixes[parts[-1].rows.start] is prefix and tokens * columns <= limit


def _shifted(begin: int, end: int, columns: int, tokens: slice, rows: slice) -> Part:
    return Part(slice(tokens.start + begin, tokens.start + end), slice(rows.start + begin, rows.start + end), columns)


def _by_prefix(prefixes: Sequence[Prefix]) -> list[tuple[Prefix, slice]]:
    found: list[tuple[Prefix, slice]] = []
    begin = 0
    for _, run in groupby(prefixes, key=id):
        members = list(run)
        found.append((members[0], slice(begin, begin + len(members))))
        begin += len(members)
    return found
