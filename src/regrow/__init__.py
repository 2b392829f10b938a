"""Depth-prune Transformer language models, repair and heal the cut, measure what breaks and what comes back."""
