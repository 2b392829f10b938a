"""Keys and values of rows of different lengths, in storage allocated once, where rows come, grow and go.

Each row fills columns from the first one on and ends at its own length; nothing is padded. A call of the model takes
any number of new tokens of each row, all in one line; what it writes beyond a row's length counts only once it is kept,
so tokens that were drafted and turned out wrong are simply written over. Rows begin with one of several prefixes, whose
keys and values are kept once for all of them. Rows with the same prefix stand together.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from transformers.cache_utils import Cache

from regrow.capabilities.kv_rows import NO_PREFIX, Prefix
from regrow.capabilities.one_line_layer import OneLineLayer

_CALL_COLUMNS = {"cpu": 600}
"""A call of the attention costs as much as looking at so many columns (measured on two cores)."""
_CALL_COLUMNS_ELSEWHERE = 20_000

_QUERIES_LIKE_A_COLUMN = 6
"""So many queries that meet a column cost as much as reading it."""

_MASK_ENTRIES = 1 << 20
"""Queries, with those of heads that share a key, times columns of one mask. A row with more new tokens is handled in
turns."""


@dataclass(frozen=True)
class Group:
    """Neighbouring rows whose new tokens are handled by one call of the attention, as if each had as many as the one
    with the most.

    ``tokens`` are theirs in the call's line. ``padded`` (rows x queries, None where all have one) says which of them
    stands where, the last of a row repeated, and ``real`` where each token is found in that, flat. The columns before
    ``begin`` are seen by all. For those from there to ``end``, ``bias`` is added to the scores, rows or 1 x 1 x queries
    with those of sharing heads x columns: minus infinity for a column that is not seen.
    """

    tokens: slice
    rows: slice
    queries: int
    begin: int
    end: int
    padded: torch.Tensor | None
    real: torch.Tensor | None
    bias: torch.Tensor


@dataclass(frozen=True)
class _Run:
    """Rows taken together so far: how many, their new tokens in all and of the row with the most, and the columns of
    the longest."""

    first: int
    begin: int
    rows: int
    tokens: int
    queries: int
    columns: int

    @property
    def cost(self) -> float:
        return self.rows * self.columns * (1 + self.queries / _QUERIES_LIKE_A_COLUMN)

    def and_then(self, more: _Run) -> _Run:
        return _Run(
            self.first,
            self.begin,
            self.rows + more.rows,
            self.tokens + more.tokens,
            max(self.queries, more.queries),
            max(self.columns, more.columns),
        )


class RaggedLayer(OneLineLayer):
    """One layer of :class:`RaggedRows`, as transformers sees it. What it is given is written by the attention, which
    follows and touches the same columns."""

    def __init__(self, rows: RaggedRows, index: int) -> None:
        super().__init__()
        self.rows, self.index = rows, index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys, self.values = (
            # Zeros, not empty: a hidden column weighs 0, and 0 times a stray NaN would be NaN (see RaggedRows._clean).
            _zeros((self.rows.most, states.shape[1], self.rows.capacity, states.shape[-1]), states)
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
        return key_states, value_states

    def write(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Put the keys and values of the announced call's tokens where they belong."""
        rows = self.rows
        self.keys[rows.row_T, :, rows.column_T] = key_states[0].transpose(0, 1)
        self.values[rows.row_T, :, rows.column_T] = value_states[0].transpose(0, 1)


class RaggedRows:
    """Storage for up to ``most`` rows of up to ``capacity`` tokens after their prefix.

    ``lengths[r]`` is the number of tokens that live row r holds, ``prefixes[r]`` what it begins with. Of the call that
    was announced last, ``places[i]`` are the places of the tokens of its i-th row, ``row_T``, ``column_T`` and
    ``position_T`` say where each token belongs, ``seen_T`` how many columns it sees, ``most_new`` how many the row with
    the most has. ``updates`` and ``attended`` count what the layers were given and the calls of the attention, which
    must be as many.
    """

    def __init__(self, layers: int, most: int, capacity: int, *, device: torch.device) -> None:
        self.most, self.capacity, self.device = most, capacity, device
        self.lengths: list[int] = []
        self.prefixes: list[Prefix] = []
        self.places: list[list[int]] = []
        self.most_new = 0
        self.row_T = self.column_T = self.seen_T = self.position_T = torch.zeros(0, dtype=torch.long, device=device)
        self.updated: RaggedLayer | None = None
        self.updates = self.attended = 0
        self.layers = [RaggedLayer(self, index) for index in range(layers)]
        self.cache = Cache(layers=list(self.layers))
        self._written = [0] * most
        """The number of columns of each place for a row that may hold anything but zeros."""
        self._first = 0
        self._groups_of: dict[int, list[Group]] = {}

    def open(self, prefix: Prefix, lengths: Sequence[int], *, copied: bool = False) -> None:
        """Add rows that begin with ``prefix`` and announce a call of all the ``lengths`` tokens that follow it in
        each. With ``copied`` the prefix is not kept once for all: each row holds its tokens as the first of its own."""
        first, held = len(self.lengths), prefix.tokens if copied else 0
        if first + len(lengths) > self.most or held + max(lengths) > self.capacity:
            raise ValueError(
                f"{len(lengths)} rows of up to {held + max(lengths)} tokens do not fit {self.most} x {self.capacity}"
            )
        for row in range(first, first + len(lengths)):
            self._clean(row, 0)
        if held:
            for layer, keys, values in zip(self.layers, prefix.keys, prefix.values, strict=True):
                if not layer.is_initialized:
                    layer.lazy_initialization(keys[None], values[None])
                layer.keys[first : first + len(lengths), :, :held] = keys
                layer.values[first : first + len(lengths), :, :held] = values
        self.prefixes += [NO_PREFIX if copied else prefix] * len(lengths)
        self.lengths += [held] * len(lengths)
        self._announce(first, lengths)

    def grow(self, new: Sequence[int]) -> None:
        """Announce a call of the next ``new[r]`` tokens of each live row, at least one of each, row by row."""
        if any(length + more > self.capacity for length, more in zip(self.lengths, new, strict=True)):
            raise ValueError(f"a row would hold more than {self.capacity} tokens")
        self._announce(0, new)

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
        self.lengths, self.prefixes, self._groups_of, self.updated = [], [], {}, None

    def prefixed(self) -> list[tuple[Prefix, slice]]:
        """Return the prefixes of the announced call's rows, and which of its tokens follow each."""
        return [
            (prefix, slice(self.places[rows.start][0], self.places[rows.stop - 1][-1] + 1))
            for prefix, rows in _by_prefix(self.prefixes[self._first :])
        ]

    def groups(self, sharing: int) -> list[Group]:
        """Return how the announced call's attention is computed by a kernel that pads, piece by piece; ``sharing``
        query heads share a key head."""
        if sharing not in self._groups_of:
            self._groups_of[sharing] = [
                group for _, rows in _by_prefix(self.prefixes[self._first :]) for group in self._groups(rows, sharing)
            ]
        return self._groups_of[sharing]

    def _clean(self, row: int, length: int) -> None:
        """Set the columns from ``length`` on to zero: what another row left there may not be finite."""
        stale = slice(length, self._written[row])
        if stale.stop > stale.start:
            for layer in self.layers:
                if layer.is_initialized:
                    layer.keys[row, :, stale] = 0
                    layer.values[row, :, stale] = 0
        self._written[row] = length

    def _announce(self, first: int, new: Sequence[int]) -> None:
        rows = range(first, first + len(new))
        self._first, self.places, self.most_new = first, [], max(new)
        row_T: list[int] = []
        column_T: list[int] = []
        position_T: list[int] = []
        for row, count in zip(rows, new, strict=True):
            held = self.lengths[row]
            self._written[row] = max(self._written[row], held + count)
            self.places.append(list(range(len(row_T), len(row_T) + count)))
            row_T += [row] * count
            column_T += range(held, held + count)
            begin = self.prefixes[row].tokens + held
            position_T += range(begin, begin + count)
        self.row_T, self.column_T, self.position_T = (
            torch.tensor(each, device=self.device) for each in (row_T, column_T, position_T)
        )
        self.seen_T = self.column_T + 1
        self._groups_of = {}

    def _groups(self, rows: slice, sharing: int) -> list[Group]:
        """Split the call's rows so that the columns and queries of those taken together are alike."""
        call_columns = _CALL_COLUMNS.get(self.device.type, _CALL_COLUMNS_ELSEWHERE)
        turn = max(1, math.isqrt(_MASK_ENTRIES // sharing))
        found: list[Group] = []
        run: _Run | None = None
        for at in range(rows.start, rows.stop):
            places, held = self.places[at], self.lengths[self._first + at]
            new = len(places)
            alone = _Run(self._first + at, places[0], 1, new, new, held + new)
            both = run.and_then(alone) if run is not None else alone
            entries = both.rows * both.queries * both.columns * sharing
            if run is not None and (both.cost > run.cost + alone.cost + call_columns or entries > _MASK_ENTRIES):
                found.append(self._together(run, sharing))
                both = alone
            run = both
            if alone.queries * alone.columns * sharing > _MASK_ENTRIES and alone.queries > 1:
                found += self._turns(alone, turn, sharing)
                run = None
        return [*found, *([self._together(run, sharing)] if run is not None else [])]

    def _turns(self, run: _Run, turn: int, sharing: int) -> list[Group]:
        """Handle the many tokens of a row in turns: each sees all that came before it, and of itself a triangle."""
        found: list[Group] = []
        triangles: dict[int, torch.Tensor] = {}
        row, held = slice(run.first, run.first + 1), run.columns - run.tokens
        for done in range(0, run.tokens, turn):
            new = min(turn, run.tokens - done)
            if new not in triangles:
                each = torch.arange(new, device=self.device)
                triangles[new] = _bias(each > each[:, None], sharing)
            tokens = slice(run.begin + done, run.begin + done + new)
            begin = held + done
            found.append(Group(tokens, row, new, begin, begin + new, None, None, triangles[new]))
        return found

    def _together(self, run: _Run, sharing: int) -> Group:
        tokens = slice(run.begin, run.begin + run.tokens)
        rows = slice(run.first, run.first + run.rows)
        column = self.column_T[tokens]
        padded = real = None
        if run.tokens < run.rows * run.queries:
            places = self.places[rows.start - self._first : rows.stop - self._first]
            new = torch.tensor([len(each) for each in places], device=self.device)
            each = torch.arange(run.queries, device=self.device)
            padded = (new.cumsum(0) - new)[:, None] + torch.minimum(each[None], new[:, None] - 1)
            real = (each[None] < new[:, None]).flatten().nonzero()[:, 0]
            column = column[padded]
        hidden = torch.arange(run.columns, device=self.device) > column.view(run.rows, run.queries, 1)
        return Group(tokens, rows, run.queries, 0, run.columns, padded, real, _bias(hidden, sharing))


def _bias(hidden: torch.Tensor, sharing: int) -> torch.Tensor:
    """Return what hides columns, rows x 1 x queries of all sharing heads x columns, from (rows x) queries x columns."""
    bias = torch.zeros(hidden.shape, device=hidden.device).masked_fill_(hidden, -torch.inf)
    return bias.repeat_interleave(sharing, -2).view(-1, 1, hidden.shape[-2] * sharing, hidden.shape[-1])


def _by_prefix(prefixes: Sequence[Prefix]) -> list[tuple[Prefix, slice]]:
    found: list[tuple[Prefix, slice]] = []
    begin = 0
    for _, run in groupby(prefixes, key=id):
        members = list(run)
        found.append((members[0], slice(begin, begin + len(members))))
        begin += len(members)
    return found


def _zeros(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """Return zeros of a kind. On a CPU the system clears their memory when it is first touched, which most of a row
    that ends early never is; PyTorch would write all of it. NumPy would ask for huge pages, whose clearing took 50 ms
    for 16 MB where memory is in pieces."""
    size = math.prod(shape) * like.element_size()
    if like.device.type != "cpu" or not size or not hasattr(mmap, "MAP_PRIVATE"):
        return like.new_zeros(shape)
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # Short of memory: PyTorch has an error of its own for that, which halves the batch.
        return like.new_zeros(shape)
    return torch.frombuffer(memory, dtype=like.dtype).view(shape)
