"""Content hashes of tensors and of models in memory: equal content, equal hex string."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from regrow.records.fingerprint import fingerprint

SAMPLED_VALUES = 256


def tensors_fingerprint(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return the sha256 (hex) of named tensors: names, shapes, types and every value, whatever the device."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        digest.update(_bytes_of(tensor))
    return digest.hexdigest()


def examples_fingerprint(examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> str:
    """Return the sha256 (hex) of (prompt ids, answer ids) in their order."""
    return fingerprint([[list(prompt), list(answer)] for prompt, answer in examples])


def model_fingerprint(model: nn.Module) -> str:
    """Return a sha256 (hex) that tells two models apart, from their configuration and a sample of every weight.

    At most 256 evenly spaced values of each tensor are read, so it costs milliseconds on any size of model. It notices
    any training, pruning or change of type; it is no proof against somebody who edits single weights on purpose.
    """
    digest = hashlib.sha256()
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict"):
        known = {key: value for key, value in config.to_dict().items() if not key.startswith("_")}
        digest.update(json.dumps(known, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().reshape(-1)
        step = max(1, flat.numel() // SAMPLED_VALUES)
        digest.update(f"{name}|{tuple(tensor.shape)}|{tensor.dtype}|".encode())
        digest.update(_bytes_of(flat[::step][:SAMPLED_VALUES]))
    return digest.hexdigest()


def _bytes_of(tensor: torch.Tensor) -> bytes:
    raw = tensor.contiguous().cpu().reshape(-1)
    return bytes(raw.view(torch.uint8).numpy().tobytes()) if raw.numel() else b""
