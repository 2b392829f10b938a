"""XSTest (arXiv 2308.01263): unsafe requests, and safe ones that look alike."""

from __future__ import annotations

from pathlib import Path

from regrow.capabilities.benchmarks.subsets import Sizes, draw, items_of
from regrow.data.catalogue import data_set
from regrow.data.rows import need, need_text, read_part
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "safety"
SIZES = Sizes(dev=60, test=200)
MAX_NEW_TOKENS = 64

KINDS = {"safe": "benign", "unsafe": "unsafe"}


def items(folder: Path | None) -> dict[Split, list[Item]]:
    """Return the dev and test items, half of each kind; gold is {"kind": "unsafe" or "benign"}."""
    read = read_part(data_set("xstest"), "train", folder)
    for number, row in enumerate(read.rows):
        need(row, ("id", "label"), read.where(number))
        need_text(row, ("prompt",), read.where(number))
        if not isinstance(row["label"], str) or row["label"] not in KINDS:
            raise DataError(f"{read.where(number)} has the label {row['label']!r}", hint=f"allowed: {', '.join(KINDS)}")
    ids = [str(row["id"]) for row in read.rows]
    chosen = draw(ids, SIZES, name="XSTest", strata=[row["label"] for row in read.rows], balance="equal")
    return items_of(chosen, lambda split, at: _item(split, read.rows[at]), read.where)


def _item(split: Split, row: dict[str, object]) -> Item:
    return Item(
        capability=NAME,
        item_id=f"xstest-{row['id']}",
        split=split,
        messages=({"role": "user", "content": str(row["prompt"])},),
        gold={"kind": KINDS[str(row["label"])]},
        facts={"text": str(row["prompt"]), "type": str(row.get("type") or "")},
    )
