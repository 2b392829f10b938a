"""Write docs/methods.md from the registries and their docstrings. `--check` only says whether it is current."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from regrow.capabilities.registry import CAPABILITIES
from regrow.criteria.registry import CRITERIA
from regrow.heal.registry import LOSSES, SCOPES
from regrow.planning.registry import RULES
from regrow.registry import Registry
from regrow.repair.registry import REPAIRS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "methods.md"
KINDS: list[tuple[str, str, Registry[Any]]] = [
    ("Criteria", "which blocks go", CRITERIA),
    ("Repairs", "what bridges the cut without training", REPAIRS),
    ("Scopes", "what a heal trains", SCOPES),
    ("Losses", "what a heal minimises", LOSSES),
    ("Capabilities", "what is measured", CAPABILITIES),
    ("Rules", "how a healing budget is split over pools", RULES),
]


def text_of(method: Any) -> str:
    """Return a method's own docstring as paragraphs of Markdown; "" when it has none of its own."""
    own = method.__doc__ if inspect.isfunction(method) or inspect.isclass(method) else vars(type(method)).get("__doc__")
    if not own or own.startswith(f"{type(method).__name__}("):
        return ""
    return inspect.cleandoc(own).replace("``", "`").replace(":func:", "").replace(":mod:", "").replace(":class:", "")


def page() -> str:
    """Return the whole page."""
    parts = [
        "# Methods",
        "",
        "Made from the registries by `scripts/method_pages.py`; edit the docstrings, not this page.",
    ]
    for title, what, registry in KINDS:
        parts += ["", f"## {title}: {what}"]
        for entry in registry:
            facts = {**({"paper": entry.paper} if entry.paper else {}), **dict(entry.facts)}
            parts += ["", f"### {entry.name}", "", entry.summary + "."]
            if facts:
                parts += ["", "; ".join(f"{key}: {value}" for key, value in facts.items()) + "."]
            body = text_of(registry.get(entry.name))
            if body:
                parts += ["", body]
    return "\n".join(parts) + "\n"


def main() -> int:
    made = page()
    if "--check" in sys.argv[1:]:
        current = PAGE.exists() and PAGE.read_text("utf-8") == made
        print(f"{PAGE.name} is {'current' if current else 'not current: run python scripts/method_pages.py'}")
        return 0 if current else 1
    PAGE.write_text(made, "utf-8")
    print(f"{PAGE} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
