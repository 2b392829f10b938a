"""``regrow.json``: what was done to a checkpoint, from the unpruned model to the files beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from regrow.errors import ModelError
from regrow.records.faults import first_fault
from regrow.records.results import Cost, Frozen, LayerScores, Provenance

FILE = "regrow.json"


class BridgeFacts(Frozen):
    """One operator at a cut. ``after_block`` is the index, in the pruned model, of the block whose output it acts on
    (-1: the embeddings); ``spans`` the removed 0-based blocks of the unpruned model that it stands for."""

    after_block: int
    method: str
    spans: tuple[int, ...]
    rank: int | None = None
    bias: bool = True
    parameters: int = 0


class Step(Frozen):
    """One command's work on the checkpoint, with the options and the numbers worth keeping; ``cost`` is what it used
    beyond loading and saving (None in records of before)."""

    kind: Literal["prune", "repair", "heal", "save"]
    options: dict[str, Any] = Field(default_factory=dict)
    outcome: dict[str, Any] = Field(default_factory=dict)
    cost: Cost | None = None
    provenance: Provenance


class CheckpointFacts(Frozen):
    """The content of ``regrow.json``.

    ``source`` is the unpruned model as the user named it, ``source_weights_sha256`` the hash of its weights;
    ``removed_blocks`` are 0-based indices of the unpruned model; ``weights_sha256`` maps each weight file to its hash,
    ``files_sha256`` the configuration and the tokenizer's files.
    """

    schema_version: int = 1
    source: str
    source_weights_sha256: str = ""
    architecture: str = ""
    unpruned_blocks: int
    removed_blocks: tuple[int, ...] = ()
    scores: LayerScores | None = None
    bridges: tuple[BridgeFacts, ...] = ()
    healing_tokens: int = 0
    steps: tuple[Step, ...] = ()
    weights_sha256: dict[str, str] = Field(default_factory=dict)
    files_sha256: dict[str, str] = Field(default_factory=dict)


def read_facts(folder: Path) -> CheckpointFacts | None:
    """Return the facts of a checkpoint folder, or None when it holds no ``regrow.json``."""
    file = folder / FILE
    if not file.exists():
        return None
    try:
        return CheckpointFacts.model_validate_json(file.read_bytes())
    except (ValidationError, OSError) as error:
        raise ModelError(
            f"'{file}' cannot be read ({first_fault(error)})",
            hint="put the original back, or make the checkpoint again",
        ) from error
