"""What a healing run can minimise: sums over the response tokens of a micro-batch.

The loop divides by the number of response tokens of the whole update (end tokens included), so every response token of
an update weighs the same whatever its sequence, pool or micro-batch. objective.py adds losses up.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import torch
import torch.nn.functional as F

TEACHER_LOGITS = "teacher logits"
TEACHER_TOP = "teacher top-k"
STREAMS = "streams at the cut"

L = TypeVar("L", bound=Callable[..., torch.Tensor])


@dataclass(frozen=True)
class TopTokens:
    """The unpruned model's k likeliest next tokens: ``ids`` and ``log_probs`` (n, k), and in ``rest`` (n,) the
    log-probability of all others together."""

    ids: torch.Tensor
    log_probs: torch.Tensor
    rest: torch.Tensor


@dataclass(frozen=True)
class LossInputs:
    """What a loss may read of a micro-batch, at the n positions whose next token is a response token.

    ``logits`` (n, vocabulary), ``labels`` (n,) the next tokens. What follows is there for losses that ask for it (see
    :func:`reads`): ``teacher_logits`` (n, vocabulary) and ``teacher_top`` of the unpruned model, the latter at
    ``temperature``; ``streams`` and ``teacher_streams``, one (n, width) for each cut.
    """

    logits: torch.Tensor
    labels: torch.Tensor
    teacher_logits: torch.Tensor | None = None
    teacher_top: TopTokens | None = None
    streams: tuple[torch.Tensor, ...] = ()
    teacher_streams: tuple[torch.Tensor, ...] = ()
    temperature: float = 1.0


class Loss(Protocol):
    """Returns the sum of a loss over the positions of a micro-batch (a scalar, float32)."""

    def __call__(self, seen: LossInputs) -> torch.Tensor: ...


def reads(*what: str) -> Callable[[L], L]:
    """Return a decorator that notes what a loss reads besides logits and labels."""

    def mark(loss: L) -> L:
        loss.reads = frozenset(what)  # type: ignore[attr-defined]
        return loss

    return mark


def response_cross_entropy(seen: LossInputs) -> torch.Tensor:
    """Return the summed negative log-likelihood, in nats, of the response tokens and the end token."""
    return F.cross_entropy(seen.logits.float(), seen.labels, reduction="sum")


@reads(TEACHER_LOGITS)
def distillation(seen: LossInputs) -> torch.Tensor:
    """Return the summed Kullback-Leibler divergence KL(unpruned || trained) of the next-token distributions, in nats.

    Both are softened by the temperature T, and the sum is scaled by T^2, which keeps the size of its gradient (Hinton
    et al., arXiv 1503.02531). The whole vocabulary counts.
    """
    assert seen.teacher_logits is not None
    heat = seen.temperature
    student = (seen.logits.float() / heat).log_softmax(-1)
    teacher = (seen.teacher_logits.float() / heat).log_softmax(-1)
    return F.kl_div(student, teacher, reduction="sum", log_target=True) * heat**2


@reads(TEACHER_TOP)
def distillation_top_k(seen: LossInputs) -> torch.Tensor:
    """Return the divergence of :func:`distillation` over k + 1 outcomes: the unpruned model's k likeliest tokens, and
    all others as one.

    Merging outcomes can only lower a divergence, so this is a lower bound that meets the whole one as k grows; unlike a
    softmax over the k tokens alone it also tells how much probability belongs outside them.
    """
    assert seen.teacher_top is not None
    heat, top = seen.temperature, seen.teacher_top
    student = (seen.logits.float() / heat).log_softmax(-1)
    named = student.gather(-1, top.ids)
    others = student.scatter(-1, top.ids, float("-inf")).logsumexp(-1)
    inside = (top.log_probs.exp() * (top.log_probs - named)).sum()
    outside = (top.rest.exp() * (top.rest - others)).sum()
    return (inside + outside) * heat**2


@reads(STREAMS)
def hidden_states(seen: LossInputs) -> torch.Tensor:
    """Return the summed relative squared error of the residual stream at the cuts: norm(h - y)^2 / norm(y)^2.

    y is the unpruned model's stream behind the last removed block of a cut, h the stream that the healed model hands to
    the kept block at that place (after a bridge, where there is one). Several cuts are averaged. Relative, because the
    norm of a stream grows a hundredfold with depth and at the first position.
    """
    pairs = zip(seen.streams, seen.teacher_streams, strict=True)
    errors = [
        (h.float() - y.float()).square().sum(-1).div(y.float().square().sum(-1).clamp_min(1e-20)).sum()
        for h, y in pairs
    ]
    return torch.stack(errors).mean()
