"""A model as a plain Hugging Face checkpoint plus ``regrow.json``, proved by loading it again.

The checkpoint appears whole or not at all, and only after the reloaded copy has given the same logits and the same
short cached generation as the model in memory.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from regrow.errors import ModelError, StudyError
from regrow.models.load import SHAPING_FILES, LoadedModel, load_model
from regrow.models.quiet import quiet_transformers
from regrow.records.atomic import new_folder, refuse_used, size_of, write_text
from regrow.records.checkpoint import FILE, CheckpointFacts
from regrow.records.fingerprint import file_sha256

CardWriter = Callable[[CheckpointFacts], str]
"""Makes the text of a checkpoint's README.md, for example :func:`regrow.report.card.model_card`."""

_PROBE_TOKENS = 24
_GENERATED_TOKENS = 8
_PROBE_TEXTS = ("The answer is 42.", '{"name": "Ada", "tags": ["x", "y"]}', "  Zürich – naïve\n\tdef f(x): return x**2")


def save_checkpoint(
    loaded: LoadedModel,
    folder: Path,
    facts: CheckpointFacts,
    *,
    card: CardWriter | None = None,
    beside: Mapping[str, Path] | None = None,
) -> CheckpointFacts:
    """Write ``loaded`` to ``folder`` and return the facts completed with the hashes of the weight files.

    Weights are stored in the narrowest number format that loses nothing. ``card`` writes README.md from the complete
    facts; ``beside`` maps names in the checkpoint folder to files or folders copied there (an adapter, a log). Raises
    StudyError when the folder is in use or the disk too full, ModelError when the reloaded checkpoint differs from the
    model in memory; the folder then does not exist.
    """
    refuse_used(folder)
    model = loaded.model
    stored = _stored_dtype(model)
    _check_space(folder, model, stored)
    with new_folder(folder) as scratch:
        with quiet_transformers():
            # A checkpoint in the original's narrower format is half the size; the caller's model stays as it is.
            state = (
                {name: tensor.to(stored) for name, tensor in model.state_dict().items()}
                if stored != loaded.dtype
                else None
            )
            _write(model, scratch, state)
            loaded.tokenizer.save_pretrained(scratch)
        hashes = {file.name: file_sha256(file) for file in sorted(scratch.glob("*.safetensors"))}
        beside_them = {name: file_sha256(scratch / name) for name in SHAPING_FILES if (scratch / name).is_file()}
        complete = facts.model_copy(
            update={"weights_sha256": hashes, "files_sha256": beside_them, "architecture": type(model).__name__}
        )
        write_text(scratch / FILE, complete.model_dump_json(indent=2) + "\n")
        if card is not None:
            write_text(scratch / "README.md", card(complete))
        verify_checkpoint(loaded, scratch)
        for name, origin in (beside or {}).items():
            (shutil.copytree if origin.is_dir() else shutil.copyfile)(origin, scratch / name)
    loaded.facts = complete
    return complete


def verify_checkpoint(loaded: LoadedModel, folder: Path) -> None:
    """Raise ModelError unless the checkpoint in ``folder`` computes what the model in memory computes."""
    name = str(loaded.dtype).removeprefix("torch.")
    again = load_model(folder, dtype=name, device=str(loaded.device))
    probe = (
        torch.arange(1, _PROBE_TOKENS + 1, device=loaded.device) * 37 % loaded.model.config.get_text_config().vocab_size
    )
    with torch.inference_mode():
        here = loaded.model(probe[None]).logits
        there = again.model(probe[None]).logits
    if here.shape != there.shape:
        raise ModelError(f"the saved checkpoint gives logits of shape {tuple(there.shape)}, not {tuple(here.shape)}")
    gap = (here - there).abs().max().item()
    # The same kernels on the same numbers: any real difference means a lost or random tensor.
    if not gap <= 1e-5 * max(1.0, here.abs().max().item()):
        raise ModelError(
            f"the saved checkpoint does not compute what the model in memory computes (logits differ by {gap:.3g})",
            hint="report this architecture with its config.json; nothing was written",
        )
    if _greedy(loaded.model, probe) != _greedy(again.model, probe):
        raise ModelError(
            "the saved checkpoint generates other tokens with a cache than the model in memory",
            hint="report this architecture with its config.json; nothing was written",
        )
    for text in _PROBE_TEXTS:
        if again.tokenizer(text).input_ids != loaded.tokenizer(text).input_ids:
            raise ModelError(
                f"the saved tokenizer cuts {text!r} into other tokens than the one in memory",
                hint="report this tokenizer; nothing was written",
            )


def _greedy(model: Any, probe: torch.Tensor) -> list[int]:
    with torch.inference_mode(), quiet_transformers():
        out = model.generate(
            probe[None],
            attention_mask=torch.ones_like(probe[None]),
            do_sample=False,
            temperature=None,
            top_p=None,
            top_k=None,
            min_new_tokens=_GENERATED_TOKENS,
            max_new_tokens=_GENERATED_TOKENS,
            use_cache=True,
        )
    return out[0].tolist()


def _write(model: Any, folder: Path, state: dict[str, torch.Tensor] | None) -> None:
    before = getattr(model.config, "dtype", None)
    try:
        if state is not None:
            model.config.dtype = next(iter(state.values())).dtype
        model.save_pretrained(folder, state_dict=state)
    finally:
        model.config.dtype = before


def _stored_dtype(model: Any) -> torch.dtype:
    """Return the narrowest of bfloat16, float16 and the model's own format that holds every weight exactly."""
    own = next(model.parameters()).dtype
    if own != torch.float32:
        return own
    for narrow in (torch.bfloat16, torch.float16):
        if all(torch.equal(weight.to(narrow).to(own), weight) for weight in model.state_dict().values()):
            return narrow
    return own


def _check_space(folder: Path, model: Any, stored: torch.dtype) -> None:
    need = sum(weight.numel() for weight in model.parameters()) * torch.empty((), dtype=stored).element_size()
    nearest = next(parent for parent in folder.absolute().parents if parent.exists())
    free = shutil.disk_usage(nearest).free
    if need * 1.02 + 20_000_000 > free:
        raise StudyError(
            f"the checkpoint needs {size_of(need)}, but only {size_of(free)} are free at '{nearest}'",
            hint="free some space or name a folder on another disk with --output",
        )
