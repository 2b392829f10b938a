"""A bounded uniform sample of token rows, for the one objective that has no normal equations: cosine distance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from regrow.errors import DataError
from regrow.repair.book import TRAINING, Rows
from regrow.repair.signals import Signal, Source, value_of
from regrow.seeding import stream as random_stream

MOST_ROWS = 16_384
ROWS_PER_STEP = 1_024
LEARNING_RATE = 1e-4


class Reservoir:
    """Collects ``parts`` of at most ``most`` fitting tokens, every token with the same chance to stay (algorithm R), in
    float32 on the CPU. Memory does not depend on the number of calibration tokens."""

    def __init__(self, parts: Sequence[Source], skip_first: int, seed: int, *, most: int = MOST_ROWS) -> None:
        self.parts, self.skip_first, self.most = tuple(parts), skip_first, most
        self.seen = 0
        self._generator: np.random.Generator = random_stream(seed, "reservoir")
        self._held: list[torch.Tensor] = []

    @property
    def wants(self) -> frozenset[Signal]:
        return frozenset(signal for part in self.parts for _, signal in part)

    def add(self, rows: Rows) -> None:
        chosen = rows.chosen(TRAINING, self.skip_first)
        values = [value_of(part, rows.signals)[chosen].float().cpu() for part in self.parts]
        fresh = len(values[0])
        if not fresh:
            return
        if not self._held:
            self._held = [torch.empty(self.most, value.shape[1]) for value in values]
        numbers = np.arange(self.seen, self.seen + fresh)
        places = np.where(numbers < self.most, numbers, self._generator.integers(0, numbers + 1))
        staying = places < self.most
        # A place drawn twice in one batch keeps the later token, as one by one.
        last = {int(place): int(row) for row, place in zip(np.flatnonzero(staying), places[staying])}
        to, source = torch.tensor(list(last)), torch.tensor(list(last.values()))
        if len(to):
            for held, value in zip(self._held, values):
                held[to] = value[source]
        self.seen += fresh

    def rows(self) -> list[torch.Tensor]:
        """Return the sampled rows (n, width) of every part."""
        if not self._held:
            raise DataError("no calibration token is left to sample", hint="raise --calibration-tokens")
        return [held[: min(self.seen, self.most)] for held in self._held]


def nearest_cosine(
    outputs: torch.Tensor, rest: torch.Tensor, leaving: torch.Tensor, *, passes: int, seed: int = 0
) -> torch.Tensor:
    """Return T (d, d), float64, that makes ``outputs`` T + ``rest`` point where ``leaving`` points.

    Mean of 1 - cosine, Adam with learning rate 1e-4 from T = I, 1,024 rows a step, ``passes`` times over the rows.
    """
    width = outputs.shape[1]
    transform = torch.eye(width, requires_grad=True)
    optimiser = torch.optim.Adam([transform], lr=LEARNING_RATE)
    generator = random_stream(seed, "cosine")
    for _ in range(passes):
        order = torch.from_numpy(generator.permutation(len(outputs)))
        for start in range(0, len(order), ROWS_PER_STEP):
            rows = order[start : start + ROWS_PER_STEP]
            reached = outputs[rows] @ transform + rest[rows]
            loss = (1 - torch.nn.functional.cosine_similarity(reached, leaving[rows], dim=-1)).mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    return transform.detach().double()
