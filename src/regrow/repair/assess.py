"""How far a repaired model is from the unpruned one, measured by running both on held-out tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from regrow.data.calibration import CalibrationSet
from regrow.models.capture import observe_streams
from regrow.models.families import blocks_of
from regrow.repair.book import split_of
from regrow.repair.cuts import Span
from regrow.repair.gather import model_inputs

MOST_TOKENS = 2048


@dataclass(frozen=True)
class Reference:
    """The unpruned model on the held-out tokens: batches, their streams behind each run and behind the last block
    (kept on the CPU in float32), its perplexity. At most ``MOST_TOKENS`` tokens, so memory is bounded."""

    batches: tuple[tuple[torch.Tensor, torch.Tensor], ...]
    cuts: tuple[tuple[torch.Tensor, ...], ...]
    final: tuple[torch.Tensor, ...]
    perplexity: float
    tokens: int


@dataclass(frozen=True)
class Distance:
    """Relative errors (norm of the difference over norm of the original) behind each run and behind the last block,
    first tokens left out, and the perplexity; NaN without held-out tokens."""

    cuts: tuple[float, ...]
    final: float
    perplexity: float


def reference_of(
    unpruned: Any, calibration: CalibrationSet, spans: Sequence[Span], *, tuned: bool, most_tokens: int = MOST_TOKENS
) -> Reference:
    """Return what the held-out sequences of ``calibration`` look like in the unpruned model."""
    batches = held_out(calibration, tuned=tuned, most_tokens=most_tokens)
    cuts: list[tuple[torch.Tensor, ...]] = []
    final: list[torch.Tensor] = []
    nats = tokens = 0.0
    for ids, mask in batches:
        wanted = {span.leaving for span in spans} | {len(blocks_of(unpruned))}
        states, lost, count = _run(unpruned, ids, mask, wanted)
        cuts.append(tuple(states[span.leaving] for span in spans))
        final.append(states[len(blocks_of(unpruned))])
        nats, tokens = nats + lost, tokens + count
    return Reference(tuple(batches), tuple(cuts), tuple(final), _perplexity(nats, tokens), int(tokens))


def distance_to(reference: Reference, model: Any, places: Sequence[int]) -> Distance:
    """Return how far ``model``, pruned or repaired, is from the reference.

    ``places`` names, per run, the block of ``model`` that the stream behind the run enters (the number of blocks where
    the run was the last); bridges are included in it.
    """
    if not reference.batches:
        return Distance(tuple(math.nan for _ in places), math.nan, math.nan)
    last = len(blocks_of(model))
    missed = [0.0] * (len(places) + 1)
    whole = [0.0] * (len(places) + 1)
    nats = tokens = 0.0
    for (ids, mask), cuts, final in zip(reference.batches, reference.cuts, reference.final):
        states, lost, count = _run(model, ids, mask, {*places, last})
        rows = _counted(mask)
        for index, (here, there) in enumerate(zip([*(states[at] for at in places), states[last]], [*cuts, final])):
            missed[index] += (here - there)[rows].double().square().sum().item()
            whole[index] += there[rows].double().square().sum().item()
        nats, tokens = nats + lost, tokens + count
    errors = [math.sqrt(lost / total) if total > 0 else math.nan for lost, total in zip(missed, whole)]
    return Distance(tuple(errors[:-1]), errors[-1], _perplexity(nats, tokens))


def held_out(
    calibration: CalibrationSet, *, tuned: bool, most_tokens: int = MOST_TOKENS
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the held-out sequences in small batches (ids, mask), at most ``most_tokens`` real tokens of them."""
    count = len(calibration)
    found: list[tuple[torch.Tensor, torch.Tensor]] = []
    tokens = 0
    for index in range(count):
        if split_of(index, count, tuned=tuned) != "held":
            continue
        length = int(calibration.attention_mask[index].sum())
        if tokens and tokens + length > most_tokens:
            break
        tokens += length
        found.append((calibration.input_ids[index : index + 1], calibration.attention_mask[index : index + 1]))
    return found


def _run(
    model: Any, ids: torch.Tensor, mask: torch.Tensor, wanted: Iterable[int]
) -> tuple[dict[int, torch.Tensor], float, float]:
    """Return the wanted streams (CPU, float32), the sum of the tokens' negative log likelihoods in nats and their
    number."""
    states: dict[int, torch.Tensor] = {}
    wanted = set(wanted)

    def on_state(index: int, state: torch.Tensor) -> None:
        if index in wanted:
            states[index] = state.float().cpu()

    device = next(model.parameters()).device
    with torch.inference_mode(), observe_streams(model, on_state):
        logits = model(**model_inputs(ids, mask, device), use_cache=False).logits
    real = mask.to(device).bool()
    predicted = real[:, 1:] & real[:, :-1]
    scores = logits[:, :-1][predicted].float().log_softmax(-1)
    told = ids.to(device)[:, 1:][predicted]
    return states, -scores.gather(-1, told[:, None]).double().sum().item(), float(predicted.sum())


def _counted(mask: torch.Tensor) -> torch.Tensor:
    real = mask.bool()
    return real & (real.long().cumsum(dim=1) > 1)


def _perplexity(nats: float, tokens: float) -> float:
    return math.exp(min(nats / tokens, 700.0)) if tokens else math.nan
