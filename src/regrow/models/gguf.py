"""GGUF files as Hugging Face checkpoints: dequantized once, kept in the cache when small."""

from __future__ import annotations

import contextlib
import io
import shutil
from pathlib import Path
from typing import Any

import torch

from regrow.errors import ModelError, StudyError
from regrow.models.cache import cache_folder
from regrow.models.quiet import quiet_transformers
from regrow.records.atomic import new_folder
from regrow.records.fingerprint import file_sha256

# Above this file size the float32 copy would fill more disk than a user expects of a cache.
_LARGEST_CACHED_BYTES = 1_000_000_000
_MAGIC = b"GGUF"


def folder_of_gguf(file: Path) -> tuple[Path | None, str]:
    """Return a checkpoint folder with the dequantized weights (None when the file is too large to cache) and the
    file's sha256. Reading a GGUF takes seconds per 100 MB; the cached copy loads in a fraction of that."""
    check_gguf(file)
    sha256 = file_sha256(file)
    if file.stat().st_size > _LARGEST_CACHED_BYTES:
        return None, sha256
    target = cache_folder("gguf", sha256[:32])
    if not (target / "config.json").exists():
        shutil.rmtree(target, ignore_errors=True)
        model, tokenizer = read_gguf(file, torch.float32)
        try:
            with new_folder(target) as scratch, quiet_transformers():
                model.save_pretrained(scratch)
                tokenizer.save_pretrained(scratch)
        except StudyError:
            if not (target / "config.json").exists():  # else another process put the very same files there
                raise
    return target, sha256


def read_gguf(file: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    """Return the model (dequantized to ``dtype``) and the tokenizer of a GGUF file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    try:
        # The dequantizer's progress bar obeys no switch of transformers; it writes to whatever stderr is.
        with quiet_transformers(), contextlib.redirect_stderr(io.StringIO()):
            model = AutoModelForCausalLM.from_pretrained(str(file.parent), gguf_file=file.name, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(str(file.parent), gguf_file=file.name)
    except Exception as error:  # the parser promises no error type for a file that is cut or foreign
        raise ModelError(
            f"'{file}' cannot be read as a GGUF model: {(str(error) or type(error).__name__).splitlines()[0]}",
            hint="transformers reads the GGUF files of its supported architectures; else pass the original checkpoint",
        ) from error
    drop_quantization_marks(model)
    return model, tokenizer


def drop_quantization_marks(model: Any) -> None:
    """Forget that the weights came from a quantized file: they no longer are, and saving would refuse them."""
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False


def check_gguf(file: Path) -> None:
    """Raise ModelError unless ``file`` begins as a GGUF file does."""
    with file.open("rb") as stream:
        if stream.read(4) != _MAGIC:
            raise ModelError(f"'{file}' is not a GGUF file", hint="check the download; its size and sha256 tell")
