"""Knowledge: is the right answer text the likeliest of the choices?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from regrow.capabilities.calibration import expected_calibration_error
from regrow.capabilities.scoring import Kind, mean
from regrow.errors import ModelError
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore


class ChoiceLikelihood(Protocol):
    """What a model gave one choice: the sum of its tokens' log-probabilities (nats), and its length."""

    @property
    def logprob(self) -> float: ...

    @property
    def tokens(self) -> int: ...

    @property
    def characters(self) -> int: ...


def kept_likelihoods(likelihoods: Sequence[ChoiceLikelihood]) -> dict[str, str | float | bool | None]:
    """Return what a record keeps of each choice, so that another rule can grade it without the model: "logprob_0" and
    on, and "tokens_0" and on where a choice has more tokens than one."""
    found: dict[str, str | float | bool | None] = {}
    for at, each in enumerate(likelihoods):
        found[f"logprob_{at}"] = each.logprob
        if each.tokens != 1:
            found[f"tokens_{at}"] = float(each.tokens)
    return found


class Knowledge:
    """Scores 1 when the choice with the highest log-probability per token is the one at ``gold["choice"]``, else 0.

    ``details["confidence"]`` is the softmax, over the choices, of the SUMMED log-probabilities of the chosen one: the
    probability that the model gives that text among the four. A tie goes to the earlier choice.
    """

    name = "knowledge"
    kind: Kind = "likelihood"
    chance = 0.25

    def decided(self, text: str) -> bool:
        """Return True: a likelihood item has no text to wait for."""
        return True

    def grade(self, item: Item, response: str) -> Grade:
        """Return the grade of a chosen answer text (to grade a record again without the model)."""
        return Grade(float(response == item.choices[item.gold["choice"]]))

    def grade_choices(self, item: Item, likelihoods: Sequence[ChoiceLikelihood]) -> Grade:
        """Return the grade with ``details``: "choice" (index, as float), "confidence" (0..1) and what was read
        (:func:`kept_likelihoods`).

        Raises ModelError when a likelihood is not a number (see :func:`refuse_undefined`).
        """
        refuse_undefined(item, likelihoods)
        per_token = [each.logprob / max(1, each.tokens) for each in likelihoods]
        chosen = max(range(len(per_token)), key=per_token.__getitem__)
        confidence = softmax([each.logprob for each in likelihoods])[chosen]
        right = float(chosen == item.gold["choice"])
        return Grade(
            right, details={"choice": float(chosen), "confidence": confidence, **kept_likelihoods(likelihoods)}
        )

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score`` and ``accuracy`` (the same number), ``confidence`` (mean) and ``ece`` (10 bins; NaN where
        no confidence was recorded)."""
        sure = [(float(s.details["confidence"] or 0.0), s.score) for s in scores if "confidence" in s.details]
        accuracy = mean(score.score for score in scores)
        return {
            "score": accuracy,
            "accuracy": accuracy,
            "confidence": mean(confidence for confidence, _ in sure),
            "ece": expected_calibration_error([confidence for confidence, _ in sure], [right for _, right in sure]),
        }


def refuse_undefined(item: Item, likelihoods: Sequence[ChoiceLikelihood]) -> None:
    """Raise ModelError when one of an item's likelihoods is not a number, ValueError when there are not as many as
    choices. A model whose weights hold NaN or infinity, or that overflows in half precision, gives such values."""
    if len(likelihoods) != len(item.choices):
        raise ValueError(f"item {item.item_id} needs one log-probability for each of {len(item.choices)} choices")
    if any(math.isnan(each.logprob) or each.logprob == math.inf for each in likelihoods):
        raise ModelError(
            f"the model gives no finite probabilities (item {item.item_id} of {item.capability})",
            hint="its weights hold NaN or infinity, or it overflows in this precision: try --dtype float32, "
            "or make the checkpoint again",
        )


def softmax(values: Sequence[float]) -> list[float]:
    """Return exp(v) normalised to sum 1, computed without overflow; all minus infinity gives equal shares."""
    top = max(values)
    if top == -math.inf:
        return [1.0 / len(values)] * len(values)
    weights = [math.exp(value - top) for value in values]
    total = math.fsum(weights)
    return [weight / total for weight in weights]
