"""Which way of decoding a model lets itself be run by.

The fastest that gives the model's own logits is taken:

``ragged``    rows of different lengths without padding, the common prefix kept once (ragged_engine.py)
``copied``    each row holds a copy of the prefix, the model's own attention runs (sliding windows, soft caps, sinks)
``none``      the model keeps other states than keys and values (recurrent ones): no reuse, see plain_generation.py
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from regrow.capabilities.attention_swap import NotShareable
from regrow.capabilities.batch_engine import BatchEngine, layers_of, same_logits, windows_of
from regrow.capabilities.model_call import ModelCall
from regrow.capabilities.ragged_engine import RaggedEngine
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
    if layers is None:
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
    except (NotShareable, TypeError, ValueError, RuntimeError, AttributeError, IndexError, KeyError):
        return False
    return same_logits(torch.stack(got), torch.stack(expected))
