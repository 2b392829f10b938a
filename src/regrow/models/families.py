"""The anatomy of a decoder, read from its module tree and config instead of from a class per family.

The block list is the ModuleList whose length is the config's number of layers and whose members hold an attention (or
mixer) module; the backbone is its owner. This covers every decoder of transformers 5 that keeps its blocks in one list.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import nn

from regrow.errors import ModelError

_ATTENTION = re.compile(r"attn|attention|mixer|mamba|conv|recurrent", re.IGNORECASE)
_NORM = re.compile(r"norm|ln_f|layernorm", re.IGNORECASE)


@dataclass(frozen=True)
class Anatomy:
    """Where the parts of a decoder are. ``backbone_path`` and ``block_path`` are dotted names below the model."""

    backbone: nn.Module
    backbone_path: str
    attribute: str
    blocks: nn.ModuleList

    @property
    def block_path(self) -> str:
        return f"{self.backbone_path}.{self.attribute}" if self.backbone_path else self.attribute


def text_config_of(model_or_config: Any) -> Any:
    """Return the config that describes the language model (the nested text config of a multimodal one)."""
    config = getattr(model_or_config, "config", model_or_config)
    getter = getattr(config, "get_text_config", None)
    return getter(decoder=True) if getter is not None else config


def anatomy_of(model: nn.Module) -> Anatomy:
    """Return where the blocks and the backbone of ``model`` are. Raises ModelError when no block list is found."""
    count = getattr(text_config_of(model), "num_hidden_layers", None)
    found: list[tuple[int, Anatomy]] = []
    for path, module in model.named_modules():
        if not isinstance(module, nn.ModuleList) or len(module) != count or not len(module):
            continue
        if not all(any(_ATTENTION.search(name) for name, _ in block.named_children()) for block in module):
            continue
        owner_path, _, attribute = path.rpartition(".")
        owner = model.get_submodule(owner_path) if owner_path else model
        size = sum(weight.numel() for weight in module.parameters())
        found.append((size, Anatomy(owner, owner_path, attribute, module)))
    if not found:
        raise ModelError(
            f"no list of {count} Transformer blocks found in {type(model).__name__}",
            hint="regrow handles decoders with one list of blocks (Llama, Qwen, Gemma, GPT-NeoX, GPT-2, ...)",
        )
    return max(found, key=lambda pair: pair[0])[1]


def blocks_of(model: nn.Module) -> nn.ModuleList:
    """Return the list of Transformer blocks, in depth order."""
    return anatomy_of(model).blocks


def block_path(model: nn.Module) -> str:
    """Return the dotted name of the block list ("model.layers")."""
    return anatomy_of(model).block_path


def backbone_of(model: nn.Module) -> nn.Module:
    """Return the module that owns the blocks; calling it gives the hidden state after the final norm, no logits."""
    return anatomy_of(model).backbone


def final_norm_of(model: nn.Module) -> nn.Module:
    """Return the norm between the last block and the head: the backbone's last child that is a norm by name."""
    anatomy = anatomy_of(model)
    norms = [
        child for name, child in anatomy.backbone.named_children() if _NORM.search(name) and child is not anatomy.blocks
    ]
    if not norms:
        raise ModelError(f"no final norm found in {type(anatomy.backbone).__name__}", hint="report this architecture")
    return norms[-1]


def head_of(model: nn.Module) -> nn.Module:
    """Return the output projection to the vocabulary."""
    getter: Any = getattr(model, "get_output_embeddings", None)
    head: nn.Module | None = getter() if getter is not None else None
    if head is None:
        raise ModelError(f"{type(model).__name__} has no output head", hint="use a causal language model")
    return head


def parameter_count(model: nn.Module) -> int:
    """Return the number of parameters, a tied weight counted once."""
    return sum(weight.numel() for weight in model.parameters())
