"""Healing: train a scope of a model's weights on a mixture of pools, under an exact token budget, never losing work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from regrow.data.pools import Pool
from regrow.errors import StudyError
from regrow.heal.adapter import base_fingerprint, save_adapter
from regrow.heal.checkpoint import Progress, restore_state, save_state
from regrow.heal.divergence import DivergenceGuard
from regrow.heal.gradients import GradientMaker
from regrow.heal.interrupt import StopRequest, held_interrupts
from regrow.heal.packing_check import why_not_packed
from regrow.heal.plan import HealPlan, plan_heal
from regrow.heal.precision import PRECISIONS, choose_precision
from regrow.heal.registry import LOSSES, SCOPES
from regrow.heal.schedule import learning_rate_factor
from regrow.heal.scopes import Trained, all_frozen, learning_rate_of
from regrow.heal.training_log import TrainingLog, refuse_unwritable
from regrow.models.families import text_config_of
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.atomic import write_json
from regrow.records.fingerprint import fingerprint
from regrow.records.specs import HealSpec

ADAPTER = "adapter"
REQUEST = "healing.json"

OnProgress = Callable[[int, int, int, int, float, float, float], None]
"""Called after each update with (update, updates, tokens, total tokens, loss, tokens per second, seconds left)."""

# What may differ between the sessions of one run without changing its result.
_FREE = {"checkpoint_every_seconds"}


@dataclass
class HealResult:
    """What came out. ``loaded`` holds the healed model (adapter merged); ``adapter_folder`` is None for scopes without
    one. ``packing`` is empty when rows were packed, else the reason why sequences were padded; ``notes`` are remarks
    for the user (damaged checkpoints passed over)."""

    loaded: LoadedModel
    plan: HealPlan
    adapter_folder: Path | None
    log_file: Path
    updates: int
    tokens: int
    loss: float | None
    precision: str
    packing: str
    wall_seconds: float
    resumed_at: int
    trained_parameters: int
    learning_rate: float
    notes: tuple[str, ...] = ()

    @property
    def outcome(self) -> dict[str, Any]:
        """The numbers worth keeping in the checkpoint's history, as JSON values."""
        return {
            **self.plan.facts,
            "loss": self.loss,
            "learning_rate": self.learning_rate,
            "trained_parameters": self.trained_parameters,
            "precision": self.precision,
            "packing": self.packing or "packed",
            "wall_seconds": round(self.wall_seconds, 3),
        }


def heal(
    loaded: LoadedModel,
    pools: Mapping[str, Pool] | Iterable[Pool],
    spec: HealSpec,
    folder: Path,
    *,
    watch: Watcher | None = None,
    on_progress: OnProgress | None = None,
) -> HealResult:
    """Return the healed model after training ``loaded.model`` in place on the mixture that ``spec`` asks for.

    ``folder`` keeps checkpoints, the log and the adapter. The same call continues a run that was stopped there, at
    whatever moment; on a CPU, with as many threads, it ends with the same bits as a run that was not stopped. A
    finished run is loaded, not repeated.

    Raises StudyError when ``folder`` holds another run, when the loss diverges or the disk is full; DataError and
    ConfigError as :func:`regrow.heal.plan.plan_heal` and the scope do; KeyboardInterrupt after Ctrl-C, once the state
    is saved. After an error the model of a LoRA scope is the one that came in.
    """
    loss = LOSSES.get(spec.loss)
    scope = SCOPES.get(spec.scope)
    plan = plan_heal(pools, spec, loaded.tokenizer)
    refuse_unwritable(folder)
    base = base_fingerprint(loaded.model)
    request = _claim(folder, spec, plan, base)
    loaded.model.eval()
    with all_frozen(loaded.model):
        trained = scope(loaded, spec)
        try:
            run = _Run(loaded, trained, plan, spec, folder, request)
            run.restore(watch)
            run.train(loss, watch, on_progress)
            adapter = None if trained.adapter is None else save_adapter(trained.adapter, folder / ADAPTER, base)
        except BaseException:
            trained.withdraw()
            raise
        size = sum(weight.numel() for weight in trained.parameters.values())
        trained.settle()
    return HealResult(
        loaded=loaded,
        plan=plan,
        adapter_folder=adapter,
        log_file=run.log.file,
        updates=plan.updates,
        tokens=plan.tokens,
        loss=run.log.last_loss(),
        precision=run.precision,
        packing=run.packing,
        wall_seconds=run.wall_seconds,
        resumed_at=run.resumed_at,
        trained_parameters=size,
        learning_rate=run.learning_rate,
        notes=run.notes,
    )


@dataclass
class _Run:
    """One session of a healing run: what is trained, how far it got, where that is kept."""

    loaded: LoadedModel
    trained: Trained
    plan: HealPlan
    spec: HealSpec
    folder: Path
    request: str
    done: int = 0
    tokens: int = 0
    wall_seconds: float = 0.0
    resumed_at: int = 0
    precision: str = ""
    packing: str = ""
    notes: tuple[str, ...] = ()
    learning_rate: float = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    log: TrainingLog = field(init=False)

    def __post_init__(self) -> None:
        self.learning_rate = learning_rate_of(self.spec)
        weights = list(self.trained.parameters.values())
        self.optimizer = torch.optim.AdamW(weights, lr=self.learning_rate, weight_decay=0.0)
        self.log = TrainingLog(self.folder)

    def restore(self, watch: Watcher | None) -> None:
        """Take up the last whole checkpoint, or decide how a fresh run computes."""
        found = restore_state(self.folder, self.request, self.trained.parameters, self.optimizer)
        self.notes = found.notes
        if found.progress is not None:
            self.done = self.resumed_at = found.progress.updates_done
            self.tokens, self.wall_seconds = found.progress.tokens, found.progress.wall_seconds
            self.precision, self.packing = found.progress.precision, found.progress.packing
        else:
            dtype = choose_precision(self.spec.precision, self.loaded.model)
            self.precision = next(name for name, known in PRECISIONS.items() if known == dtype)
            self.packing = why_not_packed(self.loaded.model, self.plan.order, share_prefix=self.spec.share_prefix)
        self.log.cut_back(self.done)
        if watch is not None:
            for note in self.notes:
                watch.note(f"note: {note}")
            if self.packing and not self.done:
                watch.note(f"note: sequences are padded instead of packed, because {self.packing}")

    def train(self, loss: Any, watch: Watcher | None, on_progress: OnProgress | None) -> None:
        """Run the updates that are left; the state is saved now and then, at the end and after a Ctrl-C."""
        if self.done == self.plan.updates:
            return
        if watch is not None:
            watch.begin(_task(self.done, self.plan.updates), self.plan.tokens - self.tokens, "tokens")
        dtype = PRECISIONS[self.precision]
        maker = GradientMaker(self.loaded.model, loss, self.spec, dtype, packed=not self.packing)
        guard = DivergenceGuard(text_config_of(self.loaded.model).vocab_size)
        first_tokens, began, saved = self.tokens, time.monotonic(), time.monotonic()
        seconds_before, done_when_saved = self.wall_seconds, self.done
        with held_interrupts() as stop, maker.ready():
            try:
                while self.done < self.plan.updates:
                    started, tokens_before = time.monotonic(), self.tokens
                    entry = self._update(maker, guard, stop)
                    now = time.monotonic()
                    self.wall_seconds = seconds_before + now - began
                    entry["tokens_per_second"] = round((self.tokens - tokens_before) / max(now - started, 1e-9), 1)
                    self.log.append(entry)
                    speed = (self.tokens - first_tokens) / max(now - began, 1e-9)
                    self._report(entry["loss"], speed, self.tokens - first_tokens, watch, on_progress)
                    if now - saved >= self.spec.checkpoint_every_seconds and self.done < self.plan.updates:
                        self._save()
                        saved, done_when_saved = time.monotonic(), self.done
                    stop.raise_if_asked()
            except KeyboardInterrupt:
                # A forced stop may have hit the optimizer between two weights.
                if self.done > done_when_saved and not stop.forced:
                    self._save()
                raise
            self._save()
        if watch is not None:
            watch.end(f"{self.tokens:,} tokens, {self.plan.updates} updates")

    def _update(self, maker: GradientMaker, guard: DivergenceGuard, stop: StopRequest) -> dict[str, Any]:
        """Do one update and return its line of the log. Abandoned half-way, it leaves no trace."""
        examples = self.plan.update(self.done)
        weights = list(self.trained.parameters.values())
        self.optimizer.zero_grad(set_to_none=True)
        result = maker.add(self.done, examples, between=stop.raise_if_asked)
        norm = float(torch.nn.utils.clip_grad_norm_(weights, self.spec.clip_norm))
        guard.check(self.done, result.loss, norm, examples)
        rate = self.learning_rate * learning_rate_factor(self.done, self.plan.updates, self.spec.warmup_fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.done += 1
        self.tokens += sum(entry.tokens for entry in examples)
        return {
            "update": self.done,
            "tokens": self.tokens,
            "loss": result.loss,
            "learning_rate": rate,
            "gradient_norm": norm,
            "computed_tokens": result.computed_tokens,
        }

    def _report(
        self, loss: float, speed: float, new_tokens: int, watch: Watcher | None, on_progress: OnProgress | None
    ) -> None:
        if watch is not None:
            watch.advance(new_tokens, loss=loss, tokens_per_second=speed, update=f"{self.done}/{self.plan.updates}")
        if on_progress is not None:
            left = (self.plan.tokens - self.tokens) / speed if speed > 0 else float("nan")
            on_progress(self.done, self.plan.updates, self.tokens, self.plan.tokens, loss, speed, left)

    def _save(self) -> None:
        progress = Progress(
            request=self.request,
            updates_done=self.done,
            tokens=self.tokens,
            wall_seconds=self.wall_seconds,
            precision=self.precision,
            packing=self.packing,
        )
        save_state(self.folder, progress, self.trained.parameters, self.optimizer)


def _claim(folder: Path, spec: HealSpec, plan: HealPlan, base: str) -> str:
    """Return the fingerprint of the request, written into ``folder``. Raises StudyError when another one is there."""
    asked: dict[str, Any] = {
        "spec": spec.model_dump(mode="json", exclude=_FREE),
        "sequences": plan.fingerprint,
        "base_weights": base,
    }
    request = fingerprint(asked)
    file = folder / REQUEST
    if file.exists():
        before: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            before = json.loads(file.read_text("utf-8"))
        if before.get("fingerprint") == request:
            return request
        there = before.get("spec", {})
        changed = [
            f"{key}: {there.get(key)!r} there, {value!r} now"
            for key, value in asked["spec"].items()
            if there.get(key) != value
        ]
        what = ", ".join(changed[:3]) or "other examples or other weights"
        raise StudyError(
            f"'{folder}' holds another healing run ({what})",
            hint="name another folder, or delete this one to start anew",
        )
    write_json(file, {**asked, "fingerprint": request})
    return request


def _task(done: int, updates: int) -> str:
    return "healing" if not done else f"healing, continued after update {done} of {updates}"
