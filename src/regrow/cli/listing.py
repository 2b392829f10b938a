"""``regrow ls``: the methods and capabilities there are."""

from __future__ import annotations

from typing import Any

from regrow.cli.options import Json
from regrow.registry import Registry

SAID = ("name", "summary")


def ls(what: str = "all", /, *, json: Json = False) -> None:
    """List criteria, repairs, capabilities, suites, scopes, losses, rules or embedded models.

    Parameters
    ----------
    what
        all, criteria, repairs, capabilities, suites, scopes, losses, rules or models.
    """
    from rich.text import Text

    from regrow.cli.output import print_json, stdout_console
    from regrow.errors import ConfigError, did_you_mean

    kinds = ("criteria", "repairs", "capabilities", "suites", "scopes", "losses", "rules", "models")
    if what != "all" and what not in kinds:
        raise ConfigError(f"there is no list of '{what}'", hint=did_you_mean(what, ["all", *kinds]))
    found = {kind: rows_of(kind) for kind in (kinds if what == "all" else (what,))}
    if json:
        print_json(found)
        return
    console = stdout_console()
    for kind, rows in found.items():
        width = max(len(row["name"]) for row in rows)
        console.print(f"[bold underline]{kind}[/]")
        for row in rows:
            line = Text(f"{row['name']:<{width}}  ", style="bold")
            line.append(str(row.get("summary", "")), style="not bold")
            console.print(line, soft_wrap=not console.is_terminal)
            facts = [
                f"{key} {value}" if key != "paper" else str(value) for key, value in row.items() if key not in SAID
            ]
            if facts:
                console.print(
                    Text(" " * (width + 2) + "; ".join(facts), style="dim"), soft_wrap=not console.is_terminal
                )
        console.print()


def rows_of(kind: str) -> list[dict[str, Any]]:
    """Return one row of plain values per entry of a list."""
    if kind == "models":
        from regrow.models.embedded import EMBEDDED, PREFIX

        return [
            {
                "name": PREFIX + model.name,
                "summary": model.hub_id,
                "licence": model.licence,
                "megabytes": model.megabytes,
            }
            for model in EMBEDDED.values()
        ]
    entries: Registry[Any]
    if kind == "criteria":
        from regrow.criteria.registry import CRITERIA

        entries = CRITERIA
    elif kind == "repairs":
        from regrow.repair.registry import REPAIRS

        entries = REPAIRS
    elif kind == "capabilities":
        from regrow.capabilities.registry import CAPABILITIES

        entries = CAPABILITIES
    elif kind == "suites":
        from regrow.capabilities.suites import SUITES

        entries = SUITES
    elif kind == "rules":
        from regrow.planning.registry import RULES

        entries = RULES
    elif kind == "losses":
        from regrow.heal.registry import LOSSES

        entries = LOSSES
    else:
        from regrow.heal.registry import SCOPES

        entries = SCOPES
    return [
        {
            "name": entry.name,
            "summary": entry.summary,
            **({"paper": entry.paper} if entry.paper else {}),
            **dict(entry.facts),
        }
        for entry in entries
    ]
