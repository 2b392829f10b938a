"""Guesses at a row's next tokens, from what followed the same tokens earlier in its text (prompt lookup decoding).

A guess costs a column more in a call that is made anyway; where it is right, a call is saved. The answer is the greedy
one in any case: a guessed token is taken only where it is the likeliest. Drafting from the text itself needs no second
model: LLMA (2304.04487), and the "prompt lookup" of transformers and vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

MATCH = 3
"""Tokens that must have stood there before."""

LONGEST = 8
_FIRST = 2


class PromptLookup:
    """A text that grows, and where each run of ``match`` tokens was last continued."""

    def __init__(self, ids: Sequence[int], match: int = MATCH) -> None:
        self.ids: list[int] = []
        self.match = match
        self._after: dict[tuple[int, ...], int] = {}
        self._most = _FIRST
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens to the text."""
        for token in ids:
            if len(self.ids) >= self.match:
                self._after[tuple(self.ids[-self.match :])] = len(self.ids)
            self.ids.append(token)

    def draft(self, most: int) -> list[int]:
        """Return up to ``most`` tokens that may come next, none where the last ones never stood there before. What
        would lie beyond the end of the text is taken from the draft itself: the text goes round."""
        at = self._after.get(tuple(self.ids[-self.match :])) if most > 0 else None
        if at is None:
            return []
        followed = self.ids[at : at + self._most]
        return [followed[place % len(followed)] for place in range(min(most, self._most))]

    def judge(self, drafted: int, right: int) -> None:
        """Learn from the last draft: twice as many next time when all were right, else as many as were."""
        if drafted:
            self._most = min(LONGEST, 2 * self._most) if right == drafted else max(1, right)
