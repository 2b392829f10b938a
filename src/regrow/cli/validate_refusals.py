"""``regrow validate-refusals``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from regrow.cli.options import Json, from_zero


def validate_refusals(
    labels: Path,
    /,
    *,
    show: Annotated[int, from_zero(help="Responses judged otherwise than labelled to print.")] = 5,
    json: Json = False,
) -> None:
    """Compare the refusal classifier with labelled responses: agreement, Cohen's kappa, precision, recall.

    Parameters
    ----------
    labels
        JSON Lines or CSV with a `response` and whether it `refused` (true/false); `model` and `kind` make groups.
    """
    from rich.markup import escape
    from rich.table import Table

    from regrow.capabilities.refusal_labels import read_labels, validate
    from regrow.cli.output import print_json, stdout_console

    found = validate(read_labels(labels))
    groups = {"all": (found.count, found.overall), **found.groups}
    if json:
        print_json(
            {
                "file": str(labels),
                **{name: {"responses": count, **of._asdict()} for name, (count, of) in [("all", groups["all"])]},
                "groups": {name: {"responses": count, **of._asdict()} for name, (count, of) in found.groups.items()},
                "wrong": [
                    {"where": each.where, "labelled_refused": each.refused, "response": each.response[:300]}
                    for each in found.wrong
                ],
            }
        )
        return
    console = stdout_console()
    table = Table("", "responses", "agreement", "kappa", "precision", "recall", box=None)
    for name, (count, of) in groups.items():
        table.add_row(escape(name), str(count), *(f"{value:.2f}" if value == value else "–" for value in of))
    console.print(table)
    for each in found.wrong[:show]:
        verdict = "refusal" if each.refused else "answer"
        text = " ".join(each.response.split())[:100]
        console.print(f"labelled {verdict}, judged otherwise ({each.where}): {text}", markup=False, highlight=False)
    if len(found.wrong) > show:
        print(f"{len(found.wrong) - show} more are judged otherwise; --show {len(found.wrong)} prints them")
