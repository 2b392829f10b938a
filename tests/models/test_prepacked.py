"""Prepacked layers against PyTorch's own."""

from __future__ import annotations

import copy

import psutil
import pytest
import torch
from torch import nn

from regrow.models import prepacked as room
from regrow.models.prepacked import prepacked
from tests.conftest import tiny_model

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and room.platform.machine() in ("x86_64", "AMD64")),
    reason="only x86 with oneDNN is prepacked",
)


@pytest.mark.parametrize("shape", [(1, 48), (7, 48), (300, 48), (2, 5, 48), (48,), (0, 48)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_layer(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(48, 33, bias=bias))
    states = torch.randn(*shape)
    with torch.no_grad():
        expected = model(states)
        with prepacked(model) as count:
            got = model(states)
            turned = model(states.mT.contiguous().mT) if len(shape) > 1 else got
    assert count == 1
    assert got.shape == expected.shape
    assert torch.allclose(got, expected, atol=1e-5)
    assert torch.allclose(turned, expected, atol=1e-5)


def test_a_model_answers_the_same_and_is_left_as_it_was() -> None:
    model = tiny_model("llama")
    ids = torch.tensor([[5, 6, 7, 8]])
    with torch.no_grad():
        before = model(ids).logits
        with prepacked(model) as outer, prepacked(model) as inner:
            assert outer > 0 and inner == 0
            assert torch.allclose(model(ids).logits, before, atol=1e-5)
        assert torch.equal(model(ids).logits, before)
    assert not any("forward" in layer.__dict__ for layer in model.modules())


def test_gradients_and_changed_weights() -> None:
    """Inside the block a pass with gradients is PyTorch's own; a later block sees the new weights."""
    model = nn.Sequential(nn.Linear(8, 8))
    states = torch.randn(3, 8)
    with prepacked(model):
        model(states).sum().backward()
    assert model[0].weight.grad is not None
    with torch.no_grad():
        model[0].weight.mul_(2)
        expected = model(states)
        with prepacked(model):
            assert torch.allclose(model(states), expected, atol=1e-5)


def test_what_is_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) + 1

    model = nn.Sequential(Own(8, 8), nn.Linear(8, 8).bfloat16())
    with prepacked(model) as count:
        assert count == 0
    plain = copy.deepcopy(nn.Sequential(nn.Linear(64, 64)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2 * 64 * 64 * 4 - 1})())
    with prepacked(plain) as count:
        assert count == 0


@pytest.mark.parametrize("bias", [torch.randn(10)[::2], torch.randn(1).expand(5)])
def test_a_bias_with_strides_is_read_as_what_it_is(bias: torch.Tensor) -> None:
    layer = torch.nn.Linear(8, 5)
    layer.bias = torch.nn.Parameter(bias)
    states = torch.randn(3, 8)
    with torch.no_grad():
        expected = layer(states)
        with prepacked(layer):
            assert torch.allclose(layer(states), expected, atol=1e-5)
