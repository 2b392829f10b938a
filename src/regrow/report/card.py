"""A checkpoint's README.md: where it comes from, what was done to it, how it is loaded, what it can do."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from typing import Any

import jinja2
import yaml

from regrow.records.checkpoint import CheckpointFacts
from regrow.report.export import to_markdown
from regrow.report.findings import findings
from regrow.report.results import MainTable
from regrow.report.wording import blocks_phrase, count, percent

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")

_ABSOLUTE = re.compile(r"[/~]|[A-Za-z]:[\\/]")

_EMBEDDED = {"embedded:smollm2-135m": "HuggingFaceTB/SmolLM2-135M-Instruct"}
"""Hub ids of the models that regrow can fetch by itself."""


def model_card(
    facts: CheckpointFacts,
    *,
    folder: str = "path/to/this/folder",
    table: MainTable | None = None,
    license: str = "",
    language: str = "",
) -> str:
    """Return the text of README.md, with front matter that the Hugging Face hub reads.

    ``folder`` is the name under which readers will load it (a hub id, once it is there); ``table`` adds its results.
    The base model is named when it has a hub id; a local folder's path is left out.
    """
    base = hub_id(facts.source)
    meta: dict[str, Any] = {
        "library_name": "regrow" if facts.bridges else "transformers",
        "pipeline_tag": "text-generation",
        "tags": _tags(facts),
    }
    if base:
        meta["base_model"] = base
    meta |= {key: value for key, value in (("license", license), ("language", language)) if value}
    front = yaml.safe_dump(meta, sort_keys=True, allow_unicode=True)
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("regrow.report"),
        autoescape=False,  # Markdown; every text that is not ours passes through _cell or json.dumps
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    body = environment.get_template("card.md.j2").render(
        title=_title(facts, base),
        summary=_summary(facts, base),
        needs_regrow=bool(facts.bridges),
        folder=folder.replace('"', ""),
        facts=_facts(facts, base),
        steps=[{"kind": step.kind, "text": _step(step.options, step.outcome)} for step in facts.steps],
        results=to_markdown(table) if table else "",
        findings=" ".join(findings(table).sentences()) if table else "",
        level=percent(table.level) if table else "",
        version=version("regrow"),
    )
    return f"---\n{front}---\n\n{body}".rstrip() + "\n"


def hub_id(source: str) -> str:
    """Return the hub id that a source names; "" for local folders and files."""
    if source in _EMBEDDED:
        return _EMBEDDED[source]
    local = source.startswith((".", "/", "~")) or source.endswith(".gguf")
    return source if _HUB_ID.fullmatch(source) and not local else ""


def _tags(facts: CheckpointFacts) -> list[str]:
    tags = ["regrow", "depth-pruning"]
    if facts.bridges:
        tags.append("repaired")
    if facts.healing_tokens:
        tags.append("healed")
    return tags


def _title(facts: CheckpointFacts, base: str) -> str:
    name = base.split("/")[-1] if base else "Depth-pruned model"
    return f"{name}, {len(facts.removed_blocks)} of {facts.unpruned_blocks} blocks removed"


def _summary(facts: CheckpointFacts, base: str) -> str:
    origin = f"[{base}](https://huggingface.co/{base})" if base else "A local model"
    left = facts.unpruned_blocks - len(facts.removed_blocks)
    parts = [f"{origin} with {left} of its {facts.unpruned_blocks} Transformer blocks"]
    if facts.bridges:
        parts.append("the cut bridged by " + ", ".join(dict.fromkeys(bridge.method for bridge in facts.bridges)))
    if facts.healing_tokens:
        parts.append(f"healed on {count(facts.healing_tokens)} tokens written by the unpruned model")
    return ", ".join(parts) + "."


def _facts(facts: CheckpointFacts, base: str) -> list[tuple[str, str]]:
    rows = [
        ("Made from", base or "a local model"),
        ("Weights of the unpruned model (sha256)", facts.source_weights_sha256),
        ("Architecture", facts.architecture),
        ("Removed blocks (counted from 0)", blocks_phrase(facts.removed_blocks)),
        ("Chosen by", facts.scores.criterion if facts.scores else ""),
        ("Repair", ", ".join(dict.fromkeys(bridge.method for bridge in facts.bridges))),
        (
            "Parameters of the repair",
            f"{sum(bridge.parameters for bridge in facts.bridges):,}" if facts.bridges else "",
        ),
        ("Healing tokens", f"{facts.healing_tokens:,}" if facts.healing_tokens else ""),
    ]
    return [(name, _cell(value)) for name, value in rows if value]


def _step(options: dict[str, Any], outcome: dict[str, Any]) -> str:
    shown = {"options": _without_places(options), "outcome": _without_places(outcome)}
    return json.dumps(shown, indent=2, ensure_ascii=False, default=str).replace("```", "` ` `")


def _without_places(value: Any) -> Any:
    """The value with absolute paths cut to their last part: a card is published, the author's folders are not."""
    if isinstance(value, dict):
        return {key: _without_places(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_without_places(part) for part in value]
    if isinstance(value, str) and _ABSOLUTE.match(value):
        return re.split(r"[/\\]", value.rstrip("/\\"))[-1]
    return value


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
