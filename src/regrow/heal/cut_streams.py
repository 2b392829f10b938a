"""The residual streams at the cuts, in the unpruned model and in the one that is healed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from regrow.errors import ConfigError
from regrow.models.capture import stream_of_input, stream_of_output
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel


class Cut(NamedTuple):
    """One removed span: the stream that enters block ``unpruned`` of the unpruned model belongs to the stream that
    enters block ``pruned`` of the pruned one (the number of blocks: what leaves the last)."""

    unpruned: int
    pruned: int


def cuts_of(loaded: LoadedModel) -> tuple[Cut, ...]:
    """Return the cuts of a pruned model in depth order. Raises ConfigError when nothing was removed from it."""
    facts = loaded.facts
    if facts is None or not facts.removed_blocks:
        raise ConfigError(
            f"the loss 'hidden-states' has no cut to look at: no block was removed from '{loaded.source}'",
            hint="prune the model first, or use another --loss",
        )
    gone = set(facts.removed_blocks)
    ends = [block + 1 for block in sorted(gone) if block + 1 not in gone]
    return tuple(Cut(end, end - sum(block < end for block in gone)) for end in ends)


@contextmanager
def streams_at(model: nn.Module, places: Sequence[int], positions: torch.Tensor) -> Iterator[list[torch.Tensor]]:
    """Yield a list that one call of ``model`` fills with the streams (n, width) entering the blocks ``places``, read at
    the ``positions`` (n,) of the flattened batch; the number of blocks means what leaves the last one."""
    ordered: list[torch.Tensor] = []
    if not places:
        yield ordered
        return
    blocks = list(blocks_of(model))
    found: dict[int, torch.Tensor] = {}

    def keep(place: int, state: torch.Tensor) -> None:
        # A recomputed forward (gradient checkpointing) comes here a second time and must not be heard.
        if place not in found:
            found[place] = state.reshape(-1, state.shape[-1])[positions]
            if len(found) == len(set(places)):
                ordered[:] = [found[wanted] for wanted in places]

    def entering(place: int) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        return lambda _, args, kwargs: keep(place, stream_of_input(args, kwargs))

    with ExitStack() as hooks:
        for place in set(places):
            if place < len(blocks):
                hooks.callback(blocks[place].register_forward_pre_hook(entering(place), with_kwargs=True).remove)
            else:
                last = blocks[-1].register_forward_hook(lambda _, args, out: keep(len(blocks), stream_of_output(out)))
                hooks.callback(last.remove)
        yield ordered
