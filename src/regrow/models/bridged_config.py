"""The config of a checkpoint that carries bridges: model type ``regrow_bridged`` around the config of the real model.

Every other program must refuse such a folder rather than load it without its bridges. Three things see to that: the
model type and the architecture are unknown to it; the real config lies two levels down, where transformers does not
look for a nested config of the right type; and the sizes at the top are a sentence, which a concrete class
(``LlamaForCausalLM.from_pretrained``) rejects by type.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from transformers.configuration_utils import PreTrainedConfig

from regrow.errors import ModelError
from regrow.records.atomic import write_json

MODEL_TYPE = "regrow_bridged"
ARCHITECTURE = "RegrowBridgedForCausalLM"
FORMAT = 1
NOTICE = "this checkpoint has bridges: load it with `import regrow` (pip install regrow); real value: regrow.base"
_SIZES = ("hidden_size", "num_hidden_layers", "vocab_size")


class BridgedConfig(PreTrainedConfig):
    """Holds the real model's config (``base``) and the list of bridges; other attributes are those of ``base``."""

    model_type = MODEL_TYPE

    def __init__(self, base: Any = None, bridges: list[dict[str, Any]] | None = None, **kwargs: Any) -> None:
        self.base = base
        self.bridges = list(bridges or [])
        super().__init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the config from the content of ``config.json``; options meant for the real config reach it."""
        from transformers import AutoConfig

        wanted = kwargs.pop("return_unused_kwargs", False)
        held = read_block(config_dict)
        kind = type(AutoConfig.for_model(held["base"]["model_type"]))
        base, unused = kind.from_dict(dict(held["base"]), return_unused_kwargs=True, **kwargs)
        config = cls(base=base, bridges=held["bridges"], architectures=[ARCHITECTURE])
        config.name_or_path = kwargs.get("name_or_path", "")
        return (config, unused) if wanted else config

    def to_dict(self) -> dict[str, Any]:
        """Return the content of ``config.json``."""
        if self.base is None:
            return dict(super().to_dict())
        return wrap_config(self.base.to_diff_dict(), self.bridges)

    def to_diff_dict(self) -> dict[str, Any]:
        return self.to_dict()

    def get_text_config(self, *args: Any, **kwargs: Any) -> Any:
        """Return the real model's text config, so that tools that size things from a config find numbers."""
        return self if self.base is None else self.base.get_text_config(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        base = self.__dict__.get("base")
        if base is None or name.startswith("_"):
            raise AttributeError(name)
        return getattr(base, name)


def wrap_config(plain: dict[str, Any], bridges: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the content of ``config.json`` of a bridged checkpoint from the plain one's."""
    return {
        "model_type": MODEL_TYPE,
        "architectures": [ARCHITECTURE],
        **dict.fromkeys(_SIZES, NOTICE),
        "dtype": plain.get("dtype"),
        "transformers_version": plain.get("transformers_version"),
        "regrow": {"format": FORMAT, "bridges": bridges, "base": plain},
    }


def read_block(content: dict[str, Any]) -> dict[str, Any]:
    """Return the ``regrow`` part of a bridged ``config.json``. Raises ModelError on one this version cannot read."""
    held = content.get("regrow")
    if (
        not isinstance(held, dict)
        or not isinstance(held.get("base"), dict)
        or not isinstance(held.get("bridges"), list)
    ):
        raise ModelError(
            "the config.json of the bridged checkpoint lacks its 'regrow' part", hint="run `regrow repair` again"
        )
    if held.get("format") != FORMAT:
        raise ModelError(
            f"the bridged checkpoint has format {held.get('format')!r}, this version of regrow reads {FORMAT}",
            hint="update regrow: pip install --upgrade regrow",
        )
    return held


def is_bridged(content: dict[str, Any]) -> bool:
    """Return whether a ``config.json``'s content is that of a bridged checkpoint."""
    return content.get("model_type") == MODEL_TYPE


def write_bridged_config(folder: Path, model: Any) -> None:
    """Rewrite ``folder/config.json``, as ``save_pretrained`` left it, to the bridged form; nothing without bridges.

    Called by ``model.save_pretrained`` itself once bridges are attached. Calling it again changes nothing.
    """
    # Imported here so that AutoConfig alone does not pull torch in.
    from regrow.models.bridges import describe_bridges

    bridges = describe_bridges(model)
    file = folder / "config.json"
    content = json.loads(file.read_text("utf-8"))
    if not bridges or is_bridged(content):
        return
    write_json(file, wrap_config(content, bridges))


def register_config(auto: Any) -> None:
    """Tell transformers' AutoConfig of bridged checkpoints; ``auto`` is its module ``configuration_auto``."""
    auto.AutoConfig.register(MODEL_TYPE, BridgedConfig, exist_ok=True)
