"""Many forests of texts in one model call, one after the other in a single row, without padding.

Everything in a Transformer but its attention works token by token, so texts of any lengths can stand in one row when
each token attends only to what it may see. The attention is done forest by forest with PyTorch's own kernel. Forests
may follow a prefix whose keys and values are kept. Registered with transformers as an attention function, so no
model's forward is copied; whether a model lets itself be run so is tried before it is relied on (:func:`can_pack`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.cache_utils import Cache

from regrow.capabilities.attention_swap import UNKNOWN_OPTIONS, AttentionSwap, NotShareable
from regrow.capabilities.batch_engine import attention_windows, same_logits
from regrow.capabilities.kv_rows import NO_PREFIX, Prefix
from regrow.capabilities.model_call import ModelCall, positions_depend_on_length
from regrow.capabilities.one_line_layer import OneLineLayer
from regrow.capabilities.token_forest import TokenForest
from regrow.models.quiet import quiet_transformers

NAME = "regrow_packed_texts"


@dataclass(frozen=True)
class Planted:
    """A forest and what all its texts begin with."""

    forest: TokenForest
    prefix: Prefix = NO_PREFIX


@dataclass
class _Part:
    """A forest's place in the row, what its tokens see (own tokens x prefix and own tokens), and its prefix."""

    place: slice
    visible: torch.Tensor
    prefix: Prefix


class _Layer(OneLineLayer):
    """A layer of the cache that the model is given: keeps nothing, and tells the attention which layer it serves."""

    def __init__(self, call: _Packed, index: int) -> None:
        super().__init__()
        self.call, self.index = call, index
        self.is_initialized = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        pass

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Any:
        self.call.layer = self.index
        self.call.updates += 1
        return key_states, value_states


class _Packed:
    """One call on its way: its parts, the layer that is running, and counts that must agree in the end."""

    def __init__(self, parts: list[_Part], layers: int) -> None:
        self.parts = parts
        self.layer: int | None = None
        self.updates = self.attended = 0
        self.cache = Cache(layers=[_Layer(self, index) for index in range(layers)])


_call: ContextVar[_Packed | None] = ContextVar("regrow_packed", default=None)


class PackedTexts:
    """Context in which a model runs packed forests. Raises NotShareable for a model that keeps its own attention."""

    def __init__(self, call: ModelCall) -> None:
        self.call = call
        self._layers = len(DynamicCache(config=call.model.config).layers)
        self._attention = AttentionSwap(call.model, NAME)

    def __enter__(self) -> PackedTexts:
        self._attention.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._attention.__exit__()

    def run_prefix(self, ids: Sequence[int]) -> Prefix:
        """Return the keys and values of a prefix; of no tokens: no prefix."""
        return self._attention.run_prefix(self.call, ids)

    def run(self, planted: Sequence[Planted], *, keep: int = 1) -> tuple[list[int], torch.Tensor]:
        """Run the forests in one call. Return the place of each one's first node in the row, and the logits after the
        last ``keep`` tokens of the row (0: after all), places x vocabulary."""
        device = self.call.device
        starts = [0, *accumulate(len(each.forest) for each in planted)]
        parts = [
            _Part(slice(start, start + len(each.forest)), _visible(each, device), each.prefix)
            for start, each in zip(starts[:-1], planted, strict=True)
        ]
        packed = _Packed(parts, self._layers)
        ids = [token for each in planted for token in each.forest.tokens]
        positions = [each.prefix.tokens + depth for each in planted for depth in each.forest.depths]
        token = _call.set(packed)
        try:
            logits = self.call.last_logits(
                torch.tensor([ids], device=device),
                cache=packed.cache,
                positions_BT=torch.tensor([positions], device=device),
                keep=keep,
            )
        finally:
            _call.reset(token)
        if packed.attended != packed.updates or not packed.attended:
            raise NotShareable
        return starts[:-1], logits[0]


def _visible(planted: Planted, device: torch.device) -> torch.Tensor:
    own = torch.from_numpy(planted.forest.visible())
    before = torch.ones(len(planted.forest), planted.prefix.tokens, dtype=torch.bool)
    return torch.cat([before, own], 1).to(device)


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Return the attention's output, 1 x tokens x heads x head width, and None for the weights.

    ``query``, ``key`` and ``value`` are 1 x heads x tokens x head width, the latter two with fewer heads where several
    query heads share one. Raises NotShareable for options that change the scores.
    """
    packed = _call.get()
    if packed is None or packed.layer is None or any(options.get(name) is not None for name in UNKNOWN_OPTIONS):
        raise NotShareable
    packed.attended += 1
    result = query.new_empty(1, query.shape[2], query.shape[1], value.shape[-1])
    grouped = query.shape[1] != key.shape[1]
    for part in packed.parts:
        keys, values = key[:, :, part.place], value[:, :, part.place]
        if part.prefix.tokens:
            keys = torch.cat([part.prefix.keys[packed.layer][None], keys], 2)
            values = torch.cat([part.prefix.values[packed.layer][None], values], 2)
        asked = query[:, :, part.place]
        out = scaled_dot_product_attention(
            asked, keys, values, attn_mask=part.visible, scale=scaling, enable_gqa=grouped
        )
        result[:, part.place] = out.transpose(1, 2)
    return result, None


def _mask(*args: Any, **options: Any) -> None:
    """Build no mask: each part brings its own."""


AttentionInterface.register(NAME, attend)
AttentionMaskInterface.register(NAME, _mask)


_SAMPLE = 16


def can_pack(call: ModelCall, sample: Sequence[int], longest: int) -> bool:
    """Return whether packed forests give the model's own logits, tried on a few tokens of ``sample``: two texts that
    part after some tokens, with and without a prefix, against a forward pass for each. ``longest``: tokens of the
    longest text to come."""
    windows = attention_windows(call.model)
    if positions_depend_on_length(call.model, longest):
        return False
    if call.model.config._attn_implementation != "sdpa" or windows is None or any(each < longest for each in windows):
        return False
    first = (list(sample) * _SAMPLE)[:_SAMPLE]
    second = [*first[: _SAMPLE - 4], *reversed(first[-6:])]
    half = _SAMPLE // 2
    try:
        with quiet_transformers():
            truth = [
                call.last_logits(torch.tensor([ids], device=call.device), cache=None, keep=0)[0]
                for ids in (first, second)
            ]
            with PackedTexts(call) as packed:
                prefix = packed.run_prefix(first[:half])
                whole, rest = TokenForest(), TokenForest()
                paths = [whole.add(first), whole.add(second)]
                later = [rest.add(first[half:]), rest.add(second[half:])]
                (at, then), logits = packed.run([Planted(whole), Planted(rest, prefix)], keep=0)
    except (NotShareable, TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError):
        return False
    got = torch.cat(
        [logits[[at + node for node in path]] for path in paths]
        + [logits[[then + node for node in path]] for path in later]
    )
    expected = torch.cat([*truth, *(each[half:] for each in truth)])
    return same_logits(got, expected)
