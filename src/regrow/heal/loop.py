"""Healing: train a scope of a model's weights on a mixture of pools, under an exact token budget, never losing work."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from regrow.data.pools import Pool
from regrow.errors import StudyError
from regrow.heal.adapter import base_fingerprint, save_adapter
from regrow.heal.checkpoint import Progress, name_of, restore_state, save_state
from regrow.heal.divergence import DivergenceGuard
from regrow.heal.gradients import GradientMaker
from regrow.heal.interrupt import StopRequest, held_interrupts
from regrow.heal.loggers import Loggers
from regrow.heal.plan import HealPlan, plan_heal
from regrow.heal.processes import current
from regrow.heal.registry import SCOPES
from regrow.heal.schedule import learning_rate_factor
from regrow.heal.scopes import Trained, all_frozen, learning_rate_of
from regrow.heal.setup import Setup, Unpruned, prepare
from regrow.heal.sharding import Sharded
from regrow.heal.training_log import TrainingLog, refuse_unwritable
from regrow.heal.validate import validate
from regrow.models.bridges import bridges_of
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
_FREE = {"checkpoint_every_seconds", "gradient_checkpointing", "state_cache_gb"}


@dataclass
class HealResult:
    """What came out. ``loaded`` holds the healed model (adapter merged); ``adapter_folder`` is None for scopes without
    one. ``packing`` is empty when rows were packed, else the reason why sequences were padded; ``reuse`` is empty when
    the states below the lowest trained block were kept and reused, else the reason why not; ``notes`` are remarks for
    the user (damaged checkpoints passed over)."""

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
    reuse: str = ""
    processes: int = 1
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
            "frozen_prefix": self.reuse or "reused",
            "processes": self.processes,
            "wall_seconds": round(self.wall_seconds, 3),
        }


def heal(
    loaded: LoadedModel,
    pools: Mapping[str, Pool] | Iterable[Pool],
    spec: HealSpec,
    folder: Path,
    *,
    unpruned: Unpruned | None = None,
    watch: Watcher | None = None,
    on_progress: OnProgress | None = None,
    log_to: Iterable[str] = (),
) -> HealResult:
    """Return the healed model after training ``loaded.model`` in place on the mixture that ``spec`` asks for.

    ``folder`` keeps checkpoints, the log and the adapter. The same call continues a run that was stopped there, at
    whatever moment; on a CPU, with as many threads, it ends with the same bits as a run that was not stopped. A
    finished run is loaded, not repeated. ``unpruned`` gives the unpruned model to losses that compare with it.
    ``log_to`` names experiment trackers (see loggers.py) that get each line of the log too.

    Under torchrun (see processes.py) every process calls this with the same arguments; the first one writes, and
    ``folder`` must be one that all can read.

    Raises StudyError when ``folder`` holds another run, when the loss diverges or the disk is full; DataError and
    ConfigError as :func:`regrow.heal.plan.plan_heal`, :func:`regrow.heal.validate.validate` and the scope do;
    KeyboardInterrupt after Ctrl-C, once the state is saved. After an error the model of a LoRA scope is the one that
    came in.
    """
    validate(
        spec,
        facts=loaded.facts,
        source=loaded.source,
        unpruned=unpruned is not None,
        bridged=bool(bridges_of(loaded.model)),
    )
    scope = SCOPES.get(spec.scope)
    processes = current()
    plan = plan_heal(pools, spec, loaded.tokenizer)
    base = base_fingerprint(loaded.model)
    if processes.first:
        refuse_unwritable(folder)
        request = processes.tell(_claim(folder, spec, plan, base))
    else:
        request = processes.tell(None)
    loaded.model.eval()
    with all_frozen(loaded.model):
        trained = scope(loaded, spec)
        sharded = None
        try:
            if processes.count > 1 and _shards(spec):
                sharded, processes = Sharded(loaded, trained), replace(processes, even=True)
            setup = Setup(loaded, trained, plan, spec, base, unpruned, processes)
            run = _Run(setup, folder, request, Loggers(log_to if processes.first else ()))
            run.restore(watch)
            run.train(watch, on_progress)
            adapter = None if trained.adapter is None else folder / ADAPTER
            if adapter is not None and processes.first:
                save_adapter(trained.adapter, adapter, base)
            processes.wait()
            if sharded is not None:
                sharded.gather()
        except BaseException:
            # Sharded weights stay where they are: the other processes may not be there to gather them.
            if sharded is None:
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
        precision=setup.precision,
        packing=setup.packing,
        wall_seconds=run.wall_seconds,
        resumed_at=run.resumed_at,
        trained_parameters=size,
        learning_rate=run.learning_rate,
        reuse=setup.reuse,
        processes=processes.count,
        notes=run.notes,
    )


@dataclass
class _Run:
    """One session of a healing run: how far it got and where that is kept."""

    setup: Setup
    folder: Path
    request: str
    loggers: Loggers
    done: int = 0
    tokens: int = 0
    wall_seconds: float = 0.0
    resumed_at: int = 0
    kept: str = ""
    notes: tuple[str, ...] = ()
    learning_rate: float = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)
    log: TrainingLog = field(init=False)

    def __post_init__(self) -> None:
        self.plan, self.spec, self.processes = self.setup.plan, self.setup.spec, self.setup.processes
        self.trained: Trained = self.setup.trained
        self.learning_rate = learning_rate_of(self.spec)
        weights = list(self.trained.parameters.values())
        self.optimizer = torch.optim.AdamW(weights, lr=self.learning_rate, weight_decay=0.0)
        self.log = TrainingLog(self.folder)

    def restore(self, watch: Watcher | None) -> None:
        """Take up the last whole checkpoint, or decide how a fresh run computes."""
        if self.processes.first:
            found = restore_state(self.folder, self.request, self.trained.parameters, self.optimizer)
        self.processes.wait()
        if not self.processes.first:
            found = restore_state(self.folder, self.request, self.trained.parameters, self.optimizer)
        self.notes = found.notes
        setup, progress = self.setup, found.progress
        if progress is not None:
            self.done = self.resumed_at = progress.updates_done
            self.kept = name_of(self.done)
            self.tokens, self.wall_seconds = progress.tokens, progress.wall_seconds
            setup.precision, setup.packing, setup.reuse = progress.precision, progress.packing, progress.reuse
        else:
            setup.decide()
        if self.processes.first:
            self.log.cut_back(self.done)
        if watch is not None:
            for note in self.notes:
                watch.note(f"note: {note}")
            left_out = ", ".join(f"{count} of '{name}'" for name, count in self.plan.unfit.items() if count)
            if left_out:
                window = self.spec.max_sequence_tokens
                watch.note(f"note: examples longer than {window} tokens or without a response are left out: {left_out}")
            if setup.packing and not self.done:
                watch.note(f"note: sequences are padded instead of packed, because {setup.packing}")

    def train(self, watch: Watcher | None, on_progress: OnProgress | None) -> None:
        """Run the updates that are left; the state is saved now and then, at the end and after a Ctrl-C."""
        if self.done == self.plan.updates:
            return
        with self.loggers.open(self.folder, self.setup.described), prepare(self.setup, watch) as maker:
            if watch is not None:
                watch.begin(_task(self.done, self.plan.updates), self.plan.tokens - self.tokens, "tokens")
            self._train(maker, watch, on_progress)
        if watch is not None:
            watch.end(f"{self.tokens:,} tokens, {self.plan.updates} updates")

    def _train(self, maker: GradientMaker, watch: Watcher | None, on_progress: OnProgress | None) -> None:
        guard = DivergenceGuard(text_config_of(self.setup.loaded.model).vocab_size)
        alone = self.processes.count == 1
        first_tokens, began, saved = self.tokens, time.monotonic(), time.monotonic()
        seconds_before, done_when_saved = self.wall_seconds, self.done
        with held_interrupts(patient=not alone) as stop:
            try:
                while self.done < self.plan.updates:
                    started, tokens_before = time.monotonic(), self.tokens
                    entry = self._update(maker, guard, stop)
                    now = time.monotonic()
                    self.wall_seconds = seconds_before + now - began
                    entry["tokens_per_second"] = round((self.tokens - tokens_before) / max(now - started, 1e-9), 1)
                    self._write_down(entry)
                    speed = (self.tokens - first_tokens) / max(now - began, 1e-9)
                    self._report(entry["loss"], speed, self.tokens - first_tokens, watch, on_progress)
                    due = self.processes.tell(now - saved >= self.spec.checkpoint_every_seconds)
                    if due and self.done < self.plan.updates:
                        self._save()
                        saved, done_when_saved = time.monotonic(), self.done
                    if self.processes.any(stop.asked):
                        raise KeyboardInterrupt
            except KeyboardInterrupt:
                # A forced stop may have hit the optimizer between two weights.
                if self.done > done_when_saved and not stop.forced:
                    self._save()
                raise
            self._save()

    def _update(self, maker: GradientMaker, guard: DivergenceGuard, stop: StopRequest) -> dict[str, Any]:
        """Do one update and return its line of the log. Abandoned half-way, it leaves no trace."""
        examples = self.plan.update(self.done)
        weights = list(self.trained.parameters.values())
        self.optimizer.zero_grad(set_to_none=True)
        # Processes must leave an update together, so only a lone one leaves in the middle of it.
        between = stop.raise_if_asked if self.processes.count == 1 else lambda: None
        result = maker.add(self.done, examples, between=between)
        self.processes.add_gradients(weights)
        norm = _number(torch.nn.utils.clip_grad_norm_(weights, self.spec.clip_norm))
        guard.check(self.done, result.loss, norm, examples, kept=self.kept)
        rate = self.learning_rate * learning_rate_factor(self.done, self.plan.updates, self.spec.warmup_fraction)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.done += 1
        self.tokens += sum(entry.tokens for entry in examples)
        entry = {
            "update": self.done,
            "tokens": self.tokens,
            "loss": result.loss,
            "learning_rate": rate,
            "gradient_norm": norm,
            "computed_tokens": result.computed_tokens,
        }
        return {**entry, "losses": result.parts} if result.parts else entry

    def _write_down(self, entry: dict[str, Any]) -> None:
        if self.processes.first:
            self.log.append(entry)
            self.loggers.log(entry)

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
            precision=self.setup.precision,
            packing=self.setup.packing,
            reuse=self.setup.reuse,
        )
        save_state(self.folder, progress, self.trained.parameters, self.optimizer, write=self.processes.first)
        # torchrun ends all processes when one ends, which must not be while the first one still writes.
        self.processes.wait()
        self.kept = name_of(self.done)


def _shards(spec: HealSpec) -> bool:
    """Return whether the weights of a scope are spread over processes instead of copied to each."""
    return "shards" in dict(SCOPES.entry(spec.scope).facts)


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


def _number(value: Any) -> float:
    """Return a gradient norm as a number, also where its weights are sharded."""
    whole = getattr(value, "full_tensor", None)
    return float(value if whole is None else whole())


def _task(done: int, updates: int) -> str:
    return "healing" if not done else f"healing, continued after update {done} of {updates}"
