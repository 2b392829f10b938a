"""How a run computes: its number format, packed or padded, from which block on, with what beside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from regrow.heal.adapter import base_fingerprint
from regrow.heal.cut_streams import Cut, cuts_of
from regrow.heal.frozen_prefix import FrozenPrefix, first_trained_block, why_not_reused
from regrow.heal.gradients import GradientMaker, cut_into_microbatches
from regrow.heal.losses import STREAMS, TEACHER_TOP
from regrow.heal.memory import choose_checkpointing
from regrow.heal.microbatch import MicroBatch
from regrow.heal.objective import Objective, objective_of
from regrow.heal.packing_check import why_not_packed
from regrow.heal.plan import HealPlan
from regrow.heal.precision import PRECISIONS, choose_precision
from regrow.heal.predict import predicted_update_bytes
from regrow.heal.processes import ALONE, Processes
from regrow.heal.scopes import Trained
from regrow.heal.teacher import Teacher
from regrow.heal.tensor_cache import TensorCache
from regrow.models.cache import cache_folder
from regrow.models.families import blocks_of
from regrow.models.load import LoadedModel
from regrow.protocols import Watcher
from regrow.records.specs import HealSpec

Unpruned = Callable[[], LoadedModel]
"""Returns the unpruned model, the same one each time; called only when it must run."""

CACHE = "heal-states"


@dataclass
class Setup:
    """All that an update needs. ``base`` is the fingerprint of the weights before training; ``precision``, ``packing``
    and ``reuse`` are decided when a run begins and repeated when it goes on."""

    loaded: LoadedModel
    trained: Trained
    plan: HealPlan
    spec: HealSpec
    base: str
    unpruned: Unpruned | None = None
    processes: Processes = ALONE
    precision: str = "float32"
    packing: str = ""
    reuse: str = "not asked for"

    @property
    def objective(self) -> Objective:
        return objective_of(self.spec.loss)

    @property
    def cuts(self) -> tuple[Cut, ...]:
        """Where streams are compared: nowhere unless a loss reads them."""
        return cuts_of(self.loaded) if STREAMS in self.objective.reads else ()

    @property
    def described(self) -> dict[str, Any]:
        """Spec and plan as JSON values, for experiment trackers."""
        return {"spec": self.spec.model_dump(mode="json"), "plan": self.plan.facts, "model": self.loaded.source}

    def decide(self) -> None:
        """Choose how a fresh run computes."""
        dtype = choose_precision(self.spec.precision, self.loaded.model)
        self.precision = next(name for name, known in PRECISIONS.items() if known == dtype)
        self.packing = why_not_packed(self.loaded.model, self.plan.order, share_prefix=self.spec.share_prefix)
        self.reuse = self.why_not_reused()

    def first_block(self) -> int:
        """Return the lowest block that must run in every update."""
        return first_trained_block(self.loaded.model, self.trained.parameters.values())

    def cut(self, examples: Any) -> list[MicroBatch]:
        """Return sequences as micro-batches in the run's way."""
        return cut_into_microbatches(examples, self.spec, packed=not self.packing)

    def why_not_reused(self) -> str:
        """Return the empty string when the states entering the lowest trained block are kept, else why they are not."""
        block = self.first_block()
        if not self.spec.state_cache_gb:
            return "no room is given to the cache"
        if block == 0:
            return "the first block trains, or something before it"
        if block == len(blocks_of(self.loaded.model)):
            return "no block trains"
        if self.processes.even:
            return "the weights are sharded"
        if any(cut.pruned < block for cut in self.cuts):
            return "a loss reads the stream of a lower block"
        by_length = sorted(set(self.plan.order), key=lambda entry: (entry.tokens, entry.pool, entry.example_id))
        return why_not_reused(self.loaded.model, block, self.cut(by_length[:2]))

    def cache(self) -> TensorCache:
        """Return the cache of states and likeliest tokens, shared by all runs on this machine."""
        return TensorCache(cache_folder(CACHE), self.spec.state_cache_gb * 1e9)

    def prefix(self) -> FrozenPrefix | None:
        """Return the kept states of the blocks below everything that trains, None when they run anew."""
        if self.reuse:
            return None
        return FrozenPrefix(
            self.loaded.model,
            self.first_block(),
            self.plan.order,
            self.cache(),
            identity=self.base,
            dtype=PRECISIONS[self.precision],
            cut=self.cut,
        )

    def teacher(self) -> Teacher | None:
        """Return the unpruned model for losses that read it, None when none does."""
        objective = self.objective
        if not objective.needs_unpruned or self.unpruned is None:
            return None
        teacher = Teacher(
            self.unpruned,
            objective.reads,
            PRECISIONS[self.precision],
            cuts=self.cuts,
            temperature=self.spec.temperature,
            top_k=self.spec.top_k,
        )
        if TEACHER_TOP in objective.reads and self.spec.state_cache_gb:
            facts = self.loaded.facts
            known = facts.source_weights_sha256 if facts is not None else ""
            identity = known or base_fingerprint(self.unpruned().model)
            teacher.keep_top(self.plan.order, self.cut, self.cache(), identity=identity)
        teacher.check(self.loaded)
        return teacher


@contextmanager
def prepare(setup: Setup, watch: Watcher | None = None) -> Iterator[GradientMaker]:
    """Yield what makes the gradients of a run, its faster layers in place."""
    dtype = PRECISIONS[setup.precision]
    prefix = setup.prefix()
    if watch is not None and prefix is not None and prefix.sequences[0] < prefix.sequences[1]:
        held, there = prefix.sequences
        watch.note(
            f"note: {setup.spec.state_cache_gb:g} GB hold the states of {held} of {there} sequences; "
            "the others run anew each time"
        )
    given: dict[str, Any] = {
        "packed": not setup.packing,
        "teacher": setup.teacher(),
        "cuts": setup.cuts,
        "prefix": prefix,
        "processes": setup.processes,
    }
    arguments = (setup.loaded.model, setup.objective, setup.spec, dtype)
    device = setup.loaded.device

    def predicted() -> int:
        maker = GradientMaker(*arguments, **{**given, "processes": ALONE})
        with maker.ready():
            return predicted_update_bytes(maker, setup.plan, setup.loaded.model, setup.trained.parameters.values())

    asked = setup.spec.gradient_checkpointing
    if asked == "auto" and setup.processes.even:
        # Weights are sharded where memory is short, and the processes must agree without measuring.
        asked = True
    recompute = choose_checkpointing(asked, predicted, device)
    if recompute and setup.spec.gradient_checkpointing == "auto" and watch is not None:
        watch.note("note: activations are recomputed in the backward pass, because memory is short")
    maker = GradientMaker(*arguments, **given, gradient_checkpointing=recompute)
    with maker.ready():
        yield maker
