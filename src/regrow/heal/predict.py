"""What a heal will take on this machine, from a plan and a short measured probe of the real thing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from regrow.data.pools import Example, Pool
from regrow.heal.gradients import GradientMaker
from regrow.heal.memory import free_bytes, kept_bytes, optimizer_bytes, peak_bytes, resident_bytes
from regrow.heal.microbatch import MicroBatch
from regrow.heal.plan import HealPlan, plan_heal
from regrow.heal.registry import SCOPES
from regrow.heal.response_logits import outputs_of
from regrow.heal.scopes import all_frozen
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.specs import HealSpec

if TYPE_CHECKING:
    from regrow.heal.setup import Unpruned

PROBED_SEQUENCES = 8
SAMPLED_SEQUENCES = 4
LOOKED_AT_UPDATES = 64


@dataclass(frozen=True)
class Prediction:
    """Time and memory of a run on this machine. ``seconds`` is for one process without interruptions;
    ``peak_bytes`` that of the process (of the CUDA device, where there is one) at its largest micro-batch."""

    seconds: float
    tokens_per_second: float
    computed_tokens: int
    peak_bytes: int
    free_bytes: int
    trained_parameters: int
    precision: str
    packing: str
    reuse: str
    gradient_checkpointing: bool

    @property
    def facts(self) -> dict[str, Any]:
        """The prediction as JSON values."""
        return {
            "predicted_seconds": round(self.seconds, 1),
            "predicted_tokens_per_second": round(self.tokens_per_second, 1),
            "predicted_peak_gigabytes": round(self.peak_bytes / 1e9, 2),
            "free_gigabytes": round(self.free_bytes / 1e9, 2),
            "computed_tokens": self.computed_tokens,
            "trained_parameters": self.trained_parameters,
            "precision": self.precision,
            "packing": self.packing or "packed",
            "frozen_prefix": self.reuse or "reused",
            "gradient_checkpointing": self.gradient_checkpointing,
        }


def predicted_update_bytes(
    maker: GradientMaker, plan: HealPlan, model: nn.Module, weights: Iterable[nn.Parameter]
) -> int:
    """Return how much memory an update will take beyond what is in use now.

    That is gradients and moments of the trained weights, and the activations and logits of the largest micro-batch
    among the first updates, scaled up from those of a few sequences. ``maker`` must be ready.
    """
    batch, reused = maker.microbatches(plan.update(0)[:SAMPLED_SEQUENCES])[0]
    kept = kept_bytes(lambda: maker.loss_of(0, 0, batch, 1, reused)[0], model.parameters())
    largest, responses = 0, 0
    for part in _microbatches(maker, plan, min(plan.updates, LOOKED_AT_UPDATES)):
        largest = max(largest, part.computed_tokens)
        responses = max(responses, len(part.labels))
    # Beside what is kept: the gradient of the logits and the copy it is made from.
    logits = 2 * 4 * responses * outputs_of(model)
    return round(kept * largest / batch.computed_tokens) + logits + optimizer_bytes(weights)


def predict(
    loaded: LoadedModel,
    pools: Mapping[str, Pool] | Iterable[Pool],
    spec: HealSpec,
    *,
    unpruned: Unpruned | None = None,
    watch: Watcher | None = None,
) -> tuple[HealPlan, Prediction]:
    """Return the plan of a run and what it will take, after computing the gradient of a few of its sequences twice.

    The model is as before afterwards. Raises what :func:`regrow.heal.loop.heal` would raise before its first update.
    """
    from regrow.heal.adapter import base_fingerprint
    from regrow.heal.setup import Setup, prepare

    plan = plan_heal(pools, spec, loaded.tokenizer)
    scope = SCOPES.get(spec.scope)
    base = base_fingerprint(loaded.model)
    with all_frozen(loaded.model):
        trained = scope(loaded, spec)
        try:
            weights = list(trained.parameters.values())
            setup = Setup(loaded, trained, plan, spec, base, unpruned)
            setup.decide()
            with prepare(setup, watch) as maker:
                peak = resident_bytes(loaded.device) + predicted_update_bytes(maker, plan, loaded.model, weights)
                first, again, sampled = _timed(maker, plan.update(0)[:PROBED_SEQUENCES], loaded.device)
                step = _step_seconds(weights)
                # What the probe itself took is no estimate.
                peak = max(peak, peak_bytes(loaded.device))
                computed = sum(part.computed_tokens for part in _microbatches(maker, plan, plan.updates))
            distinct = {(entry.prompt_ids, entry.response_ids): entry.tokens for entry in plan.order}
        finally:
            trained.withdraw()
    seconds = computed * again / sampled + plan.updates * step
    if not setup.reuse:
        # The first time a sequence comes, the blocks below what trains run too.
        seconds += max(0.0, first - again) / sampled * sum(distinct.values())
    prediction = Prediction(
        seconds=seconds,
        tokens_per_second=plan.tokens / seconds,
        computed_tokens=computed,
        peak_bytes=peak,
        free_bytes=free_bytes(loaded.device),
        trained_parameters=sum(weight.numel() for weight in weights),
        precision=setup.precision,
        packing=setup.packing,
        reuse=setup.reuse,
        gradient_checkpointing=maker.gradient_checkpointing,
    )
    return plan, prediction


def _timed(maker: GradientMaker, examples: Sequence[Example], device: torch.device) -> tuple[float, float, int]:
    """Return the seconds of a first and of a second gradient, and the positions computed for each."""
    maker.add(0, examples[:1])
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        found = maker.add(0, examples)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return max(seconds), min(seconds), found.computed_tokens


def _step_seconds(weights: Sequence[nn.Parameter]) -> float:
    """Return the seconds of a step of the optimizer that changes nothing (its rate is zero)."""
    optimizer = torch.optim.AdamW(weights, lr=0.0, weight_decay=0.0)
    began = time.perf_counter()
    optimizer.step()
    taken = time.perf_counter() - began
    optimizer.zero_grad(set_to_none=True)
    return taken


def _microbatches(maker: GradientMaker, plan: HealPlan, updates: int) -> Iterator[MicroBatch]:
    for update in range(updates):
        for batch, _ in maker.microbatches(plan.update(update)):
            yield batch
