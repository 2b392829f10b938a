"""What a study will cost before it runs: tokens and evaluations counted from its steps, time from a measured probe, or
on a named GPU from FLOPs and what GPUs usually reach of their peaks.

A family that was not measured, because its model or the data are not here, is counted with its size and the longest
answers that its suite allows: an upper bound, and said to be one.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from huggingface_hub import try_to_load_from_cache

from regrow.capabilities.evaluate import evaluate as measure
from regrow.capabilities.suites import healing_suite, suite
from regrow.data.chat import render_chat
from regrow.data.pools import Example, Pool
from regrow.errors import ConfigError, RegrowError, did_you_mean
from regrow.heal.predict import predict
from regrow.models.embedded import PREFIX
from regrow.models.families import parameter_count
from regrow.models.load import load_model
from regrow.planning.cost import READ_FLOPS, TRAIN_FLOPS, Workload
from regrow.protocols import SilentWatcher, Watcher
from regrow.records.results import Frozen, Number
from regrow.records.specs import EvalSpec
from regrow.records.study_spec import StudySpec
from regrow.study.item_counts import item_counts
from regrow.study.model_size import model_size
from regrow.study.step import Step

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
START_SECONDS = 30.0


class Rates(Frozen):
    """What a family's model needs. By capability: seconds and generated tokens of an item; ``training_rate`` in tokens
    per second, ``start_seconds`` to load the model in a new process. Seconds and rates are of this machine, NaN (or
    absent) where nothing was measured; then ``assumed`` says where the rest comes from."""

    parameters: Number
    seconds_per_item: dict[str, float]
    generated_per_item: dict[str, float]
    prompt_per_item: float
    training_rate: Number
    start_seconds: Number
    assumed: str = ""


class Forecast(Frozen):
    """``steps`` by kind, all and ``left`` to do; tokens, evaluations and FLOPs of those that are left; ``hours_here``
    with one worker after another and divided by the workers, NaN without a probe; ``hours_gpu`` for one GPU of the kind
    named, an estimate. ``measured`` says whether every family was; else tokens generated, FLOPs and GPU hours are
    upper bounds. ``notes`` hold the assumptions."""

    steps: dict[str, int]
    left: dict[str, int]
    training_tokens: int
    evaluations: int
    generated_tokens: Number
    flops: Number
    measured: bool
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
    """Return the rates of every family whose model is here, after a minute or so of its real work on a few items.
    Nothing is fetched for a forecast: the others, and those whose items are not here, are remarked on."""
    found: dict[str, Rates] = {}
    for family in spec.families:
        if not _is_here(family.model):
            watch.note(f"note: {family.name} was not measured: '{family.model}' is not on this machine")
            continue
        watch.begin(f"measuring {family.name}: {PROBE_ITEMS} items a capability, a few sequences trained")
        try:
            found[family.name] = _rates(spec, family.model)
        except RegrowError as error:
            watch.note(f"note: {family.name} was not measured: {error}")
            continue
        rate = found[family.name]
        watch.end(f"{rate.training_rate:.0f} training tokens/s, {sum(rate.seconds_per_item.values()):.2f} s a round")
    return found


def assumed_rates(spec: StudySpec, model: str) -> Rates:
    """Return what is known of a model that was not run: its size, and the longest answers of the suite. Reads no data
    and no weights."""
    size = model_size(model)
    chosen = [one for one in suite(spec.suite) if spec.capabilities is None or one.name in spec.capabilities]
    shown = f"{model}: {size.parameters:.3g} parameters" + ("" if size.exact else " by its name")
    return Rates(
        parameters=size.parameters,
        seconds_per_item={},
        generated_per_item={one.name: float(one.max_new_tokens) for one in chosen},
        prompt_per_item=Workload().prompt_tokens,
        training_rate=math.nan,
        start_seconds=math.nan,
        assumed=shown if math.isfinite(size.parameters) else f"{model}: of unknown size, so without FLOPs and hours",
    )


def forecast(
    spec: StudySpec, steps: Sequence[Step], left: Sequence[Step], rates: Mapping[str, Rates], *, gpu: str | None = None
) -> Forecast:
    """Return what the steps that are left will take; families that ``rates`` leaves out are assumed (see
    :func:`assumed_rates`), and the hours on this machine are NaN. Raises ConfigError for an unknown GPU."""
    known = {family.name: rates.get(family.name) or assumed_rates(spec, family.model) for family in spec.families}
    device = known_gpu(gpu) if gpu is not None else None
    total = _Work()
    for step in left:
        total = total.plus(_work_of(spec, step, known[step.family], device))
    concerned = {step.family for step in left}
    assumed = [known[name].assumed for name in known if name in concerned and known[name].assumed]
    return Forecast(
        steps=dict(Counter(step.kind for step in steps)),
        left=dict(Counter(step.kind for step in left)),
        training_tokens=total.trained,
        evaluations=total.evaluations,
        generated_tokens=total.generated,
        flops=total.flops,
        measured=not assumed,
        hours_here=total.seconds / 3600,
        hours_here_with_workers=total.seconds / 3600 / spec.engine.workers,
        workers=spec.engine.workers,
        gpu=gpu or "",
        hours_gpu=total.gpu_seconds / 3600 if device is not None else math.nan,
        notes=tuple(_notes(assumed, device, bool(left))),
    )


@dataclass(frozen=True)
class _Work:
    trained: int = 0
    evaluations: int = 0
    generated: float = 0.0
    flops: float = 0.0
    seconds: float = 0.0
    gpu_seconds: float = 0.0

    def plus(self, other: _Work) -> _Work:
        return _Work(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


def _work_of(spec: StudySpec, step: Step, rate: Rates, device: Gpu | None) -> _Work:
    tokens = int(step.request["heal"]["tokens"]) if step.kind == "heal" else 0
    items: dict[str, int] = {}
    if step.kind in ("heal", "evaluate"):
        asked = step.request["evaluation"]
        items = item_counts(spec, asked["split"], asked["items"])
    prompts = _pool_prompts(step) if step.kind == "pools" else 0.0
    length = _mean_answer(rate) or _longest_pool_answer(step)
    new = sum(count * rate.generated_per_item.get(name, 0.0) for name, count in items.items()) + prompts * length
    read = (sum(items.values()) + prompts) * rate.prompt_per_item
    seconds = math.nan
    if not rate.assumed:
        per_item = sum(rate.seconds_per_item.values()) / max(len(rate.seconds_per_item), 1)
        seconds = sum(count * rate.seconds_per_item.get(name, per_item) for name, count in items.items())
        seconds += prompts * per_item + rate.start_seconds + (tokens / rate.training_rate if tokens else 0.0)
    gpu_seconds = 0.0
    if device is not None:
        gpu_seconds += TRAIN_FLOPS * tokens * rate.parameters / (device.flops * TRAINING_SHARE)
        gpu_seconds += READ_FLOPS * read * rate.parameters / (device.flops * READING_SHARE)
        gpu_seconds += new * 2.0 * rate.parameters / _BATCH / (device.bandwidth * BANDWIDTH_SHARE) + START_SECONDS
    return _Work(
        trained=tokens,
        evaluations=int(bool(items)),
        generated=new,
        flops=rate.parameters * (TRAIN_FLOPS * tokens + READ_FLOPS * (read + new)),
        seconds=seconds,
        gpu_seconds=gpu_seconds,
    )


def _notes(assumed: Sequence[str], device: Gpu | None, left: bool) -> list[str]:
    notes = []
    if assumed and left:
        notes.append(
            "not measured here, so without hours on this machine, and answers are counted at the longest that the "
            f"suite allows: {'; '.join(assumed)}"
        )
    if device is not None:
        notes.append(
            f"the hours on the GPU are an estimate: {TRAINING_SHARE:.0%} of its arithmetic peak in training, "
            f"{READING_SHARE:.0%} in reading, {BANDWIDTH_SHARE:.0%} of its bandwidth in decoding {_BATCH} answers at "
            f"once with weights of 2 bytes, {START_SECONDS:g} s to start a step; assumptions, not measurements"
        )
    return notes


def _pool_prompts(step: Step) -> float:
    """Return how many prompts a pools step has answered: about twice as many as are kept."""
    return 2.0 * int(step.request["examples"]) * len(step.request["pools"])


def _longest_pool_answer(step: Step) -> float:
    """Return the most tokens of an answer to a pool's prompt, where none of the capabilities measured writes any."""
    if step.kind != "pools":
        return 0.0
    pools = step.request["pools"]
    return float(max(one.max_new_tokens for one in healing_suite(step.request["suite"]) if one.name in pools))


def _mean_answer(rate: Rates) -> float:
    written = [value for value in rate.generated_per_item.values() if value > 0]
    return sum(written) / max(1, len(written))


def _is_here(model: str) -> bool:
    """Return whether a model's files are on this machine, without asking the hub."""
    if model.startswith(PREFIX) or Path(model).expanduser().exists():
        return True
    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except ValueError:  # not the name of a repository
        return False


def _rates(spec: StudySpec, model: str) -> Rates:
    chosen = [one for one in suite(spec.suite) if spec.capabilities is None or one.name in spec.capabilities]
    for one in chosen:
        one.items("dev")  # raises before a model is loaded for nothing
    began = time.monotonic()
    loaded = load_model(model, dtype=spec.dtype, device=spec.device)
    start = time.monotonic() - began + 5.0  # the interpreter and its imports
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
