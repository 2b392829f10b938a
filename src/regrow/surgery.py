"""A model without some of its blocks: the list cut, the survivors renumbered, every per-layer config field cut too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from regrow.errors import ModelError
from regrow.models.families import anatomy_of, text_config_of

# Attributes in which modules of transformers keep their depth.
_DEPTH_ATTRIBUTES = ("layer_idx", "layer_id", "layer_index")
# Config lists that can have the length of the block list by accident and say nothing per layer.
_NOT_PER_LAYER = frozenset(
    {"architectures", "eos_token_id", "bos_token_id", "pad_token_id", "keys_to_ignore_at_inference"}
)
# Config numbers that count the first or the last blocks of a kind.
_COUNT_OF_FIRST = ("max_window_layers", "first_k_dense_replace")
_COUNT_OF_LAST = ("num_kv_shared_layers",)
# Config lists that hold block indices.
_INDEX_LISTS = ("mlp_only_layers", "cross_attention_layers", "attn_layer_indices", "full_attn_idxs")


def remove_blocks(model: nn.Module, blocks: Sequence[int]) -> nn.Module:
    """Return ``model`` itself without the given 0-based ``blocks`` (changed in place; the block objects are reused).

    The kept blocks are renumbered (a KV cache indexes by depth) and the config is cut with them, so that saving and
    loading gives the same model. An empty list changes nothing. Raises ModelError on an index out of range, a
    duplicate, or when no block would be left; the model is then untouched.
    """
    anatomy = anatomy_of(model)
    count = len(anatomy.blocks)
    gone = check_blocks(blocks, count)
    if not gone:
        return model
    config = text_config_of(model)
    if getattr(config, "scale_attn_by_inverse_layer_idx", False):
        raise ModelError(
            "this model scales attention by its depth (scale_attn_by_inverse_layer_idx): a renumbered block computes "
            "something else",
            hint="prune a model without that option",
        )
    kept = [index for index in range(count) if index not in gone]
    setattr(anatomy.backbone, anatomy.attribute, nn.ModuleList([anatomy.blocks[index] for index in kept]))
    for depth, index in enumerate(kept):
        renumber(anatomy.blocks[index], index, depth)
    cut_config(config, kept, count)
    return model


def check_blocks(blocks: Sequence[int], count: int) -> frozenset[int]:
    """Return the blocks to remove from a model of ``count`` blocks as a set, or raise ModelError on nonsense."""
    for index in blocks:
        if isinstance(index, bool) or not isinstance(index, int):
            raise ModelError(f"block indices are whole numbers, got {index!r}", hint=f"allowed: 0 to {count - 1}")
        if not 0 <= index < count:
            raise ModelError(
                f"there is no block {index}: the model has {count} blocks", hint=f"allowed: 0 to {count - 1}"
            )
    gone = frozenset(blocks)
    if len(gone) != len(blocks):
        twice = sorted({index for index in blocks if list(blocks).count(index) > 1})
        raise ModelError(f"block {twice[0]} is named twice", hint="name each block once")
    if len(gone) == count:
        raise ModelError(f"all {count} blocks would be removed", hint=f"remove at most {count - 1}")
    return gone


def renumber(block: nn.Module, old: int, new: int) -> None:
    """Set the depth of every module inside ``block`` that carries it."""
    for module in block.modules():
        for attribute in _DEPTH_ATTRIBUTES:
            if getattr(module, attribute, None) == old and attribute in vars(module):
                setattr(module, attribute, new)


def cut_config(config: Any, kept: Sequence[int], count: int) -> None:
    """Shorten ``config`` in place from ``count`` layers to the ``kept`` ones, in every field that speaks per layer."""
    gone = sorted(set(range(count)) - set(kept))
    new_index = {old: new for new, old in enumerate(kept)}
    fields = [key for key in vars(config) if not key.startswith("_")]
    for key in fields:
        value = getattr(config, key)
        if key == "attention_types":
            # GPT-Neo stores run lengths of [kinds, repeats] and unrolls them at load.
            unrolled = [kind for kinds, repeats in value for _ in range(repeats) for kind in kinds]
            setattr(config, key, [[[unrolled[index]], 1] for index in kept])
        elif key in _INDEX_LISTS and isinstance(value, (list, tuple)):
            setattr(config, key, [new_index[index] for index in value if index in new_index])
        elif key not in _NOT_PER_LAYER and isinstance(value, (list, tuple)) and len(value) == count:
            setattr(config, key, type(value)(value[index] for index in kept))
    for key in _COUNT_OF_FIRST:
        if isinstance(getattr(config, key, None), int):
            value = getattr(config, key)
            setattr(config, key, value - sum(index < value for index in gone))
    for key in _COUNT_OF_LAST:
        if isinstance(getattr(config, key, None), int):
            value = getattr(config, key)
            setattr(config, key, value - sum(index >= count - value for index in gone))
    config.num_hidden_layers = len(kept)
