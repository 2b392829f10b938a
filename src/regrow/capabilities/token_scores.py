"""Log-probabilities of given tokens, with logits made only where they are asked for and a slice at a time.

A vocabulary is a hundred times wider than the residual stream, so logits of all positions are what fills the memory.
The hidden state after the final norm is taken while the model runs; the model's own forward then turns chosen rows of
it into logits, with whatever scaling or capping the architecture applies: those rows stand in for its backbone.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from regrow.models.families import backbone_of, text_config_of

LOGIT_BYTES = 64 << 20
"""Bytes of float32 logits held at a time."""

CACHED_BYTES = 2 << 20
"""Bytes of float32 logits that are reduced at a time on a CPU."""


class HiddenStates:
    """The outputs of a model's backbone: ``last`` is that of the newest call, batch x tokens x width."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.backbone = backbone_of(model)
        self._output: Any = None
        self._standing_in = False

    @contextmanager
    def watched(self) -> Iterator[HiddenStates]:
        """Note the backbone's output of every call made while the block runs."""

        def note(_: torch.nn.Module, __: Any, output: Any) -> None:
            if not self._standing_in:
                self._output = output

        handle = self.backbone.register_forward_hook(note)
        try:
            yield self
        finally:
            handle.remove()

    @property
    def last(self) -> torch.Tensor:
        return self._output[0]

    def logprobs(self, hidden_ND: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
        """Return the log-probability (nats, float32) of each target after its hidden state, N."""
        return self.logprobs_and_best(hidden_ND, targets_N)[0]

    def logprobs_and_best(self, hidden_ND: torch.Tensor, targets_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the log-probability (nats, float32) of each target after its hidden state, and whether it is the
        likeliest token there, both N."""
        found: list[torch.Tensor] = []
        best: list[torch.Tensor] = []
        rows = max(1, LOGIT_BYTES // (4 * text_config_of(self.model).vocab_size))
        for begin in range(0, len(hidden_ND), rows):
            part = slice(begin, begin + rows)
            logits_NV = self._logits(hidden_ND[part])
            sums_N, best_N = sums_and_best(logits_NV)
            found.append(logits_NV.gather(-1, targets_N[part, None])[:, 0].float() - sums_N)
            best.append(best_N == targets_N[part])
        if not found:
            return hidden_ND.new_zeros(0, dtype=torch.float32), hidden_ND.new_zeros(0, dtype=torch.bool)
        return torch.cat(found), torch.cat(best)

    def at_places(self, places_N: torch.Tensor, targets_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the same after places of the newest call's first row, each of which is made into logits once however
        many targets are asked of it."""
        unique, owner = places_N.unique(return_inverse=True)
        found = torch.empty(len(places_N), dtype=torch.float32, device=places_N.device)
        best = torch.empty(len(places_N), dtype=torch.bool, device=places_N.device)
        rows = max(1, LOGIT_BYTES // (4 * text_config_of(self.model).vocab_size))
        hidden_TD = self.last[0]
        for begin in range(0, len(unique), rows):
            logits_UV = self._logits(hidden_TD[unique[begin : begin + rows]])
            asked = ((owner >= begin) & (owner < begin + rows)).nonzero()[:, 0]
            row, targets = owner[asked] - begin, targets_N[asked]
            sums_U, best_U = sums_and_best(logits_UV)
            found[asked] = logits_UV[row, targets].float() - sums_U[row]
            best[asked] = best_U[row] == targets
        return found, best

    def _logits(self, hidden_ND: torch.Tensor) -> torch.Tensor:
        output = type(self._output)(last_hidden_state=hidden_ND[None])
        ids = torch.zeros(1, len(hidden_ND), dtype=torch.long, device=hidden_ND.device)
        own = self.backbone.__dict__.get("forward")
        self.backbone.forward = lambda *args, **kwargs: output
        self._standing_in = True
        try:
            return self.model(input_ids=ids, use_cache=False).logits[0]
        finally:
            self._standing_in = False
            if own is None:
                del self.backbone.forward
            else:
                self.backbone.forward = own


def sums_and_best(logits_NV: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the logarithm of the sum of exponentials in float32, and the likeliest token, of each row. A few rows at a
    time on a CPU, so that what comes between is not written to memory and read again."""
    rows = max(1, CACHED_BYTES // (4 * logits_NV.shape[-1])) if logits_NV.device.type == "cpu" else len(logits_NV)
    parts = logits_NV.split(max(rows, 1))
    return torch.cat([part.float().logsumexp(-1) for part in parts]), torch.cat([part.argmax(-1) for part in parts])


def target_logprobs(logits_NV: torch.Tensor, targets_N: torch.Tensor) -> torch.Tensor:
    """Return the log-probability (nats, float32) of one target token a row."""
    wide = logits_NV.float()
    return wide.gather(-1, targets_N[:, None])[:, 0] - wide.logsumexp(-1)
