"""Frozen weights in four bits under LoRA adapters (QLoRA, arXiv 2305.14314): CUDA alone, with the extra ``qlora``.

The linear layers that get adapters become bitsandbytes' NF4 layers for the time of the training; everything else keeps
its format. At the end the adapters are merged into what the four bits mean, in the format the weights had, because that
is the model that was trained; merging into the original weights would be another model.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

from regrow.errors import ConfigError
from regrow.models.load import LoadedModel
from regrow.records.specs import HealSpec

STORED = "stored"
LORA_SCOPES = ("all-lora", "cut-lora")


def check_base_format(spec: HealSpec) -> None:
    """Raise ConfigError when four bits are asked for where they cannot be had."""
    if spec.base_format == STORED:
        return
    if spec.scope not in LORA_SCOPES:
        raise ConfigError(
            f"the scope '{spec.scope}' trains weights in place, which four bits cannot hold",
            hint="use --scope all-lora or cut-lora with --base-format nf4, or --base-format stored",
        )
    if not torch.cuda.is_available():
        raise ConfigError(
            f"the base format '{spec.base_format}' needs a CUDA device, and there is none here",
            hint="use --base-format stored",
        )
    if find_spec("bitsandbytes") is None:
        raise ConfigError("bitsandbytes is not installed", hint="pip install 'regrow[qlora]'")


class QuantizedBase:
    """The linear layers ``names`` of a model, held in NF4 in place; the originals wait in the machine's own memory.

    Raises ConfigError as :func:`check_base_format` does, or when a layer is of a kind that NF4 does not know.
    """

    def __init__(self, loaded: LoadedModel, names: Sequence[str], spec: HealSpec) -> None:
        check_base_format(spec)
        self._model, self._device, self._dtype = loaded.model, loaded.device, loaded.dtype
        self._originals: dict[str, nn.Linear] = {}
        compute = torch.float32 if spec.precision == "float32" else torch.bfloat16
        for name in names:
            layer = loaded.model.get_submodule(name)
            if type(layer) is not nn.Linear:
                raise ConfigError(
                    f"the layer '{name}' ({type(layer).__name__}) cannot be held in four bits",
                    hint="use --base-format stored",
                )
            self._originals[name] = layer.cpu()
            _put(loaded.model, name, _in_four_bits(layer, compute).to(self._device))

    def give_back(self) -> None:
        """Put the original layers into the model again, once the adapters are off it."""
        for name, layer in self._originals.items():
            _put(self._model, name, layer.to(self._device))

    def merge(self, adapter: Any) -> None:
        """Take the adapters off and put in their place plain layers with the values that the four bits mean plus what
        the adapters learned."""
        deltas = {
            name: layer.get_delta_weight(layer.active_adapters[0])
            for name, layer in self._model.named_modules()
            if hasattr(layer, "lora_A") and hasattr(layer, "get_delta_weight")
        }
        adapter.unload()
        for name, original in self._originals.items():
            values = _meaning_of(self._model.get_submodule(name)) + deltas[name].float()
            plain = original.to(self._device)
            plain.weight.data = values.to(self._dtype)
            _put(self._model, name, plain)


def _in_four_bits(layer: nn.Linear, compute: torch.dtype) -> nn.Module:
    from bitsandbytes.nn import Linear4bit, Params4bit

    small: Any = Linear4bit(
        layer.in_features,
        layer.out_features,
        bias=layer.bias is not None,
        compute_dtype=compute,
        compress_statistics=True,
        quant_type="nf4",
        device="meta",
    )
    # A copy: the move to the device, which quantizes, must leave the original as it is.
    small.weight = Params4bit(
        layer.weight.data.clone(), requires_grad=False, compress_statistics=True, quant_type="nf4"
    )
    small.bias = None if layer.bias is None else nn.Parameter(layer.bias.data.clone(), requires_grad=False)
    return small


def _meaning_of(layer: Any) -> torch.Tensor:
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(layer.weight.data, layer.weight.quant_state).float()


def _put(model: nn.Module, name: str, layer: nn.Module) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner) if owner else model, attribute, layer)
