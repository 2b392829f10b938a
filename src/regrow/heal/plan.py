"""What a healing run will do, known before the first update: updates, tokens per pool, cycles, overshoot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from regrow.data.pools import Example, Pool, by_name, tokenise
from regrow.errors import ConfigError
from regrow.heal.mixture import PoolDraw, draw_mixture, read_mixture, token_quotas
from regrow.heal.schedule import updates_of
from regrow.records.fingerprint import fingerprint
from regrow.records.specs import HealSpec


@dataclass(frozen=True)
class HealPlan:
    """The whole run in numbers. ``tokens`` are prompt and response tokens of all sequences, no padding;
    ``response_tokens`` those that carry a loss; ``dropped`` counts the examples left out of each pool, by reason, those
    that were left out when it was made among them; ``unfit`` those that this run's window or tokenizer leaves out."""

    budget_tokens: int
    updates: int
    sequences_per_update: int
    response_tokens: int
    draws: tuple[PoolDraw, ...]
    dropped: dict[str, dict[str, int]]
    unfit: dict[str, int]
    order: tuple[Example, ...] = field(repr=False)

    @property
    def tokens(self) -> int:
        return sum(draw.tokens for draw in self.draws)

    @property
    def sequences(self) -> int:
        return len(self.order)

    @property
    def tokens_by_pool(self) -> dict[str, int]:
        return {draw.pool: draw.tokens for draw in self.draws}

    @property
    def cycles_by_pool(self) -> dict[str, float]:
        return {draw.pool: draw.cycles for draw in self.draws}

    @property
    def overshoot_by_pool(self) -> dict[str, float]:
        return {draw.pool: draw.overshoot_tokens for draw in self.draws}

    @property
    def mean_sequence_tokens(self) -> float:
        return self.tokens / self.sequences

    @property
    def facts(self) -> dict[str, Any]:
        """The plan as JSON values, for a dry run and for the checkpoint's history."""
        return {
            "budget_tokens": self.budget_tokens,
            "tokens": self.tokens,
            "updates": self.updates,
            "sequences": self.sequences,
            "sequences_per_update": self.sequences_per_update,
            "mean_sequence_tokens": round(self.mean_sequence_tokens, 1),
            "response_tokens": self.response_tokens,
            "tokens_by_pool": self.tokens_by_pool,
            "cycles_by_pool": {name: round(cycles, 3) for name, cycles in self.cycles_by_pool.items()},
            "overshoot_tokens_by_pool": {name: round(over, 1) for name, over in self.overshoot_by_pool.items()},
            "dropped_by_pool": self.dropped,
            "unfit_by_pool": self.unfit,
        }

    @property
    def fingerprint(self) -> str:
        """The sha256 (hex) of every token of every sequence in order, and of the cut into updates."""
        rows = [[entry.pool, entry.example_id, entry.prompt_ids, entry.response_ids] for entry in self.order]
        return fingerprint([self.sequences_per_update, rows])

    def update(self, index: int) -> tuple[Example, ...]:
        """Return the sequences of the 0-based update ``index``."""
        start = index * self.sequences_per_update
        return self.order[start : start + self.sequences_per_update]


def plan_heal(pools: Mapping[str, Pool] | Iterable[Pool], spec: HealSpec, tokenizer: Any) -> HealPlan:
    """Return the plan of a healing run without touching a model.

    Raises DataError for an unusable pool and ConfigError for an impossible budget, for example one that does not fill
    a single update.
    """
    given = by_name(pools)
    usable = {name: tokenise(pool, tokenizer, spec.max_sequence_tokens) for name, pool in given.items()}
    quotas = token_quotas(read_mixture(spec.mixture), usable, spec.tokens)
    mixture = draw_mixture(usable, quotas, seed=spec.seed, max_cycles=spec.max_cycles)
    count = len(mixture.sequences)
    if count < spec.sequences_per_update:
        raise ConfigError(
            f"a budget of {spec.tokens:,} tokens gives {count} sequences, less than one update of "
            f"{spec.sequences_per_update}",
            hint="raise the budget, or lower the sequences per update",
        )
    return HealPlan(
        budget_tokens=spec.tokens,
        updates=updates_of(count, spec.sequences_per_update),
        sequences_per_update=spec.sequences_per_update,
        response_tokens=sum(len(entry.response_ids) for entry in mixture.sequences),
        draws=mixture.draws,
        dropped={name: dict(pool.dropped) for name, pool in usable.items()},
        unfit={name: len(given[name].examples) - len(pool.examples) for name, pool in usable.items()},
        order=mixture.sequences,
    )
