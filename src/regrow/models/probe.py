"""Two rows of a few tokens through a model just loaded: is it a decoder, and does it compute numbers at all?"""

from __future__ import annotations

from typing import Any

import torch

from regrow.errors import ModelError
from regrow.models.capture import observe_streams
from regrow.models.families import backbone_of

_TOKENS = 8


def check_decoder(model: Any, name: str) -> None:
    """Raise ModelError when the logits of ``model`` are not finite, or when a later token changes earlier logits (a
    bidirectional encoder, which configuration files do not always own up to)."""
    vocabulary = model.config.get_text_config().vocab_size
    device = next(model.parameters()).device
    row = (torch.arange(1, _TOKENS + 1, device=device) * 37 + 11) % vocabulary
    other = row.clone()
    other[-1] = (row[-1] + 1) % vocabulary
    with torch.inference_mode():
        logits = model(torch.stack([row, other]), use_cache=False).logits.float()
    if not bool(torch.isfinite(logits).all()):
        broken = [key for key, weight in model.named_parameters() if not bool(torch.isfinite(weight).all())]
        dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
        block = None if broken else _first_overflow(model, row[None])
        at = "" if block is None else f" in block {block}"
        where = f"the weights '{broken[0]}' hold NaN or infinity" if broken else f"its numbers overflow{at}"
        narrow = dtype != "float32"
        raise ModelError(
            f"'{name}' does not compute finite logits in {dtype}: {where}",
            hint="load it with --dtype float32" if narrow and not broken else "fetch or make the checkpoint again",
        )
    gap = (logits[0, :-1] - logits[1, :-1]).abs().max().item()
    exact = next(model.parameters()).dtype == torch.float32
    if gap > (1e-5 if exact else 5e-3) * max(1.0, logits.abs().max().item()):
        raise ModelError(
            f"'{name}' is not a causal decoder: a later token changes what it predicts earlier "
            f"({type(model).__name__})",
            hint="pass a decoder such as Llama, Qwen, Gemma, Mistral, OLMo, Phi, GPT-NeoX or GPT-2",
        )
    with torch.inference_mode():
        try:
            backbone_of(model)(row[None], use_cache=False)
        except ModelError:
            raise
        except Exception as error:  # whatever a foreign forward pass makes of it
            raise ModelError(
                f"'{name}' ({type(model).__name__}) keeps its blocks where regrow cannot run them: "
                f"{type(backbone_of(model)).__name__} takes no token ids",
                hint="pass a decoder such as Llama, Qwen, Gemma, Mistral, OLMo, Phi, GPT-NeoX or GPT-2",
            ) from error


def _first_overflow(model: Any, ids_BT: torch.Tensor) -> int | None:
    """Return the first block whose output is not finite, None when all are."""
    found: list[int] = []

    def look(index: int, stream: torch.Tensor) -> None:
        if not found and index and not bool(torch.isfinite(stream).all()):
            found.append(index - 1)

    with torch.inference_mode(), observe_streams(model, look):
        model(ids_BT, use_cache=False)
    return found[0] if found else None
