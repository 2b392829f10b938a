"""Labelled responses, and how far the refusal classifier agrees with them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from regrow.capabilities.refusals import refuses
from regrow.data.rows import read_rows
from regrow.errors import DataError
from regrow.records.storable import storable
from regrow.stats.agreement import Agreement, agreement

YES = ("1", "true", "yes", "refusal", "refused", "refuse", "full_refusal", "partial_refusal")
NO = ("0", "false", "no", "compliance", "complied", "comply", "full_compliance", "answered", "answer")

RESPONSE_FIELDS = ("response", "completion", "output", "answer", "text")
LABEL_FIELDS = ("refused", "label", "refusal", "final_label", "annotation")


@dataclass(frozen=True)
class Labelled:
    """A response, and whether a person says that it refuses. ``group`` is what the file says of its model or kind."""

    response: str
    refused: bool
    where: str
    group: str = ""


@dataclass(frozen=True)
class Validation:
    """``overall`` agreement and that of each group, with their sizes; ``wrong`` are the responses judged otherwise."""

    count: int
    overall: Agreement
    groups: dict[str, tuple[int, Agreement]]
    wrong: tuple[Labelled, ...]


def read_labels(path: Path) -> list[Labelled]:
    """Return the labelled responses of a JSON Lines, JSON or CSV file.

    The response stands under response (or completion, output, answer, text), the label under refused (or label,
    refusal, ...): true/false, yes/no, 1/0, refusal/compliance. ``model`` and ``kind`` (or type) name groups. An empty
    response is a response. Raises DataError naming the record that lacks one of the two or has another label.
    """
    if not path.is_file():
        raise DataError(f"there is no file '{path}'", hint="pass a JSON Lines or CSV file with response and refused")
    rows = read_rows(path)
    if not rows:
        raise DataError(f"'{path}' holds no records", hint="one labelled response a line is expected")
    return [_labelled(row, f"record {number} of '{path}'") for number, row in enumerate(rows, start=1)]


def _labelled(row: Mapping[str, Any], where: str) -> Labelled:
    response = next((name for name in RESPONSE_FIELDS if row.get(name) is not None), None)
    label = next((name for name in LABEL_FIELDS if row.get(name) not in (None, "") and name != response), None)
    if response is None or label is None:
        missing = "response" if response is None else "label"
        raise DataError(
            f"{where} has no {missing} (it has: {', '.join(sorted(map(str, row)))})",
            hint=f"a {missing} stands under {' or '.join(RESPONSE_FIELDS if response is None else LABEL_FIELDS)}",
        )
    group = ", ".join(str(row[name]) for name in ("model", "kind", "type") if row.get(name))
    return Labelled(storable(str(row[response])), _yes_or_no(row[label], where), where, group)


def _yes_or_no(value: Any, where: str) -> bool:
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        value = int(value)
    word = str(value).strip().lower().lstrip("0123456789_ ") or str(value).strip()
    if word not in YES and word not in NO:
        word = str(value).strip().lower()
    if word in YES:
        return True
    if word in NO:
        return False
    raise DataError(f"{where} has the label {value!r}", hint="allowed: true or false (also yes/no, refusal/compliance)")


def validate(labels: Sequence[Labelled]) -> Validation:
    """Return how well refusals.refuses follows the labels. Raises DataError when there is no label."""
    groups: dict[str, list[Labelled]] = {}
    for label in labels:
        groups.setdefault(label.group, []).append(label)
    return Validation(
        len(labels),
        _agreement(labels),
        {name: (len(held), _agreement(held)) for name, held in groups.items()} if len(groups) > 1 else {},
        tuple(label for label in labels if refuses(label.response) != label.refused),
    )


def _agreement(labels: Sequence[Labelled]) -> Agreement:
    return agreement([label.refused for label in labels], [refuses(label.response) for label in labels])
