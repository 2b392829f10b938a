"""``regrow study``: check, plan, run, watch, report and tidy a study described in one file."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from regrow.cli.options import Json, Quiet, whole

Folder = Annotated[
    Path | None, Parameter(name=["--output", "-o"], help="Folder of the study. Default: studies-out/NAME.")
]
Engine = Annotated[str | None, Parameter(help="serial, subprocess, ray or slurm instead of the file's engine.")]
Workers = Annotated[int | None, whole(help="Steps that run at once, instead of the file's.")]
HOME = Path("studies-out")
_REDRAW_SECONDS = 30


def show(file: str, /, *, json: Json = False) -> None:
    """Print a study with every default filled in, and its steps.

    Parameters
    ----------
    file
        A study's YAML file, or the name of one that comes with regrow (see `regrow study list`).
    """
    import yaml

    from regrow.cli.output import print_json
    from regrow.cli.study_text import counted

    spec, _ = _read(file)
    steps = _steps(spec, {family.name: family.model for family in spec.families})
    if json:
        print_json({"spec": spec.model_dump(mode="json"), "steps": [step.title for step in steps]})
        return
    print(yaml.safe_dump(spec.model_dump(mode="json"), sort_keys=False, allow_unicode=True), end="")
    print(f"# {counted(steps)}")


def listing(*, json: Json = False) -> None:
    """List the studies that come with regrow."""
    from regrow.cli.output import print_json
    from regrow.records.study_spec import read_study_spec
    from regrow.studies import shipped

    rows = []
    for name, file in shipped().items():
        spec = read_study_spec(file)
        rows.append({"name": name, "families": [family.name for family in spec.families], "about": _about(file)})
    if json:
        print_json(rows)
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        print(f"{row['name']:<{width}}  {row['about']}")


def check(file: str, /, *, output: Folder = None, json: Json = False) -> None:
    """Check that a study can run here: models (those of the hub are fetched), items, rules, disk, memory, engine. Exits
    with 2 when it cannot.

    Parameters
    ----------
    file
        A study's YAML file, or the name of one that comes with regrow.
    """
    from regrow.cli.output import print_json, stdout_console
    from regrow.cli.study_text import print_checks
    from regrow.study.preflight import preflight

    spec, name = _read(file)
    findings = preflight(spec, output or HOME / name)
    if json:
        print_json([finding.model_dump(mode="json") for finding in findings])
    else:
        print_checks(stdout_console(), findings)
    if any(not finding.ok for finding in findings):
        raise SystemExit(2)


def plan(
    file: str,
    /,
    *,
    output: Folder = None,
    gpu: Annotated[str | None, Parameter(help="Also predict for this GPU: a100, h100, h200, l4, 4090 ...")] = None,
    probe: Annotated[bool, Parameter(help="Measure this machine's speed with a short run of the model.")] = True,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Say what a study will cost before it runs: steps, tokens, evaluations, hours here and on a named GPU.

    Parameters
    ----------
    file
        A study's YAML file, or the name of one that comes with regrow.
    """
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.cli.study_text import print_forecast
    from regrow.study.folder import ASKED, StudyFolder
    from regrow.study.forecast import forecast, known_gpu, measured_rates

    spec, name = _read(file)
    if gpu is not None:
        known_gpu(gpu)
    folder = StudyFolder(output or HOME / name)
    begun = (folder.path / ASKED).exists()
    # What the models are only tells which steps are done.
    identities = _identities(spec, strict=False) if begun else {family.name: family.model for family in spec.families}
    steps = _steps(spec, identities)
    left = [step for step in steps if folder.done(step.id) is None]
    rates = measured_rates(spec, watch=watcher(quiet)) if probe and left else {}
    found = forecast(spec, steps, left, rates, gpu=gpu)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    print_forecast(stdout_console(), found)


def run(
    file: str,
    /,
    *,
    output: Folder = None,
    engine: Engine = None,
    workers: Workers = None,
    update: Annotated[
        bool, Parameter(help="Let a changed file take over the folder; results that still belong to it are kept.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run a study to its end and write its report. Stopped at any moment, the same command continues.

    Parameters
    ----------
    file
        A study's YAML file, or the name of one that comes with regrow.
    """
    from regrow.cli.output import print_json, watcher
    from regrow.records.specs import build
    from regrow.records.study_spec import EngineSpec
    from regrow.study.folder import StudyFolder
    from regrow.study.preflight import refuse_impossible, refuse_unknown
    from regrow.study.runner import run as work
    from regrow.study.runners import alone
    from regrow.study.termination import TERMINATED_CODE, TerminatedError, terminable

    spec, name = _read(file)
    place = output or HOME / name
    wanted: dict[str, Any] = {"name": engine, "workers": workers}
    typed = {key: value for key, value in wanted.items() if value is not None}
    chosen = build(EngineSpec, {**spec.engine.model_dump(), **typed}, where="the engine's options")
    StudyFolder(place).refuse(spec, update=update)
    refuse_unknown(spec)
    watch = watcher(quiet)
    watch.begin("reading the models")
    identities = _identities(spec, strict=True)
    watch.end(", ".join(f"{family} {sha256[:12]}" for family, sha256 in identities.items()))
    refuse_impossible(spec)
    steps = _steps(spec, identities)
    with alone(place, "--update") if update else nullcontext():
        StudyFolder(place).begin(spec, identities, steps, update=update)
    try:
        with terminable():
            summary = work(place, watch=watch, engine_spec=chosen)
            page = _report(place, watch) if summary.done else None
    except TerminatedError:
        _say_terminated()
        raise SystemExit(TERMINATED_CODE) from None
    if json:
        print_json(
            {
                "study": str(place),
                "steps": summary.total,
                "done": summary.done,
                "found": summary.found,
                "failed": {step: failure.model_dump(mode="json") for step, failure in summary.failed.items()},
                "blocked": summary.blocked,
                "report": str(page) if page else None,
            }
        )
    else:
        print(f"{summary.done} of {summary.total} steps done ({summary.found} of them before); study in {place}")
        for step_id, failure in summary.failed.items():
            print(f"failed: {step_id} ({failure.reason}: {failure.message}); log in {place}/steps/{step_id}/log.txt")
        for remedy in dict.fromkeys(failure.remedy for failure in summary.failed.values() if failure.remedy):
            print(f"  try: {remedy}")
        if summary.blocked:
            print(f"not begun, because a step before them failed: {len(summary.blocked)}")
        if page:
            print(f"report: {page}")
    if not summary.complete:
        raise SystemExit(1)


def status(
    study: Path,
    /,
    *,
    watch: Annotated[bool, Parameter(negative="", help="Keep looking until every step has ended.")] = False,
    json: Json = False,
) -> None:
    """Show how far a study is: every step's state, what runs, what failed and why.

    Parameters
    ----------
    study
        The study's folder.
    """
    from regrow.cli.output import print_json, stdout_console
    from regrow.cli.study_text import print_status, watch_status
    from regrow.study.progress import progress_of

    if watch:
        watch_status(stdout_console(), study)
        return
    found = progress_of(study)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    print_status(stdout_console(), found)


def report(
    study: Path,
    /,
    *,
    watch: Annotated[
        bool, Parameter(negative="", help="Draw again whenever steps have ended; an open page reloads itself.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the report of what a study has so far: the same as `regrow report STUDY`.

    Parameters
    ----------
    study
        The study's folder.
    """
    from regrow.cli.output import print_json, watcher
    from regrow.study.folder import StudyFolder

    StudyFolder(study).steps()
    page = _drawn_while_it_runs(study, watcher(quiet)) if watch else _report(study, watcher(quiet), must=True)
    if json:
        print_json({"report": str(page)})
    else:
        print(f"report: {page}")


def clean(
    study: Path,
    /,
    *,
    checkpoints: Annotated[bool, Parameter(help="Also remove the checkpoints of finished cuts and repairs.")] = False,
    json: Json = False,
) -> None:
    """Remove what a study no longer needs: leftovers of steps that are finished or no longer in it. Results stay.

    Parameters
    ----------
    study
        The study's folder.
    """
    from regrow.cli.output import print_json
    from regrow.study.tidy import tidy

    removed, freed = tidy(study, checkpoints=checkpoints)
    if json:
        print_json({"removed": [str(path) for path in removed], "freed_bytes": freed})
    else:
        print(f"{len(removed)} leftovers removed, {freed / 1e9:.2f} GB freed")


def step(study: Path, step_id: str, /) -> int:
    """Do one step of a study in this process (what the engines call). Under torchrun: the training of a heal, shared
    by all processes.

    Parameters
    ----------
    study
        The study's folder.
    step_id
        The step's id; see `regrow study status`.
    """
    from regrow.cli.output import watcher
    from regrow.heal.processes import asked_for, together
    from regrow.report.card import model_card
    from regrow.study.engines.engine import BUSY_CODE
    from regrow.study.execute import train_step
    from regrow.study.lease import LeaseTakenError
    from regrow.study.termination import TERMINATED_CODE, TerminatedError, terminable
    from regrow.study.worker import run_step

    try:
        with terminable():
            if asked_for() > 1:
                with together() as processes:
                    train_step(study, step_id, watch=watcher(quiet=not processes.first), card=model_card)
            else:
                run_step(study, step_id, watcher(quiet=False), card=model_card)
    except LeaseTakenError:
        return BUSY_CODE
    except TerminatedError:
        _say_terminated()
        return TERMINATED_CODE
    return 0


def _say_terminated() -> None:
    import sys

    sys.stderr.write("\nstopped by SIGTERM; the same command continues where it stopped\n")


def _read(file: str) -> tuple[Any, str]:
    from regrow.records.kinds import find_file
    from regrow.records.study_spec import read_study_spec

    path = find_file(file, "study")
    return read_study_spec(path), path.stem


def _about(file: Path) -> str:
    first = file.read_text("utf-8").splitlines()[0]
    return first.removeprefix("#").strip()


def _steps(spec: Any, identities: dict[str, str]) -> list[Any]:
    from regrow.capabilities.suites import healing_suite, suite
    from regrow.study.design import capabilities_of, planning_design, steps_of

    capabilities = capabilities_of(spec, [one.name for one in suite(spec.suite)])
    design = planning_design(spec, capabilities, [one.name for one in healing_suite(spec.suite)])
    return steps_of(spec, design, identities)


def _identities(spec: Any, *, strict: bool) -> dict[str, str]:
    """Return what each family's model is; without ``strict`` a model that is not here counts by its name."""
    from regrow.errors import ModelError
    from regrow.models.identity import model_identity

    found = {}
    for family in spec.families:
        try:
            found[family.name] = model_identity(family.model).sha256
        except ModelError:
            if strict:
                raise
            found[family.name] = family.model
    return found


def _drawn_while_it_runs(study: Path, watch: Any) -> Path | None:
    """Draw the report each time that steps have ended, until all have; return the last one."""
    import time

    from regrow.study.lease import LeaseWatch
    from regrow.study.progress import progress_of

    leases, drawn = LeaseWatch(), -1
    while True:
        found = progress_of(study, leases)
        done = found.counts.get("done", 0)
        if found.over:
            return _report(study, watch, must=True)
        if done != drawn:
            _report(study, watch, refresh_seconds=_REDRAW_SECONDS)
            drawn = done
        time.sleep(_REDRAW_SECONDS)


def _report(study: Path, watch: Any, *, refresh_seconds: int = 0, must: bool = False) -> Path | None:
    """Write the report; where that cannot be done yet it is an error (``must``) or a note."""
    from regrow.errors import RegrowError
    from regrow.records.study_runs import read_study
    from regrow.report.charts.paper.all import paper_figures
    from regrow.report.paper.grids import grids_of
    from regrow.report.paper.paper import paper_of
    from regrow.report.paper_files import write_paper_files
    from regrow.report.study_page import write_study_page

    page = study / "report" / "report.html"
    watch.begin("drawing the report")
    try:
        paper = paper_of(read_study(study))
        grids, figures = grids_of(paper), paper_figures(paper)
        write_study_page(page, paper, grids, figures, refresh_seconds=refresh_seconds)
        write_paper_files(page.parent, paper, grids, figures)
    except RegrowError as error:
        if must:
            raise
        watch.note(f"note: no report yet: {error}")
        return None
    watch.end(f"tables and figures beside it in {page.parent}")
    return page
