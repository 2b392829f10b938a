"""``regrow report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Json, Quiet, whole


def report(
    *evaluations: Path,
    output: Annotated[
        Path | None,
        Parameter(
            name=["--output", "-o"],
            help="The HTML file to write. Default: report.html, or report/report.html in the study's folder.",
        ),
    ] = None,
    csv: Annotated[Path | None, Parameter(help="Also write the main table as CSV.")] = None,
    markdown: Annotated[Path | None, Parameter(help="Also write the main table as Markdown.")] = None,
    files: Annotated[
        Path | None,
        Parameter(help="Folder for a study's tables (CSV, LaTeX) and figures (PDF, PNG). Default: beside the page."),
    ] = None,
    budget: Annotated[
        str | None, Parameter(help="Healing tokens at which a study's rules are compared. Default: where most ran.")
    ] = None,
    resamples: Annotated[int, whole(help="Resamples behind a study's intervals and tests.")] = 2000,
    seed: Annotated[int, whole(help="Seed of a study's resamples.")] = 0,
    quiet: Quiet = False,
    json: Json = False,
) -> None:
    """Compare measured stages, or report a whole study: tables with intervals, the findings in words, one HTML page.

    The page is self-contained: it needs no network, no server and no model. A study (a folder with runs/ID/, each an
    evaluation with coordinates.json) also gets its tables as CSV and LaTeX and its figures as PDF and PNG.

    Parameters
    ----------
    evaluations
        Folders written by `regrow eval`, folders that hold such folders (a quickstart's output, for example), or one
        study.
    """
    from regrow.errors import ConfigError
    from regrow.records.study_runs import is_study

    if not evaluations:
        raise ConfigError("no evaluation was named", hint="regrow report EVALUATION [EVALUATION ...] -o report.html")
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise ConfigError(
            f"the report is an HTML page, '{output}' does not end in .html", hint=f"-o {output / 'report.html'}"
        )
    for option, file, suffix in (("--csv", csv, ".csv"), ("--markdown", markdown, ".md")):
        if file is not None and file.suffix.lower() != suffix:
            raise ConfigError(f"{option} '{file}' does not end in {suffix}", hint=f"{option} table{suffix}")
    studies = [folder for folder in evaluations if is_study(folder)]
    if studies and len(evaluations) > 1:
        raise ConfigError(
            f"'{studies[0]}' is a study and is reported by itself, {len(evaluations)} folders were named",
            hint=f"regrow report {studies[0]}",
        )
    if studies:
        if csv is not None or markdown is not None:
            raise ConfigError(
                "--csv and --markdown write the one table of compared stages; a study has five",
                hint="its tables are written beside the page, or below --files DIR",
            )
        if resamples < 100:
            raise ConfigError(f"--resamples must be 100 or more, got {resamples}", hint="--resamples 2000")
        _study(studies[0], output, files, budget, resamples, seed, quiet=quiet, json=json)
        return
    for option, given in (("--files", files), ("--budget", budget)):
        if given is not None:
            raise ConfigError(
                f"{option} belongs to the report of a study, and '{evaluations[0]}' is none",
                hint="a study's folder holds runs/ID/ with coordinates.json; see docs/report.md",
            )
    _stages(evaluations, output or Path("report.html"), csv, markdown, json=json)


def _stages(
    evaluations: tuple[Path, ...], output: Path, csv: Path | None, markdown: Path | None, *, json: bool
) -> None:
    from regrow.cli.output import print_json, stdout_console
    from regrow.records.atomic import write_text
    from regrow.report.collect import evaluation_folders, healing_log_in
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


def _study(
    folder: Path,
    output: Path | None,
    files: Path | None,
    budget: str | None,
    resamples: int,
    seed: int,
    *,
    quiet: bool,
    json: bool,
) -> None:
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.records.quantities import parse_tokens
    from regrow.records.study_runs import read_study
    from regrow.report.charts.paper.all import paper_figures
    from regrow.report.paper.grids import grids_of, plain_rows
    from regrow.report.paper.paper import paper_of
    from regrow.report.paper_files import write_paper_files
    from regrow.report.scored import Drawing
    from regrow.report.study_findings import study_sentences
    from regrow.report.study_page import write_study_page
    from regrow.report.study_terminal import print_study

    page = output or folder / "report" / "report.html"
    follow = watcher(quiet)
    follow.begin(f"reading {folder}")
    study = read_study(folder)
    follow.end(f"{len(study.runs)} runs")
    follow.begin("computing tables, tests and curves")
    tokens = parse_tokens(budget, option="--budget") if budget is not None else None
    paper = paper_of(study, budget=tokens, drawing=Drawing(seed, resamples))
    grids, figures = grids_of(paper), paper_figures(paper)
    follow.end()
    follow.begin("writing the page")
    write_study_page(page, paper, grids, figures)
    follow.end(str(page))
    follow.begin("writing tables and figures", len(grids) + len(figures), "files")
    done = iter(range(len(grids) + len(figures)))
    written = write_paper_files(
        files or page.parent, paper, grids, figures, begin=lambda what: follow.advance(next(done), now=what)
    )
    follow.end(f"{len(written)} files")
    sentences = study_sentences(paper)
    if json:
        print_json(
            {
                "report": str(page),
                "files": [str(path) for path in written],
                "budget": paper.budget,
                "findings": sentences,
                "notes": list(paper.notes),
                "tables": {grid.key: plain_rows(grid) for grid in grids},
            }
        )
        return
    print_study(stdout_console(), grids, sentences, paper.notes)
    print(f"report: {page}\ntables and figures: {files or page.parent}")
