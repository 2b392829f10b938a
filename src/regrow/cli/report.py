"""``regrow report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Json


def report(
    *evaluations: Path,
    output: Annotated[Path, Parameter(name=["--output", "-o"], help="The HTML file to write.")] = Path("report.html"),
    csv: Annotated[Path | None, Parameter(help="Also write the main table as CSV.")] = None,
    markdown: Annotated[Path | None, Parameter(help="Also write the main table as Markdown.")] = None,
    json: Json = False,
) -> None:
    """Compare measured stages: one table with intervals and retention, the finding in a sentence, one HTML page.

    The page is self-contained: it needs no network, no server and no model.

    Parameters
    ----------
    evaluations
        Folders written by `regrow eval`, or folders that hold such folders (a quickstart's output, for example).
    """
    from regrow.cli.output import print_json, stdout_console
    from regrow.errors import ConfigError
    from regrow.report.collect import evaluation_folders, healing_log_in

    if not evaluations:
        raise ConfigError("no evaluation was named", hint="regrow report EVALUATION [EVALUATION ...] -o report.html")
    from regrow.records.atomic import write_text
    from regrow.report.findings import findings
    from regrow.report.inputs import pair, read_evaluations
    from regrow.report.page import write_page
    from regrow.report.tables import main_table, to_csv, to_json, to_markdown
    from regrow.report.terminal import print_report

    paired = pair(read_evaluations(evaluation_folders(evaluations)))
    table = main_table(paired)
    found = findings(table)
    write_page(output, paired, table=table, healing_log=healing_log_in(evaluations))
    if csv is not None:
        write_text(csv, to_csv(table))
    if markdown is not None:
        write_text(markdown, to_markdown(table))
    if json:
        print_json({"report": str(output), "findings": found.model_dump(mode="json"), **to_json(table)})
        return
    print_report(stdout_console(), table, found)
    print(f"report: {output}")
