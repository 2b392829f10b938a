"""What transformers asks of a cache's layer, for calls whose texts stand one after the other in a single line."""

from __future__ import annotations

import torch
from transformers.cache_utils import CacheLayerMixin


class OneLineLayer(CacheLayerMixin):
    """A layer that seems empty: which token sees what, and at which position it stands, is said elsewhere."""

    is_sliding = False

    def get_seq_length(self, *args: object) -> int:
        return 0

    def get_mask_sizes(self, query: int | torch.Tensor) -> tuple[int, int]:
        # Older releases pass the positions of the new tokens instead of their number.
        return query if isinstance(query, int) else query.shape[0], 0

    def get_max_length(self) -> int:
        return -1

    get_max_cache_shape = get_max_length
