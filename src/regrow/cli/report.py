"""``regrow report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Json


def report(
    *evaluations: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The HTML file to write.")] = Path("report.html"),
    json: Json = False,
    csv: Annotated[Path | None, Parameter(help="Also write the main table as CSV.")] = None,
    markdown: Annotated[Path | None, Parameter(help="Also write the main table as Markdown.")] = None,
) -> None:
    """Compare measured stages: one table with intervals and retention, the finding in a sentence, one HTML page.

    The page is self-contained: it needs no network, no server and no model.

    Parameters
    ----------
    evaluations
        Folders written by `regrow eval`, or folders that hold such folders.
    """
    from regrow.cli.output import print_json, stdout_console
    from regrow.records.atomic import write_text
    from regrow.report.collect import collect_evaluations
    from regrow.report.findings import findings
    from regrow.report.page import write_page
    from regrow.report.tables import main_table
    from regrow.report.terminal import render_terminal

    runs = collect_evaluations(evaluations)
    table = main_table(runs)
    write_page(output, runs)
    if csv is not None:
        write_text(csv, table.to_csv())
    if markdown is not None:
        write_text(markdown, table.to_markdown())
    if json:
        print_json({"report": str(output), "findings": findings(table), **table.to_json()})
        return
    console = stdout_console()
    console.print(render_terminal(table))
    for sentence in findings(table):
        console.print(sentence, highlight=False)
    print(f"report: {output}")
