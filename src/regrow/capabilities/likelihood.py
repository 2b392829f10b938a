"""Log-probabilities of answer texts: what texts share run once, no padding, logits only where needed.

Questions are packed (packed_likelihood.py) where the model lets itself be run so; else they are rows of a batch whose
contexts are kept (batch_engine.py); where neither gives the model's own logits, every text is run whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from regrow.capabilities.batch_engine import PROMPT_TOKENS_AT_ONCE, BatchEngine, layers_of, right_padded
from regrow.capabilities.decoding_way import Way, choose_way
from regrow.capabilities.model_call import (
    ModelCall,
    context_limit,
    evaluation_mode,
    positions_depend_on_length,
)
from regrow.capabilities.packed_likelihood import LONGEST_PACKED, packed_scores
from regrow.capabilities.packed_texts import can_pack
from regrow.capabilities.prefix_groups import group_by_prefix, shared_tokens
from regrow.capabilities.questions import ChoiceScore, LongerThanContextError, Question, Scores
from regrow.capabilities.token_scores import HiddenStates, target_logprobs
from regrow.data.chat import tokenise_prompt
from regrow.errors import ConfigError, DataError
from regrow.models.load import LoadedModel

__all__ = ["ChoiceScore", "LongerThanContextError", "Question", "choice_logprobs", "question_of", "score_questions"]


def choice_logprobs(
    loaded: LoadedModel,
    prompts_and_choices: Sequence[tuple[str, Sequence[str]]],
    *,
    batch_size: int = 32,
    on_progress: Callable[[int, int], None] | None = None,
    on_scores: Callable[[int, list[ChoiceScore]], None] | None = None,
) -> list[list[ChoiceScore]]:
    """Return, for every prompt, the score of each of its choices.

    Prompt and choice are tokenised as one text; the context is what all of a prompt's texts and the prompt alone have
    in common, and a choice's tokens are the rest (where a token spans the border, it counts to the choice). What
    prompts have in common is run once, each prompt's own tokens once.
    ``on_progress`` gets the prompts done and wanted, ``on_scores`` the number of a prompt and its scores as soon as
    they are there. Exact: equal to a full forward pass up to rounding.

    Raises DataError for a prompt without choices or an empty choice, LongerThanContextError for a text longer than the
    model's context.
    """
    questions = [question_of(loaded, f"prompt {number}", *pair) for number, pair in enumerate(prompts_and_choices)]
    return score_questions(loaded, questions, batch_size=batch_size, on_progress=on_progress, on_scores=on_scores)


def score_questions(
    loaded: LoadedModel,
    questions: Sequence[Question],
    *,
    batch_size: int = 32,
    reuse: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
    on_scores: Callable[[int, list[ChoiceScore]], None] | None = None,
) -> list[list[ChoiceScore]]:
    """Return the scores of questions that are tokenised already (see :func:`choice_logprobs`). Without ``reuse`` every
    text is run whole by the model's own attention: for few long ones."""
    if batch_size < 1:
        raise ConfigError(f"the batch size is {batch_size}", hint="allowed: 1 or more")
    if not questions:
        return []
    call = ModelCall(loaded.model)
    done: dict[int, list[ChoiceScore]] = {}
    with evaluation_mode(loaded.model):
        longest = max(len(each.context) + max(map(len, each.choices)) for each in questions)
        sample = max((each.context for each in questions), key=len)
        if reuse and longest <= LONGEST_PACKED and can_pack(call, sample, longest):
            batches = packed_scores(call, questions, batch_size)
        else:
            way: Way = choose_way(call, sample, longest, ragged=False) if reuse else "none"
            batches = _in_rows(call, way, questions, batch_size)
        for batch in batches:
            for number, values in batch.items():
                done[number] = [
                    ChoiceScore(logprob, len(tokens), long, greedy)
                    for (logprob, greedy), tokens, long in zip(
                        values, questions[number].choices, questions[number].characters, strict=True
                    )
                ]
                if on_scores is not None:
                    on_scores(number, done[number])
            if on_progress is not None:
                on_progress(len(done), len(questions))
    return [done[number] for number in range(len(questions))]


def question_of(loaded: LoadedModel, name: str, prompt: str, choices: Sequence[str]) -> Question:
    """Return a prompt and its choices as tokens (see :func:`choice_logprobs`); ``name`` is for errors."""
    if not choices or any(not choice for choice in choices):
        raise DataError(f"{name} has no choices or an empty one", hint="every choice needs a text")
    alone = tokenise_prompt(loaded.tokenizer, prompt)
    texts = [tokenise_prompt(loaded.tokenizer, prompt + choice) for choice in choices]
    common = min(min(shared_tokens(alone, text) for text in texts), min(map(len, texts)) - 1)
    limit = context_limit(loaded.model)
    if common < 1:
        raise DataError(
            f"{name} is empty, so the first token of its choices has nothing to follow",
            hint="give a prompt of at least one token",
        )
    if limit is not None and max(map(len, texts)) > limit:
        raise LongerThanContextError(
            f"{name} and its choices have {max(map(len, texts))} tokens, the model's context holds {limit}",
            hint="use fewer or shorter worked examples, or a model with a longer context",
        )
    return Question(
        tuple(alone[:common]), tuple(tuple(text[common:]) for text in texts), tuple(len(choice) for choice in choices)
    )


def _in_rows(call: ModelCall, way: Way, questions: Sequence[Question], batch_size: int) -> Iterator[Scores]:
    for group in group_by_prefix([each.context for each in questions]):
        members = [(index, questions[index]) for index in group.members]
        if way == "none":
            yield from _without_reuse(call, members, batch_size)
        else:
            yield from _with_reuse(call, members, group.shared, batch_size)


def _with_reuse(
    call: ModelCall, members: Sequence[tuple[int, Question]], shared: int, batch_size: int
) -> Iterator[Scores]:
    hidden = HiddenStates(call.model)
    longest = len(members[0][1].context)
    layers = len(layers_of(call.model) or ())
    with BatchEngine(call, layers, most=batch_size, longest=longest) as engine, hidden.watched():
        prefix = engine.run_prefix(members[0][1].context[:shared])
        for begin in range(0, len(members), batch_size):
            batch = members[begin : begin + batch_size]
            logits_RV = engine.open(prefix, [question.context for _, question in batch])
            found: Scores = {}
            for row, (index, question) in enumerate(batch):
                firsts = torch.tensor([choice[0] for choice in question.choices], device=call.device)
                # All choices start at the same place: one row of logits serves every one of them.
                scores = target_logprobs(logits_RV[row].expand(len(firsts), -1), firsts)
                best = logits_RV[row].argmax()
                found[index] = list(zip(scores.tolist(), (firsts == best).tolist(), strict=True))
            longer = [
                (row, index, number, choice)
                for row, (index, question) in enumerate(batch)
                for number, choice in enumerate(question.choices)
                if len(choice) > 1
            ]
            width = max((len(choice) - 1 for _, _, _, choice in longer), default=1)
            at_once = max(1, min(4 * batch_size, PROMPT_TOKENS_AT_ONCE // width))
            for start in range(0, len(longer), at_once):
                part = longer[start : start + at_once]
                engine.continue_rows([row for row, *_ in part], [choice[:-1] for *_, choice in part])
                sums = _sums(hidden, [(0, choice[1:]) for *_, choice in part])
                for (_, index, number, _), (value, greedy) in zip(part, sums, strict=True):
                    before, so_far = found[index][number]
                    found[index][number] = (before + value, so_far and greedy)
            engine.rows.clear()
            yield found


def _without_reuse(call: ModelCall, members: Sequence[tuple[int, Question]], batch_size: int) -> Iterator[Scores]:
    """Score whole texts, padded on the right, where nothing that was computed before can be kept."""
    hidden = HiddenStates(call.model)
    with hidden.watched():
        for index, question in members:
            values: list[tuple[float, bool]] = []
            longest = len(question.context) + max(map(len, question.choices))
            at_once = 1 if positions_depend_on_length(call.model, longest) else batch_size
            for begin in range(0, len(question.choices), at_once):
                part = question.choices[begin : begin + at_once]
                texts = [[*question.context, *choice[:-1]] for choice in part]
                call.last_logits(right_padded(texts, call.device), cache=None)
                values += _sums(hidden, [(len(question.context) - 1, choice) for choice in part])
            yield {index: values}


def _sums(hidden: HiddenStates, targets: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[float, bool]]:
    """Return, for row r of the newest call, the summed log-probability of ``targets[r]`` = (first position, tokens)
    and whether all of them were the likeliest tokens."""
    rows = [row for row, (_, tokens) in enumerate(targets) for _ in tokens]
    places = [first + at for first, tokens in targets for at in range(len(tokens))]
    wanted = torch.tensor([token for _, tokens in targets for token in tokens], device=hidden.last.device)
    values, best = hidden.logprobs_and_best(hidden.last[rows, places], wanted)
    sums = torch.zeros(len(targets), dtype=torch.float64)
    misses = torch.zeros(len(targets), dtype=torch.long)
    at = torch.tensor(rows)
    sums.index_add_(0, at, values.double().cpu())
    misses.index_add_(0, at, (~best).long().cpu())
    return list(zip(sums.tolist(), (misses == 0).tolist(), strict=True))
