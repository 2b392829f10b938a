"""Do one step of a study: what a worker of any engine calls. Finished steps are not done again."""

from __future__ import annotations

import json
import platform
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

from regrow.errors import StudyError
from regrow.heal.processes import device_of_process
from regrow.models.identity import model_identity
from regrow.models.load import load_model
from regrow.models.save import CardWriter
from regrow.planning.pilots import MIXTURE
from regrow.planning.registry import rule_named
from regrow.planning.rule import Design, Evidence
from regrow.protocols import Watcher
from regrow.records.atomic import write_json
from regrow.records.checkpoint import CheckpointFacts
from regrow.records.results import Cost
from regrow.records.specs import EvalSpec, HealSpec, PruneSpec, RepairSpec
from regrow.records.store import ASKED, RunFolder, read_evaluation
from regrow.records.study_runs import Coordinates, write_coordinates
from regrow.records.study_spec import FamilySpec, StudySpec
from regrow.study.design import planning_design
from regrow.study.evidence import pilots_from
from regrow.study.folder import Done, StudyFolder
from regrow.study.gpu import device_for, noting_a_lost_gpu
from regrow.study.heal_processes import train_with_torchrun
from regrow.study.lease import LeaseWatch, lease
from regrow.study.meter import Meter, total_cost
from regrow.study.same_training import (
    TAKEN,
    Training,
    evaluation_or_none,
    linked,
    same_training,
    training_of,
    whole_checkpoint,
    write_training,
)
from regrow.study.stages.evaluate import evaluate
from regrow.study.stages.heal import heal
from regrow.study.stages.pools import pools_cost, pools_of
from regrow.study.stages.prune import prune
from regrow.study.stages.repair import repair
from regrow.study.step import Step


def execute(study: Path, step_id: str, *, watch: Watcher, card: CardWriter | None = None) -> Done:
    """Return what the step used, after doing it, or what it used when it was done before.

    Raises LeaseTakenError when another process works on it, StudyError when a step it reads is not finished or the
    family's model is not the one the study began with.
    """
    folder = StudyFolder(study)
    step = folder.step(step_id)
    found = folder.done(step_id)
    if found is not None:
        return found
    for part, parent in step.parents.items():
        if folder.done(parent) is None:
            raise StudyError(f"step {step_id} reads '{part}' ({parent}), which is not finished", hint="run the study")
    with lease(folder.lease_file(step_id), LeaseWatch()):
        found = folder.done(step_id)
        if found is not None:
            return found
        meter = Meter()
        work = _Work(folder, step, folder.spec(), watch, card, meter)
        device = device_for(folder, step_id, work.spec.device)
        work.check_model()
        with noting_a_lost_gpu(folder, step_id, device):
            cost = getattr(work, step.kind)()
        finished = datetime.now(UTC).isoformat(timespec="seconds")
        done = Done(finished=finished, cost=cost, machine=platform.node(), device=device)
        folder.write_done(step_id, done)
        folder.log("done", step_id, seconds=round(cost.wall_seconds, 3))
        work.tidy()
        return done


def train_step(study: Path, step_id: str, *, watch: Watcher, card: CardWriter | None = None) -> None:
    """Do the training of a heal in one of the processes that torchrun started for it; its step's holder waits."""
    folder = StudyFolder(study)
    work = _Work(folder, folder.step(step_id), folder.spec(), watch, card, Meter())
    work.check_model()
    work.train()


def _cost_of(facts: CheckpointFacts) -> Cost:
    """Return what the last step of a checkpoint used, which is what made it."""
    return facts.steps[-1].cost or Cost()


class _Place(TypedDict):
    dtype: str
    device: str


class _Work:
    """The kinds of step, each a method by its name that returns the cost."""

    def __init__(
        self,
        folder: StudyFolder,
        step: Step,
        spec: StudySpec,
        watch: Watcher,
        card: CardWriter | None,
        meter: Meter,
    ) -> None:
        self.folder, self.step, self.spec, self.watch, self.card, self.meter = folder, step, spec, watch, card, meter
        self.family: FamilySpec = next(one for one in spec.families if one.name == step.family)
        self.place = _Place(dtype=spec.dtype, device=spec.device)

    def check_model(self) -> None:
        """Raise StudyError when the model is another one than the study began with."""
        found = model_identity(self.family.model)
        if found.sha256 != self.step.request["model_sha256"]:
            raise StudyError(
                f"the model of family '{self.family.name}' ('{self.family.model}') has changed since the study began",
                hint="put the original back, or run the study with --update: what depends on the model is done again",
            )
        self.weights_sha256 = found.weights_sha256

    def pools(self) -> Cost:
        pools_of(
            self.step.request["suite"],
            cache(lambda: load_model(self.family.model, **self.place)),
            source=self.family.model,
            weights_sha256=self.weights_sha256,
            examples=self.step.request["examples"],
            watch=self.watch,
            folder=self._pools(self.step.id),
            owned=True,
            only=self.step.request["pools"],
        )
        return self.meter.cost(pools_cost(self._pools(self.step.id), self.step.request["pools"]))

    def prune(self) -> Cost:
        pools = self.step.parents.get("pools")
        facts = prune(
            self.family.model,
            PruneSpec(**self.step.request["prune"]),
            self._checkpoint(self.step.id),
            watch=self.watch,
            pools_folder=self._pools(pools) if pools else None,
            only_pools=self._pool_names(pools),
            card=self.card,
            records_folder=self.folder.path / "similarity",
            **self.place,
        )
        return self.meter.cost(_cost_of(facts))

    def repair(self) -> Cost:
        pools = self.step.parents["pools"]
        facts = repair(
            str(self._checkpoint(self.step.parents["checkpoint"])),
            RepairSpec(**self.step.request["repair"]),
            self._checkpoint(self.step.id),
            watch=self.watch,
            unpruned=self.family.model,
            pools_folder=self._pools(pools),
            only_pools=self._pool_names(pools),
            card=self.card,
            **self.place,
        )
        return self.meter.cost(_cost_of(facts))

    def evaluate(self) -> Cost:
        checkpoint = self.step.parents.get("checkpoint")
        source = self.family.model if checkpoint is None else str(self._checkpoint(checkpoint))
        return self.meter.cost(self._measured(source, {}))

    def heal(self) -> Cost:
        tokens_by_pool, scope = self._mixture()
        healed = self._checkpoint(self.step.id)
        more = {"scope": scope, "mixture": tokens_by_pool}
        found = self._found(training_of(self.step, tokens_by_pool, scope), more)
        if found is not None:
            return found
        count = self.spec.engine.processes_per_heal
        if count > 1:
            facts = train_with_torchrun(self.folder.path, self.step.id, healed, processes=count)
        else:
            facts = self.train()
        measured = self._measured(str(healed), more)
        if measured.training_tokens:  # a worker that died before it could say so had added it up
            return measured
        return self._charge(self.meter.cost(_cost_of(facts), measured))

    def _found(self, training: Training, more: Mapping[str, Any]) -> Cost | None:
        """Take what another heal of the study made by the same training: its grades, or where other items are asked its
        checkpoint if that was kept. The record names what the heal would have cost alone. Returns what was used, None
        where nothing can be taken."""
        write_training(self.folder, self.step.id, training)
        healed, keep = self._checkpoint(self.step.id), self.spec.keep_checkpoints
        if self._run().is_dir() and not (self._run() / ASKED).exists():
            shutil.rmtree(self._run())  # a taking that was broken off
        taken = self.folder.of(self.step.id) / TAKEN
        if taken.exists():  # and stopped before all was asked
            shutil.rmtree(healed, ignore_errors=True)
            taken.unlink()
        if healed.exists():  # trained before, and stopped before all was asked
            return None
        for other, same_items in same_training(self.folder, self.step.id, training):
            facts = whole_checkpoint(self._checkpoint(other)) if keep else None
            record, items = evaluation_or_none(self.folder.path / "runs" / other) if same_items else (None, [])
            if (facts is None and (keep or not same_items)) or (record is None and same_items):
                continue
            shutil.rmtree(self._run(), ignore_errors=True)
            if facts is not None:
                write_json(taken, {"of": other})
                linked(self._checkpoint(other), healed)
            self.folder.log("shared", self.step.id, of=other)
            self.watch.note(f"the same training as step {other}, taken from there")
            if record is not None:
                RunFolder(self._run()).write_evaluation(record, items)
                write_coordinates(self._run(), self._coordinates(more))
                return self.meter.cost()
            assert facts is not None
            measured = self._measured(str(healed), more)
            self._charge(total_cost(_cost_of(facts), measured))
            return self.meter.cost(measured)
        return None

    def _charge(self, cost: Cost) -> Cost:
        """Write the cost of a heal, its training included, into the record of its evaluation."""
        record, items = read_evaluation(self._run())
        RunFolder(self._run()).write_evaluation(record.model_copy(update={"cost": cost}), items)
        return cost

    def train(self) -> CheckpointFacts:
        """Train and save the checkpoint of a heal, and nothing else: under torchrun every process does this."""
        tokens_by_pool, scope = self._mixture()
        mixture = ",".join(f"{name}={tokens!r}" for name, tokens in tokens_by_pool.items())
        spec = HealSpec(**{**self.step.request["heal"], "mixture": mixture, "scope": scope})
        return heal(
            str(self._checkpoint(self.step.parents["checkpoint"])),
            spec,
            self._checkpoint(self.step.id),
            watch=self.watch,
            suite=self.step.request["suite"],
            unpruned=self.family.model,
            pools_folder=self._pools(self.step.parents["pools"]),
            only_pools=self.step.request["pools"],
            card=self.card,
            dtype=self.spec.dtype,
            device=device_of_process(self.spec.device),
        )

    def tidy(self) -> None:
        """Remove what a finished heal no longer needs: hundreds of checkpoints would fill the disk."""
        if self.step.kind == "heal" and not self.spec.keep_checkpoints:
            shutil.rmtree(self._checkpoint(self.step.id), ignore_errors=True)

    def _mixture(self) -> tuple[dict[str, float], str]:
        """Return tokens by pool and the scope: as the step says, or as its rule decides from the evidence."""
        plan: Mapping[str, Any] = self.step.request["mixture"]
        heal_spec: Mapping[str, Any] = self.step.request["heal"]
        pools: list[str] = self.step.request["pools"]
        tokens, scope = int(heal_spec["tokens"]), str(heal_spec["scope"])
        if "rule" not in plan:
            chosen = pools if plan["pool"] == MIXTURE else [plan["pool"]]
            return {name: tokens / len(chosen) if name in chosen else 0.0 for name in pools}, scope
        rule = rule_named(plan["rule"])
        design = planning_design(self.spec, self.step.request["capabilities"], pools)
        evidence = self._evidence(design)
        answer = rule.allocate(evidence, tokens)
        file = self.folder.path / "allocations" / f"{self.step.id}.json"
        curves = asdict(answer.fit.curves) if answer.fit is not None else None
        record = {
            "family": self.family.name,
            "rule": plan["rule"],
            "budget": tokens,
            "scope": answer.scope,
            "tokens": answer.tokens,
            "notes": list(answer.notes),
            "curves": json.loads(json.dumps(curves, default=lambda value: value.tolist())) if curves else None,
        }
        with suppress(ValueError):  # a curve that is not a number is no reason to stop
            write_json(file, record)
        return answer.tokens, answer.scope

    def _evidence(self, design: Design) -> Evidence:
        if "unpruned" not in self.step.parents:
            return Evidence(pools=design.pools)
        pilots = pilots_from(
            self.family.name,
            self.folder.path / "runs",
            self.step.parents,
            self.step.request["suite"],
            design,
            self.step.request["capabilities"],
        )
        return Evidence.of(pilots)

    def _measured(self, source: str, more: Mapping[str, Any]) -> Cost:
        coordinates = self._coordinates(more)
        label = " ".join([coordinates.family, coordinates.stage])
        spec = EvalSpec(**self.step.request["evaluation"])
        record, _ = evaluate(source, spec, self._run(), watch=self.watch, label=label, **self.place)
        write_coordinates(self._run(), coordinates)
        return record.cost

    def _coordinates(self, more: Mapping[str, Any]) -> Coordinates:
        assert self.step.place is not None
        return Coordinates(**{**self.step.place, **more})

    def _run(self) -> Path:
        return self.folder.path / "runs" / self.step.id

    def _pools(self, step_id: str) -> Path:
        return self.folder.path / "pools" / step_id

    def _pool_names(self, step_id: str | None) -> list[str] | None:
        return None if step_id is None else list(self.folder.step(step_id).request["pools"])

    def _checkpoint(self, step_id: str) -> Path:
        return self.folder.path / "checkpoints" / step_id
