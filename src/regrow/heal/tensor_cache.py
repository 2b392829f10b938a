"""A bounded folder of tensors by key: what was used longest ago makes room, and what is damaged counts as absent."""

from __future__ import annotations

import json
import os
import uuid
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import torch

_SUFFIX = ".safetensors"
_CHECK = "crc32"


class TensorCache:
    """Tensors in ``folder`` under keys that are file names, together at most ``limit_bytes``.

    Several processes may share a folder. Losing an entry costs time, never a result, so nothing is flushed to disk on
    purpose: an entry that a power cut tore fails its checksum. A full disk makes :meth:`put` return False.
    """

    def __init__(self, folder: Path, limit_bytes: float) -> None:
        self.folder, self.limit_bytes = folder, limit_bytes
        self._held: set[str] = set()
        self._bytes: int | None = None

    def get(self, key: str) -> dict[str, torch.Tensor] | None:
        """Return the tensors under ``key``, None when there are none or they are damaged."""
        from safetensors import SafetensorError
        from safetensors.torch import load

        file = self._file(key)
        try:
            content = file.read_bytes()
        except OSError:
            return None
        try:
            body = _checked(content)
            tensors = load(body)
        except (ValueError, KeyError, SafetensorError):
            with suppress(OSError):
                file.unlink()
            return None
        self._held.add(key)
        with suppress(OSError):
            os.utime(file)
        return tensors

    def put(self, key: str, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Keep tensors under ``key`` and return whether they were kept. Entries that this process has read or written
        are never thrown out for new ones."""
        from safetensors.torch import save

        content = _with_check(save({name: value.contiguous() for name, value in tensors.items()}))
        if not self._make_room(len(content)):
            return False
        file = self._file(key)
        beside = file.with_name(f".{file.name}.{uuid.uuid4().hex[:8]}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(content)
            beside.replace(file)
        except OSError:
            with suppress(OSError):
                beside.unlink()
            return False
        self._held.add(key)
        self._bytes = (self._bytes or 0) + len(content)
        return True

    def clear(self) -> None:
        """Delete all entries."""
        for file, _, _ in list(self._entries()):
            with suppress(OSError):
                file.unlink()
        self._bytes = 0

    def _make_room(self, wanted: int) -> bool:
        if self._bytes is None:
            self._bytes = sum(size for _, size, _ in self._entries())
        if self._bytes + wanted <= self.limit_bytes:
            return True
        entries = sorted(self._entries(), key=lambda entry: entry[2])
        self._bytes = sum(size for _, size, _ in entries)
        for file, size, _ in entries:
            if self._bytes + wanted <= self.limit_bytes:
                break
            if file.name.removesuffix(_SUFFIX) in self._held:
                continue
            with suppress(OSError):
                file.unlink()
                self._bytes -= size
        return self._bytes + wanted <= self.limit_bytes

    def _entries(self) -> Iterator[tuple[Path, int, float]]:
        for file in self.folder.glob(f"*/*{_SUFFIX}"):
            with suppress(OSError):
                facts = file.stat()
                yield file, facts.st_size, facts.st_mtime

    def _file(self, key: str) -> Path:
        return self.folder / key[:2] / (key + _SUFFIX)


def _with_check(content: bytes) -> bytes:
    """Return safetensors bytes with the checksum of the tensor data in the header's metadata."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    data = content[8 + size :]
    header["__metadata__"] = {_CHECK: str(zlib.crc32(data))}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _checked(content: bytes) -> bytes:
    """Return ``content`` after comparing its checksum. Raises ValueError or KeyError when it does not fit."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    if str(zlib.crc32(memoryview(content)[8 + size :])) != header["__metadata__"][_CHECK]:
        raise ValueError("the checksum differs")
    return content
