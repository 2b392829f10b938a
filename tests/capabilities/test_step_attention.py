"""The compiled attention of a decoding step against PyTorch's in float64, token by token."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from regrow.capabilities.step_attention import step_attention, suits
from regrow.models.torch_threads import torch_threads

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="compiled for PyTorch's threads on Linux")


def exact(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, row: list[int], seen: list[int], scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    outs, sums = [], []
    for token, (at, count) in enumerate(zip(row, seen, strict=True)):
        asked, key, value = (each.double() for each in (query[token], keys[at, :, :count], values[at, :, :count]))
        outs.append(scaled_dot_product_attention(asked[None], key[None], value[None], scale=scale)[0])
        sums.append((asked @ key.transpose(1, 2) * scale).logsumexp(-1))
    return torch.stack(outs), torch.stack(sums)


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(
    ("heads", "shared", "width"), [(3, 3, 64), (2, 1, 80), (1, 8, 128), (2, 7, 64), (4, 2, 8), (3, 4, 33)]
)
def test_it_is_softmax_attention_over_what_each_token_sees(heads: int, shared: int, width: int, threads: int) -> None:
    attend = step_attention()
    assert attend is not None, "numba and GNU OpenMP are there on Linux"
    draw = torch.Generator().manual_seed(heads * shared * width)
    keys, values = (torch.randn(9, heads, 70, width, generator=draw) for _ in range(2))
    # Beyond what is seen stands what no result may show.
    row = [0, 2, 2, 2, 5, 8, 8]
    seen = [1, 41, 42, 43, 70, 2, 3]
    for at in range(9):
        beyond = max((count for own, count in zip(row, seen, strict=True) if own == at), default=0)
        keys[at, :, beyond:] = values[at, :, beyond:] = float("nan")
    query = 3 * torch.randn(len(row), heads, shared, width, generator=draw)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        out, sums = attend(query, keys, values, torch.tensor(row), torch.tensor(seen), width**-0.5)
    finally:
        torch.set_num_threads(before)
    expected, logarithms = exact(query, keys, values, row, seen, width**-0.5)
    assert out.shape == query.shape and sums.shape == query.shape[:-1]
    assert torch.allclose(out.double(), expected, atol=3e-6)
    assert torch.allclose(sums.double(), logarithms, atol=1e-5)


def test_scores_that_lie_far_apart_neither_overflow_nor_vanish() -> None:
    attend = step_attention()
    assert attend is not None
    keys = torch.tensor([[[[1.0], [-1.0], [0.999], [0.0]]]])
    values = torch.tensor([[[[1.0], [2.0], [3.0], [4.0]]]])
    for size in (1e-4, 1.0, 300.0, 1e4):
        query = torch.full((1, 1, 3, 1), size)
        out, sums = attend(query, keys, values, torch.tensor([0]), torch.tensor([4]), 1.0)
        expected, logarithms = exact(query, keys, values, [0], [4], 1.0)
        assert torch.allclose(out.double(), expected, rtol=2e-3 if size == 1e4 else 1e-4)
        assert torch.allclose(sums.double(), logarithms, rtol=1e-6)


def test_new_keys_and_values_are_written_before_anything_is_seen() -> None:
    attend = step_attention()
    assert attend is not None
    draw = torch.Generator().manual_seed(1)
    whole = [torch.randn(4, 2, 20, 8, generator=draw) for _ in range(2)]
    row, seen = [0, 1, 1, 1, 3], [20, 4, 5, 6, 1]
    places = (torch.tensor(row), slice(None), torch.tensor(seen) - 1)
    new = tuple(each[places] for each in whole)
    found = [each.clone() for each in whole]
    for each in found:
        each[places] = float("nan")
    query = torch.randn(5, 2, 3, 8, generator=draw)
    # As the layers hand them over: views with strides.
    turned = tuple(each.transpose(0, 1).contiguous().transpose(0, 1) for each in new)
    out, sums = attend(query, found[0], found[1], torch.tensor(row), torch.tensor(seen), 0.5, turned)
    expected, logarithms = exact(query, whole[0], whole[1], row, seen, 0.5)
    assert torch.allclose(out.double(), expected, atol=3e-6) and torch.allclose(sums.double(), logarithms, atol=1e-5)
    assert all(torch.equal(got, kept) for got, kept in zip(found, whole, strict=True)), "and nothing else is touched"


@pytest.mark.parametrize("where", ["query", "keys", "values"])
@pytest.mark.parametrize("shared", [1, 3])
def test_what_is_not_a_number_shows(where: str, shared: int) -> None:
    attend = step_attention()
    assert attend is not None
    given = {"query": torch.ones(1, 1, shared, 8), "keys": torch.ones(1, 1, 6, 8), "values": torch.ones(1, 1, 6, 8)}
    given[where][..., -1, :] = float("nan")
    out, _ = attend(given["query"], given["keys"], given["values"], torch.tensor([0]), torch.tensor([6]), 1.0)
    assert out[0, 0, -1].isnan().all()


def test_it_takes_float32_on_the_processor_only() -> None:
    states = torch.zeros(1, 1, 1, 4)
    assert suits(states, states, states)
    assert not suits(states, states.bfloat16(), states.bfloat16())
    assert not suits(states.double(), states.double(), states.double())
    assert not suits(states, states, torch.zeros(1, 1, 1, 3))
    assert not suits(states, *[torch.zeros(1, 1, 2, 8)[..., ::2]] * 2)
    assert not suits(states, states.to("meta"), states.to("meta"))


def test_the_threads_are_those_of_pytorch() -> None:
    pool = torch_threads()
    assert pool is not None
    pool.openmp.omp_get_max_threads.restype = ctypes.c_int
    before = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            assert pool.openmp.omp_get_max_threads() == count
    finally:
        torch.set_num_threads(before)


def test_another_openmp_library_in_the_process_changes_nothing() -> None:
    pytest.importorskip("sklearn")
    program = (
        "import sklearn.metrics, torch\n"
        "from regrow.capabilities.step_attention import step_attention\n"
        "states = torch.ones(2, 1, 3, 8)\n"
        "out, _ = step_attention()(states[:, :, :1], states, states, torch.tensor([0, 1]), torch.tensor([3, 2]), 1.0)\n"
        "assert torch.equal(out, states[:, :, :1])\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_damaged_cache_of_compiled_code_costs_speed_only(tmp_path: Path) -> None:
    program = "from regrow.capabilities.step_attention import step_attention as a; print(a() is not None)"

    def compiled() -> str:
        done = subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert compiled() == "True"
    for file in tmp_path.rglob("*.nbi"):
        file.write_bytes(b"")
    assert compiled() == "False"
