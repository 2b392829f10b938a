"""Instruction following by IFEval's own checkers (arXiv 2311.07911), as lm-evaluation-harness carries them."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from regrow.capabilities.scoring import Kind, mean
from regrow.data.missing import MissingDataSet
from regrow.data.text import DATA_FOLDER_VARIABLE
from regrow.errors import DataError
from regrow.protocols import Grade, Item
from regrow.records.results import ItemScore

Details = dict[str, str | float | bool | None]

LONGEST_CHECKED = 10_000
"""Characters of a response that are checked. Some of the checkers take time in the square of the length."""

_INTO_PATTERNS = ("keywords", "forbidden_words", "keyword", "section_spliter", "postscript_marker")
_PATTERN_SIGNS = frozenset("\\*+?{}()|[]^$")
"""What makes words into a pattern. The checkers search for IFEval's words as patterns, without a limit of time."""

INSTALL = 'pip install "regrow[lm-eval]"'


class VerifiedInstructions:
    """Scores 1 when the answer obeys every instruction of a prompt, strictly (IFEval's prompt-level strict accuracy).

    The gold holds ``instruction_id_list``, ``kwargs`` and ``prompt`` as in the data set. The checks are the harness's
    (package extra ``lm-eval``); the language detector's and the checkers' random draws are seeded, so that a response
    always gets the same grade. ``details`` keep the loose grade and, for each instruction, both verdicts ("110").
    """

    name = "instruction_following"
    kind: Kind = "generative"
    chance = 0.0

    def __init__(self, data: Path | None = None) -> None:
        """``data``: a data folder that may hold the sentence splitter's data (default: REGROW_DATA's)."""
        folder = data or os.environ.get(DATA_FOLDER_VARIABLE)
        self._nltk = Path(folder).expanduser() / "nltk_data" if folder else None

    def ready(self) -> None:
        """Raise DataError now, before any model is run, when the checkers cannot be used."""
        _checkers(self._nltk)

    def known(self) -> frozenset[str]:
        """Return the ids of the instructions that can be checked."""
        return frozenset(_checkers(self._nltk).instructions_registry.INSTRUCTION_DICT)

    def decided(self, text: str) -> bool:
        """Return False: what comes next can break, or mend, any of the instructions."""
        return False

    def grade(self, item: Item, response: str) -> Grade:
        """Return the strict grade. Raises DataError when the harness or the sentence splitter's data is missing."""
        checkers = _checkers(self._nltk)
        pattern = _pattern_among(item.gold["kwargs"])
        if pattern is not None:
            return _broken(item, f"{pattern[:60]!r} is a pattern where words are expected")
        document = {**item.gold, "key": item.item_id, "kwargs": [_used(each) for each in item.gold["kwargs"]]}
        with _seeded():
            try:
                found = checkers.process_results(document, [response[:LONGEST_CHECKED]])
            # The checkers are another project's, and meet whatever a model writes (JSON nested too deep for Python).
            except Exception as error:
                return _broken(item, f"the checker gave up: {type(error).__name__}")
        return Grade(
            float(found["prompt_level_strict_acc"]),
            details={
                "loose": bool(found["prompt_level_loose_acc"]),
                "strict_by_instruction": _signs(found["inst_level_strict_acc"]),
                "loose_by_instruction": _signs(found["inst_level_loose_acc"]),
            },
        )

    def summarise(self, scores: Sequence[ItemScore]) -> dict[str, float]:
        """Return ``score`` and ``prompt_strict`` (the same number), ``prompt_loose``, ``instruction_strict`` and
        ``instruction_loose`` (shares of all instructions)."""
        strict = mean(score.score for score in scores)
        return {
            "score": strict,
            "prompt_strict": strict,
            "prompt_loose": mean(float(bool(score.details["loose"])) for score in scores if "loose" in score.details),
            "instruction_strict": _share(scores, "strict_by_instruction"),
            "instruction_loose": _share(scores, "loose_by_instruction"),
        }


def _broken(item: Item, fault: str) -> Grade:
    none = "0" * len(item.gold["instruction_id_list"])
    details: Details = {"loose": False, "strict_by_instruction": none, "loose_by_instruction": none}
    return Grade(0.0, details={"fault": fault, **details})


def _pattern_among(arguments: Sequence[dict[str, Any] | None]) -> str | None:
    """Return a word of the data set that the checkers would run as a pattern, of which some never end."""
    for given in arguments:
        for name in _INTO_PATTERNS:
            value = (given or {}).get(name)
            for word in value if isinstance(value, list) else [value]:
                if isinstance(word, str) and not _PATTERN_SIGNS.isdisjoint(word):
                    return word
    return None


def _used(options: dict[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (options or {}).items() if value is not None}


def _signs(verdicts: Sequence[bool]) -> str:
    return "".join("1" if verdict else "0" for verdict in verdicts)


def _share(scores: Sequence[ItemScore], name: str) -> float:
    return mean(float(sign) for score in scores for sign in str(score.details.get(name, "")))


@cache
def _checkers(nltk_data: Path | None) -> Any:
    try:
        import nltk

        if nltk_data is not None and nltk_data.is_dir() and str(nltk_data) not in nltk.data.path:
            nltk.data.path.append(str(nltk_data))

        # The harness fetches the data over the network when it is imported without it; here the user is told instead.
        nltk.data.find("tokenizers/punkt_tab/english/")
        from langdetect import DetectorFactory
        from lm_eval.tasks.ifeval import utils
    except ImportError as error:
        raise DataError(f"IFEval's checkers need another package ({error.name})", hint=INSTALL) from error
    except LookupError as error:
        raise MissingDataSet(
            "nltk punkt_tab",
            "is missing (it splits sentences for IFEval)",
            "python -m nltk.downloader punkt_tab, or set NLTK_DATA to the folder that holds it",
        ) from error
    DetectorFactory.seed = 0
    # It reports every text whose language cannot be told, whole, on the terminal.
    logging.getLogger("lm_eval").setLevel(logging.CRITICAL)
    return utils


@contextmanager
def _seeded() -> Iterator[None]:
    before = random.getstate()
    random.seed(0)
    try:
        yield
    finally:
        random.setstate(before)
