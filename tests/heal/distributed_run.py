"""A small healing run: `torchrun --nproc-per-node 2 -m tests.heal.distributed_run FOLDER SCOPE TOKENS STOP`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from regrow.heal.loop import heal
from regrow.heal.processes import together
from tests.heal.samples import sample_model, sample_pools, sample_spec


def main() -> int:
    folder, scope, tokens, stop = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
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
            return 130
        if processes.first:
            weights = {name: weight.detach().contiguous().clone() for name, weight in loaded.model.named_parameters()}
            save_file(weights, folder.with_name(folder.name + ".safetensors"))
            print("processes", result.processes, "resumed at", result.resumed_at, "tokens", result.tokens)
    return 0


if __name__ == "__main__":
    sys.exit(main())
