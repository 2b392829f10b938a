"""Knowledge asked by letter: the probability of "A", "B", "C", "D" as the next token."""

from __future__ import annotations

import math
from collections.abc import Sequence

from regrow.capabilities.knowledge import ChoiceLikelihood, Knowledge, kept_likelihoods, refuse_undefined, softmax
from regrow.protocols import Grade, Item

LETTERS = "ABCD"

VARIANTS = ("{}", " {}")
"""The ways in which a letter may be written first; their probabilities are added."""


def letter_choices(count: int = len(LETTERS)) -> tuple[str, ...]:
    """Return the texts whose likelihoods are asked: all letters in the first writing, then all in the second."""
    return tuple(variant.format(letter) for variant in VARIANTS for letter in LETTERS[:count])


class LetterChoice(Knowledge):
    """Scores 1 when the letter with the largest probability mass, over its writings, is the one at ``gold["choice"]``.

    ``details["confidence"]`` is that mass renormalised over the letters. A tie goes to the earlier letter.
    """

    def grade_choices(self, item: Item, likelihoods: Sequence[ChoiceLikelihood]) -> Grade:
        """Return the grade with ``details``: "choice" (index of the letter, as float), "confidence" (0..1) and the
        log-probabilities of all writings."""
        refuse_undefined(item, likelihoods)
        count = len(item.choices) // len(VARIANTS)
        masses = [_log_sum([each.logprob for each in likelihoods[at::count]]) for at in range(count)]
        chosen = max(range(count), key=masses.__getitem__)
        right = float(chosen == item.gold["choice"])
        confidence = softmax(masses)[chosen]
        return Grade(
            right, details={"choice": float(chosen), "confidence": confidence, **kept_likelihoods(likelihoods)}
        )


def _log_sum(values: Sequence[float]) -> float:
    top = max(values)
    return top if top == -math.inf else top + math.log(math.fsum(math.exp(value - top) for value in values))
