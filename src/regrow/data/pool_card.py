"""The card of a folder of pools: what is in them, from where, under which licence, what was left out, and samples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from regrow.data.pools import Pool

SAMPLES = 2
LONGEST_SAMPLE = 600


def pool_facts(pools: Mapping[str, Pool]) -> list[dict[str, Any]]:
    """Return one row of plain values a pool: sizes, tokens (of tokenised pools), source, licence, dropped by reason."""
    return [
        {
            "pool": name,
            "examples": len(pool.examples),
            "tokens": sum(example.tokens for example in pool.examples),
            "dropped": dict(sorted(pool.dropped.items(), key=lambda entry: -entry[1])),
            "source": pool.source,
            "licence": pool.licence,
            "fingerprint": pool.fingerprint,
        }
        for name, pool in pools.items()
    ]


def pool_card(pools: Mapping[str, Pool], *, teacher: str, suite: str) -> str:
    """Return the card as Markdown."""
    rows = pool_facts(pools)
    lines = [
        f"# Healing pools of the suite {suite}",
        "",
        f"Prompts answered greedily by {teacher}; an answer became a target only when it ended by itself and shows the "
        "skill. Answers are the model's own and may be wrong in everything that is not checked.",
        "",
        "| pool | examples | tokens | dropped |",
        "|---|---|---|---|",
    ]
    for row in rows:
        reasons = "; ".join(f"{reason}: {count:,}" for reason, count in row["dropped"].items()) or "nothing"
        lines.append(f"| {row['pool']} | {row['examples']:,} | {row['tokens']:,} | {reasons} |")
    lines += ["", "## Sources and licences", ""]
    for row in rows:
        source, licence = row["source"] or "not stated", row["licence"] or "not stated"
        lines.append(f"- **{row['pool']}**: {source}. Licence: {licence}.")
    lines += ["", "The answers are also bound by the licence of the model that wrote them.", "", "## Samples", ""]
    for name, pool in pools.items():
        for example in pool.examples[:SAMPLES]:
            lines += [
                f"### {name}: {example.example_id}",
                "",
                *_fenced(example.prompt),
                "",
                *_fenced(example.response),
                "",
            ]
    return "\n".join(lines) + "\n"


def _fenced(text: str) -> list[str]:
    """Return a text as a block that nothing inside it can close."""
    shown = text if len(text) <= LONGEST_SAMPLE else text[:LONGEST_SAMPLE] + " …"
    longest = max(map(len, re.findall(r"`+", shown)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *shown.split("\n"), fence]
