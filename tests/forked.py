"""New processes without the seconds that a new interpreter takes to import torch: forked from a server that has it.

For tests that kill, interrupt or starve a process. What a fresh interpreter does is not tested this way.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Mapping
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["torch", "transformers", "peft", "regrow.heal.loop", "regrow.models.load"])


def forked(work: Callable[..., None], *arguments: Any) -> multiprocessing.process.BaseProcess:
    """Return a started process that does ``work(*arguments)`` under this process's environment."""
    process = _CONTEXT.Process(target=_work, args=(dict(os.environ), work, arguments), daemon=True)
    process.start()
    return process


def pipe() -> tuple[Any, Any]:
    """Return the receiving and the sending end of a pipe; ``recv`` raises EOFError once the sender is gone."""
    return _CONTEXT.Pipe(duplex=False)


def _work(environment: Mapping[str, str], work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    # The server's environment is that of its start.
    os.environ.clear()
    os.environ.update(environment)
    work(*arguments)
