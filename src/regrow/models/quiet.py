"""Silence for the progress bars and notices of the libraries underneath, so that regrow's own output stays readable."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Hide transformers' progress bars and informational notices while the block runs; errors still come through."""
    from transformers.utils import logging as notices

    level, bars = notices.get_verbosity(), notices.is_progress_bar_enabled()
    notices.set_verbosity(logging.ERROR)
    notices.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        notices.set_verbosity(level)
        if bars:
            notices.enable_progress_bar()
