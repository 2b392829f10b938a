"""JSONSchemaBench (arXiv 2501.10868), Github_easy: write one JSON value that is valid under a schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from regrow.capabilities import schema_check
from regrow.capabilities.benchmarks.subsets import Sizes, draw, items_of
from regrow.data.catalogue import data_set
from regrow.data.rows import need, read_part
from regrow.errors import DataError
from regrow.protocols import Item
from regrow.records.results import Split

NAME = "structured_output"
SIZES = Sizes(dev=60, test=150)
MAX_NEW_TOKENS = 256

INSTRUCTION = (
    "Write one JSON value that is valid under the JSON Schema below. Answer with the JSON value alone, without any "
    "explanation.\n\nJSON Schema:\n{schema}"
)


def items(folder: Path | None) -> dict[Split, list[Item]]:
    """Return the dev and test items; gold is {"schema": the schema as a JSON value}.

    A schema that is no valid JSON Schema itself cannot be satisfied and is left out before the draw.
    """
    read = read_part(data_set("jsonschemabench"), "Github_easy", folder)
    found: list[tuple[str, Any]] = []
    for number, row in enumerate(read.rows):
        need(row, ("unique_id", "json_schema"), read.where(number))
        try:
            schema = json.loads(row["json_schema"])
        except (ValueError, TypeError, RecursionError) as error:
            raise DataError(
                f"the schema of {read.where(number)} ('{row['unique_id']}') is not JSON: {error}",
                hint="correct or delete the record, or fetch the data set again",
            ) from error
        if not schema_check.schema_fault(schema):
            found.append((str(row["unique_id"]), schema))
    chosen = draw([identity for identity, _ in found], SIZES, name="JSONSchemaBench Github_easy")
    return items_of(chosen, lambda split, at: _item(split, *found[at]), lambda at: f"the schema '{found[at][0]}'")


def _item(split: Split, identity: str, schema: Any) -> Item:
    text = json.dumps(schema, ensure_ascii=False)
    return Item(
        capability=NAME,
        item_id=f"jsonschemabench-{identity}",
        split=split,
        messages=({"role": "user", "content": INSTRUCTION.format(schema=text)},),
        gold={"schema": schema},
        facts={"text": text},
    )
