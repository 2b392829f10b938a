"""The calibration pass: the unpruned model once over the tokens, every ordered sum filled, no token kept."""

from __future__ import annotations

from typing import Any

import torch

from regrow.data.calibration import CalibrationSet
from regrow.models.families import backbone_of, text_config_of
from regrow.protocols import Watcher
from regrow.repair.book import Book, Rows, Split, split_of
from regrow.repair.signals import Signal, read_signals, width_of

TOKENS_PER_BATCH = 2048


def new_book(unpruned: Any, *, tuned: bool = False) -> Book:
    """Return an empty book for the signals of ``unpruned``; sums are formed where the model is."""
    width = text_config_of(unpruned).hidden_size
    return Book(
        lambda signal: width_of(signal, unpruned, width), device=next(unpruned.parameters()).device, tuned=tuned
    )


def gather(
    book: Book,
    unpruned: Any,
    calibration: CalibrationSet,
    *,
    pruned: Any = None,
    tokens_per_batch: int = TOKENS_PER_BATCH,
    watch: Watcher | None = None,
    task: str = "reading the unpruned model's streams",
) -> int:
    """Return the number of real tokens read after filling ``book`` from one pass over ``calibration``.

    The pass ends in each batch at the deepest ordered stream: blocks above it and the head never run. ``pruned`` is
    run beside the unpruned model where "corrected" streams were ordered. Padding never counts.
    """
    wanted = book.wants()
    own = [signal for signal in wanted if signal.kind != "corrected"]
    other = [signal for signal in wanted if signal.kind == "corrected"]
    sequences = len(calibration)
    size = max(1, tokens_per_batch // calibration.input_ids.shape[1])
    done = row = 0
    if watch is not None:
        watch.begin(task, calibration.tokens, "tokens")
    with torch.inference_mode():
        for ids, mask in calibration.batches(size):
            splits: list[Split] = [split_of(row + place, sequences, tuned=book.tuned) for place in range(len(ids))]
            row += len(ids)
            rows = rows_of(ids, mask, splits, next(unpruned.parameters()).device)
            batch = model_inputs(ids, mask, next(unpruned.parameters()).device)
            rows.signals |= read_signals(unpruned, backbone_of(unpruned), batch, own, "stream")
            if other:
                batch = model_inputs(ids, mask, next(pruned.parameters()).device)
                found = read_signals(pruned, backbone_of(pruned), batch, other, "corrected")
                rows.signals |= _moved(found, rows.mask.device)
            book.add(rows)
            done += int(mask.sum())
            if watch is not None:
                watch.advance(done)
    if watch is not None:
        watch.end()
    return done


def rows_of(ids: torch.Tensor, mask: torch.Tensor, splits: list[Split], device: torch.device) -> Rows:
    """Return the batch's masks: a token's position counts the real tokens before it, so padding on either side is
    harmless."""
    real = mask.to(device).bool()
    return Rows(real, real.long().cumsum(dim=1) - 1, splits)


def model_inputs(ids: torch.Tensor, mask: torch.Tensor, device: torch.device) -> dict[str, torch.Tensor]:
    """Return the keyword arguments of a backbone call; a mask of ones is left out, which keeps fast attention paths."""
    batch = {"input_ids": ids.to(device)}
    if not bool(mask.all()):
        batch["attention_mask"] = mask.to(device)
    return batch


def _moved(signals: dict[Signal, torch.Tensor], device: torch.device) -> dict[Signal, torch.Tensor]:
    return {signal: value.to(device) for signal, value in signals.items()}
