"""Guesses at a row's next tokens, from what followed the same tokens earlier in its text (prompt lookup decoding).

A guess costs a column more in a call that is made anyway; where it is right, a call is saved. The answer is the greedy
one in any case: a guessed token is taken only where it is the likeliest. Drafting from the text itself needs no second
model: LLMA (2304.04487), and the "prompt lookup" of transformers and vLLM.
"""

from __future__ import annotations

from collections.abc import Sequence

MATCH = 2
"""Tokens that must have stood there before."""

LONGEST = 8

_FIRST_RATE = 0.5
"""How often a guess is right, before a text has shown it."""
_LEARNING = 0.1
"""What each further guess counts in that."""

_STEP_TOKENS = 15
"""A step costs as much, whatever it computes, as so many further tokens in it (SmolLM2-135M on two cores)."""
_ROW_TOKENS = 1.5
"""A row's next token, and the attention to all that the row holds."""
_MARGIN = 1.3
"""A guess must pay by so much: the chance is an estimate. The best of those tried on IFEval and GSM8K."""


class PromptLookup:
    """A text that grows, and where each run of ``match`` tokens was last continued.

    ``rate`` is how often a guessed token was right of late, given that those before it were.
    """

    def __init__(self, ids: Sequence[int], match: int = MATCH) -> None:
        self.ids: list[int] = []
        self.match = match
        self.rate = _FIRST_RATE
        self._after: dict[tuple[int, ...], int] = {}
        self._guess: list[int] = []
        self.extend(ids)

    def extend(self, ids: Sequence[int]) -> None:
        """Add tokens to the text, and learn from them whether the last guess was right."""
        for guessed, token in zip(self._guess, ids, strict=False):
            self.rate += _LEARNING * ((guessed == token) - self.rate)
            if guessed != token:
                break
        self._guess = []
        for token in ids:
            if len(self.ids) >= self.match:
                self._after[tuple(self.ids[-self.match :])] = len(self.ids)
            self.ids.append(token)

    def draft(self, most: int, least_chance: float = 0.0) -> list[int]:
        """Return up to ``most`` tokens that may come next, as long as the chance that all of them are right is at least
        ``least_chance``; none where the last tokens never stood there before. What would lie beyond the end of the text
        is taken from the draft itself: the text goes round."""
        at = self._after.get(tuple(self.ids[-self.match :])) if most > 0 else None
        if at is None:
            return []
        count, chance = 0, self.rate
        while count < min(most, LONGEST) and chance >= least_chance:
            count, chance = count + 1, chance * self.rate
        # The first token is remembered even where it is not worth a place: whether it is right says what the next are.
        followed = self.ids[at : at + max(count, 1)]
        self._guess = [followed[place % len(followed)] for place in range(max(count, 1))]
        return self._guess[:count]


def worthwhile_chance(rows: int) -> float:
    """Return the chance of being right from which on a guessed token pays in a step of so many rows: what it costs,
    over what a row's step costs with its share of what all rows cost together."""
    return _MARGIN / (_ROW_TOKENS + _STEP_TOKENS / rows)
