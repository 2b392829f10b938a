"""Tensors that a frozen model gives for a sequence, computed once per distinct sequence and kept on disk.

Sequences are computed in micro-batches that depend on the plan alone (all its distinct sequences, cut once), not on
which of them are missing. So a run that was stopped and continued sees the same bits as one that was not, and sequences
of different updates share their prefixes. Another plan cuts otherwise: what it leaves in the cache agrees up to
rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from regrow.data.pools import Example
from regrow.heal.microbatch import MicroBatch
from regrow.heal.tensor_cache import TensorCache
from regrow.records.fingerprint import fingerprint

Tensors = dict[str, torch.Tensor]
Compute = Callable[[MicroBatch], list[Tensors]]
"""Returns the tensors (on the CPU) of each example of a micro-batch, in order."""

STRETCH = 256

Ids = tuple[tuple[int, ...], tuple[int, ...]]


class PerSequence:
    """Lazily computed tensors of the sequences of a plan.

    ``cut`` turns sequences into micro-batches; ``identity`` says in JSON values whatever else the tensors depend on
    (weights, number format). ``bytes_of`` tells how much a sequence takes: those that do not fit into the cache's limit
    are left out from the start, the same ones every time, and :meth:`holds` is False for them.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        cut: Callable[[Sequence[Example]], list[MicroBatch]],
        compute: Compute,
        cache: TensorCache,
        *,
        identity: object,
        bytes_of: Callable[[Example], int],
    ) -> None:
        self._compute, self._cache, self._identity = compute, cache, fingerprint(identity)
        distinct = {_ids(entry): entry for entry in examples}
        self._batches: list[MicroBatch] = []
        self._batch_of: dict[Ids, int] = {}
        self._fresh: dict[Ids, Tensors] = {}
        self.computed_sequences = self.read_sequences = 0
        room = cache.limit_bytes
        for batch in _in_stretches(list(distinct.values()), cut):
            room -= sum(bytes_of(entry) for entry in batch.examples)
            if room < 0:
                break
            self._batch_of.update({_ids(entry): len(self._batches) for entry in batch.examples})
            self._batches.append(batch)
        self.sequences, self.held_sequences = len(distinct), len(self._batch_of)

    def holds(self, example: Example) -> bool:
        """Return whether the sequence is one of those that are kept."""
        return _ids(example) in self._batch_of

    def of(self, example: Example) -> Tensors:
        """Return the tensors of a sequence that is held: from disk, or computed with its whole micro-batch."""
        ids = _ids(example)
        if ids in self._fresh:
            return self._fresh[ids]
        kept = self._cache.get(self._key(ids))
        if kept is not None:
            self.read_sequences += 1
            return kept
        batch = self._batches[self._batch_of[ids]]
        # What cannot be written (a full disk) serves at least this micro-batch.
        self._fresh = {}
        for entry, tensors in zip(batch.examples, self._compute(batch), strict=True):
            self.computed_sequences += 1
            found = _ids(entry)
            if not self._cache.put(self._key(found), tensors) or found == ids:
                self._fresh[found] = tensors
        return self._fresh[ids]

    def _key(self, ids: Ids) -> str:
        return fingerprint([self._identity, [list(part) for part in ids]])[:48]


def _in_stretches(
    examples: list[Example], cut: Callable[[Sequence[Example]], list[MicroBatch]]
) -> Iterator[MicroBatch]:
    """Yield micro-batches of neighbours in the order of their tokens: those that begin alike stay together, and the
    search for shared beginnings, which takes the square of a stretch, stays short."""
    ordered = sorted(examples, key=_ids)
    for start in range(0, len(ordered), STRETCH):
        yield from cut(ordered[start : start + STRETCH])


def _ids(example: Example) -> Ids:
    return (example.prompt_ids, example.response_ids)
