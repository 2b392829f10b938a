"""One update's sequences cut into micro-batches: packed into one row without padding, or padded to equal length.

The cut changes neither which sequences make up an update nor its loss: sums over micro-batches are divided by the
update's number of response tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from regrow.data.pools import Example
from regrow.heal.packed_layout import PackedLayout, layout_of
from regrow.heal.prefixes import PrefixGroup, group_by_prefix, split_group


@dataclass(frozen=True)
class MicroBatch:
    """Model inputs and where the loss is. ``positions`` (n,) are the positions, in the flattened batch, whose next
    token is a response token; ``labels`` (n,) those tokens. ``layout`` is None for a padded batch."""

    examples: tuple[Example, ...]
    input_ids: torch.Tensor
    position_ids: torch.Tensor | None
    attention_mask: torch.Tensor | None
    layout: PackedLayout | None
    positions: torch.Tensor
    labels: torch.Tensor

    @property
    def computed_tokens(self) -> int:
        """Number of positions that the model computes, padding included."""
        return self.input_ids.numel()

    def to(self, device: torch.device) -> MicroBatch:
        """Return the batch with its tensors on ``device``."""

        def move(tensor: torch.Tensor | None) -> torch.Tensor | None:
            return None if tensor is None else tensor.to(device)

        return MicroBatch(
            self.examples,
            self.input_ids.to(device),
            move(self.position_ids),
            move(self.attention_mask),
            None if self.layout is None else self.layout.to(device),
            self.positions.to(device),
            self.labels.to(device),
        )


def packed_microbatches(examples: Sequence[Example], limit: int, *, share_prefix: bool) -> list[MicroBatch]:
    """Return micro-batches of one row each, of at most ``limit`` positions where a single sequence fits in that.

    With ``share_prefix`` the common beginning of sequences is in the row once.
    """
    groups = group_by_prefix(examples) if share_prefix else [PrefixGroup((entry,), 0) for entry in examples]
    parts = [part for group in groups for part in split_group(group, limit)]
    parts.sort(key=lambda part: -part.computed_tokens)
    bins: list[list[PrefixGroup]] = []
    sizes: list[int] = []
    for part in parts:
        place = next((at for at, size in enumerate(sizes) if size + part.computed_tokens <= limit), None)
        if place is None:
            bins.append([part])
            sizes.append(part.computed_tokens)
        else:
            bins[place].append(part)
            sizes[place] += part.computed_tokens
    return [_pack(groups) for groups in bins]


def padded_microbatches(examples: Sequence[Example], limit: int, *, pad_id: int = 0) -> list[MicroBatch]:
    """Return micro-batches of sequences of similar length, padded on the right to at most ``limit`` positions."""
    batches: list[list[Example]] = []
    for entry in sorted(examples, key=lambda entry: -entry.tokens):
        if batches and (len(batches[-1]) + 1) * batches[-1][0].tokens <= limit:
            batches[-1].append(entry)
        else:
            batches.append([entry])
    return [_pad(batch, pad_id) for batch in batches]


def _pack(groups: Sequence[PrefixGroup]) -> MicroBatch:
    ids: list[int] = []
    where: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    lengths: list[tuple[int, tuple[int, ...]]] = []
    for group in groups:
        shared = group.prefix_tokens
        ids += group.examples[0].prompt_ids[:shared]
        where += range(shared)
        for entry in group.examples:
            first_label = len(ids) + len(entry.prompt_ids) - shared
            positions += range(first_label - 1, first_label - 1 + len(entry.response_ids))
            labels += entry.response_ids
            ids += entry.prompt_ids[shared:] + entry.response_ids
            where += range(shared, entry.tokens)
        lengths.append((shared, tuple(entry.tokens - shared for entry in group.examples)))
    return MicroBatch(
        examples=tuple(entry for group in groups for entry in group.examples),
        input_ids=torch.tensor([ids]),
        position_ids=torch.tensor([where]),
        attention_mask=None,
        layout=layout_of(lengths),
        positions=torch.tensor(positions),
        labels=torch.tensor(labels),
    )


def _pad(examples: Sequence[Example], pad_id: int) -> MicroBatch:
    length = max(entry.tokens for entry in examples)
    ids = torch.full((len(examples), length), pad_id, dtype=torch.long)
    mask = torch.zeros_like(ids)
    positions: list[int] = []
    labels: list[int] = []
    for row, entry in enumerate(examples):
        ids[row, : entry.tokens] = torch.tensor(entry.prompt_ids + entry.response_ids)
        mask[row, : entry.tokens] = 1
        first = row * length + len(entry.prompt_ids) - 1
        positions += range(first, first + len(entry.response_ids))
        labels += entry.response_ids
    return MicroBatch(tuple(examples), ids, None, mask, None, torch.tensor(positions), torch.tensor(labels))
