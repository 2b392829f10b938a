"""The console script: an interrupt while the command line itself is still being imported is no traceback either."""

from __future__ import annotations


def start() -> None:
    """Run ``regrow`` (see :func:`regrow.cli.main.main`)."""
    import os
    import sys

    if sys.argv[1:2] == ["plan"]:
        # Its matrices are tiny: more threads would only wait for each other. Read when numpy is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    try:
        from regrow.cli.main import main

        main()
    except KeyboardInterrupt:
        os._exit(130)  # nothing has begun, so there is nothing to say or to tidy up
