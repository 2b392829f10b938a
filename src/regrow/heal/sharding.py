"""Weights, gradients and moments spread over several processes (FSDP2), for runs that train every weight.

Each block gathers its weights when it runs. A plain model of the same structure waits without memory (on the meta
device) and gets the trained weights at the end, so that what comes out of a run is never a sharded model.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from regrow.heal.checkpoint import whole
from regrow.heal.scopes import Trained
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel


class Sharded:
    """The model of ``loaded`` sharded in place; ``trained.parameters`` become its shards."""

    def __init__(self, loaded: LoadedModel, trained: Trained) -> None:
        from torch.distributed.fsdp import fully_shard

        self._loaded, self._trained = loaded, trained
        model = loaded.model
        self._plain = _empty_twin(model)
        for block in blocks_of(model):
            fully_shard(block)
        fully_shard(model)
        shards = dict(model.named_parameters())
        trained.parameters = {name: shards[name] for name in trained.parameters}

    def gather(self) -> None:
        """Put a plain model with the weights of all processes in the place of the sharded one."""
        shards = dict(self._loaded.model.named_parameters())
        with torch.no_grad():
            full = {
                id(empty): nn.Parameter(
                    whole(shards[name]).clone().to(self._trained.stored.get(name, shards[name].dtype)),
                    requires_grad=shards[name].requires_grad,
                )
                for name, empty in self._plain.named_parameters()
            }
        for module in self._plain.modules():
            for name, empty in module._parameters.items():
                if empty is not None:
                    module._parameters[name] = full[id(empty)]
        self._loaded.model = self._plain
        self._trained.parameters = {
            name: weight for name, weight in self._plain.named_parameters() if name in self._trained.parameters
        }
        self._trained.stored = {}


def _empty_twin(model: nn.Module) -> Any:
    """Return a copy of ``model`` that takes no memory: the same modules, hooks and ties, weights without content."""
    memo: dict[int, Any] = {
        id(weight): nn.Parameter(torch.empty_like(weight, device="meta"), requires_grad=weight.requires_grad)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, memo)
