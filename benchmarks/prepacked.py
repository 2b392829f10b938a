"""Linear layers with weights laid out beforehand against PyTorch's own, over all of a model's, in one run.

Prints, for each number of rows, the milliseconds that every linear layer of the model takes once, both ways.

Run: python benchmarks/prepacked.py [--model embedded:smollm2-135m] [--rows 1 8 32 64 256 2048] [--json]
"""

from __future__ import annotations

import argparse
import json
import sys
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 32, 64, 256, 2048])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    import torch

    from regrow.models.load import load_model
    from regrow.models.prepacked import prepacked

    model = load_model(options.model, dtype="float32", device="cpu").model
    layers = [layer for layer in model.modules() if type(layer) is torch.nn.Linear]

    def once(rows: int) -> float:
        states = {width: torch.randn(rows, width) for width in {layer.in_features for layer in layers}}
        best = float("inf")
        for _ in range(options.repeats + 1):
            began = time.perf_counter()
            for layer in layers:
                layer(states[layer.in_features])
            best = min(best, time.perf_counter() - began)
        return best

    found = {}
    with torch.no_grad():
        for rows in options.rows:
            plain = once(rows)
            with prepacked(model):
                packed = once(rows)
            found[rows] = {"plain_ms": 1e3 * plain, "prepacked_ms": 1e3 * packed, "ratio": plain / packed}
            if not options.json:
                print(
                    f"{rows:5d} rows {1e3 * plain:8.1f} ms {1e3 * packed:8.1f} ms {plain / packed:5.2f} x", flush=True
                )
    if options.json:
        print(json.dumps({"model": options.model, "threads": torch.get_num_threads(), "rows": found}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
