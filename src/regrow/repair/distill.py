"""Training the bridges alone to give the unpruned model's next-token probabilities."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regrow.repair.book import TRAINING, split_of
from regrow.repair.edits import AttachBridge
from regrow.repair.gather import model_inputs
from regrow.repair.method import Cut
from regrow.seeding import stream as random_stream

TOP = 50
LEARNING_RATE = 1e-4
SEQUENCES_PER_STEP = 4


def distil(cut: Cut, edits: Sequence[AttachBridge], *, passes: int, seed: int = 0) -> None:
    """Train the bridges of ``edits`` in place.

    Loss: KL of the pruned model's probabilities from the unpruned model's, over the unpruned model's ``TOP`` most
    likely tokens at each position (both renormalised over those). Adam, learning rate 1e-4, four sequences a step,
    ``passes`` times over the fitting sequences. Only the bridges change; they are float32 while they train. The steps
    of the paper are not in its text: derived.
    """
    model = cut.pruned
    count = len(cut.calibration)
    fitting = [index for index in range(count) if split_of(index, count, tuned=cut.tuned) in TRAINING]
    generator = random_stream(seed, "distil")
    frozen = [(weight, weight.requires_grad) for weight in model.parameters()]
    steps = passes * -(-len(fitting) // SEQUENCES_PER_STEP)
    if cut.watch is not None:
        cut.watch.begin("distilling the bridges", steps, "steps")
    try:
        for weight, _ in frozen:
            weight.requires_grad_(False)
        for edit in edits:
            edit.apply(model)
            edit.bridge.float()
        weights = [weight for edit in edits for weight in edit.bridge.parameters()]
        optimiser = torch.optim.Adam(weights, lr=LEARNING_RATE)
        done = 0
        for _ in range(passes):
            order = [fitting[place] for place in generator.permutation(len(fitting))]
            for start in range(0, len(order), SEQUENCES_PER_STEP):
                loss = _loss(cut, order[start : start + SEQUENCES_PER_STEP])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                done += 1
                if cut.watch is not None:
                    cut.watch.advance(done, loss=f"{loss.item():.3f}")
    finally:
        for edit in edits:
            edit.undo(model)
        for weight, trained in frozen:
            weight.requires_grad_(trained)
    if cut.watch is not None:
        cut.watch.end()


def _loss(cut: Cut, chosen: Sequence[int]) -> torch.Tensor:
    ids, mask = cut.calibration.input_ids[list(chosen)], cut.calibration.attention_mask[list(chosen)]
    teacher_place = next(cut.unpruned.parameters()).device
    with torch.no_grad():
        told = cut.unpruned(**model_inputs(ids, mask, teacher_place), use_cache=False).logits.float()
        likely = told.topk(min(TOP, told.shape[-1]), dim=-1)
    place = next(cut.pruned.parameters()).device
    given = cut.pruned(**model_inputs(ids, mask, place), use_cache=False).logits.float()
    wanted = likely.values.to(place).log_softmax(-1)
    ours = given.gather(-1, likely.indices.to(place)).log_softmax(-1)
    real = mask.to(place).bool()
    return (wanted.exp() * (wanted - ours)).sum(-1)[real].mean()
