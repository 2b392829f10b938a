"""What a repair study asks: cuts x calibration texts x repairs x healing runs, read from one YAML file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from regrow.errors import ConfigError
from regrow.records.kinds import find_file, refuse_other_kind
from regrow.records.specs import Blocks, EvalSpec, HealSpec, RepairSpec, Spec, Tokens, build, read_yaml


class CutSpec(Spec):
    """One cut: ``remove`` blocks chosen by ``criterion``, or ``blocks`` by index. ``options`` are the criterion's own
    (for example ``keep_last: true``); ``seed`` matters for random criteria."""

    criterion: str = "block-influence"
    remove: int | str | None = None
    blocks: Blocks | None = None
    protect: Blocks = (0,)
    contiguous: bool = False
    seed: int = 0
    options: dict[str, Any] = Field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """The name given, or what is removed in words."""
        if self.name:
            return self.name
        if self.blocks is not None:
            return "blocks " + ",".join(map(str, self.blocks))
        more = "".join(f" {key}={value}" for key, value in sorted(self.options.items()))
        more += " contiguous" if self.contiguous else ""
        return f"{self.criterion} {self.remove}{more}" + (f" seed {self.seed}" if self.seed else "")


class TextSpec(Spec):
    """A calibration text and how much of it is read."""

    calibration: str = "bundled"
    calibration_tokens: Tokens = Field(default=16_384, ge=2)
    chunk_tokens: int = Field(default=256, ge=2)
    seed: int = 0

    @property
    def label(self) -> str:
        """The text's reference and its tokens."""
        more = f" seed {self.seed}" if self.seed else ""
        return f"{self.calibration} {self.calibration_tokens:,} tokens{more}"


def _expanded(value: Any) -> Any:
    """Turn a bare name into a repair, and a list under ``rank`` into one repair a rank."""
    if not isinstance(value, (list, tuple)):
        return value
    found: list[Any] = []
    for entry in value:
        if isinstance(entry, str):
            found.append({"method": entry})
        elif isinstance(entry, dict) and isinstance(entry.get("rank"), list):
            found.extend({**entry, "rank": rank} for rank in entry["rank"])
        else:
            found.append(entry)
        of_text = isinstance(entry, dict) and set(entry) & set(TextSpec.model_fields)
        if of_text:
            raise ValueError(f"'{sorted(of_text)[0]}' belongs under calibrations, which all repairs share")
    return found


class RepairStudySpec(Spec):
    """A whole study. Every cut is repaired by every repair from one pass per calibration text, beside no repair at
    all, and each result is measured by ``evaluation`` (None: errors and perplexity of the fit alone); every ``healing``
    run then trains every result, again beside no repair. ``full`` holds the keys that `--full` puts in their place."""

    title: str
    question: str = ""
    model: str = "embedded:smollm2-135m"
    cuts: tuple[CutSpec, ...] = Field(min_length=1)
    ranking: TextSpec = TextSpec()
    calibrations: tuple[TextSpec, ...] = Field(default=(TextSpec(),), min_length=1)
    repairs: Annotated[tuple[RepairSpec, ...], BeforeValidator(_expanded)] = Field(min_length=1)
    evaluation: EvalSpec | None = None
    healing: tuple[HealSpec, ...] = ()
    pool_examples: int = Field(default=20, ge=1)
    latency: bool = False
    full: dict[str, Any] = Field(default_factory=dict)

    def fits(self, text: TextSpec) -> Iterator[tuple[str, RepairSpec]]:
        """Yield the label of every repair and its spec for one calibration text."""
        for spec in self.repairs:
            yield repair_label(spec), spec.model_copy(update=text.model_dump())


def repair_label(spec: RepairSpec) -> str:
    """Return the method and every option that is not its default, in words that tell repairs apart."""
    left = set(TextSpec.model_fields) | {"method"}
    said = []
    for name, field in type(spec).model_fields.items():
        value = getattr(spec, name)
        if name not in left and value != field.default:
            said.append(name.replace("_", " ") if value is True else f"{name.replace('_', ' ')} {value}")
    return " ".join([spec.method, *said])


def healing_label(spec: HealSpec) -> str:
    """Return the scope, the tokens and the other options of a healing run that are not at their default."""
    said = [
        name.replace("_", " ") if getattr(spec, name) is True else f"{name.replace('_', ' ')} {getattr(spec, name)}"
        for name, field in type(spec).model_fields.items()
        if name not in ("tokens", "scope") and getattr(spec, name) != field.default
    ]
    return ", ".join([f"{spec.scope} {spec.tokens:,} tokens", *said])


def _as_written(values: dict[str, Any]) -> Callable[[str], str]:
    """Return what turns the path of a repair that came from a list of ranks into that of the entry with the list."""
    entries = values.get("repairs")
    written = [
        number
        for number, entry in enumerate(entries if isinstance(entries, list) else ())
        for _ in (entry["rank"] if isinstance(entry, dict) and isinstance(entry.get("rank"), list) else (0,))
    ]

    def called(path: str) -> str:
        first, dot, rest = path.partition(".")
        place = first.removeprefix("repairs[").removesuffix("]")
        return f"repairs[{written[int(place)]}]{dot}{rest}" if first != place and place.isdigit() else path

    return called


def load_repair_study(study: str | Path, *, full: bool = False) -> RepairStudySpec:
    """Return the study in a YAML file or of a shipped name, in its full size on request. Raises ConfigError naming the
    fault."""
    file = find_file(str(study), "repair-study")
    values = read_yaml(file)
    refuse_other_kind(values, "repair-study", file)
    where, hint = f"'{file}'", "docs/repair.md describes the keys"
    spec = build(RepairStudySpec, values, where=where, hint=hint, called=_as_written(values))
    if full:
        if not spec.full:
            raise ConfigError(f"{where} has no full size (no key 'full')", hint="leave out --full")
        spec = build(
            RepairStudySpec,
            {**values, **spec.full, "full": {}},
            where=f"{where} in full size",
            hint=hint,
            called=_as_written({**values, **spec.full}),
        )
    for kind, labels in (
        ("cut", [cut.label for cut in spec.cuts]),
        ("calibration text", [text.label for text in spec.calibrations]),
        ("repair", [repair_label(repair) for repair in spec.repairs]),
        ("healing run", [healing_label(run) for run in spec.healing]),
    ):
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if twice is not None:
            raise ConfigError(f"{where} names the {kind} '{twice}' twice", hint="remove one of them")
    for cut in spec.cuts:
        if (cut.remove is None) == (cut.blocks is None):
            raise ConfigError(f"the cut '{cut.label}' in {where} needs 'remove' or 'blocks'", hint="give one of them")
    return spec
