"""Can a study run here? Models, items, healing prompts, rules, disk, memory and engine, really looked at, before
anything runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import psutil

from regrow.capabilities.suites import healing_suite, suite
from regrow.errors import ConfigError, RegrowError
from regrow.heal.registry import SCOPES
from regrow.models.identity import model_identity
from regrow.models.load import block_count, locate_file
from regrow.protocols import Capability
from regrow.records.hints import without_data_option
from regrow.records.results import Frozen, Split
from regrow.records.specs import PruneSpec
from regrow.records.study_spec import FamilySpec, StudySpec
from regrow.study.design import capabilities_of, planning_design, steps_of
from regrow.study.engines.reach import ray_address, ray_nodes, slurm_partitions
from regrow.study.folder import StudyFolder
from regrow.study.item_counts import item_counts
from regrow.study.stages.prune import refuse_early, refuse_unknown_criterion
from regrow.study.step import Step

_TRAINING_BYTES_PER_WEIGHT = 6.0
"""bfloat16 or float32 weights with activations and LoRA moments of short sequences; an estimate."""

_ALSO_READ = {"safety": "general"}
"""Pools of the full suite that also hold prompts of another one's source."""


class Finding(Frozen):
    """One thing looked at: whether it is well, what was found, and what to do when it is not."""

    what: str
    ok: bool
    found: str
    remedy: str = ""


def preflight(spec: StudySpec, output: Path) -> list[Finding]:
    """Return everything that was looked at; the study can run when all of it is ``ok``."""
    found: list[Finding] = []
    capabilities: list[str] = []

    def look(what: str, work: Callable[[], str]) -> None:
        try:
            said = work()
            if said:
                found.append(Finding(what=what, ok=True, found=said))
        except RegrowError as error:
            missing(what, error)

    def items() -> str:
        capabilities.extend(capabilities_of(spec, [one.name for one in suite(spec.suite)]))
        counts = []
        for one in suite(spec.suite):
            if one.name not in capabilities:
                continue
            try:
                dev, test = (len(list(one.items(split))) for split in ("dev", "test"))
            except RegrowError as error:
                missing(f"items of {one.name}", error)
                continue
            counts.append(f"{one.name} {dev}/{test}")
            for asked, there, split in ((spec.dev_items, dev, "dev"), (spec.test_items, test, "test")):
                _refuse_more_items(split, one.name, asked, there)
        return f"dev/test items: {', '.join(counts)}" if counts else ""

    def prompts() -> str:
        there = {one.name: one for one in healing_suite(spec.suite)}
        wanted = planning_design(spec, capabilities, there).pools
        counts, short = [], set()
        for name in wanted:
            try:
                counts.append(f"{name} {len(list(there[name].items('heal')))}")
            except RegrowError as error:
                short.add(name)
                missing(f"healing prompts of {name}", error)
        # An error names the first data set that a pool lacks; what else it reads is looked at too.
        for name in {_ALSO_READ[name] for name in short & _ALSO_READ.keys()} & there.keys() - set(wanted):
            look(f"healing prompts of {', '.join(short)}", lambda name=name: _read(there[name], "heal"))  # type: ignore[misc]
        if short:
            for one in suite(spec.suite):  # every pool is kept apart from all items of the suite
                if one.name not in capabilities:
                    look(f"items of {one.name}", lambda one=one: _read(one, "dev"))  # type: ignore[misc]
        return f"healing prompts: {', '.join(counts)}" if counts else ""

    def missing(what: str, error: RegrowError) -> None:
        remedy = without_data_option(error.hint or "")
        said = next((one for one in found if (one.found, one.remedy) == (str(error), remedy)), None)
        if said is None:
            found.append(Finding(what=what, ok=False, found=str(error), remedy=remedy))
        else:  # several need the same data set
            found[found.index(said)] = said.model_copy(update={"what": f"{said.what}, {what}"})

    look("items", items)
    if capabilities:
        look("healing prompts", prompts)
    weights: dict[str, int] = {}
    for family in spec.families:
        look(f"model {family.name}", lambda family=family: _model(family, weights))  # type: ignore[misc]
    for scope in _scopes(spec):
        look(f"scope {scope}", lambda scope=scope: SCOPES.entry(scope).summary)  # type: ignore[misc]

    def steps() -> str:
        made = _steps(spec)
        heals = sum(step.kind == "heal" for step in made)
        rules = dict.fromkeys(rule for family in spec.families for rule in family.rules or spec.rules)
        return f"{len(made)} steps, {heals} heals; rules {', '.join(rules)}"

    look("rules and pilots", steps)
    look("methods", lambda: _methods(spec))
    look("machine", lambda: _machine(spec))
    look("disk", lambda: _disk(spec, output, weights))
    look("memory", lambda: _memory(spec, weights))
    look("engine", lambda: _engine(spec))
    look("folder", lambda: _folder(spec, output))
    return found


def refuse_unknown(spec: StudySpec) -> None:
    """Raise ConfigError for a name of the study that regrow does not know, and for a device or number format that is
    not to be had: what can be said at once, before models and data are looked at."""
    for scope in _scopes(spec):
        SCOPES.entry(scope)
    for cut in _cuts(spec):
        refuse_unknown_criterion(cut.criterion)
    _repair_and_loss(spec)
    _machine(spec)


def refuse_impossible(spec: StudySpec) -> None:
    """Raise ConfigError for cuts that the models, which are here, cannot have, and for more items than the suite has:
    what a run would otherwise meet after hours."""
    for family in spec.families:
        _refuse_cuts(family, block_count(family.model))
    for split, asked in (("dev", spec.dev_items), ("test", spec.test_items)):
        # Of the suites whose size is known without their data.
        for name, there in item_counts(spec, split, None).items() if spec.suite in ("mini", "full") else ():
            _refuse_more_items(split, name, asked, there)


def _refuse_more_items(split: str, name: str, asked: int | None, there: int) -> None:
    if asked is not None and asked > there:
        raise ConfigError(
            f"{split}_items: {asked} of '{name}' were asked for, the suite has {there}", hint=f"{split}_items: {there}"
        )


def _scopes(spec: StudySpec) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*spec.scopes, *(spec.pilots.scopes if spec.pilots else ()))))


def _cuts(spec: StudySpec) -> list[PruneSpec]:
    """Return the cuts that a criterion chooses."""
    cuts = (family.cut(light=light) for family in spec.families for light in (False, True))
    return [cut for cut in cuts if cut is not None and cut.blocks is None]


def _read(one: Capability, split: Split) -> str:
    """Read items for the error that their source is not there."""
    one.items(split)
    return ""


def _model(family: FamilySpec, weights: dict[str, int]) -> str:
    identity = model_identity(family.model)
    place = locate_file(family.model)
    files = [place] if place.is_file() else sorted(place.glob("*.safetensors"))
    scale = 8 if place.is_file() else 1  # a GGUF is dequantized
    weights[family.name] = scale * sum(file.stat().st_size for file in files)
    blocks = block_count(family.model)
    _refuse_cuts(family, blocks)
    return f"{blocks} blocks, sha256 {identity.weights_sha256[:12]}"


def _refuse_cuts(family: FamilySpec, blocks: int) -> None:
    for light in (False, True):
        cut = family.cut(light=light)
        if cut is not None:
            refuse_early(cut, blocks)
    main, light_cut = family.cut(), family.cut(light=True)
    if main and light_cut and _removed(main, blocks) <= _removed(light_cut, blocks):
        raise ConfigError(f"the light cut of '{family.name}' is not smaller than the main one", hint="light_remove: 1")


def _methods(spec: StudySpec) -> str:
    """Look up every name that is not a scope, a rule or a criterion: the repair, losses, calibration texts."""
    from regrow.data.text import open_text
    from regrow.study.stages.calibration import HEALING_POOLS

    texts = {cut.calibration for cut in _cuts(spec)} | ({spec.repair.calibration} if spec.repair else set())
    for text in sorted(texts - {HEALING_POOLS}):
        open_text(text)
    _repair_and_loss(spec)
    return "calibration texts, repair and loss are known"


def _repair_and_loss(spec: StudySpec) -> None:
    from regrow.heal.registry import LOSSES
    from regrow.repair.registry import REPAIRS

    if spec.repair:
        REPAIRS.entry(spec.repair.method)
    for loss in spec.healing(1, "all-lora", 0).loss.split("+"):
        LOSSES.entry(loss.rpartition("*")[2])


def _removed(cut: PruneSpec, blocks: int) -> int:
    from regrow.criteria.order import removal_count

    return len(cut.blocks) if cut.blocks is not None else removal_count(cut.remove or 0, blocks)


def _machine(spec: StudySpec) -> str:
    """Look whether device and number format are to be had, and whether there are as many GPUs as asked for."""
    import torch

    from regrow.models.placement import choose_device, choose_dtype

    here = spec.engine.name in ("serial", "subprocess")
    device = choose_device(spec.device if here else "cpu")
    choose_dtype(spec.dtype, device, 0)
    gpus = torch.cuda.device_count()
    asked = spec.engine.processes_per_heal if spec.engine.processes_per_heal > 1 else spec.engine.gpus_per_run
    if here and asked > 1 and 0 < gpus < asked:
        raise ConfigError(f"{asked} GPUs a run were asked for, there are {gpus}", hint=f"gpus_per_run: {gpus}")
    return f"{device if here else spec.device}, {spec.dtype}"


def _steps(spec: StudySpec) -> list[Step]:
    capabilities = capabilities_of(spec, [one.name for one in suite(spec.suite)])
    design = planning_design(spec, capabilities, [one.name for one in healing_suite(spec.suite)])
    return steps_of(spec, design, {family.name: family.model for family in spec.families})


def _disk(spec: StudySpec, output: Path, weights: dict[str, int]) -> str:
    per_family = 2 + (spec.repair is not None)
    need = sum(weights.values()) * per_family + max(weights.values(), default=0) * 2 * spec.engine.workers
    if spec.keep_checkpoints:
        need += sum(weights.get(step.family, 0) for step in _steps(spec) if step.kind == "heal")
    if len(weights) < len(spec.families):
        return "what the checkpoints need is not known before every model is here"
    nearest = next(parent for parent in (output.absolute(), *output.absolute().parents) if parent.exists())
    free = shutil.disk_usage(nearest).free
    if need > free:
        raise ConfigError(
            f"checkpoints need about {need / 1e9:.1f} GB, {free / 1e9:.1f} GB are free at '{nearest}'",
            hint="free some space, or name a folder on another disk with --output",
        )
    return f"about {need / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free"


def _memory(spec: StudySpec, weights: dict[str, int]) -> str:
    if len(weights) < len(spec.families):
        return "what the heals need is not known before every model is here"
    largest = max(weights.values(), default=0)
    need = largest / 2 * _TRAINING_BYTES_PER_WEIGHT * spec.engine.workers
    there = psutil.virtual_memory().available
    if need > there and spec.engine.name in ("serial", "subprocess") and spec.device in ("auto", "cpu"):
        import torch

        if not torch.cuda.is_available():
            raise ConfigError(
                f"{spec.engine.workers} workers need about {need / 1e9:.1f} GB, {there / 1e9:.1f} GB are available",
                hint="lower engine.workers, or use a machine with more memory",
            )
    return f"about {need / 1e9:.1f} GB needed, {there / 1e9:.1f} GB available here"


def _engine(spec: StudySpec) -> str:
    from importlib.util import find_spec

    package = {"ray": "ray", "slurm": "submitit"}.get(spec.engine.name)
    if package and find_spec(package) is None:
        raise ConfigError(
            f"the {spec.engine.name} engine needs the package '{package}'",
            hint=f"pip install 'regrow[{spec.engine.name}]'",
        )
    more = ""
    if spec.engine.name == "slurm" and spec.engine.cluster == "slurm":
        more = f", {slurm_partitions(spec.engine.partition)}"
    address = ray_address(spec.engine.address) if spec.engine.name == "ray" else None
    if address is not None:
        more = f", {ray_nodes(address)} nodes at '{address}'"
    return f"{spec.engine.name}, {spec.engine.workers} at once{more}"


def _folder(spec: StudySpec, output: Path) -> str:
    StudyFolder(output).refuse(spec, update=False)
    if not (output / "study.json").exists():
        return f"{output} is free"
    return f"{output} holds this study; it will be continued"
