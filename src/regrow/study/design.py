"""From a study spec to its steps: what is to be run, what each step needs, and an id that says what it is.

An id is the hash of everything that shapes the step's result: what it does and the ids of the steps it reads. What
does not change a result (the engine, how many workers, where the folder is) is not in it, so a result is found again
whatever the study around it has become.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from regrow.errors import ConfigError, did_you_mean
from regrow.planning.pilots import GENERAL, MIXTURE, PILOT_SCOPE, PilotRun
from regrow.planning.registry import canonical, rule_named
from regrow.planning.rule import Design
from regrow.planning.tokens import show_tokens
from regrow.records.fingerprint import file_sha256
from regrow.records.specs import HealSpec, PruneSpec, RepairSpec
from regrow.records.study_spec import FamilySpec, StudySpec
from regrow.study.step import Step

TOKEN_MATCHED = "token-matched"
LIGHT = "light"
_SPEED_ONLY = {
    "checkpoint_every_seconds",
    "microbatch_tokens",
    "gradient_checkpointing",
    "share_prefix",
    "state_cache_gb",
}
_UNSERVED = "the study runner does not make what it reads"


def capabilities_of(spec: StudySpec, there: Iterable[str]) -> tuple[str, ...]:
    """Return the capabilities a study measures, in the suite's order. Raises ConfigError for an unknown one."""
    names = tuple(there)
    for name in spec.capabilities or ():
        if name not in names:
            raise ConfigError(f"unknown capability '{name}'", hint=did_you_mean(name, names))
    return tuple(name for name in names if spec.capabilities is None or name in spec.capabilities)


def planning_design(spec: StudySpec, capabilities: Iterable[str], pools: Iterable[str]) -> Design:
    """Return what the rules are told: capabilities, the pools that serve them, and the pilots."""
    chosen = tuple(capabilities)
    there = tuple(pools)
    homes = {name if name in there else GENERAL for name in chosen}
    wanted = tuple(name for name in there if name in homes)
    if spec.pilots is None:
        return Design(capabilities=chosen, pools=wanted)
    return Design(
        capabilities=chosen,
        pools=wanted,
        budgets=spec.pilots.budgets,
        scope_tokens=spec.pilots.scope_tokens,
        scopes=spec.pilots.scopes,
    )


def steps_of(spec: StudySpec, design: Design, identities: Mapping[str, str]) -> list[Step]:
    """Return the steps of a study, each after those it reads, shared ones once.

    ``identities`` maps each family to what its model is (:func:`regrow.models.identity.model_identity`, or any name
    for it while only counting). Raises ConfigError for a rule whose pilots the study does not have.
    """
    found: dict[str, Step] = {}
    for family in spec.families:
        for step in _family_steps(spec, design, family, identities[family.name]):
            first = found.setdefault(step.id, step)
            if first.family != step.family and step.family not in first.also:
                found[step.id] = replace(first, also=(*first.also, step.family))
    return list(found.values())


def _family_steps(spec: StudySpec, design: Design, family: FamilySpec, identity: str) -> Iterator[Step]:
    name = family.name
    common = {"model_sha256": identity, "dtype": spec.dtype}
    pools = Step(
        "pools",
        name,
        "healing pools, answered by the unpruned model",
        {**common, "suite": spec.suite, "examples": spec.pool_examples, "pools": list(design.pools)},
    )
    unpruned = {
        split: _evaluation(spec, design, name, "unpruned", split, {**common, "model": "unpruned"}, {})
        for split in ("dev", "test")
    }
    yield unpruned["test"]
    yield unpruned["dev"]
    yield pools
    base = _cut(spec, family, pools, common)
    yield base
    pruned = {
        split: _evaluation(spec, design, name, "pruned", split, common, {"checkpoint": base.id})
        for split in ("dev", "test")
    }
    yield from pruned.values()
    if family.cut(light=True) is not None:
        light = _cut(spec, family, pools, common, light=True)
        yield light
        yield _evaluation(spec, design, name, "pruned", "test", common, {"checkpoint": light.id}, cut=LIGHT)
    if spec.repair is not None:
        parents = {"checkpoint": base.id, "pools": pools.id}
        request = {**common, "repair": spec.repair.model_dump(mode="json"), **_text_content(spec.repair)}
        base = Step("repair", name, f"repair by {spec.repair.method}", request, parents)
        yield base
        for split in ("dev", "test"):
            yield _evaluation(spec, design, name, "repaired", split, common, {"checkpoint": base.id})
    yield from _heals(spec, design, family, common, base, pools, unpruned["dev"], pruned["dev"])


def _cut(spec: StudySpec, family: FamilySpec, pools: Step, common: Mapping[str, Any], *, light: bool = False) -> Step:
    cut = family.cut(light=light)
    assert cut is not None
    what = f"blocks {', '.join(map(str, cut.blocks))}" if cut.blocks is not None else f"{cut.remove} by {cut.criterion}"
    return Step(
        "prune",
        family.name,
        f"{'light cut' if light else 'cut'}: {what}",
        {**common, "prune": cut.model_dump(mode="json"), "suite": spec.suite, **_text_content(cut)},
        {"pools": pools.id} if cut.blocks is None and cut.calibration == "healing-pools" else {},
    )


def _text_content(spec: PruneSpec | RepairSpec) -> dict[str, str]:
    """Return the hash of a calibration text that is a file: its name does not say what it holds."""
    file = Path(spec.calibration.partition("#")[0]).expanduser()
    used = not (isinstance(spec, PruneSpec) and spec.blocks is not None)
    return {"calibration_sha256": file_sha256(file)} if used and file.is_file() else {}


def _evaluation(
    spec: StudySpec,
    design: Design,
    family: str,
    stage: str,
    split: str,
    request: Mapping[str, Any],
    parents: Mapping[str, str],
    *,
    cut: str = "",
) -> Step:
    place: dict[str, Any] = {"family": family, "stage": stage}
    if cut:
        place["cut"] = cut
    said = f"{stage}{f' ({cut} cut)' if cut else ''}, {split} split"
    return Step("evaluate", family, said, {**request, "evaluation": _asked(spec, design, split)}, parents, place)


def _asked(spec: StudySpec, design: Design, split: str) -> dict[str, Any]:
    """Return what an evaluation asks, capabilities in the suite's order: the file's order changes no result."""
    asked = spec.evaluation(split).model_dump(mode="json", exclude={"batch_size", "fast_stop"})
    return asked if spec.capabilities is None else {**asked, "capabilities": list(design.capabilities)}


def _heals(
    spec: StudySpec,
    design: Design,
    of: FamilySpec,
    common: Mapping[str, Any],
    base: Step,
    pools: Step,
    unpruned_dev: Step,
    pruned_dev: Step,
) -> Iterator[Step]:
    family, chosen = of.name, of.rules or spec.rules
    start = {"checkpoint": base.id, "pools": pools.id}
    pilots: dict[PilotRun, Step] = {}

    def heal(
        title: str,
        place: Mapping[str, Any],
        plan: Mapping[str, Any],
        options: HealSpec,
        split: str,
        evidence: Mapping[str, str] | None = None,
    ) -> Step:
        request = {
            **common,
            "suite": spec.suite,
            "pools": list(design.pools),
            "capabilities": list(design.capabilities),
            "mixture": dict(plan),
            "heal": options.model_dump(mode="json", exclude={"mixture", *_SPEED_ONLY}),
            "evaluation": _asked(spec, design, split),
        }
        placed = {"family": family, "stage": "healed", "budget": options.tokens, "seed": options.seed, **place}
        return Step("heal", family, title, request, {**start, **(evidence or {})}, placed)

    named = {name: _registered(name) for name in (*chosen, *(spec.sweep_rules if spec.sweep else ()))}
    _refuse_same_rule(chosen, named)
    needs = {rule: rule_named(name).needs(design) for name, rule in named.items()}
    for rule, need in needs.items():
        _refuse_unserved(rule, need, spec)
        for run in need.pilots:
            if run in pilots:
                continue
            assert spec.pilots is not None
            pilots[run] = heal(
                f"pilot {run.name}",
                {"pilot": run.pool, "scope": run.scope},
                {"pool": run.pool},
                spec.healing(run.tokens, run.scope, spec.pilots.seed),
                "dev",
            )
            yield pilots[run]
    told = {"unpruned": unpruned_dev.id, "pruned": pruned_dev.id}
    budgets = [(tokens, chosen) for tokens in spec.budgets]
    budgets += [(tokens, spec.sweep_rules) for tokens in spec.sweep]  # a heal that is asked for twice is one step
    for tokens, rules in budgets:
        for name in rules:
            rule = named[name]
            need = needs[rule]
            evidence = dict(told) if need.evaluations else {}
            evidence |= {f"pilot:{run.pool}:{run.tokens}:{run.scope}": pilots[run].id for run in need.pilots}
            plan = {"rule": rule} if rule != MIXTURE else {"pool": MIXTURE}
            for seed in spec.seeds:
                yield heal(
                    f"{rule} at {show_tokens(tokens)}, seed {seed}",
                    {"rule": rule, "scope": PILOT_SCOPE},
                    plan,
                    spec.healing(tokens, PILOT_SCOPE, seed),
                    "test",
                    evidence,
                )
    for scope in spec.scopes:
        for seed in spec.seeds:
            yield heal(
                f"uniform at {show_tokens(spec.budgets[0])} under {scope}, seed {seed}",
                {"rule": MIXTURE, "scope": scope},
                {"pool": MIXTURE},
                spec.healing(spec.budgets[0], scope, seed),
                "test",
            )
    paid = sum(run.tokens for run in pilots)
    if spec.token_matched and paid:
        for seed in spec.seeds:
            tokens = spec.budgets[0] + paid
            yield heal(
                f"token-matched uniform at {show_tokens(tokens)}, seed {seed}",
                {"rule": TOKEN_MATCHED, "scope": PILOT_SCOPE},
                {"pool": MIXTURE},
                spec.healing(tokens, PILOT_SCOPE, seed),
                "test",
            )


def _registered(name: str) -> str:
    """Return the one spelling of a rule that stands for all: its registered name, with its number where that is not
    the rule's own ("slowest-first(0.5)")."""
    plain, bracket, rest = name.partition("(")
    known = canonical(plain)
    if not bracket or rule_named(name) == rule_named(known):
        return known
    return f"{known}({float(rest.strip().rstrip(')')):g})"


def _refuse_same_rule(names: Iterable[str], registered: Mapping[str, str]) -> None:
    first: dict[str, str] = {}
    for name in names:
        other = first.setdefault(registered[name], name)
        if other != name:
            raise ConfigError(
                f"'rules' names one rule twice: '{other}' and '{name}' are both {registered[name]}",
                hint=f"leave '{name}' out",
            )


def _refuse_unserved(rule: str, need: Any, spec: StudySpec) -> None:
    if need.pilots and spec.pilots is None:
        raise ConfigError(
            f"rule '{rule}' needs {need.words}, but the study has no 'pilots'",
            hint="add pilots: {budgets: [...], scope_tokens: ...}, or leave the rule out",
        )
    if need.loss_runs or need.read_tokens or need.during:
        raise ConfigError(
            f"rule '{rule}' needs {need.words}; {_UNSERVED}",
            hint="leave the rule out; `regrow plan` takes its evidence from files",
        )
