"""Log-probabilities of choices from packed forests: every token of a set of questions is run once, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from regrow.capabilities.kv_rows import Prefix
from regrow.capabilities.model_call import ModelCall
from regrow.capabilities.packed_texts import PackedTexts, Planted
from regrow.capabilities.prefix_groups import group_by_prefix, shared_tokens
from regrow.capabilities.questions import Question, Scores
from regrow.capabilities.token_forest import TokenForest
from regrow.capabilities.token_scores import HiddenStates

TOKENS_AT_ONCE = 2048
"""Tokens after which a call takes no more questions, but for up to as many again that share their context with the one
before: more bring no speed, and scores come in later."""

LONGEST_PACKED = 4096
"""Tokens of the longest text that is packed: which token sees which is a square of that side."""

_FULL, _AKIN, _BURSTING = 128, 0.5, 1024
"""A forest of so many tokens takes only questions that share this part of their context with the one before, and of so
many none: within a forest every pair of tokens is looked at, and a call of the attention for few tokens costs more than
it computes."""


def packed_scores(call: ModelCall, questions: Sequence[Question], batch_size: int) -> Iterator[Scores]:
    """Yield the scores of all questions, up to ``batch_size`` at a time."""
    hidden = HiddenStates(call.model)
    with PackedTexts(call) as packed, hidden.watched():
        load = _Load()
        for group in group_by_prefix([each.context for each in questions]):
            prefix = packed.run_prefix(questions[group.members[0]].context[: group.shared])
            ordered = sorted(group.members, key=lambda index: questions[index].context)
            previous: tuple[int, ...] | None = None
            for index in ordered:
                own = questions[index].context[prefix.tokens :]
                akin = previous is not None and shared_tokens(previous, own) >= _AKIN * len(own)
                if load.questions and load.full(batch_size, akin=akin):
                    yield _scored(packed, hidden, load)
                    load = _Load()
                load.add(index, questions[index], prefix, new=previous is None or not akin)
                previous = own
        if load.questions:
            yield _scored(packed, hidden, load)


class _Load:
    """What the next call runs: forests, and where the choices of each question hang in them."""

    def __init__(self) -> None:
        self.planted: list[Planted] = []
        self.questions: list[tuple[int, Question, int, list[list[int]]]] = []

    def full(self, batch_size: int, *, akin: bool) -> bool:
        tokens = sum(len(each.forest) for each in self.planted)
        most = 2 if akin else 1
        return tokens >= most * TOKENS_AT_ONCE or len(self.questions) >= most * batch_size

    def add(self, index: int, question: Question, prefix: Prefix, *, new: bool) -> None:
        """Add a question; ``new`` if it has little in common with the one before, so that another forest may begin."""
        last = self.planted[-1] if self.planted else None
        if last is None or last.prefix is not prefix or len(last.forest) >= (_FULL if new else _BURSTING):
            last = Planted(TokenForest(), prefix)
            self.planted.append(last)
        context = last.forest.add(question.context[prefix.tokens :])
        # What follows a choice's last token is not asked for, so that token is not run.
        after = [[context[-1], *last.forest.add(choice[:-1], after=context[-1])] for choice in question.choices]
        self.questions.append((index, question, len(self.planted) - 1, after))


def _scored(packed: PackedTexts, hidden: HiddenStates, load: _Load) -> Scores:
    starts, _ = packed.run(load.planted)
    places: list[int] = []
    targets: list[int] = []
    owners: list[int] = []
    choices = 0
    for _, question, forest, after in load.questions:
        for choice, nodes in zip(question.choices, after, strict=True):
            places += [starts[forest] + node for node in nodes]
            targets += choice
            owners += [choices] * len(choice)
            choices += 1
    device = hidden.last.device
    values, best = hidden.at_places(torch.tensor(places, device=device), torch.tensor(targets, device=device))
    owner = torch.tensor(owners)
    sums = torch.zeros(choices, dtype=torch.float64).index_add_(0, owner, values.double().cpu())
    misses = torch.zeros(choices, dtype=torch.long).index_add_(0, owner, (~best).long().cpu())
    found = iter(zip(sums.tolist(), (misses == 0).tolist(), strict=True))
    return {index: [next(found) for _ in question.choices] for index, question, _, _ in load.questions}
