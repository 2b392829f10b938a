"""WikiText-2 by the word, as lm-evaluation-harness defines it: every article by itself, punctuation put back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from regrow.capabilities.continuation import text_logprob
from regrow.errors import DataError
from regrow.models.load import LoadedModel

_WORD = re.compile(r"\s+")

_REPAIRS: tuple[tuple[str, str], ...] = (
    ("s '", "s'"),
    (" @-@ ", "-"), (" @,@ ", ","), (" @.@ ", "."),
    (" : ", ": "), (" ; ", "; "), (" . ", ". "), (" ! ", "! "), (" ? ", "? "), (" , ", ", "),
)  # fmt: skip

_TIGHTENED = (("(", ")"), ("[", "]"), ("{", "}"), ('"', '"'), ("'", "'"))

_LAST: tuple[tuple[str, str], ...] = (
    ("= = = =", "===="), ("= = =", "==="), ("= =", "=="), (" \u00b0 ", "\u00b0"), (" \n", "\n"), ("\n ", "\n"),
    (" N ", " 1 "), (" 's", "'s"),
)  # fmt: skip


def detokenised(article: str) -> str:
    """Return an article of raw WikiText as people write: without blanks around punctuation and inside brackets."""
    for old, new in _REPAIRS:
        article = article.replace(old, new)
    for opening, closing in _TIGHTENED:
        first, last = re.escape(opening), re.escape(closing)
        article = re.sub(rf"{first}\s*([^{last}]*?)\s*{last}", rf"{opening}\1{closing}", article)
    for old, new in _LAST:
        article = article.replace(old, new)
    return article


@dataclass(frozen=True)
class ArticlePerplexity:
    """``logprob`` (nats) of all articles; words and bytes are those of the raw articles, tokens the model's."""

    logprob: float
    words: int
    bytes: int
    tokens: int

    @property
    def per_word(self) -> float:
        """The harness's ``word_perplexity``."""
        return math.exp(-self.logprob / self.words)

    @property
    def per_byte(self) -> float:
        """The harness's ``byte_perplexity``."""
        return math.exp(-self.logprob / self.bytes)

    @property
    def bits_per_byte(self) -> float:
        """The harness's ``bits_per_byte``."""
        return -self.logprob / self.bytes / math.log(2)

    @property
    def per_token(self) -> float:
        """Perplexity by the model's own token, which no two tokenizers share."""
        return math.exp(-self.logprob / self.tokens)


def article_perplexity(
    loaded: LoadedModel,
    articles: Sequence[str],
    *,
    longest: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> ArticlePerplexity:
    """Return the perplexity of raw WikiText articles, each run by itself in windows of ``longest`` tokens (default: the
    model's context). Words are counted as the harness counts them: pieces of the raw text between white space.

    Raises DataError when there is no article.
    """
    if not articles:
        raise DataError("there is no article to measure", hint="give the text of WikiText-2: --data DIR")
    total, tokens = 0.0, 0
    for number, article in enumerate(articles, start=1):
        ((logprob, count),) = text_logprob(loaded, [detokenised(article)], longest=longest)
        total, tokens = total + logprob, tokens + count
        if on_progress is not None:
            on_progress(number, len(articles))
    return ArticlePerplexity(
        total,
        sum(len(_WORD.split(article)) for article in articles),
        sum(len(article.encode("utf-8")) for article in articles),
        tokens,
    )
