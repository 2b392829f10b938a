"""Whether the hub answers at all, asked once, so that a machine without a network is told at once."""

from __future__ import annotations

from functools import cache

_SECONDS = 10.0


@cache
def hub_is_reachable() -> bool:
    """Return whether the Hugging Face hub gives any answer; asked once a process. Its client would try for most of a
    minute, anew for each data set; where this says no, only the client's cache is looked at."""
    from huggingface_hub import constants
    from huggingface_hub.utils import get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=_SECONDS)
    # No network, a name that is not known, a proxy that refuses, HF_HUB_OFFLINE: each raises something of its own.
    except Exception:
        return False
    return True
