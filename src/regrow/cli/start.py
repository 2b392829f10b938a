"""The console script: an interrupt while the command line itself is still being imported is no traceback either."""

from __future__ import annotations


def start() -> None:
    """Run ``regrow`` (see :func:`regrow.cli.main.main`)."""
    try:
        from regrow.cli.main import main

        main()
    except KeyboardInterrupt:
        import os

        os._exit(130)  # nothing has begun, so there is nothing to say or to tidy up
