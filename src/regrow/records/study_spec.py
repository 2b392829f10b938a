"""What a study is asked to do: families, cuts, rules, budgets, scopes, seeds, pilots; one YAML file, unknown keys
refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from regrow.errors import ConfigError
from regrow.records.kinds import refuse_other_kind
from regrow.records.quantities import parse_tokens
from regrow.records.specs import (
    Blocks,
    EvalSpec,
    HealSpec,
    Names,
    PruneSpec,
    RepairSpec,
    Spec,
    Tokens,
    build,
    read_yaml,
    refuse_faults,
    typed_count,
)

_HEAL_BY_STUDY = {"tokens", "mixture", "scope", "seed"}


def _typed_budgets(value: Any) -> Any:
    entries = value if isinstance(value, list | tuple) else [value]
    try:
        return tuple(parse_tokens(one, option="a budget") if isinstance(one, str) else one for one in entries)
    except ConfigError as error:
        raise ValueError(str(error)) from error


Budgets = Annotated[tuple[int, ...], BeforeValidator(_typed_budgets)]
"""Token counts: [30k, 100k], or one of them."""


class FamilySpec(Spec):
    """One model and the cuts made in it. ``blocks`` are removed as they are; else ``remove`` of them by ``criterion``.
    ``light_blocks`` (or ``light_remove``) is a second, smaller cut that is only measured, not healed. ``rules`` stand
    in the place of the study's."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    model: str = Field(min_length=1)
    blocks: Blocks | None = None
    remove: Annotated[str | None, BeforeValidator(typed_count)] = None
    criterion: str = "block-influence"
    calibration: str = "healing-pools"
    calibration_tokens: Tokens | None = None
    light_blocks: Blocks | None = None
    light_remove: Annotated[str | None, BeforeValidator(typed_count)] = None
    rules: Names | None = None

    @model_validator(mode="after")
    def _one_cut(self) -> FamilySpec:
        if (self.blocks is None) == (self.remove is None):
            raise ValueError(f"family '{self.name}' says either 'blocks' or 'remove'")
        if self.light_blocks is not None and self.light_remove is not None:
            raise ValueError(f"family '{self.name}' says either 'light_blocks' or 'light_remove'")
        return self

    def cut(self, *, light: bool = False) -> PruneSpec | None:
        """Return the spec of the main cut, or of the light one (None where there is none)."""
        blocks, remove = (self.light_blocks, self.light_remove) if light else (self.blocks, self.remove)
        if blocks is None and remove is None:
            return None
        more: dict[str, Any] = (
            {} if self.calibration_tokens is None else {"calibration_tokens": self.calibration_tokens}
        )
        return PruneSpec(blocks=blocks, remove=remove, criterion=self.criterion, calibration=self.calibration, **more)


class PilotsSpec(Spec):
    """The small heals that planning rules read: each pool alone at each of ``budgets``, and the uniform mixture at
    ``scope_tokens`` under each of ``scopes``; scored on the dev split."""

    budgets: Budgets = (30_000, 100_000, 300_000)
    scope_tokens: Tokens = Field(default=300_000, ge=1)
    scopes: Names = ("all-lora", "cut-lora", "last-k")
    seed: int = 42

    @model_validator(mode="after")
    def _enough(self) -> PilotsSpec:
        if len(set(self.budgets)) < 2 or list(self.budgets) != sorted(set(self.budgets)) or self.budgets[0] < 1:
            raise ValueError("pilots need two budgets or more, in rising order: a curve has two unknowns")
        if "all-lora" not in self.scopes or len(set(self.scopes)) < len(self.scopes):
            raise ValueError("the scopes of the pilots are different ones, all-lora among them")
        return self


class EngineSpec(Spec):
    """Where the runs run. Nothing here changes a result. ``workers`` runs go on at once, each with its share of the
    machine's threads unless ``threads`` says otherwise; ``gpus_per_run`` and ``partition`` are for ray and slurm. With
    ``processes_per_heal`` above 1 each heal is trained by so many processes that torchrun starts, one GPU each."""

    name: Literal["serial", "subprocess", "ray", "slurm"] = "subprocess"
    workers: int = Field(default=1, ge=1)
    threads: int | None = Field(default=None, ge=1)
    gpus_per_run: int = Field(default=0, ge=0)
    processes_per_heal: int = Field(default=1, ge=1)
    memory_gb: float | None = Field(default=None, gt=0)
    timeout_minutes: float | None = Field(default=None, gt=0)
    partition: str | None = None
    address: str | None = None
    cluster: Literal["slurm", "local"] = "slurm"


_ONCE = ("seeds", "budgets", "sweep", "rules", "sweep_rules", "scopes")
"""Lists whose values make runs, and stand there once."""


class StudySpec(Spec):
    """A whole study. Defaults are the published protocol's.

    ``rules`` split each of ``budgets`` and are healed with every one of ``seeds``; ``sweep`` adds budgets for
    ``sweep_rules``; ``scopes`` is the scope experiment (the uniform mixture at the first budget under each scope);
    ``token_matched`` adds uniform heals that also train on the tokens of the pilots. ``heal`` holds options of a heal
    that are the same for all of them. With ``repair`` every heal starts from the repaired checkpoint.
    """

    name: str = Field(min_length=1)
    families: tuple[FamilySpec, ...] = Field(min_length=1)
    suite: str = "mini"
    capabilities: Names | None = Field(default=None, min_length=1)
    test_items: int | None = Field(default=None, gt=0)
    dev_items: int | None = Field(default=60, gt=0)
    perplexity: bool = True
    pool_examples: int = Field(default=1_000, gt=0)
    repair: RepairSpec | None = None
    heal: dict[str, Any] = Field(default_factory=dict)
    rules: Names = ("uniform", "damage-proportional", "rah", "rah-capped", "slowest-first")
    budgets: Budgets = Field(default=(1_000_000,), min_length=1)
    sweep: Budgets = ()
    sweep_rules: Names = ("uniform",)
    scopes: Names = ()
    seeds: tuple[int, ...] = Field(default=(0, 1, 2), min_length=1)
    pilots: PilotsSpec | None = PilotsSpec()
    token_matched: bool = True
    dtype: str = "auto"
    device: str = "auto"
    keep_checkpoints: bool = False
    engine: EngineSpec = EngineSpec()

    @field_validator("seeds", "budgets", "sweep", "test_items", "dev_items", "pool_examples", mode="before")
    @classmethod
    def _no_flags(cls, value: Any) -> Any:
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(each, bool):  # which Python would take for 0 and 1
                raise ValueError(f"a number is wanted, not {str(each).lower()}")
        return value

    @field_validator("heal")
    @classmethod
    def _heal_options(cls, options: dict[str, Any]) -> dict[str, Any]:
        taken = sorted(_HEAL_BY_STUDY & options.keys())
        if taken:
            raise ValueError(f"'{taken[0]}' of a heal is set by the study itself (budgets, rules, scopes, seeds)")
        refuse_faults(HealSpec, {"tokens": 1, **options})
        return options

    @field_validator("budgets", "sweep")
    @classmethod
    def _positive(cls, budgets: tuple[int, ...]) -> tuple[int, ...]:
        if any(tokens < 1 for tokens in budgets):
            raise ValueError("a budget is at least one token")
        return budgets

    @model_validator(mode="after")
    def _consistent(self) -> StudySpec:
        names = [family.name for family in self.families]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two families are called '{twice[0]}'; give each its own name")
        rules = [("rules", family.rules or ()) for family in self.families]
        lists: list[tuple[str, Sequence[Any]]] = [(name, getattr(self, name)) for name in _ONCE]
        for what, values in (*lists, ("capabilities", self.capabilities or ()), *rules):
            if len(set(values)) != len(values):
                raise ValueError(f"'{what}' names a value twice: {list(values)}")
        return self

    def healing(self, tokens: int, scope: str, seed: int) -> HealSpec:
        """Return the spec of one heal; its mixture is added when it is known."""
        return HealSpec(**{**self.heal, "tokens": tokens, "scope": scope, "seed": seed})

    def evaluation(self, split: str) -> EvalSpec:
        """Return what an evaluation on a split measures; perplexity belongs to the test split."""
        items = self.dev_items if split == "dev" else self.test_items
        return EvalSpec(
            suite=self.suite,
            capabilities=self.capabilities,
            split=split,
            items=items,
            perplexity=self.perplexity and split == "test",
        )

    @property
    def science(self) -> dict[str, Any]:
        """What shapes the results, as JSON values: everything but the name, the engine and what is kept on disk."""
        return self.model_dump(mode="json", exclude={"name", "engine", "keep_checkpoints"})


def read_study_spec(file: Path) -> StudySpec:
    """Return the study in a YAML file. Raises ConfigError for anything that is not valid in it."""
    values = read_yaml(file)
    refuse_other_kind(values, "study", file)
    families = values.get("families")
    called: dict[str, str] = {}
    if isinstance(families, dict):
        for number, (name, entry) in enumerate(families.items()):
            if not isinstance(entry, dict):
                raise ConfigError(
                    f"'{file}': family '{name}' is {entry!r}", hint=f"write {name}: {{model: MODEL, remove: 2}}"
                )
            called[f"families[{number}]"] = f"families.{name}"
        values = {**values, "families": [{"name": name, **entry} for name, entry in families.items()]}

    def as_written(path: str) -> str:
        first, dot, rest = path.partition(".")
        return f"{called.get(first, first)}{dot}{rest}"

    return build(
        StudySpec,
        {"name": file.stem, **values},
        where=f"'{file}'",
        hint="`regrow study show smoke` lists the keys of a study; docs/study.md describes them",
        called=as_written,
    )
