"""A question whose answers are weighed, as tokens, and what a model gives each of its choices."""

from __future__ import annotations

from dataclasses import dataclass

from regrow.errors import DataError


class LongerThanContextError(DataError):
    """A question and its choices do not fit the model's context."""


@dataclass(frozen=True)
class ChoiceScore:
    """What the model gives one choice: the sum of its tokens' log-probabilities (nats), and its length."""

    logprob: float
    tokens: int
    characters: int
    greedy: bool = False
    """Whether each of its tokens was the likeliest one in its place."""


@dataclass(frozen=True)
class Question:
    """A prompt and the texts that may follow it, as token ids. ``choices[k]`` continues ``context`` and was a text of
    ``characters[k]`` characters."""

    context: tuple[int, ...]
    choices: tuple[tuple[int, ...], ...]
    characters: tuple[int, ...]


Scores = dict[int, list[tuple[float, bool]]]
"""Summed log-probability of each choice and whether it is the greedy one, by the number of the question."""
