"""A weighted sum of losses, written as people write it: "response-cross-entropy + 0.5*distillation"."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from regrow.heal.loss_expression import terms_of
from regrow.heal.losses import TEACHER_LOGITS, TEACHER_TOP, Loss, LossInputs
from regrow.heal.registry import LOSSES


@dataclass(frozen=True)
class Term:
    """One loss of a sum and its weight."""

    name: str
    weight: float
    loss: Loss


@dataclass(frozen=True)
class Objective:
    """What a run minimises: the sum of weight times loss over its terms."""

    terms: tuple[Term, ...]

    @property
    def reads(self) -> frozenset[str]:
        """What its losses read besides logits and labels (see losses.py)."""
        found: frozenset[str] = frozenset()
        return found.union(*(getattr(term.loss, "reads", frozenset()) for term in self.terms))

    @property
    def needs_unpruned(self) -> bool:
        """Whether a loss compares with the unpruned model."""
        return bool(self.reads)

    @property
    def needs_logits_of_unpruned(self) -> bool:
        return bool(self.reads & {TEACHER_LOGITS, TEACHER_TOP})

    def parts(self, seen: LossInputs) -> dict[str, torch.Tensor]:
        """Return each loss by name, unweighted."""
        return {term.name: term.loss(seen) for term in self.terms}

    def total(self, parts: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return the weighted sum of what :meth:`parts` gave."""
        return torch.stack([term.weight * parts[term.name] for term in self.terms]).sum()


def objective_of(text: str) -> Objective:
    """Return the objective that ``text`` names: losses joined by "+", each with an optional "weight*" before it.

    Raises ConfigError as :func:`regrow.heal.loss_expression.terms_of` does.
    """
    return Objective(tuple(Term(name, weight, LOSSES.get(name)) for name, weight in terms_of(text)))
