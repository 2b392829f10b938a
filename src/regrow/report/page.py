"""One HTML file that holds the whole report: it needs no network, no server, no model and no other file."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import jinja2
from markupsafe import Markup

from regrow.records.atomic import write_text
from regrow.records.checkpoint import CheckpointFacts
from regrow.report.also import also_views
from regrow.report.embed import content_policy, json_block, script, vega_script
from regrow.report.figures import figures_of
from regrow.report.findings import findings
from regrow.report.inputs import Paired, Run, pair
from regrow.report.losslog import LossPoint, read_loss_log
from regrow.report.results import MainTable
from regrow.report.samples import samples_of
from regrow.report.tables import main_table
from regrow.report.theme import THEMES
from regrow.report.views import (
    FULL,
    block_strip,
    commands,
    cost_rows,
    fate_views,
    item_data,
    provenance_rows,
    removed_phrase,
    row_views,
    step_views,
    subtitle,
    summary_views,
    test_views,
    themes_css,
    tiles,
)
from regrow.report.wording import capability_name, listed, percent


def write_page(
    path: Path,
    runs: Sequence[Run] | Paired,
    *,
    table: MainTable | None = None,
    healing_log: Path | None = None,
    facts: CheckpointFacts | None = None,
    commands: Sequence[str] = (),
    title: str = "",
) -> MainTable:
    """Write the report of some evaluations as one HTML file and return its main table.

    ``table`` saves computing it again; ``healing_log`` (JSONL) adds the loss curve, ``facts`` the history of the last
    checkpoint, ``commands`` the lines that make the results again. Refuses evaluations that cannot be paired.
    """
    paired = runs if isinstance(runs, Paired) else pair(runs)
    table = table or main_table(paired)
    loss = read_loss_log(healing_log) if healing_log is not None and healing_log.exists() else []
    write_text(path, render_page(table, paired, loss=loss, facts=facts, given_commands=commands, title=title))
    return table


def render_page(
    table: MainTable,
    paired: Paired,
    *,
    loss: Sequence[LossPoint] = (),
    facts: CheckpointFacts | None = None,
    given_commands: Sequence[str] = (),
    title: str = "",
) -> str:
    """Return the report as HTML. Every text that is not ours (answers, labels, ids) is escaped."""
    figures = figures_of(table, paired, loss)
    page_code, vega_code = template_text("page.js"), vega_script() if figures else ""
    found = findings(table)
    chance = {row.name.lower(): row.chance for row in table.rows if row.chance and not row.part_of}
    values = {
        "charts": {f.key: {name: f.spec(theme) for name, theme in THEMES.items()} for f in figures},
        "items": item_data(paired),
    }
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("regrow.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    stage_css = "".join(f".s{i} {{ --stage: var(--stage-{i}); }}\n" for i in range(len(table.columns)))
    return environment.get_template("page.html.j2").render(
        policy=content_policy([code for code in (vega_code, page_code) if code]),
        version=version("regrow"),
        title=title or _model_name(table),
        themes={name: Markup(text) for name, text in themes_css(table).items()},
        css=Markup(stage_css + template_text("page.css")),
        subtitle=subtitle(table),
        strip=block_strip(table),
        removed=removed_phrase(table),
        found=found,
        tiles=tiles(table),
        rows=row_views(table, found),
        summaries=summary_views(table),
        columns=table.columns,
        base=table.base,
        has_base=table.base is not None and len(table.columns) > 1,
        has_chance=table.base is not None and len(table.columns) > 1 and bool(chance),
        has_verdict=bool(found.columns and found.columns[-1].verdicts),
        level=percent(table.level),
        full=percent(FULL),
        chance_words=listed([f"{percent(floor)} for {name}" for name, floor in chance.items()]) or "nothing here",
        resamples=table.resamples,
        tests=test_views(table),
        fates=fate_views(table),
        also=also_views(table),
        figures=figures,
        samples={capability_name(name): samples for name, samples in samples_of(paired).items()},
        provenance=provenance_rows(paired),
        cost=cost_rows(paired),
        steps=step_views(facts),
        commands=commands(paired, given_commands),
        data=json_block("report-data", values),
        vega=script(vega_code) if vega_code else "",
        page_script=script(page_code),
    )


def _model_name(table: MainTable) -> str:
    """The last part of the unpruned model's name ("SmolLM2-135M-Instruct" of a hub id, a folder or an embedded one)."""
    column = table.columns[table.base if table.base is not None else 0]
    return column.source.rstrip("/\\").replace("\\", "/").split("/")[-1].split(":")[-1] or column.label


def template_text(name: str) -> str:
    """Return the text of one of the package's templates, styles or scripts."""
    return (files("regrow.report") / "templates" / name).read_text("utf-8").replace("\r\n", "\n")
