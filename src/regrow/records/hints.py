"""Hints that fit the command they are given for."""

from __future__ import annotations


def without_data_option(hint: str) -> str:
    """Return a hint about the data folder as a command says it that has no option ``--data``."""
    return hint.replace("pass --data DIR", "set REGROW_DATA=DIR").replace("--data or REGROW_DATA", "REGROW_DATA")
