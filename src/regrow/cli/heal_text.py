"""What ``regrow heal --dry-run`` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from regrow.cli.output import duration, stdout_console

if TYPE_CHECKING:
    from regrow.study.stages.heal import Forecast


def print_forecast(found: Forecast) -> None:
    """Print a forecast: the pools in a table, then updates, tokens, memory and time."""
    facts, plan, prediction = found.facts, found.plan, found.prediction
    about = "about " if found.sampled else ""
    table = Table(box=None, pad_edge=False)
    table.add_column("pool")
    for name in ("tokens", "sequences", "examples", "cycles", "over quota"):
        table.add_column(name, justify="right")
    for draw in plan.draws:
        cycles = facts["cycles_by_pool"][draw.pool]
        examples = found.examples[draw.pool]
        over = f"{draw.overshoot_tokens:,.0f}"
        table.add_row(
            draw.pool, f"{draw.tokens:,}", f"{about}{draw.sequences:,}", f"{examples:,}", f"{about}{cycles:.2f}", over
        )
    console = stdout_console()
    console.print(table)
    console.print()
    dropped = sum(count for reasons in plan.dropped.values() for count in reasons.values())
    lines = [
        (
            "updates",
            f"{about}{plan.updates:,} of {plan.sequences_per_update} sequences, {plan.mean_sequence_tokens:.0f} tokens "
            "each on average",
        ),
        (
            "tokens",
            f"{plan.tokens:,} for a budget of {plan.budget_tokens:,}; {plan.response_tokens / plan.tokens:.0%} carry "
            f"the loss; {prediction.computed_tokens / plan.tokens:.0%} are computed"
            + ("" if prediction.packing else " (shared beginnings once)"),
        ),
        ("trained", f"{prediction.trained_parameters:,} parameters, products in {prediction.precision}"),
        ("time here", f"{duration(prediction.seconds)} at {prediction.tokens_per_second:,.0f} tokens/s"),
        (
            "memory",
            f"{prediction.peak_bytes / 1e9:.1f} GB at most, {prediction.free_bytes / 1e9:.1f} GB are free"
            + (" (activations recomputed)" if prediction.gradient_checkpointing else ""),
        ),
    ]
    if dropped:
        lines.append(("dropped", f"{dropped:,} examples; --json says why"))
    if not prediction.reuse:
        lines.append(("kept", "states below the trained blocks, computed once a sequence"))
    if found.sampled:
        lines.append(("estimate", f"from {found.sampled} answered prompts a pool; exact once the pools are made"))
    for name, text in lines:
        console.print(f"{name:10} {text}", highlight=False, soft_wrap=True)
