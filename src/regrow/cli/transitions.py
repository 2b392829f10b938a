"""``regrow transitions``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Json


def transitions(
    unpruned: Path,
    stage: Path,
    /,
    *,
    between: Annotated[
        list[Path] | None, Parameter(help="Evaluations of the stages in between, to tell kept from came back.")
    ] = None,
    show: Annotated[
        str | None, Parameter(help="Print the items of one fate: kept, broke, came-back, new or never.")
    ] = None,
    json: Json = False,
) -> None:
    """Follow every item from one evaluation to another: kept, broke, came back, new, or never right.

    Parameters
    ----------
    unpruned
        The evaluation to start from.
    stage
        The evaluation to arrive at, of the same items.
    """
    from rich.table import Table

    from regrow.cli.output import print_json, stdout_console
    from regrow.errors import ConfigError, did_you_mean
    from regrow.report.inputs import pair, read_evaluations
    from regrow.stats.transitions import Fate, fates

    names = {fate.value.replace(" ", "-").removesuffix("-right"): fate for fate in Fate}
    if show is not None and show not in names:
        raise ConfigError(f"there is no fate '{show}'", hint=did_you_mean(show, names))
    folders = [unpruned, *(between or []), stage]
    runs = read_evaluations(folders)
    # Paired as they are typed, whatever stage each record says it is.
    paired = pair([(record.model_copy(update={"stage": "pruned"}), items) for record, items in runs])
    found = {
        name: list(zip([item.item_id for item in paired.items[name][0]], fates(scores[0], scores[-1], scores[1:-1])))
        for name, scores in paired.scores.items()
    }
    counts = {
        name: {key: sum(fate is each for _, fate in rows) for key, each in names.items()}
        for name, rows in found.items()
    }
    listed = {
        name: [identity for identity, fate in rows if show is not None and fate is names[show]]
        for name, rows in found.items()
    }
    if json:
        print_json(
            {
                "from": str(unpruned),
                "to": str(stage),
                "between": [str(each) for each in between or []],
                "counts": counts,
                "items": {name: {identity: str(fate) for identity, fate in rows} for name, rows in found.items()},
            }
        )
        return
    console = stdout_console()
    table = Table("", "items", *(fate.value for fate in Fate), box=None)
    for name, row in counts.items():
        table.add_row(name.replace("_", " "), str(len(found[name])), *(str(count) for count in row.values()))
    console.print(table)
    for name, identities in listed.items():
        for identity in identities:
            console.print(f"{name} {identity}", markup=False, highlight=False)
