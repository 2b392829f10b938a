"""What is wrong with a request to heal that can be told without a model or a pool."""

from __future__ import annotations

import math
from collections.abc import Collection

from regrow.errors import ConfigError, did_you_mean
from regrow.heal.loss_expression import terms_of
from regrow.heal.mixture import read_mixture
from regrow.heal.quantized import check_base_format
from regrow.heal.registry import LOSSES, SCOPES
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.specs import HealSpec

SHORTEST_SEQUENCE = 3
"""A token of a prompt, one of a response and the end token."""

_OF_LAST_BLOCKS = ("last-k", "partial")
_STREAMS = "hidden-states"
_BRIDGES = "bridges"


def validate(
    spec: HealSpec,
    *,
    facts: CheckpointFacts | None = None,
    source: str = "the model",
    pools: Collection[str] | None = None,
    unpruned: bool = True,
    bridged: bool | None = None,
) -> None:
    """Raise ConfigError for a run that cannot be: an unknown scope, loss or pool, numbers that are not finite, a budget
    of less than one update, a scope or a loss that finds nothing to train in the checkpoint.

    ``facts`` is the checkpoint's history (None: nothing was done to it), ``pools`` the names of the pools that there
    will be, ``unpruned`` whether the unpruned model is at hand, ``bridged`` whether the checkpoint carries bridges
    (None: as its history says). What needs the examples themselves (a pool that is too
    small, a budget that rounds to too few sequences) is refused by :func:`regrow.heal.plan.plan_heal`.
    """
    SCOPES.entry(spec.scope)
    names = [name for name, _ in terms_of(spec.loss)]
    _refuse_infinite(spec)
    _refuse_small_budget(spec)
    check_base_format(spec)
    mixture = read_mixture(spec.mixture)
    if pools is not None and not isinstance(mixture, str):
        for name in mixture:
            if name not in pools:
                raise ConfigError(
                    f"the mixture names a pool '{name}' that is not there", hint=did_you_mean(name, pools)
                )
    if not isinstance(mixture, str) and sum(mixture.values()) <= 0:
        raise ConfigError("the mixture gives no pool any tokens", hint="give at least one pool more than zero")
    _refuse_idle_scope(spec, facts, source, bridged)
    for name in names:
        if "unpruned" in dict(LOSSES.entry(name).facts).get("needs", "") and not unpruned:
            raise ConfigError(
                f"the loss '{name}' compares with the unpruned model, which is not at hand", hint="pass it along"
            )
    if _STREAMS in names:
        _refuse_idle_streams(spec, facts, source)


def _refuse_infinite(spec: HealSpec) -> None:
    for name in ("learning_rate", "alpha", "clip_norm", "max_cycles"):
        value = getattr(spec, name)
        if value is not None and not math.isfinite(value) and not (name == "max_cycles" and value == math.inf):
            raise ConfigError(
                f"the {name.replace('_', ' ')} is {value}",
                hint="write a finite number, for example --learning-rate 2e-4"
                if name == "learning_rate"
                else "write a finite number",
            )


def _refuse_small_budget(spec: HealSpec) -> None:
    least = SHORTEST_SEQUENCE * (spec.sequences_per_update - 1) + 1
    if spec.tokens < least:
        raise ConfigError(
            f"a budget of {spec.tokens:,} tokens cannot fill one update of {spec.sequences_per_update} sequences",
            hint="raise the budget (--tokens 60k), or lower the sequences per update",
        )


def _refuse_idle_scope(spec: HealSpec, facts: CheckpointFacts | None, source: str, bridged: bool | None) -> None:
    if bridged is None:
        bridged = facts is None or bool(facts.bridges)
    if spec.scope == "cut-lora" and (facts is None or not facts.removed_blocks):
        raise ConfigError(
            f"the scope 'cut-lora' trains nothing on '{source}': no block was removed from it",
            hint="prune the model first, or use --scope all-lora",
        )
    if spec.scope.endswith(_BRIDGES) and not bridged:
        raise no_bridge(spec.scope, source)
    of_last_blocks = spec.scope.removesuffix(f"+{_BRIDGES}") in _OF_LAST_BLOCKS
    if of_last_blocks and facts is not None and spec.last_blocks > _blocks(facts):
        raise ConfigError(
            f"last_blocks is {spec.last_blocks}, but the model has {_blocks(facts)} blocks",
            hint=f"allowed: 1 to {_blocks(facts)}",
        )


def _refuse_idle_streams(spec: HealSpec, facts: CheckpointFacts | None, source: str) -> None:
    if facts is None or not facts.removed_blocks:
        raise ConfigError(
            f"the loss '{_STREAMS}' has no cut to look at: no block was removed from '{source}'",
            hint="prune the model first, or use another --loss",
        )
    if spec.scope not in _OF_LAST_BLOCKS:
        return
    last = max(facts.removed_blocks) + 1
    behind_last_cut = last - sum(block < last for block in facts.removed_blocks)
    if behind_last_cut <= _blocks(facts) - spec.last_blocks:
        raise ConfigError(
            f"the loss '{_STREAMS}' trains nothing under the scope '{spec.scope}': every cut lies below the last "
            f"{spec.last_blocks} blocks",
            hint="use --scope cut-lora or all-lora, or leave this loss out",
        )


def no_bridge(scope: str, source: str) -> ConfigError:
    """Return the refusal of a scope that trains bridges where there are none."""
    idle = "trains nothing" if scope == _BRIDGES else "has no bridge to train"
    return ConfigError(
        f"the scope '{scope}' {idle} on '{source}': it has no bridge",
        hint="repair the checkpoint first: regrow repair PRUNED --output DIR",
    )


def _blocks(facts: CheckpointFacts) -> int:
    return facts.unpruned_blocks - len(facts.removed_blocks)
