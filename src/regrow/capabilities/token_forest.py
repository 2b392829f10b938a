"""Texts as a forest of tokens: what several of them begin with stands there once.

A node is a token after all that precede it. Nodes are numbered so that a parent comes before its children; a token
sees its ancestors and itself and nothing else, so a forest can be run as one sequence, each text in it as if alone
(the tree attention of SpecInfer, 2305.09781, used here for the choices of a question).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ROOT = -1
"""The parent of a token that nothing precedes."""


class TokenForest:
    """Grows by texts; ``tokens[n]``, ``parents[n]`` and ``depths[n]`` describe node n (a first token has depth 0)."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.depths: list[int] = []
        self._children: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, text: Sequence[int], *, after: int = ROOT) -> list[int]:
        """Return the nodes of the tokens of ``text``, which follows node ``after``; those that are not there yet are
        made."""
        path: list[int] = []
        for token in text:
            node = self._children.get((after, token))
            if node is None:
                node = len(self.tokens)
                self._children[after, token] = node
                self.tokens.append(token)
                self.parents.append(after)
                self.depths.append(0 if after == ROOT else self.depths[after] + 1)
            path.append(node)
            after = node
        return path

    def visible(self) -> np.ndarray:
        """Return which nodes (columns) each node (row) sees: its ancestors and itself, bool."""
        seen = np.eye(len(self), dtype=bool)
        for node, parent in enumerate(self.parents):
            if parent != ROOT:
                seen[node] |= seen[parent]
        return seen
