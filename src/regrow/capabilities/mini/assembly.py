"""Items out of templates: as many from each, no question twice, no question in two splits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from regrow.capabilities.mini.chat import Shot, messages
from regrow.capabilities.mini.partition import Draw, owner_of
from regrow.protocols import Item
from regrow.records.results import Split

SIZES: dict[Split, int] = {"dev": 60, "test": 120, "heal": 360}
"""Items of a capability in each split."""

_ATTEMPTS = 600


@dataclass(frozen=True)
class Made:
    """What a template made of a draw. ``content`` names what the question comes to where several wordings come to the
    same (3 + 4 apples, 4 + 3 miles): one split alone may ask it."""

    question: str
    gold: Any
    content: tuple[str | int, ...] = ()


Template = Callable[[Draw], Made | None]
"""None: these values do not go together, draw others."""


def assemble(
    capability: str, split: Split, templates: Mapping[str, Template], shots: Sequence[Shot], *, count: int | None = None
) -> list[Item]:
    """Return ``count`` items (default: SIZES), the templates taking turns, ``facts["template"]`` naming each one's.

    A draw is an item when it belongs to ``split`` and no earlier item asks the same. It belongs to the split that owns
    a word in it; without such a word, or with a content of its own, to the split that the hash names. Templates that
    have no further item are passed over. Raises ValueError when all are exhausted.
    """
    wanted = SIZES[split] if count is None else count
    seen: set[str] = set()
    attempts = dict.fromkeys(templates, 0)
    items: list[Item] = []
    while len(items) < wanted:
        before = len(items)
        for name, template in templates.items():
            if len(items) == wanted:
                break
            while attempts[name] < _ATTEMPTS:
                draw = Draw(split, capability, name, attempts[name])
                made = template(draw)
                attempts[name] += 1
                if made is None:
                    continue
                if made.question in seen or not _belongs(capability, split, made, draw):
                    continue
                seen.add(made.question)
                items.append(_item(capability, split, len(items), name, made, shots))
                break
        if len(items) == before:
            raise ValueError(f"the templates of {capability} make only {before} of {wanted} {split} items")
    return items


def _belongs(capability: str, split: Split, made: Made, draw: Draw) -> bool:
    if draw.owned and not made.content:
        return True
    return owner_of(capability, *(made.content or (made.question,))) == split


def _item(capability: str, split: Split, number: int, template: str, made: Made, shots: Sequence[Shot]) -> Item:
    return Item(
        capability=capability,
        item_id=f"mini-{capability}-{split}-{number:03d}",
        split=split,
        messages=messages(shots, made.question),
        gold=made.gold,
        facts={"template": template},
    )
