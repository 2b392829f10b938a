"""Products by compiled loops against PyTorch's in float64."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from regrow.models.packed_product import PackedProducts, packed_products
from regrow.models.prepacked import prepacked

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or torch.backends.cpu.get_cpu_capability() != "AVX2",
    reason="compiled for PyTorch's threads on Linux, on processors with AVX2 and no more",
)


def products() -> PackedProducts:
    found = packed_products()
    assert found is not None, "numba and GNU OpenMP are there on Linux"
    return found


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize(("outputs", "inputs"), [(16, 4), (48, 576), (176, 1000), (32, 260), (16, 8192)])
def test_it_is_the_product(outputs: int, inputs: int, threads: int) -> None:
    draw = torch.Generator().manual_seed(outputs * inputs)
    weight, bias = torch.randn(outputs, inputs, generator=draw), torch.randn(outputs, generator=draw)
    packed = products().packed(weight)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for rows in (1, 2, 3, 4, 5, 6, 7, 13, 48, 49, 97, 300):
            states = torch.randn(rows, inputs, generator=draw)
            exact = states.double() @ weight.double().T
            got = products().product(states, packed, None)
            assert got.shape == (rows, outputs) and got.dtype == torch.float32
            # What rounding of so many terms amounts to, as PyTorch's own product has it.
            assert (got - exact).abs().max() < 2e-6 * inputs**0.5 * 8
            got = products().product(states, packed, bias)
            assert (got - exact - bias).abs().max() < 2e-6 * inputs**0.5 * 8
    finally:
        torch.set_num_threads(before)


def test_the_bias_is_read_only_and_each_row_has_its_own() -> None:
    """One row: a bias that is spread out over one row is the same memory."""
    layer = nn.Linear(8, 16)
    kept = layer.bias.detach().clone()
    with torch.no_grad(), prepacked(layer):
        first = layer(torch.ones(1, 8)).clone()
        assert torch.equal(layer(torch.ones(1, 8)), first)
    assert torch.equal(layer.bias, kept)


def test_states_with_strides_and_at_odd_addresses() -> None:
    draw = torch.Generator().manual_seed(0)
    weight = torch.randn(32, 12, generator=draw)
    packed = products().packed(weight)
    line = torch.randn(1 + 7 * 24, generator=draw)
    for states in (
        line[1:85].view(7, 12),
        line[1:].view(7, 24)[:, ::2],
        line[1:85].view(12, 7).T,
        line[1:13].expand(3, 12),
    ):
        assert torch.allclose(products().product(states, packed, None), states @ weight.T, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 6, 50])
def test_what_is_not_a_number_shows_where_it_belongs(rows: int) -> None:
    weight = torch.ones(32, 512)
    weight[5, 511], weight[20, 0] = torch.nan, torch.inf
    states = torch.ones(rows, 512)
    states[-1, 300] = torch.nan
    got = products().product(states, products().packed(weight), None)
    assert torch.equal(got.isnan(), (states @ weight.T).isnan())
    assert torch.equal(got.isinf(), (states @ weight.T).isinf())


def test_a_layer_of_another_size_or_kind_of_input_is_pytorchs() -> None:
    """What the loops cannot read they would read wrongly: it must not come to them."""
    assert not products().suits(torch.zeros(17, 8)) and not products().suits(torch.zeros(16, 6))
    layer = nn.Linear(8, 16)
    with torch.no_grad(), prepacked(layer):
        with pytest.raises(RuntimeError):
            layer(torch.ones(2, 12))
        with pytest.raises(RuntimeError):
            layer(torch.ones(2, 8, dtype=torch.bfloat16))
        assert layer(torch.ones(0, 8)).shape == (0, 16)
        assert layer(torch.ones(8)).shape == (16,)


def test_a_damaged_cache_of_compiled_code_costs_speed_only(tmp_path: Path) -> None:
    program = "from regrow.models.packed_product import packed_products as p; print(p() is not None)"

    def compiled() -> str:
        environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    assert compiled() == "True"
    for file in tmp_path.rglob("*.nbi"):
        file.write_bytes(b"")
    assert compiled() == "False"
