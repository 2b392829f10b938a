"""Every criterion by name, with its paper, what it needs and what it costs; nothing is imported until it is used.

Facts: ``needs`` (nothing, weights, text, gradients), ``cost`` in forward passes over the calibration text for a model
of N blocks, ``reads`` ("similarity" where one shared pass serves several criteria), ``keeps`` (indices of blocks that
the method itself never removes), ``takes`` ("one span" where the cut is always unbroken), ``basis`` (paper, code: read
in the authors' release, derived: reconstructed here).
"""

from __future__ import annotations

from typing import Any

from regrow.registry import Registry

CRITERIA: Registry[Any] = Registry("criterion", entry_point_group="regrow.criteria")

_HERE = "regrow.criteria"


def _declare(name: str, target: str, summary: str, paper: str, **facts: str) -> None:
    CRITERIA.declare(name, f"{_HERE}.{target}", summary=summary, paper=paper, **facts)


_declare(
    "block-influence",
    "similarity:block_influence",
    "least change of direction: 1 - mean cos(h_l, h_l+1)",
    "arXiv:2403.03853",
    needs="text",
    cost="1 forward pass for all that read it",
    reads="similarity",
    basis="paper",
)
_declare(
    "angular",
    "similarity:angular",
    "span with the least angle between its ends at the last token",
    "arXiv:2403.17887",
    needs="text",
    cost="1 forward pass for all that read it",
    reads="similarity",
    takes="one span",
    basis="paper",
)
_declare(
    "streamline",
    "similarity:streamline",
    "span with the highest cosine between its ends over all tokens",
    "arXiv:2403.19135",
    needs="text",
    cost="1 forward pass for all that read it",
    reads="similarity",
    takes="one span",
    basis="code",
)
_declare(
    "lorp",
    "locality:lorp",
    "clusters of similar blocks, thinned out one by one",
    "LoRP",
    needs="text",
    cost="1 forward pass for all that read it",
    reads="similarity",
    keeps="0, -1",
    basis="code",
)
_declare(
    "reverse-order",
    "depth:reverse_order",
    "the deepest blocks",
    "SHIFT-LLM",
    needs="nothing",
    cost="0 forward passes",
    basis="paper",
)
_declare(
    "random",
    "depth:random_order",
    "a seeded draw",
    "baseline",
    needs="nothing",
    cost="0 forward passes",
    basis="baseline",
)
_declare(
    "magnitude-l1",
    "magnitude:magnitude_l1",
    "smallest sum of |w|",
    "arXiv:2402.02834",
    needs="weights",
    cost="0 forward passes",
    basis="code",
)
_declare(
    "magnitude-l2",
    "magnitude:magnitude_l2",
    "smallest sum of w^2",
    "arXiv:2402.02834",
    needs="weights",
    cost="0 forward passes",
    basis="code",
)
_declare(
    "taylor",
    "gradients:taylor",
    "smallest sum of |w dL/dw|",
    "arXiv:2402.02834",
    needs="text, gradients",
    cost="1 forward and 1 backward pass",
    basis="code",
)
_declare(
    "perplexity",
    "ablation:perplexity",
    "least perplexity with the block left out, one shot",
    "arXiv:2402.02834",
    needs="text",
    cost="about N/2 forward passes",
    basis="paper",
)
_declare(
    "greedy-perplexity",
    "ablation:greedy_perplexity",
    "the same in rounds, each from the model as cut so far (SLEB)",
    "arXiv:2402.09025",
    needs="text",
    cost="at most n N/2 forward passes for n blocks",
    keeps="0, -1",
    basis="code",
)
_declare(
    "wrp",
    "weights:wrp",
    "redundant output projections, grouped; derived from the abstract of its paper, which gives no formula",
    "Weight-Redundancy Pruning",
    needs="weights",
    cost="0 forward passes",
    keeps="0, -1",
    basis="derived from the abstract",
)
_declare(
    "laco",
    "merging:laco",
    "differences of deeper blocks folded into an earlier one while the final state stays similar",
    "arXiv:2402.11187",
    needs="text",
    cost="about N/2 forward passes",
    keeps="0",
    basis="paper",
)
