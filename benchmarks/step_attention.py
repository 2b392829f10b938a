"""The compiled attention of a decoding step against PyTorch's own kernel, on the same rows.

Rows of different lengths each get one new token, over the keys and values of as many layers as SmolLM2-135M has, so
that nothing is left in a cache from one step to the next. PyTorch's kernel gets them as regrow would otherwise give
them: rows that are alike together, padded to the longest. The results must agree to 1e-5.

Run: python benchmarks/step_attention.py [--rows 48] [--columns 100 400] [--json]
"""

from __future__ import annotations

import argparse
import json
import time


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=48)
    parser.add_argument("--columns", type=int, nargs=2, default=[100, 400], help="of the shortest and the longest row")
    parser.add_argument("--heads", type=int, nargs=2, default=[9, 3], help="of queries and of keys")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--layers", type=int, default=30)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()

    import torch
    from torch import nn

    from regrow.capabilities import ragged_attention
    from regrow.capabilities.kv_rows import NO_PREFIX
    from regrow.capabilities.ragged_rows import RaggedRows

    draw = torch.Generator().manual_seed(0)
    shortest, longest = options.columns
    lengths = torch.randint(shortest, longest, (options.rows,), generator=draw).tolist()
    queries, keys = options.heads
    rows = RaggedRows(options.layers, options.rows, longest + 1, device=torch.device("cpu"))
    rows.open(NO_PREFIX, lengths)
    for layer in rows.layers:
        layer.write(
            *layer.update(*(torch.randn(1, keys, sum(lengths), options.width, generator=draw) for _ in range(2)))
        )
    rows.keep(lengths)
    rows.grow([1] * options.rows)
    query = torch.randn(1, queries, options.rows, options.width, generator=draw)
    new = [torch.randn(1, keys, options.rows, options.width, generator=draw) for _ in range(2)]
    for layer in rows.layers:
        layer.update(*new)

    def step():
        found = []
        for layer in rows.layers:
            rows.updated = layer
            found.append(ragged_attention.attend(nn.Identity(), query, *new, None)[0])
        return torch.stack(found)

    compiled = ragged_attention.step_attention
    if compiled() is None:
        raise SystemExit("there is no compiled attention here: it needs Linux, PyTorch on GNU OpenMP, and numba")
    best = {"compiled": float("inf"), "pytorch": float("inf")}
    results = {}
    token = ragged_attention._rows.set(rows)
    try:
        with torch.no_grad():
            for _ in range(options.repeats):
                for name, function in (("compiled", compiled), ("pytorch", lambda: None)):
                    ragged_attention.step_attention = function
                    began = time.perf_counter()
                    results[name] = step()
                    best[name] = min(best[name], time.perf_counter() - began)
    finally:
        ragged_attention.step_attention = compiled
        ragged_attention._rows.reset(token)
    apart = (results["compiled"] - results["pytorch"]).abs().max().item()
    size = sum(lengths) * keys * options.width * 4 * 2 * options.layers
    found = {
        "compiled_ms": 1e3 * best["compiled"],
        "pytorch_ms": 1e3 * best["pytorch"],
        "ratio": best["pytorch"] / best["compiled"],
        "compiled_gb_s": size / best["compiled"] / 1e9,
        "largest_difference": apart,
    }
    print(
        json.dumps(found)
        if options.json
        else f"{options.rows} rows of {shortest} to {longest} columns, {options.layers} layers: "
        f"{found['compiled_ms']:.1f} ms compiled ({found['compiled_gb_s']:.1f} GB/s), {found['pytorch_ms']:.1f} ms "
        f"PyTorch's kernel: {found['ratio']:.2f} x; largest difference {apart:.1e}"
    )
    return int(apart > 1e-5)


if __name__ == "__main__":
    raise SystemExit(main())
