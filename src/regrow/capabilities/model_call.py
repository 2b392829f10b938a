"""How to ask a causal language model of transformers for logits, whatever its version names the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import Cache

from regrow.data.chat import end_of_turn_of
from regrow.models.families import text_config_of
from regrow.models.prepacked import prepacked


class ModelCall:
    """Calls ``model`` with a cache. The names of its arguments are looked up once.

    transformers calls the cache ``cache`` from 5.24 on and ``past_key_values`` before.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.device = next(model.parameters()).device
        names = inspect.signature(_unwrapped(model).forward).parameters
        self._cache_name = "cache" if "cache" in names else "past_key_values"
        self._keeps = "logits_to_keep" in names

    def last_logits(
        self,
        ids_BT: torch.Tensor,
        *,
        cache: Cache | None,
        mask_BK: torch.Tensor | None = None,
        positions_BT: torch.Tensor | None = None,
        keep: int = 1,
    ) -> torch.Tensor:
        """Return the logits after each of the last ``keep`` tokens, batch x keep x vocabulary (0: after all tokens)."""
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": cache is not None}
        if mask_BK is not None:
            options["attention_mask"] = mask_BK
        if positions_BT is not None:
            options["position_ids"] = positions_BT
        if self._keeps:
            options["logits_to_keep"] = keep
        return self.model(input_ids=ids_BT, **options).logits[:, -keep:]

    def logits_at(
        self,
        ids_BT: torch.Tensor,
        places: torch.Tensor | None,
        *,
        cache: Cache,
        positions_BT: torch.Tensor,
    ) -> torch.Tensor:
        """Return the logits after the tokens at ``places`` of the first row (None: after all), places x vocabulary."""
        options: dict[str, Any] = {self._cache_name: cache, "use_cache": True, "position_ids": positions_BT}
        if self._keeps:
            options["logits_to_keep"] = 0 if places is None else places
        logits = self.model(input_ids=ids_BT, **options).logits[0]
        return logits if self._keeps or places is None else logits[places]


@contextmanager
def evaluation_mode(model: Any) -> Iterator[None]:
    """Run the block without gradients and without dropout, on a CPU with prepacked weights (models/prepacked.py); the
    model's training flag is put back afterwards.

    Not ``inference_mode``: a buffer that a model recomputes inside it (long-context rotary tables) could not be trained
    with afterwards.
    """
    training = model.training
    model.eval()
    try:
        with torch.no_grad(), prepacked(model):
            yield
    finally:
        model.train(training)


def end_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """Return the ids that end an answer: EOS of the generation config, the config and the tokenizer, and the token
    that the chat template puts after an answer."""
    found: set[int] = set()
    for owner in (getattr(model, "generation_config", None), text_config_of(model), tokenizer):
        ids = getattr(owner, "eos_token_id", None)
        found.update(ids if isinstance(ids, list | tuple) else [] if ids is None else [ids])
    turn = end_of_turn_of(tokenizer)
    return frozenset(found if turn is None else found | {turn})


def context_limit(model: Any) -> int | None:
    """Return the number of positions the model was made for, None where its config does not say."""
    limit = getattr(text_config_of(model), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def positions_depend_on_length(model: Any, longest: int) -> bool:
    """Return whether the model turns a token's position by the longest text of the call (rope types "longrope" and
    "dynamic"), and a text of ``longest`` tokens is past the length up to which it does not. Then nothing that was
    computed for a text may be used for a longer one, and texts of different lengths not share a call."""
    config = text_config_of(model)
    found: list[dict[str, Any]] = []
    for name in ("rope_parameters", "rope_scaling"):
        value = getattr(config, name, None)
        if isinstance(value, dict):
            found += [value, *(each for each in value.values() if isinstance(each, dict))]
    for each in found:
        if each.get("rope_type", each.get("type")) in ("longrope", "dynamic"):
            until = each.get("original_max_position_embeddings") or getattr(
                config, "original_max_position_embeddings", None
            )
            until = until or context_limit(model)
            if until is None or longest > until:
                return True
    return False


_SHORT_OF_MEMORY = ("not enough memory", "can't allocate memory", "out of memory", "alloc_failed")


def out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory did not suffice, on whatever device."""
    said = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(words in said for words in _SHORT_OF_MEMORY)


def _unwrapped(model: Any) -> Any:
    """Return the transformers model inside a PEFT wrapper, whose own signature says nothing."""
    inner = getattr(model, "get_base_model", None)
    return inner() if inner is not None else model
