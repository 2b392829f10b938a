"""The state of a healing run on disk: whole or absent, the last two kept, a damaged one passed over with a word.

A checkpoint is a folder ``checkpoints/update-000123``: the trained weights and the optimizer's moments as safetensors,
``state.json`` with the counts and the hash of the tensors. Random numbers need no state: each mask and each order is
drawn from the run's seed and the number of the update.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import nn

from regrow.errors import StudyError
from regrow.records.atomic import PARTIAL, disk_error, new_folder, write_text
from regrow.records.fingerprint import file_sha256
from regrow.records.results import Frozen

FOLDER = "checkpoints"
KEPT = 2
_TENSORS = "state.safetensors"
_STATE = "state.json"
_WEIGHT = "weight/"
_MOMENT = "optimizer/"


class Progress(Frozen):
    """How far a run is. ``tokens`` are those trained on, ``wall_seconds`` the time of all its sessions; ``precision``,
    ``packing`` (empty, or why sequences are padded instead) and ``reuse`` (empty, or why a frozen prefix runs anew) are
    choices that a resumed run must repeat."""

    request: str
    updates_done: int
    tokens: int
    wall_seconds: float
    precision: str
    packing: str
    reuse: str = "not asked"
    tensors_sha256: str = ""


@dataclass(frozen=True)
class Restored:
    """A checkpoint read back: the progress, and notes on damaged ones that were passed over."""

    progress: Progress | None
    notes: tuple[str, ...]


def name_of(updates_done: int) -> str:
    """Return the name of the checkpoint after so many updates."""
    return f"update-{updates_done:06d}"


def save_state(
    folder: Path,
    progress: Progress,
    parameters: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    *,
    write: bool = True,
) -> None:
    """Write a checkpoint under ``folder`` and delete all but the last two. Raises StudyError when the disk refuses;
    the older ones are then untouched. Sharded weights are gathered, in which every process must take part; those that
    do not ``write`` call it for that alone."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors: dict[str, torch.Tensor] = {}
    for name, weight in parameters.items():
        tensors[_WEIGHT + name] = whole(weight)
        for key, value in optimizer.state.get(weight, {}).items():
            tensors[f"{_MOMENT}{key}/{name}"] = whole(torch.as_tensor(value))
    if not write:
        return
    place = folder / FOLDER
    target = place / name_of(progress.updates_done)
    if target.exists():
        # Left by a run that was damaged later on: what is written now is the same state, and whole.
        shutil.rmtree(target)
    with new_folder(target) as beside:
        try:
            save_file(tensors, beside / _TENSORS)
        except SafetensorError as error:
            raise disk_error(target, OSError(str(error))) from error
        complete = progress.model_copy(update={"tensors_sha256": file_sha256(beside / _TENSORS)})
        write_text(beside / _STATE, complete.model_dump_json(indent=2) + "\n")
    up_to_here = [path for path in _found(folder) if path <= target]
    for old in _found(folder):
        # Later ones than this were passed over as damaged.
        if old not in up_to_here[-KEPT:]:
            shutil.rmtree(old, ignore_errors=True)


def restore_state(
    folder: Path, request: str, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> Restored:
    """Return how far the run in ``folder`` got after loading its last whole checkpoint into weights and optimizer.

    Raises StudyError when the checkpoint belongs to another request.
    """
    notes: list[str] = []
    for beside in (folder / FOLDER).glob(f".*{PARTIAL}*"):
        shutil.rmtree(beside, ignore_errors=True)
    for place in reversed(_found(folder)):
        try:
            progress = Progress.model_validate_json((place / _STATE).read_bytes())
            if file_sha256(place / _TENSORS) != progress.tensors_sha256:
                raise ValueError("its tensors are not those that were written")
            if progress.request != request:
                raise StudyError(
                    f"'{folder}' holds the checkpoints of another healing run",
                    hint="name another folder, or delete this one",
                )
            _load(place / _TENSORS, parameters, optimizer)
        except (OSError, ValueError, ValidationError) as error:
            why = f"{_STATE} cannot be read" if isinstance(error, ValidationError) else str(error).splitlines()[0]
            notes.append(f"the checkpoint '{place.name}' is damaged ({why})")
            continue
        if notes:
            notes.append(f"going back to the checkpoint '{place.name}'")
        return Restored(progress, tuple(notes))
    if notes:
        notes.append("no whole checkpoint is left, so the run begins anew")
    return Restored(None, tuple(notes))


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor in one piece, gathered from all processes where it is sharded."""
    gather = getattr(tensor, "full_tensor", None)
    return (tensor if gather is None else gather()).detach().contiguous()


def like(value: torch.Tensor, weight: Any) -> torch.Tensor:
    """Return ``value`` where ``weight`` is, and sharded as it is."""
    value = value.to(weight.device)
    if not hasattr(weight, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Every process has read the whole tensor and takes its part: nothing is sent, so none waits for the others.
    return distribute_tensor(value, weight.device_mesh, weight.placements, src_data_rank=None)


def clear_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a finished run; its log and its adapter stay."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _found(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / FOLDER).glob("update-*") if path.is_dir())


def _load(file: Path, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(file)
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    names = {key.removeprefix(_WEIGHT) for key in tensors if key.startswith(_WEIGHT)}
    if names != set(parameters):
        raise ValueError("it holds other weights than this run trains")
    for name, weight in parameters.items():
        if tensors[_WEIGHT + name].shape != weight.shape:
            raise ValueError(f"the shape of '{name}' differs")
    for name, weight in parameters.items():
        with torch.no_grad():
            weight.copy_(like(tensors[_WEIGHT + name], weight))
        optimizer.state[weight] = {}
    for key, value in tensors.items():
        if key.startswith(_MOMENT):
            moment, _, name = key.removeprefix(_MOMENT).partition("/")
            weight = parameters[name]
            # Adam's step counts stay on the CPU, as torch keeps them.
            optimizer.state[weight][moment] = value if moment == "step" else like(value, weight)
