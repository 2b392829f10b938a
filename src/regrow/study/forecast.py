"""What a study will cost before it runs: tokens and evaluations counted from its steps, time from a measured probe."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.capabilities.evaluate import evaluate as measure
from regrow.capabilities.suites import suite
from regrow.data.chat import render_chat
from regrow.data.pools import Example, Pool
from regrow.errors import ConfigError, RegrowError, did_you_mean
from regrow.heal.predict import predict
from regrow.models.families import parameter_count
from regrow.models.load import load_model
from regrow.planning.cost import READ_FLOPS, TRAIN_FLOPS
from regrow.protocols import SilentWatcher, Watcher
from regrow.records.results import Frozen, Number
from regrow.records.specs import EvalSpec
from regrow.records.study_spec import StudySpec
from regrow.study.design import Step

PROBE_ITEMS = 4
_BATCH = 32


@dataclass(frozen=True)
class Gpu:
    """Dense bfloat16 peak in FLOP/s and memory bandwidth in bytes/s, from the maker's data sheet."""

    flops: float
    bandwidth: float


GPUS = {
    "t4": Gpu(65e12, 320e9),
    "l4": Gpu(121e12, 300e9),
    "a10": Gpu(125e12, 600e9),
    "l40s": Gpu(362e12, 864e9),
    "3090": Gpu(71e12, 936e9),
    "4090": Gpu(165e12, 1008e9),
    "a100": Gpu(312e12, 2039e9),
    "h100": Gpu(989e12, 3350e9),
    "h200": Gpu(989e12, 4800e9),
}
TRAINING_SHARE, READING_SHARE, BANDWIDTH_SHARE = 0.25, 0.35, 0.4
"""What short sequences usually reach of the peaks; assumptions, not measurements."""


class Rates(Frozen):
    """What a probe of a family's model measured on this machine. By capability: seconds and generated tokens of an
    item; ``training_rate`` in tokens per second, ``start_seconds`` to load the model in a new process."""

    parameters: int
    seconds_per_item: dict[str, float]
    generated_per_item: dict[str, float]
    prompt_per_item: float
    training_rate: Number
    start_seconds: float


class Forecast(Frozen):
    """``steps`` by kind, all and ``left`` to do; tokens and evaluations of those that are left; ``hours_here`` with
    one worker after another and divided by the workers, NaN without a probe; ``hours_gpu`` for the GPU named."""

    steps: dict[str, int]
    left: dict[str, int]
    training_tokens: int
    evaluations: int
    generated_tokens: Number
    hours_here: Number
    hours_here_with_workers: Number
    workers: int
    gpu: str = ""
    hours_gpu: Number = float("nan")
    notes: tuple[str, ...] = ()


def known_gpu(name: str) -> Gpu:
    """Return the GPU called ``name``. Raises ConfigError with the nearest name."""
    key = name.lower().removeprefix("nvidia-").removeprefix("rtx").strip("-_ ")
    if key not in GPUS:
        raise ConfigError(f"unknown GPU '{name}'", hint=did_you_mean(key, GPUS))
    return GPUS[key]


def measured_rates(spec: StudySpec, *, watch: Watcher) -> dict[str, Rates]:
    """Return the rates of every family whose model is here, after a minute or so of its real work on a few items."""
    found: dict[str, Rates] = {}
    for family in spec.families:
        watch.begin(f"measuring {family.name}: {PROBE_ITEMS} items a capability, a few sequences trained")
        try:
            found[family.name] = _rates(spec, family.model)
        except RegrowError as error:
            watch.note(f"note: {family.name} was not measured: {error}")
            continue
        rate = found[family.name]
        watch.end(f"{rate.training_rate:.0f} training tokens/s, {sum(rate.seconds_per_item.values()):.2f} s a round")
    return found


def forecast(
    spec: StudySpec, steps: Sequence[Step], left: Sequence[Step], rates: Mapping[str, Rates], *, gpu: str | None = None
) -> Forecast:
    """Return what the steps that are left will take. Families without rates make the hours NaN, with a note."""
    trained = 0
    evaluations = 0
    generated = seconds = gpu_seconds = 0.0
    notes: list[str] = []
    device = known_gpu(gpu) if gpu is not None else None
    for step in left:
        rate = rates.get(step.family)
        if rate is None:
            seconds = gpu_seconds = generated = float("nan")
        tokens = int(step.request["heal"]["tokens"]) if step.kind == "heal" else 0
        trained += tokens
        items: dict[str, int] = {}
        if step.kind in ("heal", "evaluate"):
            evaluations += 1
            items = _items(spec, step.request["evaluation"])
        if rate is None:
            continue
        answers = _pool_answers(step, rate) if step.kind == "pools" else 0.0
        new = sum(count * rate.generated_per_item.get(name, 0.0) for name, count in items.items()) + answers
        generated += new
        per_item = sum(rate.seconds_per_item.values()) / max(len(rate.seconds_per_item), 1)
        seconds += sum(count * rate.seconds_per_item.get(name, per_item) for name, count in items.items())
        mean_generated = sum(rate.generated_per_item.values()) / max(len(rate.generated_per_item), 1)
        seconds += answers / mean_generated * per_item if mean_generated else 0.0
        seconds += rate.start_seconds + (tokens / rate.training_rate if tokens else 0.0)
        if device is not None:
            read = sum(items.values()) * rate.prompt_per_item
            weights = 2.0 * rate.parameters
            gpu_seconds += TRAIN_FLOPS * tokens * rate.parameters / (device.flops * TRAINING_SHARE)
            gpu_seconds += READ_FLOPS * read * rate.parameters / (device.flops * READING_SHARE)
            gpu_seconds += new * weights / _BATCH / (device.bandwidth * BANDWIDTH_SHARE) + 30.0
    if not rates and left:
        notes.append("no model was measured, so there are no hours")
    if device is not None:
        notes.append(
            f"hours on the GPU assume {TRAINING_SHARE:.0%} of its arithmetic peak in training, {READING_SHARE:.0%} in "
            f"reading, {BANDWIDTH_SHARE:.0%} of its bandwidth in decoding and 30 s to start a step"
        )
    return Forecast(
        steps=dict(Counter(step.kind for step in steps)),
        left=dict(Counter(step.kind for step in left)),
        training_tokens=trained,
        evaluations=evaluations,
        generated_tokens=generated,
        hours_here=seconds / 3600,
        hours_here_with_workers=seconds / 3600 / spec.engine.workers,
        workers=spec.engine.workers,
        gpu=gpu or "",
        hours_gpu=gpu_seconds / 3600 if device is not None else float("nan"),
        notes=tuple(notes),
    )


def _items(spec: StudySpec, evaluation: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for one in suite(spec.suite):
        if spec.capabilities is None or one.name in spec.capabilities:
            there = len(list(one.items(evaluation["split"])))
            found[one.name] = min(there, evaluation["items"] or there)
    return found


def _pool_answers(step: Step, rate: Rates) -> float:
    """Return generated tokens of a pools step: about twice as many answers as are kept."""
    mean = sum(rate.generated_per_item.values()) / max(1, sum(value > 0 for value in rate.generated_per_item.values()))
    return 2.0 * int(step.request["examples"]) * len(step.request["pools"]) * mean


def _rates(spec: StudySpec, model: str) -> Rates:
    began = time.monotonic()
    loaded = load_model(model, dtype=spec.dtype, device=spec.device)
    start = time.monotonic() - began + 5.0  # the interpreter and its imports
    chosen = [one for one in suite(spec.suite) if spec.capabilities is None or one.name in spec.capabilities]
    seconds: dict[str, float] = {}
    generated: dict[str, float] = {}
    prompt_tokens = 0.0
    examples: list[Example] = []
    probe = EvalSpec(suite=spec.suite, split="dev", items=PROBE_ITEMS, perplexity=False)
    for one in chosen:
        began = time.monotonic()
        result = measure(loaded, [one], probe, watch=SilentWatcher())
        seconds[one.name] = (time.monotonic() - began) / max(1, len(result.items))
        generated[one.name] = result.cost.generated_tokens / max(1, len(result.items))
        prompt_tokens += result.cost.prompt_tokens / max(1, len(result.items)) / len(chosen)
        texts = {item.item_id: item.response for item in result.items}
        for item in one.items("dev"):
            if texts.get(item.item_id):
                prompt = render_chat(loaded.tokenizer, item.messages, add_generation_prompt=True)
                examples.append(Example("probe", item.item_id, prompt, texts[item.item_id]))
    rate = float("nan")
    if examples:
        options = {**spec.heal, "sequences_per_update": min(4, len(examples)), "max_cycles": 1e9}
        heal_spec = spec.model_copy(update={"heal": options}).healing(20_000, "all-lora", 0)
        _, prediction = predict(loaded, [Pool("probe", tuple(examples))], heal_spec)
        rate = prediction.tokens_per_second
    return Rates(
        parameters=parameter_count(loaded.model),
        seconds_per_item=seconds,
        generated_per_item=generated,
        prompt_per_item=prompt_tokens,
        training_rate=rate,
        start_seconds=start,
    )
