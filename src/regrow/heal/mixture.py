"""Which examples a healing run trains on: a token vector over pools turned into one order of sequences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from regrow.data.pools import Example, Pool
from regrow.errors import ConfigError, DataError, did_you_mean
from regrow.records.specs import read_yaml
from regrow.seeding import stream

UNIFORM = "uniform"


@dataclass(frozen=True)
class PoolDraw:
    """What was drawn from one pool. ``cycles`` is the number of sequences over the number of examples (2.5: every
    example twice, half of them a third time); ``overshoot_tokens`` is less than the last sequence drawn,
    and negative where the quota was too small for an example."""

    pool: str
    examples: int
    quota_tokens: float
    tokens: int
    sequences: int
    cycles: float

    @property
    def overshoot_tokens(self) -> float:
        return self.tokens - self.quota_tokens


@dataclass(frozen=True)
class Mixture:
    """The training sequences in their final order, and how each pool contributed (pools sorted by name)."""

    sequences: tuple[Example, ...]
    draws: tuple[PoolDraw, ...]

    @property
    def tokens(self) -> int:
        return sum(draw.tokens for draw in self.draws)


def read_mixture(mixture: str) -> str | dict[str, float]:
    """Return "uniform", the mapping in the YAML or JSON file of that path, or the one written out ("math=600,
    general=400")."""
    if mixture == UNIFORM:
        return UNIFORM
    written = _written_out(mixture)
    if written is None and Path(mixture).suffix.lower() not in (".yaml", ".yml", ".json"):
        raise ConfigError(
            f"unknown mixture '{mixture}'",
            hint=f"allowed: {UNIFORM}, math=600,general=400, or a .yaml or .json file with tokens per pool",
        )
    values = written if written is not None else read_yaml(Path(mixture))
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise ConfigError(
                f"'{mixture}' gives pool '{name}' {value!r} tokens", hint="write a number, zero or more, for each pool"
            )
    return {str(name): float(value) for name, value in values.items()}


def _written_out(mixture: str) -> dict[str, float] | None:
    found: dict[str, float] = {}
    for part in mixture.split(","):
        name, sign, value = part.partition("=")
        if sign and name.strip() in found:
            raise ConfigError(f"'{mixture}' names the pool '{name.strip()}' twice", hint="give each pool once")
        try:
            found[name.strip()] = float(value.replace("_", ""))
        except ValueError:
            return None
        if not sign:
            return None
    return found


def token_quotas(
    mixture: str | Mapping[str, float], pools: Mapping[str, Pool], budget_tokens: float
) -> dict[str, float]:
    """Return tokens per pool, summing to ``budget_tokens``, sorted by pool.

    ``mixture``: "uniform" (equal parts) or a mapping, whose values are proportions: a token vector that sums to the
    budget is taken as it is. Pools that a mapping leaves out get nothing. Raises ConfigError on an unknown pool, a
    negative value or nothing but zeros, DataError when there are no pools.
    """
    if not pools:
        raise DataError("there is no healing pool", hint="heal on at least one pool of examples")
    if isinstance(mixture, str):
        if mixture != UNIFORM:
            raise ConfigError(f"unknown mixture '{mixture}'", hint=f"allowed: {UNIFORM}, or tokens per pool")
        return {name: budget_tokens / len(pools) for name in sorted(pools)}
    for name, value in mixture.items():
        if name not in pools:
            raise ConfigError(f"the mixture names a pool '{name}' that is not there", hint=did_you_mean(name, pools))
        if not math.isfinite(value) or value < 0:
            raise ConfigError(f"the mixture gives pool '{name}' {value} tokens", hint="write zero or more")
    total = sum(mixture.values())
    if total <= 0:
        raise ConfigError("the mixture gives no pool any tokens", hint="give at least one pool more than zero")
    return {name: budget_tokens * mixture.get(name, 0.0) / total for name in sorted(pools)}


def draw_mixture(
    pools: Mapping[str, Pool], quotas: Mapping[str, float], *, seed: int, max_cycles: float = math.inf
) -> Mixture:
    """Return the sequences for the quotas (tokens per pool; the pools must be tokenised).

    Per pool: shuffle, draw until the quota is reached, shuffle anew each time the pool is used up. Then all are
    shuffled together. Each pool has a random stream of its own, so a change of one quota leaves the draws from the
    other pools alone; the order in which pools are given does not matter.

    A planned mixture may give a pool less than its shortest example has. Then that example is drawn if it comes nearer
    to the quota than nothing does (quota at least half of it), else nothing; the draw says so.

    Raises DataError when a pool with a quota is empty or would be used more than ``max_cycles`` times, ConfigError
    when no quota is large enough for an example.
    """
    sequences: list[Example] = []
    draws: list[PoolDraw] = []
    for name in sorted(quotas):
        quota = quotas[name]
        if quota <= 0:
            continue
        _refuse_impossible(pools[name], quota, max_cycles)
        generator = stream(seed, "mixture", name)
        shortest = min(pools[name].examples, key=lambda example: example.tokens)
        if quota < shortest.tokens:
            drawn = [shortest] if quota >= shortest.tokens / 2 else []
        else:
            drawn = _draw(pools[name].examples, quota, generator)
        sequences.extend(drawn)
        count = len(pools[name].examples)
        tokens = sum(entry.tokens for entry in drawn)
        draws.append(PoolDraw(name, count, quota, tokens, len(drawn), len(drawn) / count))
    if draws and not sequences:
        asked = ", ".join(f"{draw.quota_tokens:,.0f} for '{draw.pool}'" for draw in draws)
        raise ConfigError(
            f"the tokens of the mixture ({asked}) are too few for an example of any pool", hint="raise the budget"
        )
    order = stream(seed, "mixture-order").permutation(len(sequences))
    return Mixture(tuple(sequences[index] for index in order), tuple(draws))


def _draw(examples: tuple[Example, ...], quota: float, generator: np.random.Generator) -> list[Example]:
    drawn: list[Example] = []
    tokens = 0
    while True:
        for index in generator.permutation(len(examples)):
            drawn.append(examples[index])
            tokens += examples[index].tokens
            if tokens >= quota:
                return drawn


def _refuse_impossible(pool: Pool, quota: float, max_cycles: float) -> None:
    if not pool.examples:
        reasons = "; ".join(f"{count} {reason}" for reason, count in pool.dropped.items())
        raise DataError(
            f"the pool '{pool.name}' has no usable example" + (f" (dropped: {reasons})" if reasons else ""),
            hint="give it no tokens in the mixture, or make a pool with more prompts",
        )
    cycles = quota / sum(entry.tokens for entry in pool.examples)
    if cycles > max_cycles:
        raise DataError(
            f"the pool '{pool.name}' is too small: its {len(pool.examples)} examples would be used {cycles:.1f} times "
            f"(limit: {max_cycles:g})",
            hint="make the pool larger, give it fewer tokens, or raise max_cycles",
        )
