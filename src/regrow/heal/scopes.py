"""Which weights a healing run trains. Everything else is frozen, and is the same bits afterwards.

A scope is a function that marks weights of the model as trainable and returns them; registry.py lists them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import nn

from regrow.errors import ConfigError
from regrow.heal.adapter import adapter_parameters, put_adapter
from regrow.heal.quantized import STORED, QuantizedBase
from regrow.heal.registry import SCOPES as SCOPES
from regrow.heal.targets import block_linears
from regrow.heal.validate import no_bridge
from regrow.models.bridges import bridges_of
from regrow.models.families import block_path, blocks_of, final_norm_of, head_of
from regrow.models.load import LoadedModel
from regrow.records.specs import HealSpec


@dataclass
class Trained:
    """The weights that a scope trains, by name (float32 masters). ``adapter`` is the PEFT model of a LoRA scope,
    ``quantized`` its base where that is held in four bits; ``stored`` the dtype that a weight of the model had before
    it became a master, ``before`` its values, where they come back after a stop."""

    parameters: dict[str, nn.Parameter]
    adapter: Any | None = None
    quantized: QuantizedBase | None = None
    stored: dict[str, torch.dtype] = field(default_factory=dict)
    before: dict[str, torch.Tensor] = field(default_factory=dict)

    def settle(self) -> None:
        """Make the training part of the model: merge the adapter, or give the masters their stored dtype."""
        if self.adapter is not None and self.quantized is not None:
            self.quantized.merge(self.adapter)
        elif self.adapter is not None:
            self.adapter.merge_and_unload()
        self._store()

    def withdraw(self) -> None:
        """Take the adapter off unmerged (after a stop), so that the model is the one that came in. Weights that were
        trained in place beside an adapter go back too; without one they keep what they learned."""
        if self.adapter is not None:
            self.adapter.unload()
        if self.quantized is not None:
            self.quantized.give_back()
        for name, values in self.before.items():
            self.parameters[name].data.copy_(values)
        self._store()

    def _store(self) -> None:
        for name, dtype in self.stored.items():
            self.parameters[name].data = self.parameters[name].data.to(dtype)


class Scope(Protocol):
    """Marks and returns what is trained, on a model whose weights are all frozen. Raises ConfigError when that would
    be nothing."""

    def __call__(self, loaded: LoadedModel, spec: HealSpec) -> Trained: ...


def learning_rate_of(spec: HealSpec) -> float:
    """Return the peak learning rate of a run: the spec's, or the scope's own."""
    facts = dict(SCOPES.entry(spec.scope).facts)
    if spec.learning_rate is not None:
        return spec.learning_rate
    if "learning_rate" not in facts:
        raise ConfigError(f"the scope '{spec.scope}' has no learning rate of its own", hint="give --learning-rate")
    return float(facts["learning_rate"])


@contextmanager
def all_frozen(model: nn.Module) -> Iterator[None]:
    """Freeze every weight of ``model``; what they were comes back at the end."""
    before = {name: weight.requires_grad for name, weight in model.named_parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for name, weight in model.named_parameters():
            if name in before:
                weight.requires_grad_(before[name])


def all_lora(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """LoRA on all linear layers of all blocks. Fused expert weights of mixtures of experts, which are no layers of
    their own in transformers 5, get none."""
    return _lora(loaded, spec, None)


def cut_lora(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """LoRA on the linear layers of the kept blocks beside a cut."""
    facts = loaded.facts
    if facts is None or not facts.removed_blocks:
        raise ConfigError(
            f"the scope 'cut-lora' trains nothing on '{loaded.source}': no block was removed from it",
            hint="prune the model first, or use --scope all-lora",
        )
    return _lora(loaded, spec, bordering_blocks(facts.unpruned_blocks, facts.removed_blocks))


def last_k(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """All weights of the last ``spec.last_blocks`` blocks and the final norm; the head stays as it is."""
    chosen = [*_last_blocks(loaded.model, spec), final_norm_of(loaded.model)]
    held = {id(weight) for weight in head_of(loaded.model).parameters()}
    return _masters(loaded.model, [weight for part in chosen for weight in part.parameters() if id(weight) not in held])


def partial(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """All weights of the last ``spec.last_blocks`` blocks, the final norm and the head. A head that is tied to the
    embeddings stays tied: they move together."""
    chosen = [*_last_blocks(loaded.model, spec), final_norm_of(loaded.model), head_of(loaded.model)]
    return _masters(loaded.model, [weight for part in chosen for weight in part.parameters()])


def bridges(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """The operators that a repair put at the cuts, and nothing else."""
    return _masters(loaded.model, _bridge_weights(loaded, spec))


def all_lora_and_bridges(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """LoRA on all linear layers of all blocks, and the operators of a repair themselves, at the same rate (SHIFT-LLM's
    trainable adapters; under ``all-lora`` they stay as they were fitted)."""
    trained = _with_bridges(loaded, spec, all_lora)
    lora = adapter_parameters(loaded.model)
    trained.before = {name: weight.detach().clone() for name, weight in trained.parameters.items() if name not in lora}
    return trained


def last_k_and_bridges(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """What ``last-k`` trains and the operators of a repair, wherever they are."""
    return _with_bridges(loaded, spec, last_k)


def partial_and_bridges(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """What ``partial`` trains and the operators of a repair, wherever they are."""
    return _with_bridges(loaded, spec, partial)


def full(loaded: LoadedModel, spec: HealSpec) -> Trained:
    """Every weight of the model, bridges too."""
    return _masters(loaded.model, list(loaded.model.parameters()))


def bordering_blocks(unpruned_blocks: int, removed: Sequence[int]) -> list[int]:
    """Return the indices, in the pruned model, of the kept blocks next to a removed one."""
    gone = set(removed)
    kept = [block for block in range(unpruned_blocks) if block not in gone]
    return [at for at, block in enumerate(kept) if block - 1 in gone or block + 1 in gone]


def _lora(loaded: LoadedModel, spec: HealSpec, blocks: Sequence[int] | None) -> Trained:
    names = block_linears(loaded.model, blocks)
    if not names:
        raise ConfigError(
            f"the scope '{spec.scope}' finds no linear layer in {block_path(loaded.model)} of '{loaded.source}'",
            hint="use --scope full or --scope last-k",
        )
    quantized = None if spec.base_format == STORED else QuantizedBase(loaded, names, spec)
    adapter = put_adapter(loaded, names, spec)
    return Trained(adapter_parameters(loaded.model), adapter, quantized)


def _bridge_weights(loaded: LoadedModel, spec: HealSpec) -> list[nn.Parameter]:
    found = bridges_of(loaded.model)
    if not found:
        raise no_bridge(spec.scope, loaded.source)
    return [weight for entry in found for weight in entry.bridge.parameters()]


def _with_bridges(loaded: LoadedModel, spec: HealSpec, scope: Scope) -> Trained:
    operators = _bridge_weights(loaded, spec)
    trained = scope(loaded, spec)
    masters = _masters(loaded.model, operators)
    trained.stored.update(masters.stored)
    trained.parameters.update(masters.parameters)
    return trained


def _last_blocks(model: nn.Module, spec: HealSpec) -> list[nn.Module]:
    blocks = list(blocks_of(model))
    if spec.last_blocks > len(blocks):
        raise ConfigError(
            f"last_blocks is {spec.last_blocks}, but the model has {len(blocks)} blocks",
            hint=f"allowed: 1 to {len(blocks)}",
        )
    return blocks[-spec.last_blocks :]


def _masters(model: nn.Module, weights: Sequence[nn.Parameter]) -> Trained:
    chosen = {id(weight) for weight in weights if weight.is_floating_point()}
    trained = Trained({name: weight for name, weight in model.named_parameters() if id(weight) in chosen})
    for name, weight in trained.parameters.items():
        if weight.dtype != torch.float32:
            # Steps of a small rate vanish in the rounding of half precision.
            trained.stored[name] = weight.dtype
            weight.data = weight.data.float()
        weight.requires_grad_(True)
    return trained
