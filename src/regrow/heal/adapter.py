"""LoRA adapters of a healing run: put on by PEFT, saved in PEFT's format, merged into the weights they belong to."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from regrow.data.fingerprints import tensors_fingerprint
from regrow.errors import DataError, ModelError
from regrow.heal.targets import suffixes_of
from regrow.models.load import LoadedModel
from regrow.records.atomic import PARTIAL, new_folder, write_json
from regrow.records.specs import HealSpec
from regrow.seeding import derive_seed

BASE = "regrow_base.json"


def put_adapter(loaded: LoadedModel, names: Sequence[str], spec: HealSpec) -> Any:
    """Return the PEFT model around ``loaded.model`` with fresh adapters on the linear layers ``names``.

    The layers are replaced in place; A is drawn from the spec's seed, B is zero, so nothing changes yet. Masters are
    float32 whatever the weights are.
    """
    from peft import LoraConfig, get_peft_model
    from transformers.pytorch_utils import Conv1D

    model = loaded.model
    config = LoraConfig(
        task_type="CAUSAL_LM",
        r=spec.rank,
        lora_alpha=spec.alpha,
        lora_dropout=spec.dropout,
        target_modules=suffixes_of(model, names),
        fan_in_fan_out=all(isinstance(model.get_submodule(name), Conv1D) for name in names),
        bias="none",
    )
    config.base_model_name_or_path = loaded.source
    devices = [loaded.device] if loaded.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(derive_seed(spec.seed, "adapter"))
        return get_peft_model(model, config).eval()


def adapter_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the adapter weights below ``model`` by name, in the order of the modules."""
    return {name: weight for name, weight in model.named_parameters() if ".lora_A." in name or ".lora_B." in name}


def save_adapter(adapter: Any, folder: Path, base_fingerprint: str) -> Path:
    """Return ``folder`` after writing the adapter there in PEFT's format, the fingerprint of its base beside it."""
    for left in (folder, *folder.parent.glob(f".{folder.name}{PARTIAL}*")):
        shutil.rmtree(left, ignore_errors=True)
    with new_folder(folder) as beside, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adapter.save_pretrained(str(beside), save_embedding_layers=False)
        write_json(beside / BASE, {"schema_version": 1, "weights_fingerprint": base_fingerprint})
    return folder


def merge_adapter(loaded: LoadedModel, folder: Path) -> LoadedModel:
    """Return ``loaded`` with the adapter in ``folder`` merged into its weights, in place.

    Raises DataError when the folder holds no adapter, ModelError when the adapter was trained on other weights (or on
    these in another dtype).
    """
    from peft import PeftModel

    if not (folder / "adapter_config.json").is_file():
        raise DataError(f"'{folder}' holds no adapter", hint="pass the folder that holds adapter_config.json")
    file = folder / BASE
    if file.is_file():
        try:
            wanted = json.loads(file.read_text("utf-8"))["weights_fingerprint"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"'{file}' is not readable: {error}", hint="heal again to write a new adapter") from error
        if wanted != base_fingerprint(loaded.model):
            raise ModelError(
                f"the adapter in '{folder}' was trained on other weights than those of '{loaded.source}' "
                f"in {str(loaded.dtype).removeprefix('torch.')}",
                hint="load the pruned checkpoint that was healed, with the same --dtype",
            )
    try:
        adapter = PeftModel.from_pretrained(loaded.model, str(folder), is_trainable=False)
    except (ValueError, RuntimeError, OSError) as error:
        raise ModelError(
            f"the adapter in '{folder}' does not fit '{loaded.source}': {str(error).splitlines()[0]}",
            hint="pass the pruned checkpoint that the adapter was trained on",
        ) from error
    loaded.model = adapter.merge_and_unload()
    return loaded


def base_fingerprint(model: nn.Module) -> str:
    """Return the sha256 (hex) of every weight of a model."""
    return tensors_fingerprint(dict(model.named_parameters()))
