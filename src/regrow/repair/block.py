"""LLM-Streamline: one block in place of a removed run, trained to give the stream that left the run."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from regrow.errors import ConfigError
from regrow.models.capture import stream_of_output
from regrow.models.families import backbone_of, blocks_of, text_config_of
from regrow.records.specs import RepairSpec
from regrow.repair.book import TRAINING, Book, Split, split_of
from regrow.repair.cuts import Span
from regrow.repair.edits import InsertBlocks
from regrow.repair.gather import model_inputs, rows_of
from regrow.repair.method import Cut, Fitted, SpanFit, refuse_options
from regrow.repair.signals import Signal, read_signals
from regrow.seeding import stream as random_stream

LEARNING_RATE = 2e-4
SEQUENCES_PER_STEP = 4


@dataclass(frozen=True)
class StreamlineBlock:
    """A copy of the first removed block per run, trained by mean squared error to Y with the rest of the model frozen.

    AdamW without decay, learning rate 2e-4, four sequences a step, ``passes`` over the fitting sequences; the numbers
    are regrow's (the paper trains far longer). The result is a plain checkpoint with one block more per run. Runs of
    one block stay bare, since their block would simply come back; a cut of such runs only is refused.
    """

    name: str = "streamline-block"
    passes: int = 2
    portable: bool = True
    tunes: bool = False

    @property
    def heeds(self) -> tuple[str, ...]:
        return ("passes", "skip_first")

    def plan(self, book: Book, cut: Cut, spec: RepairSpec) -> None:
        """Order nothing: the block trains on its own passes."""
        refuse_options(self.name, spec, self.heeds)
        if not _longer(cut.spans):
            raise ConfigError(
                f"{self.name} puts one block in the place of each removed run, and here every run is a single block",
                hint="use a repair that adds a bridge or folds: --method lra, --method fold",
            )

    def fit(self, book: Book, cut: Cut, spec: RepairSpec) -> Fitted:
        """Return the trained blocks."""
        trained = train_blocks(cut, passes=spec.passes or self.passes, skip_first=spec.skip_first or 0, seed=spec.seed)
        removed = tuple(block for span in cut.spans for block in span.blocks)
        edit = InsertBlocks(trained, removed, text_config_of(cut.unpruned))
        bare = [str(span) for span in cut.spans if span.first == span.last]
        return Fitted(
            (edit,),
            tuple(SpanFit(span) for span in cut.spans),
            warnings=(f"left bare: {', '.join(bare)}",) if bare else (),
            inserted=tuple(int(span.first in trained) for span in cut.spans),
        )


def _longer(spans: Sequence[Span]) -> list[Span]:
    return [span for span in spans if span.last > span.first]


def train_blocks(cut: Cut, *, passes: int, skip_first: int, seed: int) -> dict[int, nn.Module]:
    """Return, per run of two and more, the block that stands in for it, under the place of the run's first block."""
    dtype = next(cut.pruned.parameters()).dtype
    spans = _longer(cut.spans)
    standing = {span.first: copy.deepcopy(blocks_of(cut.unpruned)[span.first]).float() for span in spans}
    optimisers = {
        first: torch.optim.AdamW(block.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        for first, block in standing.items()
    }
    count = len(cut.calibration)
    fitting = [index for index in range(count) if split_of(index, count, tuned=cut.tuned) in TRAINING]
    generator = random_stream(seed, "streamline")
    steps = passes * -(-len(fitting) // SEQUENCES_PER_STEP)
    if cut.watch is not None:
        cut.watch.begin("training the blocks that stand in for the removed ones", steps, "steps")
    done = 0
    for _ in range(passes):
        order = [fitting[place] for place in generator.permutation(len(fitting))]
        for start in range(0, len(order), SEQUENCES_PER_STEP):
            losses = _step(cut, spans, standing, optimisers, order[start : start + SEQUENCES_PER_STEP], skip_first)
            done += 1
            if cut.watch is not None:
                cut.watch.advance(done, error=f"{max(losses):.4f}")
    if cut.watch is not None:
        cut.watch.end()
    place = next(cut.pruned.parameters()).device
    return {first: block.to(place, dtype).eval() for first, block in standing.items()}


def _step(
    cut: Cut,
    spans: Sequence[Span],
    standing: dict[int, nn.Module],
    optimisers: Mapping[int, torch.optim.Optimizer],
    chosen: list[int],
    skip_first: int,
) -> list[float]:
    """Return the relative squared error of every run before the step."""
    ids, mask = cut.calibration.input_ids[chosen], cut.calibration.attention_mask[chosen]
    splits: list[Split] = ["fit"] * len(chosen)
    place = next(cut.unpruned.parameters()).device
    counted = rows_of(ids, mask, splits, place).chosen(TRAINING, skip_first)
    wanted = [Signal("stream", at) for span in spans for at in (span.entering, span.leaving)]
    calls: dict[int, dict[str, Any]] = {}
    hooks = [
        blocks_of(cut.unpruned)[span.first].register_forward_pre_hook(_note_call(calls, span.first), with_kwargs=True)
        for span in spans
    ]
    try:
        with torch.no_grad():
            batch = model_inputs(ids, mask, place)
            found = read_signals(cut.unpruned, backbone_of(cut.unpruned), batch, wanted, "stream")
    finally:
        for hook in hooks:
            hook.remove()
    losses: list[float] = []
    for span in spans:
        entering, leaving = (found[Signal("stream", at)].float() for at in (span.entering, span.leaving))
        reached = stream_of_output(standing[span.first](entering, **calls[span.first]))
        # Relative, so that the printed number means something; Adam does not see the factor.
        loss = (reached - leaving)[counted].square().sum() / leaving[counted].square().sum()
        optimisers[span.first].zero_grad()
        loss.backward()
        optimisers[span.first].step()
        losses.append(loss.item())
    return losses


def _note_call(calls: dict[int, dict[str, Any]], first: int) -> Any:
    """Return a hook that keeps what a block is called with besides the stream: masks, positions, rotations."""

    def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls[first] = {name: _float32(value) for name, value in kwargs.items() if name != "hidden_states"}

    return hook


def _float32(value: Any) -> Any:
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.float()
    return tuple(_float32(part) for part in value) if isinstance(value, tuple) else value


STREAMLINE_BLOCK = StreamlineBlock()
