"""What a user may ask for, as frozen values: unknown keys are refused with the nearest known one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from regrow.errors import ConfigError, did_you_mean
from regrow.records.quantities import parse_blocks, parse_tokens
from regrow.records.results import Frozen

S = TypeVar("S", bound="Spec")


class Spec(Frozen):
    """Base of what a user asks for: infinities and NaN are refused, and numbers may be typed as on the command line."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


def _typed_tokens(value: Any) -> Any:
    try:
        return parse_tokens(value, option="the value") if isinstance(value, str) else _no_flag(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _typed_blocks(value: Any) -> Any:
    try:
        if isinstance(value, str):
            return parse_blocks(value, option="the value")
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return (value,) if isinstance(value, int) and not isinstance(value, bool) else value


def _typed_names(value: Any) -> Any:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def typed_count(value: Any) -> Any:
    """The same request is the same text, typed or in a file: 2 and "2"."""
    checked = _no_flag(value)
    return f"{checked:g}" if isinstance(checked, int | float) else checked


def _no_flag(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("a number is wanted here, not a yes or no")
    return value


Tokens = Annotated[int, BeforeValidator(_typed_tokens)]
"""A count of tokens: 6000, or "6k"."""
Blocks = Annotated[tuple[int, ...], BeforeValidator(_typed_blocks)]
"""Block indices: [13, 14], or "13,14" or "12-15"."""
Names = Annotated[tuple[str, ...], BeforeValidator(_typed_names)]
"""Names: [math, safety], or "math,safety"."""


class PruneSpec(Spec):
    """Which blocks go: either ``blocks`` (0-based), or ``remove`` of them (a count, or a share such as "25%")."""

    criterion: str = "block-influence"
    remove: Annotated[str | None, BeforeValidator(typed_count)] = None
    blocks: Blocks | None = None
    protect: Blocks = (0,)
    contiguous: bool = False
    calibration: str = "bundled"
    calibration_tokens: Tokens = Field(default=16_384, ge=2)
    chunk_tokens: int = Field(default=256, ge=2)
    seed: int = 0


class RepairSpec(Spec):
    """How the cut is bridged. What is None is the method's own choice, as its paper has it.

    ``ridge`` is lambda as a fraction of the mean diagonal of X'X; ``ridge_choice`` "held-out" takes the fraction with
    the least error on an eighth of the calibration sequences instead. ``rank`` truncates the operator, by plain SVD or
    weighted by the activations. ``granularity`` "block" fits one operator per removed block and merges them, "span" one
    per run. ``sequential`` fits each cut on the streams of the pruned model with the earlier cuts repaired.
    ``rows`` "inverse-norm" weighs each token by 1 / norm of its stream; ``skip_first`` leaves out as many tokens at the
    start of a sequence. ``passes`` is how often the methods that train go over their tokens.
    """

    method: str = "lra"
    calibration: str = "bundled"
    calibration_tokens: Tokens = Field(default=16_384, ge=2)
    chunk_tokens: int = Field(default=256, ge=2)
    skip_first: int | None = Field(default=None, ge=0)
    ridge: float | None = Field(default=None, ge=0)
    ridge_choice: Literal["fixed", "held-out"] = "fixed"
    rank: int | None = Field(default=None, ge=1)
    rank_weighting: Literal["plain", "activations"] = "plain"
    granularity: Literal["block", "span"] | None = None
    sequential: bool = False
    rows: Literal["plain", "inverse-norm"] = "plain"
    passes: int | None = Field(default=None, ge=1)
    seed: int = 0


class HealSpec(Spec):
    """A healing run. Defaults are the study's recipe; ``tokens`` counts prompt and response tokens, no padding.

    ``loss`` names a loss or a sum of them ("response-cross-entropy+0.5*distillation"); ``temperature`` softens both
    distributions of a distillation, ``top_k`` is how many tokens distillation-top-k keeps. ``last_blocks`` belongs to
    the scopes that train the deepest blocks. ``base_format`` "nf4" holds the frozen weights of a LoRA scope in 4 bits
    (QLoRA, CUDA alone). ``max_cycles`` is how often a pool may be used up. ``precision`` is that of the matrix products
    ("auto": bfloat16 where the machine computes in it, else float32); trained weights are float32 in either case.

    The last four options change speed and memory, not what is computed (up to rounding): tokens run at once, prefixes
    that sequences of one update share computed once, activations recomputed instead of kept ("auto": where memory is
    short), and how much disk may hold states of blocks below everything that trains (0: they run anew each time).
    """

    tokens: Tokens = Field(gt=0)
    mixture: str = "uniform"
    scope: str = "all-lora"
    loss: str = "response-cross-entropy"
    temperature: float = Field(default=1.0, gt=0)
    top_k: int = Field(default=50, ge=1)
    rank: int = Field(default=16, gt=0)
    alpha: float = Field(default=32.0, gt=0)
    dropout: float = Field(default=0.05, ge=0, lt=1)
    learning_rate: float | None = Field(default=None, gt=0, le=1e6)
    sequences_per_update: int = Field(default=16, gt=0)
    max_sequence_tokens: int = Field(default=512, gt=1)
    warmup_fraction: float = Field(default=0.05, ge=0, lt=1)
    clip_norm: float = Field(default=1.0, gt=0)
    checkpoint_every_seconds: float = Field(default=60.0, gt=0)
    seed: int = 0
    last_blocks: int = Field(default=3, ge=1)
    base_format: Literal["stored", "nf4"] = "stored"
    max_cycles: float = Field(default=50.0, gt=0)
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    microbatch_tokens: int = Field(default=2048, gt=0)
    share_prefix: bool = True
    gradient_checkpointing: bool | Literal["auto"] = "auto"
    state_cache_gb: float = Field(default=8.0, ge=0)


class EvalSpec(Spec):
    """What is measured. ``items`` limits the items per capability (None: all of the split)."""

    suite: str = "mini"
    capabilities: Names | None = Field(default=None, min_length=1)
    split: str = "test"
    items: int | None = Field(default=None, gt=0)
    perplexity: bool = True
    batch_size: int = Field(default=32, gt=0)
    fast_stop: bool = True
    seed: int = 0


@dataclass(frozen=True)
class _Fault:
    """One thing wrong in what was asked: the path of its key, the sentence, and what to do where that is known."""

    path: str
    said: str
    remedy: str = ""
    unknown: bool = False


class _FaultsError(ValueError):
    """The faults of options that are checked as a spec of their own while a larger one is read."""

    def __init__(self, faults: Sequence[_Fault]) -> None:
        super().__init__("; ".join(fault.said for fault in faults))
        self.faults = tuple(faults)


def build(
    kind: type[S],
    values: dict[str, Any],
    *,
    where: str = "the options",
    hint: str = "see the command's --help for what is allowed",
    called: Callable[[str], str] = str,
) -> S:
    """Return a spec of ``kind`` from plain values. Raises ConfigError with one sentence per fault, which names the
    whole path of its key ("families[0].model"; ``called`` may put it as the user wrote it). Unknown keys hide other
    faults, which often follow from them."""
    spec, faults = _checked(kind, values)
    if spec is not None:
        return spec
    unknown = [fault for fault in faults if fault.unknown]
    if unknown:
        names = ", ".join(f"'{called(fault.path)}'" for fault in unknown)
        remedies = [
            f"for '{called(fault.path)}': {fault.remedy}" if len(unknown) > 1 else fault.remedy for fault in unknown
        ]
        raise ConfigError(f"unknown key{'s' * (len(unknown) > 1)} {names} in {where}", hint="; ".join(remedies))
    told: dict[str, list[str]] = {}
    for fault in faults:  # each branch of a union says what it wants
        told.setdefault(fault.path, []).append(fault.said)
    said = [
        f"{called(path)}: {' or '.join(dict.fromkeys(ways))}" if path else "; ".join(ways)
        for path, ways in told.items()
    ]
    remedies = list(dict.fromkeys(fault.remedy for fault in faults if fault.remedy))
    raise ConfigError(f"{where}: {'; '.join(said)}", hint="; ".join(remedies) or hint)


def refuse_faults(kind: type[Spec], values: dict[str, Any]) -> None:
    """Raise ValueError, which :func:`build` puts under the path of the field it is raised for, where ``values`` are not
    options of ``kind``. For validators of options that a larger spec keeps as they are."""
    _, faults = _checked(kind, values)
    if faults:
        raise _FaultsError(faults)


def _checked(kind: type[S], values: dict[str, Any]) -> tuple[S | None, list[_Fault]]:
    """Return the spec, or what is wrong."""
    faults = [
        _Fault(str(key), "", did_you_mean(str(key), kind.model_fields), unknown=True)
        for key in values
        if key not in kind.model_fields
    ]
    try:
        spec = kind.model_validate({key: value for key, value in values.items() if key in kind.model_fields})
    except ValidationError as error:
        return None, faults + _told(kind, error)
    return (None if faults else spec), faults


def _told(kind: type[Spec], error: ValidationError) -> list[_Fault]:
    found: list[_Fault] = []
    faults = error.errors()
    for fault in faults:
        loc = fault["loc"]
        if any(other["loc"][: len(loc)] == loc and len(other["loc"]) > len(loc) for other in faults):
            continue  # "at least 1 item", when the item itself is at fault
        parts, place, unknown = _place(kind, loc)
        path = _path(parts)
        inner = fault.get("ctx", {}).get("error")
        if isinstance(inner, _FaultsError):
            found += [replace(one, path=".".join(filter(None, (path, one.path)))) for one in inner.faults]
        elif unknown:
            fields = [name for model in _models(place) for name in model.model_fields]
            found.append(_Fault(path, "", did_you_mean(str(parts[-1]), fields), unknown=True))
        else:
            given = fault["input"]
            choices = [value for one in _options(place) for value in get_args(one) if get_origin(one) is Literal]
            near = did_you_mean(given, map(str, choices)) if choices and isinstance(given, str) else ""
            found.append(_Fault(path, f"{_sentence(fault)}{_got(fault)}", near))
    return found


def _place(kind: type[Spec], loc: Sequence[int | str]) -> tuple[list[int | str], Any, bool]:
    """Return the part of a fault's place that a user wrote (pydantic adds the branches of a union), the type wanted
    there, and whether the last part is a key that is not known."""
    parts: list[int | str] = []
    wanted: Any = kind
    for part in loc:
        options = _options(wanted)
        fields = next((model.model_fields for model in _models(wanted) if part in model.model_fields), None)
        inner = [get_args(one)[0] for one in options if get_origin(one) in (tuple, list)]
        if fields is not None:
            wanted = fields[str(part)].annotation
        elif isinstance(part, int) and inner:
            wanted = inner[0]
        elif any(get_origin(one) is dict for one in options) and part != "[key]":
            wanted = Any
        else:
            # A key that no model of this place has; else a branch of a union, which is no place.
            unknown = bool(_models(wanted)) and not any(part == model.__name__ for model in _models(wanted))
            return ([*parts, str(part)] if unknown else parts), wanted, unknown
        parts.append(part)
    return parts, wanted, False


def _options(wanted: Any) -> list[Any]:
    """Return the types of a union, or the type, without what is annotated."""
    if get_origin(wanted) is Annotated:
        return _options(get_args(wanted)[0])
    if get_origin(wanted) in (Union, UnionType):
        return [option for one in get_args(wanted) for option in _options(one)]
    return [wanted]


def _models(wanted: Any) -> list[type[Spec]]:
    return [one for one in _options(wanted) if isinstance(one, type) and issubclass(one, Spec)]


def _path(parts: Sequence[int | str]) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in parts).removeprefix(".")


def _sentence(fault: ErrorDetails) -> str:
    if fault["type"] in ("model_type", "model_attributes_type", "dict_type"):
        return "a mapping (key: value lines) is wanted here"
    return _message(fault["msg"])


def _got(fault: ErrorDetails) -> str:
    """Return the value in brackets, where it is one that a reader takes in at a glance."""
    given = fault["input"]
    if fault["type"] == "missing" or isinstance(given, dict | Frozen):
        return "" if fault["type"] in ("missing", "value_error") else " (got a mapping)"
    shown = repr(given)
    if isinstance(given, list | tuple) and (len(shown) > 60 or any(isinstance(one, dict) for one in given)):
        return f" (got {len(given)} entries)"
    return f" (got {shown if len(shown) <= 60 else shown[:57] + '...'})"


MOST_YAML_LETTERS = 200_000


class _Strict(yaml.SafeLoader):
    """A safe loader that refuses a key given twice instead of taking the last, and very deep nesting."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        self.depth += 1
        if self.depth > 50:
            raise yaml.YAMLError("nested more than 50 levels deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            name = str(key.value)
            if name in seen:
                raise yaml.YAMLError(f"'{name}' is given twice (line {key.start_mark.line + 1})")
            seen.add(name)
        return super().construct_mapping(node, deep=deep)


def _message(text: str) -> str:
    text = text.removeprefix("Value error, ")
    return text[:1].lower() + text[1:]


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file. Raises ConfigError when it is absent, broken or not a mapping."""
    try:
        text = path.read_text("utf-8")
        if len(text) > MOST_YAML_LETTERS:
            raise ConfigError(
                f"'{path}' has {len(text):,} characters, more than a file of options ever needs",
                hint=f"allowed: {MOST_YAML_LETTERS:,}; check that it is the right file",
            )
        content = yaml.load(text, Loader=_Strict)
    except FileNotFoundError as error:
        raise ConfigError(f"there is no file '{path}'", hint="check the path") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise ConfigError(f"'{path}' is not readable YAML: {why}", hint="correct the file and run again") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"'{path}' must hold a mapping (key: value lines)", hint="for example a line such as tokens: 60k"
        )
    return content
