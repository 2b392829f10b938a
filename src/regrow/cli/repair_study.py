"""``regrow repair-study``."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from regrow.cli.options import Device, Dtype, Json, Output, Pools, Quiet


def repair_study(
    study: str,
    /,
    *,
    output: Output,
    full: Annotated[bool, Parameter(negative="", help="Run the study in its full size (its key 'full').")] = False,
    pools: Pools = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare repairs over cuts, calibration texts and healing runs: fitted, measured, healed, measured again.

    Results go to results.json and results.md in the output folder. Stopped at any moment, the same command continues;
    a study with more cuts or repairs in the same folder does only what is new.

    Parameters
    ----------
    study
        A YAML file, or a study that comes with regrow: methods, criteria, ranks, calibration, sequential, cost,
        before-healing, frozen-or-trained.
    """
    from regrow.cli.output import print_json, stdout_console, watcher
    from regrow.study.repair_spec import load_repair_study

    spec = load_repair_study(study, full=full)
    from regrow.study.repair_results import markdown
    from regrow.study.repair_study import run_repair_study

    found = run_repair_study(spec, output, watch=watcher(quiet), pools_folder=pools, dtype=dtype, device=device)
    if json:
        print_json(found.model_dump(mode="json"))
        return
    stdout_console().print(markdown(found), markup=False, highlight=False, soft_wrap=True)
    if not any(one.row is not None for one in found.outcomes):
        print("no repair of this study suits any of its cuts; the reasons stand in the table")
    print(f"results in {output / 'results.json'} and {output / 'results.md'}")
