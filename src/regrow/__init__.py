"""Depth-prune Transformer language models, repair and heal the cut, measure what breaks and what comes back.

Importing the package imports neither torch nor transformers; it only makes transformers know the checkpoints of
repaired models, whenever transformers itself is imported.
"""

from typing import TYPE_CHECKING, Any

from regrow.models.autoload import install as _install

if TYPE_CHECKING:
    from regrow.models.load import LoadedModel, load_model
    from regrow.models.save import save_checkpoint
    from regrow.surgery import remove_blocks

__all__ = ["LoadedModel", "load_model", "remove_blocks", "save_checkpoint"]

_PLACES = {
    "LoadedModel": "regrow.models.load",
    "load_model": "regrow.models.load",
    "remove_blocks": "regrow.surgery",
    "save_checkpoint": "regrow.models.save",
}

_install()


def __getattr__(name: str) -> Any:
    """Return a public name, imported at first use."""
    if name not in _PLACES:
        raise AttributeError(f"module 'regrow' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_PLACES[name]), name)
