"""A model and its tokenizer from a hub id, a folder, a .gguf file or an embedded name.

Nothing of a checkpoint is executed: weights are safetensors or GGUF, remote code is refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from regrow.errors import ModelError
from regrow.models.bridges import bridges_of
from regrow.models.embedded import PREFIX, find_embedded
from regrow.models.families import anatomy_of
from regrow.models.freed_memory import keep_freed_memory
from regrow.models.gguf import folder_of_gguf, read_gguf
from regrow.models.hub import fetch_snapshot
from regrow.models.one_key_head import guard_single_key_heads
from regrow.models.placement import choose_device, choose_dtype
from regrow.models.probe import check_decoder
from regrow.models.quiet import quiet_transformers
from regrow.records.checkpoint import CheckpointFacts, read_facts
from regrow.records.fingerprint import file_sha256, fingerprint

guard_single_key_heads()

# Everything beside the weights that changes what a model answers. regrow.json is history, not behaviour.
SHAPING_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "tokenizer.model",
)


@dataclass
class LoadedModel:
    """A decoder in evaluation mode with its tokenizer, and where both came from.

    ``source`` is what the user typed; ``weights_sha256`` identifies the weights; ``facts`` is the content of
    ``regrow.json`` where the folder has one.
    """

    model: Any
    tokenizer: Any
    source: str
    weights_sha256: str = ""
    facts: CheckpointFacts | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype


def load_model(
    source: str | Path, *, dtype: str = "auto", device: str = "auto", revision: str | None = None
) -> LoadedModel:
    """Return the model called ``source``, in evaluation mode.

    ``source``: a hub id, a checkpoint folder, a ``.gguf`` file or ``embedded:NAME``. ``dtype`` is auto, float32,
    bfloat16 or float16; ``device`` auto, cpu, cuda[:n] or mps. Raises ModelError with the remedy for anything that is
    not a loadable causal language model in safetensors or GGUF form. On a CPU the process keeps freed memory from then
    on (models/freed_memory.py).
    """
    place = choose_device(device)
    loaded = _load(str(source), dtype, place, revision)
    if place.type == "cpu":
        keep_freed_memory()  # not before: what loading needs for a moment goes back to the system
    return loaded


def _load(name: str, dtype: str, place: torch.device, revision: str | None) -> LoadedModel:
    folder, sha256, gguf = _locate(name, revision)
    if gguf is not None and folder is None:
        chosen = choose_dtype(dtype, place, 8 * gguf.stat().st_size)
        model, tokenizer = read_gguf(gguf, chosen)
        check_decoder(model.to(place).eval(), name)
        return LoadedModel(model.to(place).eval(), tokenizer, name, sha256)
    assert folder is not None
    config = read_config(folder)
    weights = weight_files(folder)
    chosen = choose_dtype(dtype, place, 2 * sum(file.stat().st_size for file in weights))
    model = _read_weights(folder, config, chosen)
    check_decoder(model.to(place).eval(), name)
    tokenizer = _read_tokenizer(folder)
    sha256 = sha256 or hash_weights(weights)
    facts = read_facts(folder)
    if facts is None and bridges_of(model):
        raise ModelError(
            f"'{name}' carries a repair's bridges but no regrow.json, so nobody can tell what was removed from it",
            hint="put the regrow.json that was saved with it back, or repair the pruned checkpoint again",
        )
    return LoadedModel(model, tokenizer, name, sha256, facts)


def locate_file(name: str, revision: str | None = None) -> Path:
    """Return the checkpoint folder or the GGUF file called ``name`` without reading weights; a hub model is fetched."""
    if not name.strip():
        raise ModelError("there is no model at '' (an empty name)", hint="pass a folder, a .gguf file or a hub id")
    path = find_embedded(name) if name.startswith(PREFIX) else Path(name).expanduser()
    try:
        is_file, is_folder = path.is_file(), path.is_dir()
    except OSError as error:
        raise ModelError(f"there is no model at '{name[:80]}'", hint="check the path") from error
    if is_file:
        if path.suffix.lower() != ".gguf":
            raise ModelError(
                f"'{name}' is a file, but not a .gguf", hint="pass the checkpoint's folder or a .gguf file"
            )
        return path
    if is_folder:
        return path
    looks_local = name.startswith((".", "/", "~")) or name.lower().endswith(".gguf") or name.count("/") > 1
    if looks_local:
        raise ModelError(
            f"there is no model at '{name}'",
            hint="check the path, or pass a hub id (ORGANISATION/MODEL) or embedded:smollm2-135m",
        )
    return fetch_snapshot(name, revision=revision)


def block_count(source: str, revision: str | None = None) -> int:
    """Return the number of blocks that the configuration of ``source`` declares; weights are not read."""
    from transformers import AutoConfig

    folder, _, gguf = _locate(source, revision)
    with quiet_transformers():
        if folder is None:
            assert gguf is not None
            config = AutoConfig.from_pretrained(str(gguf.parent), gguf_file=gguf.name)
        else:
            read_config(folder)
            try:
                config = AutoConfig.from_pretrained(str(folder), trust_remote_code=False)
            except (ValueError, KeyError, OSError) as error:
                raise ModelError(
                    f"transformers cannot read the configuration of '{source}': {str(error).splitlines()[0]}",
                    hint="check that this transformers version knows the architecture",
                ) from error
    return int(config.get_text_config().num_hidden_layers)


def _locate(name: str, revision: str | None) -> tuple[Path | None, str, Path | None]:
    place = locate_file(name, revision)
    if place.is_dir():
        return place, "", None
    folder, sha256 = folder_of_gguf(place)
    return folder, sha256, place


def read_config(folder: Path) -> dict[str, Any]:
    """Return the raw ``config.json`` of a checkpoint folder, after refusing what is not a decoder."""
    file = folder / "config.json"
    if not file.exists():
        raise ModelError(
            f"'{folder}' has no config.json, so it is not a checkpoint folder",
            hint="pass the folder that save_pretrained wrote (config.json, *.safetensors, tokenizer files)",
        )
    try:
        config = json.loads(file.read_text("utf-8"))
    except (ValueError, OSError) as error:
        raise ModelError(f"'{file}' is not readable JSON: {error}", hint="fetch the checkpoint again") from error
    if not isinstance(config, dict):
        raise ModelError(f"'{file}' must hold a JSON object", hint="fetch the checkpoint again")
    names = [str(name) for name in config.get("architectures") or []]
    if config.get("is_encoder_decoder"):
        raise ModelError(
            f"'{folder}' is an encoder-decoder model ({', '.join(names)})", hint="regrow prunes decoder-only models"
        )
    if names and not any("CausalLM" in name or "LMHead" in name or "ConditionalGeneration" in name for name in names):
        raise ModelError(
            f"'{folder}' is not a causal language model ({', '.join(names)}); an encoder has no next token to predict",
            hint="pass a decoder such as Llama, Qwen, Gemma, Mistral, OLMo, Phi, GPT-NeoX or GPT-2",
        )
    return config


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files of a checkpoint folder; pickled weights are refused."""
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return [file for file in found if not file.name.startswith("adapter")]
    pickles = [file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)]
    if pickles:
        raise ModelError(
            f"'{folder}' holds only pickled weights ({pickles[0]}), which can run code when read",
            hint="convert the checkpoint to safetensors where you trust it, then pass that folder",
        )
    raise ModelError(f"'{folder}' has a config.json but no *.safetensors", hint="fetch the whole checkpoint")


def hash_weights(files: list[Path]) -> str:
    """Return one sha256 over the names and contents of the weight files."""
    return fingerprint([[file.name, _sha256_once(*_stamp(file))] for file in files])


def _stamp(file: Path) -> tuple[str, int, int, int]:
    facts = file.stat()
    return str(file.resolve()), facts.st_ino, facts.st_size, facts.st_mtime_ns


@lru_cache(maxsize=256)
def _sha256_once(path: str, inode: int, size: int, changed_ns: int) -> str:
    """Hash a file that has not changed only once in a process."""
    return file_sha256(Path(path))


def _read_weights(folder: Path, config: dict[str, Any], dtype: torch.dtype) -> Any:
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    try:
        with quiet_transformers():
            model, report = AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, use_safetensors=True, trust_remote_code=False, output_loading_info=True
            )
    except SafetensorError as error:
        raise ModelError(
            f"a weight file in '{folder}' is damaged: {error}", hint="fetch or make the checkpoint again"
        ) from error
    except (ValueError, KeyError, OSError, RuntimeError, ImportError) as error:
        raise ModelError(
            f"transformers cannot load '{folder}': {str(error).splitlines()[0]}",
            hint="check that the folder is complete and that this transformers version knows the architecture",
        ) from error
    beyond = _blocks_beyond(report.get("unexpected_keys", ()), model)
    if beyond:
        raise ModelError(
            f"'{folder}' holds weights of block {beyond[0]}, but its config.json declares fewer blocks; they would be "
            "left out without a word",
            hint="correct num_hidden_layers in config.json, or fetch the checkpoint again",
        )
    missing = sorted(report.get("missing_keys", ()))
    if missing:
        raise ModelError(
            f"'{folder}' lacks {len(missing)} tensors ({missing[0]}, ...), which transformers would fill at random",
            hint="fetch or make the checkpoint again",
        )
    return model


def _blocks_beyond(unexpected: Iterable[str], model: Any) -> list[int]:
    """Return the indices of blocks that the weight files hold and the model does not have."""
    anatomy = anatomy_of(model)
    pattern = re.compile(rf"(?:^|\.){re.escape(anatomy.attribute)}\.([0-9]+)\.")
    found = {int(match[1]) for key in unexpected if (match := pattern.search(key))}
    return sorted(index for index in found if index >= len(anatomy.blocks))


def _read_tokenizer(folder: Path) -> Any:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # A tokenizer that transformers saved under its generic class is wholly described by tokenizer.json; AutoTokenizer
    # would put the class usual for the architecture in its place (Qwen2's for any Qwen2 model), with other rules.
    generic = _tokenizer_class(folder) == "TokenizersBackend" and (folder / "tokenizer.json").exists()
    try:
        with quiet_transformers():
            loader = PreTrainedTokenizerFast if generic else AutoTokenizer
            return loader.from_pretrained(str(folder), trust_remote_code=False)
    except (ValueError, KeyError, OSError, ImportError) as error:
        raise ModelError(
            f"'{folder}' has no tokenizer that transformers can read: {str(error).splitlines()[0]}",
            hint="copy tokenizer.json and tokenizer_config.json of the original model into the folder",
        ) from error


def _tokenizer_class(folder: Path) -> str | None:
    try:
        return json.loads((folder / "tokenizer_config.json").read_text("utf-8")).get("tokenizer_class")
    except (OSError, ValueError, AttributeError):
        return None
