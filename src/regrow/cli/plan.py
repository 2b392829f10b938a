"""``regrow plan``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from regrow.cli.options import Json, whole

if TYPE_CHECKING:
    from regrow.planning.overview import FamilyPlan


def plan(
    pilots: Path | None = None,
    /,
    *,
    budget: Annotated[
        list[str] | None,
        Parameter(negative="", help="Healing tokens; again, or with commas (1M,250k), for several. Default: 1M."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        Parameter(negative="", help="Only this rule; several as above. Default: all the file suffices for."),
    ] = None,
    family: Annotated[list[str] | None, Parameter(negative="", help="Only this family of the file.")] = None,
    output: Annotated[
        Path | None,
        Parameter(name=["--output", "-o"], help="Write the one plan asked for, for `regrow heal --mixture`."),
    ] = None,
    solver: Annotated[
        str, Parameter(help="study (the published numbers) or exact (global fits, certified optimum).")
    ] = "study",
    signed_transfer: Annotated[
        bool, Parameter(negative="", help="Let a pool harm other capabilities (always with global fits).")
    ] = False,
    uncertainty: Annotated[bool, Parameter(help="Intervals, spread of plans, lack of fit, worth of a pilot.")] = True,
    parameters: Annotated[str | None, Parameter(help="Size of the pruned model (1.1B), for FLOPs.")] = None,
    training_rate: Annotated[float | None, Parameter(help="Tokens trained per second on this machine.")] = None,
    generation_rate: Annotated[float | None, Parameter(help="Tokens generated per second.")] = None,
    reading_rate: Annotated[float | None, Parameter(help="Prompt tokens read per second.")] = None,
    seed: Annotated[int, whole(help="Seed of the drawn curves.")] = 0,
    json: Json = False,
) -> None:
    """Split a healing budget over pools from pilots: fits, allocations, costs and warnings.

    Without a file it lists what each rule needs before it can be run, and what that costs.

    Parameters
    ----------
    pilots
        A file of dev counts (layout in docs/planning.md), or a study folder: its `pilots.json`, else its pilot runs.
    """
    from regrow.cli.output import print_json, stdout_console
    from regrow.cli.plan_text import print_needs, print_plans
    from regrow.errors import ConfigError, did_you_mean
    from regrow.planning.cost import Workload
    from regrow.planning.overview import BUDGET, as_json, plan_families, rules_needs, whole_tokens
    from regrow.planning.pilot_files import read_pilots
    from regrow.planning.planner import SOLVERS
    from regrow.records.quantities import parse_tokens

    asked = [text for entry in budget or [] for text in entry.split(",")]
    budgets = list(dict.fromkeys(parse_tokens(text, option="--budget") for text in asked)) or [BUDGET]
    rules = [name for entry in rule or [] for name in entry.split(",")] or None
    if solver not in SOLVERS:
        raise ConfigError(f"unknown solver '{solver}'", hint=did_you_mean(solver, SOLVERS))
    nan = float("nan")
    rates = {"--training-rate": training_rate, "--generation-rate": generation_rate, "--reading-rate": reading_rate}
    for option, rate in rates.items():
        if rate is not None and not 0 < rate < float("inf"):
            raise ConfigError(f"{option} must be positive, got {rate:g}", hint=f"{option} 500")
    workload = Workload(
        parameters=parse_tokens(parameters, option="--parameters") if parameters else nan,
        training_rate=training_rate or nan,
        generation_rate=generation_rate or nan,
        reading_rate=reading_rate or nan,
    )
    if pilots is None:
        if output is not None:
            raise ConfigError("a plan needs a file of pilots", hint="regrow plan FILE --rule rah -o mixture.yaml")
        rows = rules_needs(budgets[0], workload, rules)
        if json:
            print_json({"rules": [row.as_json() for row in rows]})
        else:
            print_needs(stdout_console(), rows, budgets[0])
        return
    families = read_pilots(pilots)
    names = [one.family for one in families]
    for name in family or []:
        if name not in names:
            raise ConfigError(f"unknown family '{name}' in '{pilots}'", hint=did_you_mean(name, names))
    plans = plan_families(
        families,
        budgets,
        rules,
        only=family,
        solver=solver,
        transfer="signed" if signed_transfer else "free",
        workload=workload,
        explained=not json,
        uncertain=uncertainty and not json,
        seed=seed,
        processes=os.cpu_count() or 1,
    )
    _refuse_unknown_scopes(plans)
    if output is not None:
        from regrow.records.atomic import write_text

        if len(plans) != 1 or len(plans[0].plans) != 1:
            raise ConfigError(
                f"--output writes one plan, but {sum(len(one.plans) for one in plans)} were asked for",
                hint=f"add --family {names[0]} --rule rah --budget 1M",
            )
        only = plans[0].plans[0]
        tokens = whole_tokens(only.allocation.tokens, only.budget)
        write_text(output, "".join(f"{pool}: {count}\n" for pool, count in tokens.items()))
    if json:
        print_json(as_json(plans, budgets))
        return
    print_plans(stdout_console(), plans, budgets, solver)
    if output is not None:
        only = plans[0].plans[0]
        print(
            f"mixture: {output}; heal with: regrow heal PRUNED -o HEALED --tokens {round(only.budget)} "
            f"--mixture {output} --scope {only.allocation.scope}"
        )


def _refuse_unknown_scopes(plans: Sequence[FamilyPlan]) -> None:
    """Refuse a plan for a scope that `regrow heal` does not have."""
    from regrow.errors import DataError, did_you_mean
    from regrow.heal.registry import SCOPES

    for one in plans:
        for scope in dict.fromkeys([one.scope, *one.pilots.scope_counts]):
            if scope not in SCOPES.names():
                raise DataError(
                    f"family '{one.pilots.family}' has pilots of an unknown scope '{scope}'",
                    hint=did_you_mean(scope, SCOPES.names()),
                )
