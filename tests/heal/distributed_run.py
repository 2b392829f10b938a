"""A small healing run as one of two processes, each with the variables that torchrun would set."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from regrow.heal.loop import heal
from regrow.heal.processes import together
from tests.heal.samples import sample_model, sample_pools, sample_spec


def heal_together(variables: Mapping[str, str], folder: Path, scope: str, tokens: int, stop: int) -> None:
    """Heal, stopped in update ``stop`` (0: never). The first process writes the weights, and what it did, beside
    ``folder``."""
    os.environ.update(variables)
    torch.set_num_threads(1)

    def told(update: int, *_: Any) -> None:
        if update == stop:
            raise KeyboardInterrupt

    rate = 1e-3 if scope == "full" else 1e-2
    with together() as processes:
        loaded = sample_model()
        spec = sample_spec(tokens=tokens, scope=scope, last_blocks=1, microbatch_tokens=150, learning_rate=rate)
        try:
            result = heal(loaded, sample_pools(), spec, folder, on_progress=told)
        except KeyboardInterrupt:
            sys.exit(130)
        if processes.first:
            weights = {name: weight.detach().contiguous().clone() for name, weight in loaded.model.named_parameters()}
            save_file(weights, folder.with_suffix(".safetensors"))
            done = f"processes {result.processes} resumed at {result.resumed_at} tokens {result.tokens}"
            folder.with_suffix(".txt").write_text(done)
