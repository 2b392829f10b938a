"""The linear layer whose output is added to the stream as it is: the only weights a repair can fold a map into.

Found by experiment, not by name: a disturbance of its output must come out of the block unchanged. So the layer before
a post-norm (Gemma, OLMo 2) or behind a gate (mixtures of experts) is never mistaken for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from regrow.errors import ModelError
from regrow.models.capture import stream_of_output
from regrow.models.families import backbone_of, blocks_of, text_config_of

_PROBE_TOKENS = 6
# The probe costs two short forward passes, so what it found is remembered for as long as the block lives.
_FOUND: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()


@dataclass(frozen=True)
class Projection:
    """A linear layer, y = x M + b in row convention. ``stored_transposed`` tells that its weight is M' (nn.Linear) and
    not M (the Conv1D of GPT-2)."""

    path: str
    module: nn.Module
    stored_transposed: bool

    @property
    def inputs(self) -> int:
        return int(self.matrix.shape[0])

    @property
    def matrix(self) -> torch.Tensor:
        """M (inputs, width), a view of the weight."""
        weight: torch.Tensor = self.module.weight  # type: ignore[assignment]
        return weight.T if self.stored_transposed else weight

    @property
    def bias(self) -> torch.Tensor | None:
        found: torch.Tensor | None = getattr(self.module, "bias", None)
        return found

    def write(self, matrix: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """Overwrite M, and b where the layer has one and ``bias`` is given."""
        with torch.no_grad():
            self.matrix.copy_(matrix)
            if bias is not None:
                if self.bias is None:
                    raise ModelError(f"{self.path} has no bias to write to")
                self.bias.copy_(bias)


def writing_projection(model: nn.Module, block: int) -> Projection:
    """Return the layer that writes the MLP of ``block`` into the stream. Raises ModelError when there is none."""
    owner = blocks_of(model)[block]
    if owner in _FOUND:
        return _projection(block, _FOUND[owner], owner.get_submodule(_FOUND[owner]))
    width = text_config_of(model).hidden_size
    candidates = {
        name: module for name, module in owner.named_modules() if "bridge" not in name and _outputs(module) == width
    }
    writing = [name for name, module in candidates.items() if _is_added_as_it_is(model, owner, module)]
    if not writing:
        raise ModelError(
            f"block {block} of this {type(model).__name__} adds no linear layer's output to the stream as it is (a "
            "norm or a gate comes between), so nothing can be folded into it",
            hint="use a repair that adds a bridge: --method lra",
        )
    # With parallel attention and MLP (GPT-NeoX) both qualify; the MLP's is the one with more inputs.
    best = max(writing, key=lambda name: (_projection(block, name, candidates[name]).inputs, name))
    _FOUND[owner] = best
    return _projection(block, best, candidates[best])


def _projection(block: int, name: str, module: nn.Module) -> Projection:
    return Projection(f"block {block} {name}", module, isinstance(module, nn.Linear))


def _outputs(module: nn.Module) -> int | None:
    if isinstance(module, nn.Linear):
        return module.out_features
    if type(module).__name__ == "Conv1D":
        return int(module.weight.shape[1])  # type: ignore[index]
    return None


def _is_added_as_it_is(model: nn.Module, block: nn.Module, module: nn.Module) -> bool:
    seen: list[torch.Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        seen.append(stream_of_output(output).float().cpu().double())

    def disturb(_: nn.Module, args: tuple[Any, ...], output: torch.Tensor) -> torch.Tensor:
        return output + disturbance.to(output.dtype).expand_as(output)

    device = next(model.parameters()).device
    generator = torch.Generator().manual_seed(0)
    ids = torch.arange(3, 3 + _PROBE_TOKENS, device=device)[None]
    backbone = backbone_of(model)
    watching = block.register_forward_hook(note)
    try:
        with torch.inference_mode():
            backbone(input_ids=ids, use_cache=False)
            size = seen[0].abs().mean().item()
            width = seen[0].shape[-1]
            disturbance = (torch.randn(width, generator=generator) * max(size, 1e-3)).to(device)
            disturbing = module.register_forward_hook(disturb)
            try:
                backbone(input_ids=ids, use_cache=False)
            finally:
                disturbing.remove()
    finally:
        watching.remove()
    change = (seen[1] - seen[0]) - disturbance.cpu().double()
    # Half precision rounds the sum; anything that is not the disturbance itself is off by its whole size.
    return bool(change.norm() <= 0.05 * (disturbance.cpu().double().norm() * _PROBE_TOKENS**0.5))
