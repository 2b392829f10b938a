"""Depth-prune Transformer language models, repair and heal the cut, measure what breaks and what comes back."""

from regrow.models.autoload import install as _install

_install()
