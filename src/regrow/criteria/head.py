"""From final hidden states to logits and losses, by the model's own head, without its blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn import functional

from regrow.models.families import backbone_of, head_of

LOGITS_BYTES = 2**26
# Logits of 1024 tokens for 512 words stay in the second-level cache between the product and the sum over them.
PIECE_TOKENS, PIECE_WORDS = 1_024, 512


class Head:
    """The part of a model after its final norm.

    Logits come from the model's own forward with the backbone set aside, so that soft caps and scales are applied
    exactly as the model does. Where that turns out to be one plain linear map, losses are taken a few words of the
    vocabulary at a time instead: the same numbers without ever holding the logits.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._backbone = backbone_of(model)
        device = next(model.parameters()).device
        with torch.inference_mode():
            # What a backbone returns differs between families; one token shows it.
            ids = torch.zeros((1, 1), dtype=torch.long, device=device)
            self._answer = self._backbone(input_ids=ids, use_cache=False)
        projection: Any = head_of(model)
        self._weight: torch.Tensor = projection.weight
        self._bias: torch.Tensor | None = getattr(projection, "bias", None)
        self.plain = self._is_plain()

    def logits(self, final_PD: torch.Tensor) -> torch.Tensor:
        """Return the logits (tokens, vocabulary) of final hidden states (tokens, width) taken after the norm."""
        with self._without_backbone():
            self._answer["last_hidden_state"] = final_PD.unsqueeze(0)
            ids = torch.zeros((1, final_PD.shape[0]), dtype=torch.long, device=final_PD.device)
            logits_PV: torch.Tensor = self._model(input_ids=ids, use_cache=False).logits[0]
        return logits_PV

    def losses(self, final_PD: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the negative log-likelihood (tokens, float32) of the target ids (tokens)."""
        found = []
        piece = PIECE_TOKENS if self.plain else self.tokens_at_once
        for start in range(0, len(targets), piece):
            part, goal = final_PD[start : start + piece], targets[start : start + piece]
            if self.plain:
                found.append(self._plain_losses(part, goal))
            else:
                found.append(functional.cross_entropy(self.logits(part).float(), goal, reduction="none"))
        return torch.cat(found)

    def divergences(self, final_PD: torch.Tensor, teacher_PD: torch.Tensor) -> torch.Tensor:
        """Return KL(teacher || student) (tokens, float32) of the predictions from two sets of final hidden states."""
        found = []
        for start in range(0, len(final_PD), self.tokens_at_once):
            piece = slice(start, start + self.tokens_at_once)
            whole = self.logits(teacher_PD[piece]).float().log_softmax(-1)
            own = self.logits(final_PD[piece]).float().log_softmax(-1)
            found.append((whole.exp() * (whole - own)).sum(-1))
        return torch.cat(found)

    @property
    def tokens_at_once(self) -> int:
        """How many tokens' logits fit in 64 MiB as float32."""
        return max(1, LOGITS_BYTES // (4 * int(self._weight.shape[0])))

    def _plain_losses(self, final_PD: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        sums: list[torch.Tensor] = []
        chosen = torch.zeros(len(targets), device=targets.device)
        for first in range(0, self._weight.shape[0], PIECE_WORDS):
            words = slice(first, first + PIECE_WORDS)
            bias = None if self._bias is None else self._bias[words]
            logits_PW = functional.linear(final_PD, self._weight[words], bias).float()
            place = (targets - first).clamp(0, logits_PW.shape[1] - 1)
            own = logits_PW.gather(1, place.unsqueeze(1)).squeeze(1)
            # Cross-entropy against any word, plus that word's logit, is log-sum-exp: the fastest kernel that gives it.
            sums.append(functional.cross_entropy(logits_PW, place, reduction="none") + own)
            chosen = torch.where((targets >= first) & (targets < first + PIECE_WORDS), own, chosen)
        return torch.stack(sums).logsumexp(0) - chosen

    def _is_plain(self) -> bool:
        """Whether logits are W h + b and nothing else, tried on states that make logits of 1000 and more."""
        with torch.inference_mode():
            rows = self._weight[:: max(1, self._weight.shape[0] // 4)][:4].float()
            states = rows * (1_000.0 / rows.square().sum(-1, keepdim=True).clamp_min(1e-12))
            states = states.to(self._weight.dtype)
            mine = functional.linear(states, self._weight, self._bias).float()
            theirs = self.logits(states).float()
        return mine.shape == theirs.shape and bool((mine - theirs).abs().max() <= 1e-3 * mine.abs().max())

    @contextmanager
    def _without_backbone(self) -> Iterator[None]:
        own = self._backbone.__dict__.get("forward")

        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self._answer

        self._backbone.forward = stand_in
        try:
            yield
        finally:
            if own is None:
                del self._backbone.forward
            else:
                self._backbone.forward = own
