"""Passages that two texts share: runs of 13 words, the usual test for contamination."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from regrow.data.calibration import CalibrationSet

WORDS = re.compile(r"[^\W_]+")
RUN = 13


@dataclass(frozen=True)
class Overlap:
    """``shared`` runs of ``run`` words of the examined text occur in the other one, of ``runs`` distinct ones.

    ``share`` is their quotient (0 when the text is shorter than one run); ``example`` is one such passage.
    """

    run: int
    runs: int
    shared: int
    example: str = ""

    @property
    def share(self) -> float:
        return self.shared / self.runs if self.runs else 0.0

    def sentence(self, examined: str, other: str) -> str:
        """Return a warning in words, empty when nothing is shared."""
        if not self.shared:
            return ""
        return (
            f"{examined} and {other} share text: {self.shared} of {self.runs} runs of {self.run} words "
            f"({self.share:.1%}) are in both, for example “{self.example}”"
        )


def normalised_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return [word.lower() for word in WORDS.findall(text)]


def word_runs(text: str, run: int = RUN) -> set[str]:
    """Return the distinct runs of ``run`` consecutive words of a text."""
    words = normalised_words(text)
    return {" ".join(words[start : start + run]) for start in range(len(words) - run + 1)}


def overlap(examined: str | Iterable[str], other: str | Iterable[str], *, run: int = RUN) -> Overlap:
    """Return how much of the examined text (or texts) occurs in the other: shared runs of ``run`` words."""
    ours = _runs(examined, run)
    theirs = _runs(other, run)
    both = ours & theirs
    return Overlap(run, len(ours), len(both), min(both) if both else "")


def shared_with_calibration(
    calibration: CalibrationSet, tokenizer: Any, evaluation: str | Iterable[str], *, evaluation_name: str
) -> str:
    """Return a warning when text to be evaluated also stands in a calibration set, else an empty string.

    The calibration tokens are decoded row by row, so a passage cut by a chunk's edge counts only as far as it is whole.
    """
    rows = (tokenizer.decode(ids[mask.bool()]) for ids, mask in zip(calibration.input_ids, calibration.attention_mask))
    found = overlap(evaluation, rows)
    return found.sentence(evaluation_name, f"the calibration text '{calibration.name}'")


def _runs(text: str | Iterable[str], run: int) -> set[str]:
    texts = [text] if isinstance(text, str) else text
    return set().union(*(word_runs(one, run) for one in texts))
