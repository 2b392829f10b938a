"""What one calibration pass must gather, ordered by the methods beforehand and shared between them.

Every method writes its wants into one book; the pass (gather.py) fills it; then every method reads its sums from it. So
all methods together cost one pass, and sums that two of them need are formed once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

import torch

from regrow.errors import ConfigError
from regrow.repair.signals import Signal, Source, value_of
from regrow.repair.sums import NormalSums, Problem

Split = Literal["fit", "tune", "held"]
SPLITS: tuple[Split, ...] = ("fit", "tune", "held")
TRAINING: tuple[Split, ...] = ("fit", "tune")
"""What every final fit reads, so that a method fits the same tokens whether or not another one beside it tunes."""
HELD_EVERY = 8


@dataclass(frozen=True)
class RowRule:
    """Which tokens count and how much: real tokens from position ``skip_first`` of their sequence on; with
    ``inverse_norm`` each weighs 1 / norm of its input row, which keeps a few huge rows from ruling the fit."""

    skip_first: int = 1
    inverse_norm: bool = False


@dataclass
class Rows:
    """One batch: ``mask`` (B, T) real tokens, ``positions`` (B, T) their places among the real tokens of the row,
    ``split`` (B) the split of each sequence, ``signals`` (B, T, width) each."""

    mask: torch.Tensor
    positions: torch.Tensor
    split: list[Split]
    signals: dict[Signal, torch.Tensor] = field(default_factory=dict)

    def chosen(self, splits: tuple[Split, ...], start: int, stop: int | None = None) -> torch.Tensor:
        """Return the (B, T) mask of real tokens of some splits at positions ``start`` to ``stop`` (excluded)."""
        rows = torch.tensor([name in splits for name in self.split], device=self.mask.device)
        found = self.mask & rows[:, None] & (self.positions >= start)
        return found if stop is None else found & (self.positions < stop)


class Collector(Protocol):
    """Anything that eats batches: ``wants`` names the signals it reads."""

    @property
    def wants(self) -> frozenset[Signal]: ...

    def add(self, rows: Rows) -> None: ...


C = TypeVar("C", bound=Collector)


def split_of(index: int, sequences: int, *, tuned: bool) -> Split:
    """Return the split of a calibration sequence: every eighth is held out to measure errors; with ``tuned`` another
    eighth chooses lambda before it joins the fit. Short sets give their last sequences."""
    if sequences < HELD_EVERY:
        if sequences > 1 and index == sequences - 1:
            return "held"
        return "tune" if tuned and sequences > 2 and index == sequences - 2 else "fit"
    place = index % HELD_EVERY
    if place == HELD_EVERY - 1:
        return "held"
    return "tune" if tuned and place == HELD_EVERY // 2 - 1 else "fit"


class Book:
    """The orders of all methods and, after the pass, what they ordered.

    ``widths`` gives the size of a signal, ``device`` is where the sums are formed. ``tuned`` sets an eighth of the
    sequences aside for choosing lambda. ``tokens`` counts the real tokens read, per split.
    """

    def __init__(
        self, widths: Callable[[Signal], int], *, device: torch.device | str = "cpu", tuned: bool = False
    ) -> None:
        self.tuned = tuned
        self._widths = widths
        self._device = device
        self._pairs: dict[tuple[Source, bool], dict[Source, None]] = {}
        self._skips: dict[tuple[Source, bool], set[int]] = {}
        self._sums: dict[tuple[Source, bool, int, Split], NormalSums] = {}
        self._others: dict[Hashable, Collector] = {}
        self._open = True
        self.tokens: dict[Split, int] = dict.fromkeys(SPLITS, 0)

    def want(self, x: Source, y: Source, rule: RowRule) -> None:
        """Order the normal equations of ``y`` on ``x``."""
        self._refuse_late()
        self._pairs.setdefault((x, rule.inverse_norm), {})[y] = None
        self._skips.setdefault((x, rule.inverse_norm), set()).add(rule.skip_first)

    def want_other(self, key: Hashable, make: Callable[[], Collector]) -> None:
        """Order another collector, made unless one of the same ``key`` is there."""
        self._refuse_late()
        if key not in self._others:
            self._others[key] = make()

    def wants(self) -> frozenset[Signal]:
        """Return every signal that was ordered."""
        found: set[Signal] = set()
        for (x, _), ys in self._pairs.items():
            for source in (x, *ys):
                found |= {signal for _, signal in source}
        for other in self._others.values():
            found |= other.wants
        return frozenset(found)

    def add(self, rows: Rows) -> None:
        """Add one batch to everything that was ordered. The first call closes the orders."""
        self._open = False
        for split in SPLITS:
            self.tokens[split] += int(rows.chosen((split,), 0).sum())
        values: dict[Source, torch.Tensor] = {}

        def value(source: Source) -> torch.Tensor:
            if source not in values:
                values[source] = value_of(source, rows.signals)
            return values[source]

        present = [split for split in SPLITS if split in rows.split]
        for (x, inverse), ys in self._pairs.items():
            for split in present:
                for start, stop in self._segments(x, inverse):
                    chosen = rows.chosen((split,), start, stop)
                    inputs = value(x)[chosen]
                    if not len(inputs):
                        continue
                    weights = inputs.float().norm(dim=1).clamp_min(1e-12).reciprocal() if inverse else None
                    sums = self._place(x, inverse, start, split, ys)
                    sums.add(inputs, {_name(y): value(y)[chosen] for y in ys}, weights)
        for other in self._others.values():
            other.add(rows)

    def problem(self, x: Source, y: Source, rule: RowRule, *splits: Split) -> Problem:
        """Return the least-squares problem of ``y`` on ``x`` over the tokens of the splits (default: all but those held
        out); without any token its sums are zero and ``rows`` is 0."""
        total: NormalSums | None = None
        for split in splits or TRAINING:
            for start, _ in self._segments(x, rule.inverse_norm):
                held = self._sums.get((x, rule.inverse_norm, start, split))
                if start >= rule.skip_first and held is not None:
                    total = held if total is None else total + held
        if total is None:
            total = self._empty(x, self._pairs[x, rule.inverse_norm])
        return total.problem(_name(y))

    def other(self, key: Hashable, kind: type[C]) -> C:
        """Return the collector of ``key``."""
        found = self._others[key]
        assert isinstance(found, kind)
        return found

    def empty_copy(self) -> Book:
        """Return a book with the same settings and no orders."""
        return Book(self._widths, device=self._device, tuned=self.tuned)

    @property
    def nbytes(self) -> int:
        """Bytes held by all sums."""
        return sum(sums.nbytes for sums in self._sums.values())

    def _segments(self, x: Source, inverse: bool) -> list[tuple[int, int | None]]:
        """Return runs of positions that all rules treat alike, so that methods with different ``skip_first`` share."""
        starts = sorted(self._skips[x, inverse])
        return list(zip(starts, [*starts[1:], None]))

    def _place(self, x: Source, inverse: bool, start: int, split: Split, ys: Iterable[Source]) -> NormalSums:
        key = (x, inverse, start, split)
        if key not in self._sums:
            self._sums[key] = self._empty(x, ys)
        return self._sums[key]

    def _empty(self, x: Source, ys: Iterable[Source]) -> NormalSums:
        outputs = {_name(y): self._widths(y[0][1]) for y in ys}
        return NormalSums(self._widths(x[0][1]), outputs, device=self._device)

    def _refuse_late(self) -> None:
        if not self._open:
            raise ConfigError("the calibration pass has begun; order everything before it")


def _name(source: Source) -> str:
    return " ".join(f"{factor:+g}*{signal.kind}[{signal.at}]" for factor, signal in source)
