"""Loading a bridged checkpoint through transformers' own classes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers.models.auto import modeling_auto

from regrow.errors import ModelError
from regrow.models.bridged_config import BridgedConfig
from regrow.models.bridges import ENTRY, EXIT, attach_bridge, bridge_from, bridged_class


def load_bridged(folder: str | Path, *, auto: Any = None, **options: Any) -> Any:
    """Return the model in ``folder`` with its bridges: an instance of the real model's class, in evaluation mode.

    ``auto`` is the transformers auto class that names the real class (default AutoModelForCausalLM); ``options`` go to
    its ``from_pretrained`` (dtype, device_map, ...). Raises ModelError when the weights of a bridge are absent.
    """
    config = options.pop("config", None)
    asked = options.pop("output_loading_info", False)
    if not isinstance(config, BridgedConfig):
        config = BridgedConfig.from_pretrained(str(folder))
    auto = auto or modeling_auto.AutoModelForCausalLM
    mapping = auto._model_mapping
    if type(config.base) not in mapping:
        raise ModelError(
            f"transformers has no {auto.__name__} for '{config.base.model_type}'", hint="update transformers"
        )
    found = mapping[type(config.base)]
    real = bridged_class(found[0] if isinstance(found, (list, tuple)) else found)
    places = config.bridges

    class WithPlaces(real):  # type: ignore[valid-type, misc]
        # The bridges must exist before the weights are read, so that these reach them like any other weight.
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            for place in places:
                attach_bridge(self, place["after_block"], bridge_from(place))

    WithPlaces.__name__ = real.__name__
    WithPlaces.__module__ = real.__module__
    model, report = WithPlaces.from_pretrained(str(folder), config=config.base, output_loading_info=True, **options)
    model.__class__ = real
    absent = [key for key in report.get("missing_keys", ()) if f".{EXIT}." in key or f".{ENTRY}." in key]
    if absent:
        raise ModelError(
            f"'{folder}' lacks {len(absent)} tensors of its bridges ({sorted(absent)[0]}, ...)",
            hint="run `regrow repair` again",
        )
    return (model, report) if asked else model


class BridgedCausalLM:
    """What AutoModelForCausalLM calls for a bridged folder; it returns the real model's class."""

    @classmethod
    def from_pretrained(cls, folder: str | Path, *_: Any, **options: Any) -> Any:
        return load_bridged(folder, **options)


class BridgedBackbone:
    """What AutoModel calls for a bridged folder; it returns the real model's backbone class."""

    @classmethod
    def from_pretrained(cls, folder: str | Path, *_: Any, **options: Any) -> Any:
        return load_bridged(folder, auto=modeling_auto.AutoModel, **options)


def register_models(auto: Any) -> None:
    """Tell transformers' auto classes of bridged checkpoints; ``auto`` is its module ``modeling_auto``."""
    auto.AutoModelForCausalLM.register(BridgedConfig, BridgedCausalLM, exist_ok=True)
    auto.AutoModel.register(BridgedConfig, BridgedBackbone, exist_ok=True)
