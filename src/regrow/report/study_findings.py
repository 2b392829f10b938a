"""What a study shows, in sentences that follow from its tests and from nothing else."""

from __future__ import annotations

import math
from typing import Any

import polars

from regrow.report.paper.comparisons import FIXED, TOKEN_MATCHED
from regrow.report.paper.grids import p_text, signed, tokens, two
from regrow.report.paper.paper import Paper
from regrow.report.wording import capability_name, listed


def study_sentences(paper: Paper) -> list[str]:
    """Return the findings of a study: what breaks, where to train, what a plan gains, what is left once it is paid."""
    found = [_damage(paper), _scope(paper), _fixed(paper), _matched(paper)]
    return [sentence for sentence in found if sentence]


def _damage(paper: Paper) -> str:
    ranks = sorted(
        paper.concordance.filter(polars.col("measure") == "corrected").iter_rows(named=True),
        key=lambda row: row["mean_rank"],
    )
    cut = [family for family in paper.families if family.cuts]
    if not cut:
        return ""
    if not ranks or not math.isfinite(ranks[0]["mean_rank"]):
        family, method = cut[0], cut[0].cuts[0]
        kept = dict(zip(family.defined, family.mean_kept(method), strict=True))
        if not kept:
            return ""
        worst, best = min(kept, key=lambda name: kept[name]), max(kept, key=lambda name: kept[name])
        return (
            f"Pruning {family.name} left {two(kept[worst])} of {capability_name(worst).lower()} and {two(kept[best])} "
            f"of {capability_name(best).lower()}."
        )
    first, last = (capability_name(ranks[place]["capability"]).lower() for place in (0, -1))
    raw = next(iter(paper.concordance.filter(polars.col("measure") == "raw").iter_rows(named=True)))
    agree = "agree" if ranks[0]["p_value"] <= 0.05 else "are not shown to agree"
    return (
        f"Pruning breaks {first} most and {last} least above chance; the {len(cut)} families {agree} on the order "
        f"(W = {two(ranks[0]['w'])}, p = {p_text(ranks[0]['p_value'])}; by raw retention W = {two(raw['w'])}, "
        f"p = {p_text(raw['p_value'])})."
    )


def _scope(paper: Paper) -> str:
    rows = [row for row in paper.scopes.iter_rows(named=True) if math.isfinite(row["difference"])]
    if not rows:
        return ""
    parts = []
    for family in dict.fromkeys(row["family"] for row in rows):
        own = [row for row in rows if row["family"] == family]
        far = max(own, key=lambda row: abs(row["difference"]))
        sure = "" if far["holm"] <= 0.05 else " (does not stand after Holm's correction)"
        parts.append(f"{signed(far['difference'])} with {far['scope']} in {family}{sure}")
    return f"Against all-lora, the same mixture moves the capped mean by {listed(parts)}."


def _fixed(paper: Paper) -> str:
    rows = list(paper.comparisons.filter(polars.col("tests") == FIXED).iter_rows(named=True))
    if not rows:
        return ""
    sure = [row for row in rows if _holm(row) <= 0.05]
    better = [row for row in sure if row["difference"] > 0]
    worse = [row for row in sure if row["difference"] < 0]
    head = (
        f"At {tokens(paper.budget)} healing tokens, {len(sure)} of {len(rows)} tests of planned rules against simple "
        "ones stand"
    )
    if not sure:
        return f"{head} after Holm's correction: no advantage of planning was shown. {_reach(rows)}"
    parts = []
    if better:
        parts.append(f"planned is better in {listed([_named(row) for row in better])}")
    if worse:
        parts.append(f"worse in {listed([_named(row) for row in worse])}")
    return f"{head} after Holm's correction: {'; '.join(parts)}."


def _matched(paper: Paper) -> str:
    rows = list(paper.comparisons.filter(polars.col("tests") == TOKEN_MATCHED).iter_rows(named=True))
    if not rows:
        return ""
    planned = [row for row in rows if _holm(row) <= 0.05 and row["difference"] > 0]
    longer = [row for row in rows if _holm(row) <= 0.05 and row["difference"] < 0]
    lower = sum(row["difference"] < 0 for row in rows)
    amount = tokens(max(row["tokens_b"] for row in rows))
    said = (
        f"Once the pilots are paid for, the uniform mixture on {amount} tokens is ahead in {lower} of {len(rows)} "
        "comparisons"
    )
    if longer:
        said += f", and the lead stands in {listed([_named(row) for row in longer])}"
    if planned:
        said += f"; the plan's lead stands in {listed([_named(row) for row in planned])}"
    if not longer and not planned:
        said += "; none of the differences stands after Holm's correction"
    return said + "."


def _reach(rows: list[dict[str, Any]]) -> str:
    reach = sorted(row["detectable"] for row in rows if math.isfinite(row["detectable"]))
    if not reach:
        return ""
    middle = reach[len(reach) // 2]
    return f"A true difference below about {two(middle)} would often have gone undetected."


def _named(row: dict[str, Any]) -> str:
    metric = "capped mean" if row["metric"] == "capped_mean" else "worst case"
    return f"{row['family']} ({row['a']}, {metric} {signed(row['difference'])})"


def _holm(row: dict[str, Any]) -> float:
    value = row["holm_seed"] if math.isfinite(row["p_seed"]) else row["holm_item"]
    return float(value)
