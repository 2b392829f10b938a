"""Which way of decoding a model lets itself be run by.

The fastest that gives the model's own logits is taken:

``ragged``    rows of different lengths without padding, the common prefix kept once (ragged_engine.py)
``copied``    each row holds a copy of the prefix, the model's own attention runs (sliding windows, soft caps, sinks)
``none``      the model keeps other states than keys and values (recurrent ones), or turns positions by the length of
              the text (longrope): no reuse, see plain_generation.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import psutil
import torch

from regrow.capabilities.attention_swap import NotShareable
from regrow.capabilities.batch_engine import BatchEngine, layers_of, same_logits, windows_of
from regrow.capabilities.model_call import ModelCall, context_limit, out_of_memory, positions_depend_on_length
from regrow.capabilities.ragged_engine import RaggedEngine
from regrow.models.families import text_config_of
from regrow.models.quiet import quiet_transformers

Way = Literal["ragged", "copied", "none"]

_SAMPLE = 16


def choose_way(call: ModelCall, sample: Sequence[int], longest: int, *, ragged: bool = True) -> Way:
    """Return the fastest way that reproduces the model's own logits, for texts of up to ``longest`` tokens; with
    ``ragged`` off, of the other two.

    What a model's code does between its cache and its attention cannot be seen from outside, so each way is tried on
    a few tokens of ``sample``, with a prefix, rows of two lengths and a step, against a forward pass without a cache.
    """
    layers = layers_of(call.model)
    limit = context_limit(call.model)
    if layers is None or positions_depend_on_length(call.model, longest) or (limit is not None and limit < _SAMPLE):
        return "none"
    ids = (list(sample) * _SAMPLE)[:_SAMPLE]
    with quiet_transformers():
        truth_TV = call.last_logits(torch.tensor([ids], device=call.device), cache=None, keep=0)[0]
        plain = call.model.config._attn_implementation == "sdpa" and all(
            window >= longest for window in windows_of(layers)
        )
        if ragged and plain and _reproduces(call, "ragged", ids, truth_TV):
            return "ragged"
        return "copied" if _reproduces(call, "copied", ids, truth_TV) else "none"


def engine_of(call: ModelCall, way: Way, *, most: int, longest: int) -> RaggedEngine | BatchEngine:
    """Return the engine of a way, for ``most`` rows of at most ``longest`` tokens (with "ragged": after the prefix)."""
    layers = len(layers_of(call.model) or ())
    kind = RaggedEngine if way == "ragged" else BatchEngine
    return kind(call, layers, most=most, longest=longest)


MEMORY_SHARE = 0.5
"""Part of the free memory that the keys and values of a batch may take."""


def rows_that_fit(call: ModelCall, longest: int) -> int:
    """Return how many rows of ``longest`` tokens may be kept at a time, at least 1; without limit where the model's
    config or the device does not say enough."""
    config = text_config_of(call.model)
    heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
    width = getattr(config, "head_dim", None)
    if width is None and getattr(config, "hidden_size", None) and getattr(config, "num_attention_heads", None):
        width = config.hidden_size // config.num_attention_heads
    layers = layers_of(call.model)
    if not (isinstance(heads, int) and isinstance(width, int) and layers):
        return 1 << 30
    if call.device.type == "cuda":
        free = torch.cuda.mem_get_info(call.device)[0]
    elif call.device.type == "cpu":
        free = psutil.virtual_memory().available
    else:
        return 1 << 30
    row = 2 * len(layers) * heads * width * longest * next(call.model.parameters()).element_size()
    return max(1, int(MEMORY_SHARE * free) // row)


def _reproduces(call: ModelCall, way: Way, ids: list[int], truth_TV: torch.Tensor) -> bool:
    half = _SAMPLE // 2
    lengths = (_SAMPLE - 1, half + 2)
    # In the ragged way the second row takes three tokens at once, the last of which is wrong and not kept.
    given = [[ids[lengths[0]]], ids[half + 2 : half + 4]]
    wrong = [[], [(ids[half + 4] + 1) % truth_TV.shape[-1]]]
    expected = [truth_TV[length - 1] for length in lengths]
    try:
        with engine_of(call, way, most=2, longest=_SAMPLE) as engine:
            prefix = engine.run_prefix(ids[:half])
            got = [*engine.open(prefix, [ids[:length] for length in lengths])]
            if isinstance(engine, RaggedEngine):
                logits = engine.step([tokens + more for tokens, more in zip(given, wrong, strict=True)])
                engine.keep([len(tokens) for tokens in given])
                got += [logits[engine.places[row][at]] for row in (0, 1) for at in range(len(given[row]))]
                expected += [truth_TV[_SAMPLE - 1], truth_TV[half + 2], truth_TV[half + 3]]
                engine.drop(0)
                got.append(engine.step([[ids[half + 4]]])[0])
                expected.append(truth_TV[half + 4])
                if engine.rows.attended != engine.rows.updates:
                    return False
            else:
                got += [*engine.step([tokens[:1] for tokens in given])]
                expected += [truth_TV[length] for length in lengths]
    except (NotShareable, TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError) as error:
        if out_of_memory(error):
            raise
        return False
    return same_logits(torch.stack(got), torch.stack(expected))
