"""The text of an answer while its tokens arrive, decoding only the newest of them."""

from __future__ import annotations

from typing import Any

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


class GrowingText:
    """``text`` is what the tokens added so far decode to, special tokens left out.

    A token that ends inside a character is held back until the character is whole, so ``text`` is always the beginning
    of what decoding all tokens at once gives. Each token costs one decode of the last few.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.text = ""
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        # Tokens before _context are settled; those from there on are decoded together, because a piece may read
        # otherwise (leading space) at the beginning than after another piece.
        self._context = 0
        self._read = 0
        self._seen = ""

    def add(self, token: int) -> None:
        """Take in the next token."""
        self._ids.append(token)
        window = self._decode(self._ids[self._context :])
        if len(window) > len(self._seen) and not window.endswith(_UNFINISHED):
            self.text += window[len(self._seen) :]
            self._context, self._read = self._read, len(self._ids)
            self._seen = self._decode(self._ids[self._context : self._read])

    def _decode(self, ids: list[int]) -> str:
        return decode(self._tokenizer, ids)


def decode(tokenizer: Any, ids: list[int]) -> str:
    """Return the text of token ids: special tokens left out, spaces exactly as the tokens have them."""
    return tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
