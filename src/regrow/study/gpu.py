"""A study that began on a GPU does not go on on the CPU by itself when the GPU is gone.

With ``device: auto`` it would be slow, and in another number format."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime

from regrow.errors import StudyError
from regrow.models.placement import choose_device
from regrow.records.atomic import write_json
from regrow.study.engines.engine import how_it_failed
from regrow.study.folder import GPU_FAILED, REMEDIES, StudyFolder


def device_for(folder: StudyFolder, step_id: str, asked: str) -> str:
    """Return the kind of device that a step will run on ("cuda", "cpu", ...).

    Raises StudyError where "auto" is the CPU now and a GPU has failed in this study, or this machine has done steps of
    it on one.
    """
    device = choose_device(asked).type
    if asked != "auto" or device != "cpu":
        return device
    why = _failed_before(folder) or _was_on_a_gpu(folder)
    if why:
        raise StudyError(
            f"there is no GPU any more, and device: auto would go on on the CPU ({why})", hint=REMEDIES["GPU failed"]
        )
    return device


@contextmanager
def noting_a_lost_gpu(folder: StudyFolder, step_id: str, device: str) -> Iterator[None]:
    """Write down that a GPU has failed when the block ends so, for who tries again."""
    try:
        yield
    except Exception as error:
        if device == "cuda" and how_it_failed(error) == "GPU failed":
            with suppress(StudyError):  # the error itself says more than that it could not be noted
                said = {"step": step_id, "machine": platform.node(), "message": (str(error).splitlines() or [""])[0]}
                now = datetime.now(UTC).isoformat(timespec="seconds")
                write_json(folder.path / GPU_FAILED, {**said, "time": now})
        raise


def _failed_before(folder: StudyFolder) -> str:
    try:
        told = json.loads((folder.path / GPU_FAILED).read_text("utf-8"))
        return f"step {told['step']} lost one on {told['machine']}: {told['message']}"
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError):
        return f"see {folder.path / GPU_FAILED}"


def _was_on_a_gpu(folder: StudyFolder) -> str:
    for file in sorted((folder.path / "steps").glob("*/done.json")):
        done = folder.done(file.parent.name)
        if done is not None and done.device == "cuda" and done.machine == platform.node():
            return f"step {file.parent.name} ran on one of this machine"
    return ""
