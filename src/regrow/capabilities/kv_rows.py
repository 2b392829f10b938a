"""Keys and values of the rows of a batch, in storage allocated once, where rows come and go.

Every row ends at the same column, ``column``, and reaches back to its own start: what lies left of the start is masked
(left padding). A step writes one column for all rows; a row that leaves is overwritten by another one, so removing it
copies single rows and not the batch. Storage is never grown by concatenation, which on a CPU costs as much as the
attention itself.

A prefix that rows begin with is copied into each of them, in front of the row's own tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers.cache_utils import Cache, CacheLayerMixin


@dataclass(frozen=True, eq=False)
class Prefix:
    """Keys and values of the first tokens of rows: per layer, heads x tokens x head width."""

    tokens: int = 0
    keys: tuple[torch.Tensor, ...] = ()
    values: tuple[torch.Tensor, ...] = ()

    @classmethod
    def of_cache(cls, cache: Cache, tokens: int) -> Prefix:
        """Return the first ``tokens`` positions of a cache that holds one row."""
        keys = tuple(layer.keys[0, :, :tokens] for layer in cache.layers)
        values = tuple(layer.values[0, :, :tokens] for layer in cache.layers)
        return cls(tokens, keys, values)


NO_PREFIX = Prefix()


class KeyValueLayer(CacheLayerMixin):
    """One layer of a :class:`KeyValueRows`, as transformers sees it."""

    is_sliding = False
    """False for sliding layers too: all columns are kept, and the mask that the model builds hides the old ones."""

    def __init__(self, rows: KeyValueRows, index: int) -> None:
        super().__init__()
        self.rows = rows
        self.index = index

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.keys = self._storage(key_states)
        self.values = self._storage(value_states)
        self.is_initialized = True

    def _storage(self, like: torch.Tensor) -> torch.Tensor:
        # Zeros, not empty: a masked column weighs 0, and 0 times a stray NaN would be NaN.
        shape = (self.rows.most, like.shape[-3], self.rows.capacity, like.shape[-1])
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        rows = self.rows
        end = rows.column + key_states.shape[-2]
        self.keys[rows.window, :, rows.column : end] = key_states
        self.values[rows.window, :, rows.column : end] = value_states
        seen = slice(rows.first, end)
        return self.keys[rows.window, :, seen], self.values[rows.window, :, seen]

    def get_seq_length(self, *args: object) -> int:
        return self.rows.column - self.rows.first

    def get_mask_sizes(self, query: int | torch.Tensor) -> tuple[int, int]:
        # Older releases pass the positions of the new tokens instead of their number.
        new = query if isinstance(query, int) else query.shape[0]
        return self.get_seq_length() + new, 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length


class KeyValueRows:
    """Storage for up to ``most`` rows of up to ``capacity`` columns.

    ``starts[r]`` is the first column of live row r. ``window`` and ``first`` say which rows and columns the model sees
    in the current call: all live rows while decoding, only the new ones while their prompts are run.
    """

    def __init__(self, layers: int, most: int, capacity: int, *, device: torch.device) -> None:
        self.most, self.capacity = most, capacity
        self.starts: list[int] = []
        self.column = 0
        self.first = 0
        self.window = slice(0, 0)
        self.layers = [KeyValueLayer(self, index) for index in range(layers)]
        self.cache = Cache(layers=list(self.layers))
        self._visible_RC = torch.zeros(most, capacity, dtype=torch.bool, device=device)

    def open(self, prefix: Prefix, lengths: Sequence[int], width: int) -> None:
        """Add rows of ``lengths`` tokens that begin with ``prefix`` and show only them, ready to take their last
        ``width`` tokens. Earlier tokens than those must belong to the prefix."""
        live = len(self.starts)
        if self.column < max(lengths):
            self._move_to(max(lengths))
        end = self.column
        self.column -= width
        for row, length in enumerate(lengths, start=live):
            self._visible_RC[row] = False
            self._visible_RC[row, end - length : end] = True
            if length > width:
                self._copy(prefix, row, end - length)
        self.starts += [end - length for length in lengths]
        self.first = end - max(lengths)
        self.window = slice(live, len(self.starts))

    def next_column(self) -> None:
        """Show all live rows, ready to take one token each."""
        if self.column == self.capacity:
            self._move_to(self.column - min(self.starts))
        self.first = min(self.starts)
        self._visible_RC[: len(self.starts), self.column] = True
        self.window = slice(0, len(self.starts))

    def mask(self, new: int) -> torch.Tensor:
        """Return which of the shown columns and the ``new`` ones after them are real tokens, rows x columns."""
        return self._visible_RC[self.window, self.first : self.column + new]

    def positions(self, new: int) -> torch.Tensor:
        """Return the position in its row's text of each of the ``new`` next tokens, rows x new; padding counts as 0."""
        zero = torch.tensor(self.starts[self.window])
        at = torch.arange(self.column, self.column + new)[None, :] - zero[:, None]
        return at.clamp_(min=0).to(self._visible_RC.device)

    def advance(self, new: int) -> None:
        """Note that the model has written ``new`` columns."""
        self.column += new

    def drop(self, row: int) -> list[tuple[int, int]]:
        """Remove live row ``row`` and return the moves that close the gap, in order: (to, from): the last row takes its
        place."""
        last = len(self.starts) - 1
        if row < last:
            used = slice(self.starts[last], self.column)
            for layer in self.layers:
                layer.keys[row, :, used] = layer.keys[last, :, used]
                layer.values[row, :, used] = layer.values[last, :, used]
            self._visible_RC[row] = self._visible_RC[last]
            self.starts[row] = self.starts[last]
        self.starts.pop()
        return [(row, last)] if row < last else []

    def clear(self) -> None:
        """Remove all rows."""
        self.starts = []

    def branch(self, sources: Sequence[int], new: int) -> KeyValueRows:
        """Return new storage whose row i continues live row ``sources[i]`` (ascending), opened for ``new`` columns."""
        other = KeyValueRows(len(self.layers), len(sources), self.column + new, device=self._visible_RC.device)
        at = torch.tensor(list(sources), device=self._visible_RC.device)
        for mine, theirs in zip(self.layers, other.layers, strict=True):
            theirs.lazy_initialization(mine.keys, mine.values)
            theirs.keys[:, :, : self.column] = mine.keys[at, :, : self.column]
            theirs.values[:, :, : self.column] = mine.values[at, :, : self.column]
        other._visible_RC[:, : self.column] = self._visible_RC[at, : self.column]
        other._visible_RC[:, self.column :] = True
        other.starts = [self.starts[row] for row in sources]
        other.column = self.column
        other.first = min(other.starts)
        other.window = slice(0, len(other.starts))
        return other

    def release(self) -> None:
        """Let go of the storage at once: rows and layers refer to each other, so it would wait for a collection."""
        for layer in self.layers:
            layer.keys = layer.values = None  # type: ignore[assignment]

    def _copy(self, prefix: Prefix, row: int, start: int) -> None:
        count = self.column - start
        for layer, keys, values in zip(self.layers, prefix.keys, prefix.values, strict=True):
            if not layer.is_initialized:
                layer.lazy_initialization(keys[None], values[None])
            layer.keys[row, :, start : self.column] = keys[:, :count]
            layer.values[row, :, start : self.column] = values[:, :count]

    def _move_to(self, column: int) -> None:
        """Move the live rows so that they end at ``column``."""
        by = column - self.column
        first = min(self.starts, default=self.column)
        if column > self.capacity or first + by < 0:
            raise ValueError(f"rows of {self.column - first} columns cannot end at {column} of {self.capacity}")
        rows, old, new = slice(0, len(self.starts)), slice(first, self.column), slice(first + by, column)
        if self.starts:
            for layer in self.layers:
                layer.keys[rows, :, new] = layer.keys[rows, :, old].clone()
                layer.values[rows, :, new] = layer.values[rows, :, old].clone()
            moved = self._visible_RC[rows, old].clone()
            self._visible_RC[rows] = False
            self._visible_RC[rows, new] = moved
        self.starts = [start + by for start in self.starts]
        self.column = column
