"""lm-evaluation-harness's own command with the model type ``regrow`` known to it."""

from __future__ import annotations

from lm_eval.__main__ import cli_evaluate

import regrow.capabilities.harness.adapter  # noqa: F401  (registers the model type)

if __name__ == "__main__":
    cli_evaluate()
