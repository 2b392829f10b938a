"""Rows of prompts run through a model without padding: opened with their prompt, continued by any number of tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from regrow.capabilities.kv_rows import Prefix
from regrow.capabilities.model_call import ModelCall
from regrow.capabilities.ragged_attention import RaggedAttention
from regrow.capabilities.ragged_rows import RaggedRows

PROMPT_TOKENS_AT_ONCE = 2048
"""Prompt tokens per model call while rows are opened, beyond the first row's; bounds the memory of activations."""


COPIED_TOKENS = 64
"""A prefix of up to so many tokens is copied into every row: reading it there costs less than a second call of the
attention in every layer, and putting the two together (measured on two cores with 48 rows)."""


class RaggedEngine:
    """Live rows of prompts. Use as a context manager: leaving it frees the storage.

    ``most`` rows at a time, each of at most ``longest`` tokens after its prefix. After each call ``places[i]`` are the
    places of row i's tokens in the logits returned.
    """

    def __init__(self, call: ModelCall, layers: int, *, most: int, longest: int) -> None:
        self.call = call
        self.rows = RaggedRows(layers, most, longest + COPIED_TOKENS, device=call.device)
        self.drafts = call.device.type == "cpu"
        """Whether a step of a few more tokens is so cheap that guessing them pays (measured on a CPU only)."""
        self.places: list[list[int]] = []
        self._attention = RaggedAttention(call.model, self.rows)

    def __enter__(self) -> RaggedEngine:
        self._attention.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._attention.__exit__()
        self.rows.release()

    def run_prefix(self, ids: Sequence[int]) -> Prefix:
        """Return the keys and values of a prefix, run once as a batch of one; of no tokens: no prefix."""
        return self._attention.run_prefix(self.call, ids)

    def open(self, prefix: Prefix, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add rows for ``prompts``, all of which begin with ``prefix`` and go on after it; return the logits after
        each, rows x vocabulary."""
        logits: list[torch.Tensor] = []
        begin = 0
        while begin < len(prompts):
            own = [list(prompts[begin][prefix.tokens :])]
            for prompt in prompts[begin + 1 :]:
                if sum(map(len, own)) + len(prompt) - prefix.tokens > PROMPT_TOKENS_AT_ONCE:
                    break
                own.append(list(prompt[prefix.tokens :]))
            lengths = [len(ids) for ids in own]
            self.rows.open(prefix, lengths, copied=prefix.tokens <= COPIED_TOKENS)
            last = [places[-1] for places in self.rows.places]
            logits.append(self._run([token for ids in own for token in ids], last))
            self.rows.keep(lengths)
            begin += len(own)
        return torch.cat(logits)

    def step(self, tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Give each live row its next tokens and return the logits after each of them, tokens x vocabulary. The rows
        hold none of them yet: say how many with :meth:`keep`."""
        self.rows.grow([len(each) for each in tokens])
        self.places = self.rows.places
        return self._run([token for each in tokens for token in each], None)

    def keep(self, tokens: Sequence[int]) -> None:
        """Let each live row hold the first so many of the tokens it was given last."""
        self.rows.keep(tokens)

    def drop(self, row: int) -> list[tuple[int, int]]:
        """Remove a live row and return the moves that close the gap, in order: (to, from)."""
        return self.rows.drop(row)

    def _run(self, ids: list[int], places: list[int] | None) -> torch.Tensor:
        device = self.call.device
        return self.call.logits_at(
            torch.tensor([ids], device=device),
            None if places is None else torch.tensor(places, device=device),
            cache=self.rows.cache,
            positions_BT=self.rows.position_T[None],
        )
