"""What a user may ask for, as frozen values: unknown keys are refused with the nearest known one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BeforeValidator, ConfigDict, Field, ValidationError

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


def build(kind: type[S], values: dict[str, Any], *, where: str = "the options") -> S:
    """Return a spec of ``kind`` from plain values. Raises ConfigError with one sentence per fault."""
    unknown = [str(key) for key in values if key not in kind.model_fields]
    if unknown:
        raise ConfigError(f"unknown key '{unknown[0]}' in {where}", hint=did_you_mean(unknown[0], kind.model_fields))
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        faults = "; ".join(
            dict.fromkeys(
                f"{str(fault['loc'][0]) if fault['loc'] else 'it'}: {_message(fault['msg'])} (got {fault['input']!r})"
                for fault in error.errors()
            )
        )
        raise ConfigError(f"{where}: {faults}", hint="see the command's --help for what is allowed") from error


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
