"""PASER-style selection (2502.12594): the budget goes to clusters of prompts whose outputs the cut changed most.

Kept from the paper: clusters of the prompts' embeddings, a cluster's budget in proportion to its mean degradation
(Jensen-Shannon divergence between the pruned and the original model's output distributions), prompts picked inside a
cluster by degradation / log(cost). Different: k-means in place of spectral clustering by matrix factorisation, budgets
in tokens in place of examples, and no graph of contradicting concepts [derived].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from regrow.errors import DataError
from regrow.planning.clusters import kmeans
from regrow.planning.pilots import SEQUENCE_TOKENS
from regrow.planning.planner import checked_budget
from regrow.planning.rule import Allocation, CallableRule, Design, Evidence, Needs
from regrow.seeding import stream

Floats = NDArray[np.float64]

PROMPTS_PER_POOL = 1_000


@dataclass(frozen=True)
class Prompts:
    """Pool prompts: their pool and id (n,), an embedding (n, d), degradation (n,) and tokens of the example (n,)."""

    pools: tuple[str, ...]
    ids: tuple[str, ...]
    embeddings: Floats
    degradation: Floats
    tokens: Floats

    @staticmethod
    def of(
        pools: Sequence[str], ids: Sequence[str], embeddings: ArrayLike, degradation: ArrayLike, tokens: ArrayLike
    ) -> Prompts:
        """Return the prompts, checked. Raises DataError for unequal lengths, no prompts, or values that cannot be."""
        found = Prompts(
            tuple(pools),
            tuple(ids),
            np.atleast_2d(np.asarray(embeddings, np.float64)),
            np.asarray(degradation, np.float64),
            np.asarray(tokens, np.float64),
        )
        n = len(found.pools)
        sizes = (len(found.ids), len(found.embeddings), found.degradation.size, found.tokens.size)
        if n == 0 or any(size != n for size in sizes):
            raise DataError(f"{n} prompts with ids, embeddings, degradations, tokens of {sizes}", hint="one of each")
        if (
            not (found.degradation >= 0).all()
            or not (found.tokens > 0).all()
            or not np.isfinite(found.embeddings).all()
        ):
            raise DataError(
                "degradations must be 0 or more, tokens positive, embeddings finite", hint="drop bad prompts"
            )
        return found


@dataclass(frozen=True)
class Paser(CallableRule):
    """Tokens per pool as the picked prompts have them; ``clusters`` None makes as many as there are pools."""

    name: str = "paser"
    clusters: int | None = None

    def needs(self, design: Design) -> Needs:
        return Needs(read_tokens=2 * PROMPTS_PER_POOL * SEQUENCE_TOKENS * len(design.pools))

    def allocate(self, evidence: Evidence, budget: float) -> Allocation:
        if evidence.prompts is None:
            raise DataError(
                f"rule '{self.name}' needs the pools' prompts with embeddings and degradations",
                hint="put them into the file under 'evidence', 'paser' (docs/planning.md has the layout)",
            )
        prompts: Prompts = evidence.prompts
        unknown = sorted(set(prompts.pools) - set(evidence.pools))
        if unknown:
            raise DataError(f"prompts name a pool '{unknown[0]}' that is not there", hint=", ".join(evidence.pools))
        count = min(self.clusters or len(evidence.pools), len(prompts.pools))
        labels = kmeans(prompts.embeddings, count, stream(evidence.seed, "paser"))
        taken = pick(prompts, labels, checked_budget(budget))
        cycles = budget / taken.sum()
        tokens = dict.fromkeys(evidence.pools, 0.0)
        for pool, used in zip(prompts.pools, taken, strict=True):
            tokens[pool] += float(used * cycles)
        notes = [f"{count} clusters of {len(prompts.pools):,} prompts"]
        if cycles > 1 + 1e-9:
            notes.append(f"the prompts hold {taken.sum():,.0f} tokens, so each is used {cycles:.2f} times")
        chosen = tuple(name for name, used in zip(prompts.ids, taken, strict=True) if used > 0)
        return Allocation(tokens, notes=tuple(notes), chosen=chosen)


def pick(prompts: Prompts, labels: NDArray[np.intp], budget: float) -> Floats:
    """Return the tokens taken from each prompt, (n,), summing to the budget or to all there is.

    What a cluster cannot spend goes to the others in proportion to their degradation.
    """
    clusters = range(int(labels.max()) + 1)
    worth = np.array([prompts.degradation[labels == k].mean() for k in clusters])
    if worth.sum() <= 0:
        worth = np.ones(len(worth))
    room = np.array([prompts.tokens[labels == k].sum() for k in clusters])
    quota = np.zeros(len(worth))
    left = min(budget, float(room.sum()))
    for _ in clusters:
        open_ = quota < room * (1 - 1e-12)
        weights = np.where(open_, worth, 0.0)
        if left <= 0 or not open_.any():
            break
        if weights.sum() <= 0:
            weights = open_.astype(np.float64)
        grown = np.minimum(quota + left * weights / weights.sum(), room)
        left -= float((grown - quota).sum())
        quota = grown
    # The paper's efficiency: degradation per logarithm of the cost, and cost grows with the square of the length.
    efficiency = prompts.degradation / np.log(np.maximum(prompts.tokens, 2.0) ** 2)
    taken = np.zeros(len(prompts.tokens))
    for k in clusters:
        members = np.flatnonzero(labels == k)
        members = members[np.argsort(-efficiency[members], kind="stable")]
        before = np.cumsum(prompts.tokens[members]) - prompts.tokens[members]
        taken[members] = np.clip(quota[k] - before, 0.0, prompts.tokens[members])
    return taken


PASER = Paser()
