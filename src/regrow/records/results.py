"""What a run leaves behind: typed, versioned, readable without torch.

Undefined numbers are NaN in Python and null in the file, and the reason stands beside them (``reasons``).
"""

from __future__ import annotations

import math
import platform
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer

SCHEMA_VERSION = 1

Stage = Literal["unpruned", "pruned", "repaired", "healed"]
Split = Literal["dev", "test", "heal"]


def _nan_if_null(value: Any) -> Any:
    return math.nan if value is None else value


def _null_if_nan(value: float) -> float | None:
    return value if math.isfinite(value) else None


Number = Annotated[float, BeforeValidator(_nan_if_null), PlainSerializer(_null_if_nan, return_type=float | None)]
"""A float that may be NaN; written to JSON as null."""


class Frozen(BaseModel):
    """Base of all specs and records: immutable, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provenance(Frozen):
    """Where a result comes from. ``settings`` holds the options that shaped it; ``versions`` the packages used."""

    created: str
    regrow: str
    python: str
    platform: str
    versions: dict[str, str] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    seed: int | None = None


class Cost(Frozen):
    """What a run used. Tokens are counts; FLOPs are estimates (2 per weight and token); bytes are peak resident."""

    wall_seconds: Number = math.nan
    cpu_seconds: Number = math.nan
    training_tokens: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    flops: Number = math.nan
    peak_memory_bytes: int = 0


class ItemScore(Frozen):
    """One graded test question.

    ``score`` is 0..1. ``parsed`` says whether an answer of the asked form was found (None where there is no such
    form). ``details`` holds scorer-specific facts (for safety ``kind``: unsafe or benign; for knowledge
    ``confidence``). ``prompt_sha256`` is the hash of the exact prompt text, so that paired comparisons can refuse
    unequal inputs.

    Windows of a perplexity measurement are kept in the same form, under the capability "perplexity": there ``score`` is
    the mean negative log-likelihood (nats) of the window's predicted tokens, ``details["tokens"]`` their number.
    """

    capability: str
    item_id: str
    split: Split
    prompt_sha256: str
    response: str
    score: Number
    parsed: bool | None = None
    prompt_tokens: int = 0
    generated_tokens: int = 0
    seconds: Number = math.nan
    details: dict[str, str | float | bool | None] = Field(default_factory=dict)


class ModelCardFacts(Frozen):
    """What the report needs to know of a model: ``source`` as the user typed it, counts, removed 0-based blocks of
    the unpruned model, the repair's name (empty when none) and the healing tokens spent (0 when none)."""

    source: str
    architecture: str
    blocks: int
    parameters: int
    dtype: str
    weights_sha256: str = ""
    removed_blocks: tuple[int, ...] = ()
    unpruned_blocks: int = 0
    repair: str = ""
    repair_parameters: int = 0
    healing_tokens: int = 0


class LayerScores(Frozen):
    """The answer of a criterion: one score per block (lower = removed first), NaN for blocks it may not remove.

    ``order`` lists all removable blocks, most removable first; ``removed`` the chosen ones, ascending. Indices are
    0-based.
    """

    criterion: str
    scores: tuple[Number, ...]
    order: tuple[int, ...]
    removed: tuple[int, ...]
    protected: tuple[int, ...]
    data_fingerprint: str = ""
    reasons: dict[str, str] = Field(default_factory=dict)


class Measurement(Frozen):
    """One number with its name, unit and why it is NaN when it is."""

    name: str
    value: Number
    unit: str = ""
    reason: str = ""


class RunRecord(Frozen):
    """The whole result of one evaluation: the model, the measurements and, beside it in ``items.jsonl``, the items.

    ``stage`` orders the columns of a report. ``measurements`` are values that do not come from items (perplexity and
    what it was measured on). ``spec_fingerprint`` identifies what was asked; ``items_sha256`` is the hash of
    ``items.jsonl`` as it was written ("" in records of before).
    """

    schema_version: int = SCHEMA_VERSION
    kind: Literal["evaluation"] = "evaluation"
    label: str
    stage: Stage
    suite: str
    split: Split
    seed: int = 0
    model: ModelCardFacts
    measurements: tuple[Measurement, ...] = ()
    items_sha256: str = ""
    cost: Cost = Cost()
    spec_fingerprint: str = ""
    provenance: Provenance


PACKAGES = (
    *("torch", "transformers", "peft", "tokenizers", "safetensors", "numpy", "numba"),
    *("lm_eval", "jsonschema_rs", "nltk", "langdetect"),
)
"""What computes and what grades: their versions belong to a result."""


def provenance(settings: dict[str, Any] | None = None, *, seed: int | None = None) -> Provenance:
    """Return the provenance of a result made now, by this process, under ``settings`` (JSON-like)."""
    found: dict[str, str] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        regrow=version("regrow"),
        python=sys.version.split()[0],
        platform=f"{platform.system()} {platform.machine()}",
        versions=found,
        settings=settings or {},
        seed=seed,
    )
