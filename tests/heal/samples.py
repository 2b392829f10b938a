"""Small pools and models for the healing tests."""

from __future__ import annotations

import random
from typing import Any

from regrow.data.pools import Example, Pool
from regrow.models.load import LoadedModel
from regrow.records.specs import HealSpec
from tests.conftest import tiny_model, tiny_tokenizer

NAMES = ("facts", "sums", "talk")


def sample_pools(examples: int = 20, *, seed: int = 0, names: tuple[str, ...] = NAMES) -> dict[str, Pool]:
    """Return pools whose examples begin with the same few shots within a pool, as the mini suite's do."""
    rng = random.Random(seed)
    found = {}
    for name in names:
        shots = f"[user] shots of {name} " + "".join(rng.choice("abcdefgh ") for _ in range(rng.randint(20, 40))) + " "
        rows = []
        for number in range(examples):
            prompt = shots + "".join(rng.choice("ijklmnop ") for _ in range(rng.randint(5, 30)))
            response = "".join(rng.choice("0123456789") for _ in range(rng.randint(3, 20)))
            rows.append(Example(name, f"{name}-{number}", prompt, response))
        found[name] = Pool(name, tuple(rows))
    return found


def sample_model(family: str = "llama", *, blocks: int = 4, seed: int = 0, **config: Any) -> LoadedModel:
    """Return a tiny model with its tokenizer; attention windows are wide enough for the samples."""
    model = tiny_model(family, blocks=blocks, seed=seed)
    for name in ("sliding_window", "window_size"):
        if isinstance(getattr(model.config, name, None), int):
            setattr(model.config, name, 256)
    for name, value in config.items():
        setattr(model.config, name, value)
    return LoadedModel(model, tiny_tokenizer(), f"tiny-{family}")


def sample_spec(**changes: Any) -> HealSpec:
    """Return a spec of a few small updates in float32."""
    given = {"tokens": 2_000, "sequences_per_update": 4, "rank": 4, "precision": "float32", "learning_rate": 1e-2}
    return HealSpec(**{**given, **changes})
