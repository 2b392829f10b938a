"""Checkpoints of the Hugging Face hub as local folders: safetensors, config and tokenizer, nothing executable."""

from __future__ import annotations

from pathlib import Path

from regrow.errors import ModelError
from regrow.models.hub_reach import hub_is_reachable

# Only data: no pickles (.bin, .pt), no code (.py).
WANTED_FILES = ("*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.model", "*.txt")


def fetch_snapshot(repo: str, *, revision: str | None = None, target: Path | None = None) -> Path:
    """Return the local folder of a hub model, downloaded or cached. Raises ModelError when it cannot be reached."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        wanted = list(WANTED_FILES)
        offline = not hub_is_reachable()
        return Path(
            snapshot_download(
                repo, revision=revision, allow_patterns=wanted, local_dir=target, local_files_only=offline
            )
        )
    except HFValidationError as error:
        raise ModelError(
            f"'{repo}' is neither a folder, a .gguf file, an embedded model nor a hub id",
            hint="pass a folder, FILE.gguf, embedded:smollm2-135m or ORGANISATION/MODEL",
        ) from error
    except LocalEntryNotFoundError as error:
        raise ModelError(
            f"the hub cannot be reached and '{repo}' is not in its cache",
            hint="check the network and the name; offline, pass a local folder, a .gguf file or embedded:smollm2-135m",
        ) from error
    except (HfHubHTTPError, OSError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        why = {401: "it is private or gated, or does not exist", 403: "access is not granted", 404: "no such model"}
        raise ModelError(
            f"the hub does not give '{repo}': {why.get(status or 0, str(error).splitlines()[0])}",
            hint="check the spelling; for a gated model accept its licence on the hub and run `hf auth login`",
        ) from error
