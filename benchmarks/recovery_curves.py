"""Recovery curves: the mini suite's dev score against healing tokens, for several scopes and seeds.

SmolLM2-135M loses two blocks; each scope is healed anew for every budget and seed (a heal's schedule ends with its
budget, so a shorter one is no part of a longer one) on the same pools, which the unpruned model answers. Rates are
twice the scope's own, as in the quickstart, because so few tokens make few updates.

Every point is one evaluation folder; the same command continues where it stopped. `--seconds` ends a session early.

Run: python benchmarks/recovery_curves.py --folder recovery [--seconds 240] [--draw docs/healing]
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

PRUNED = "pruned"


class Point(NamedTuple):
    """One heal to make and to measure."""

    scope: str
    tokens: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.scope}-{self.tokens}-seed{self.seed}"


def mean(values: Iterable[float]) -> float:
    found = list(values)
    return sum(found) / len(found)


def points_of(options: argparse.Namespace) -> list[Point]:
    """Return the points, seed by seed, so that a run cut short holds whole curves of fewer seeds."""
    return [
        Point(scope, tokens, seed)
        for seed in range(options.seeds)
        for scope in options.scopes.split(",")
        for tokens in (int(text) for text in options.budgets.split(","))
    ]


class Session:
    """The models and pools of a run in ``folder``, made when they are first needed."""

    def __init__(self, options: argparse.Namespace) -> None:
        from regrow.cli.output import PlainWatcher
        from regrow.records.specs import EvalSpec

        self.options = options
        self.folder: Path = options.folder
        self.watch = PlainWatcher(every=20.0)
        self.evaluation = EvalSpec(split="dev", items=options.items, perplexity=False)

    def prepare(self) -> Iterator[str]:
        """Make what every point needs, yielding after each step."""
        from regrow.models.load import load_model
        from regrow.records.specs import PruneSpec
        from regrow.study.stages.evaluate import evaluate
        from regrow.study.stages.prune import prune

        blocks = tuple(int(text) for text in self.options.remove.split(","))
        if not (self.folder / PRUNED).exists():
            prune(
                self.options.model,
                PruneSpec(blocks=blocks),
                self.folder / PRUNED,
                watch=self.watch,
                dtype="float32",
                device=self.options.device,
            )
            yield PRUNED
        for name, source in (("unpruned", self.options.model), (PRUNED, str(self.folder / PRUNED))):
            place = self.folder / "evaluations" / name
            if not (place / "result.json").exists():
                evaluate(source, self.evaluation, place, watch=self.watch, dtype="float32", device=self.options.device)
                yield name
        if not self._pools_there():
            self.pools(load_model(self.options.model, dtype="float32", device=self.options.device))
            yield "pools"

    def _pools_there(self) -> bool:
        return (self.folder / "pools" / ".complete").exists()

    def pools(self, teacher=None):
        """Return the pools; ``teacher`` answers the prompts of those that are missing."""
        from regrow.study.stages.pools import pools_of

        found = pools_of(
            "mini",
            lambda: teacher,
            source=self.options.model,
            weights_sha256="",
            examples=self.options.pool_examples,
            watch=self.watch,
            folder=self.folder / "pools",
        )
        (self.folder / "pools" / ".complete").touch()
        return found

    def run(self, point: Point) -> None:
        """Heal and measure one point."""
        from regrow.heal.loop import heal
        from regrow.heal.registry import SCOPES
        from regrow.models.load import load_model
        from regrow.records.specs import HealSpec
        from regrow.study.stages.evaluate import evaluate

        place = self.folder / "evaluations" / point.name
        state = self.folder / "heals" / point.name
        loaded = load_model(self.folder / PRUNED, dtype="float32", device=self.options.device)
        own = float(dict(SCOPES.entry(point.scope).facts)["learning_rate"])
        spec = HealSpec(
            tokens=point.tokens,
            scope=point.scope,
            learning_rate=2 * own,
            sequences_per_update=self.options.sequences_per_update,
            seed=point.seed,
        )
        result = heal(loaded, self.pools(), spec, state, watch=self.watch)
        evaluate(
            str(self.folder / PRUNED),
            self.evaluation,
            place,
            watch=self.watch,
            label=point.name,
            dtype="float32",
            device=self.options.device,
            loaded=loaded,
        )
        facts = {
            "tokens": result.tokens,
            "updates": result.updates,
            "loss": result.loss,
            "seconds": result.wall_seconds,
        }
        (place / "healing.json").write_text(json.dumps(facts))
        shutil.rmtree(state, ignore_errors=True)


def scores_in(folder: Path) -> dict[str, float]:
    """Return the mean score of each capability in an evaluation folder."""
    from regrow.capabilities.suites import suite
    from regrow.records.store import read_evaluation

    _, items = read_evaluation(folder)
    found = {}
    for capability in suite("mini"):
        mine = [item for item in items if item.capability == capability.name]
        if mine:
            found[capability.name] = capability.summarise(mine)["score"]
    return found


def rows_of(options: argparse.Namespace) -> tuple[list[dict], dict[str, dict[str, float]]]:
    """Return one row per measured point (0 tokens: the pruned model), and the scores of the two references."""
    places = options.folder / "evaluations"
    ends = {name: scores_in(places / name) for name in ("unpruned", PRUNED) if (places / name / "result.json").exists()}
    rows = []
    for point in points_of(options):
        done = places / point.name / "healing.json"
        if done.exists():
            scores = scores_in(places / point.name)
            trained = json.loads(done.read_text())["tokens"]  # a little over the budget, other for each seed
            rows.append({**point._asdict(), "trained": trained, "mean": mean(scores.values()), **scores})
    return rows, ends


def print_table(rows: list[dict], ends: dict[str, dict[str, float]]) -> None:
    if not ends:
        return
    names = list(next(iter(ends.values())))
    print("scope,tokens,seed,mean," + ",".join(names))
    for end, scores in ends.items():
        print(f"{end},0,,{mean(scores.values()):.3f}," + ",".join(f"{scores[name]:.3f}" for name in names))
    for row in rows:
        print(
            f"{row['scope']},{row['tokens']},{row['seed']},{row['mean']:.3f},"
            + ",".join(f"{row[n]:.3f}" for n in names)
        )


def draw(rows: list[dict], ends: dict[str, dict[str, float]], stem: Path) -> None:
    """Write STEM.png and STEM.csv: the mean over the capabilities, a line of means over seeds, a mark for each seed."""
    import altair as alt

    from regrow.report.charts.frame import SHAPES, Figure, framed
    from regrow.report.figures import save_figure
    from regrow.report.theme import Theme

    scopes = list(dict.fromkeys(row["scope"] for row in rows))
    start = mean(ends[PRUNED].values())
    top = mean(ends["unpruned"].values())
    marks = [{"scope": row["scope"], "tokens": row["tokens"] / 1000, "score": row["mean"]} for row in rows]
    lines = []
    for scope in scopes:
        lines.append({"scope": scope, "tokens": 0, "score": start})
        budgets = sorted({mark["tokens"] for mark in marks if mark["scope"] == scope})
        for budget in budgets:
            there = [mark["score"] for mark in marks if mark["scope"] == scope and mark["tokens"] == budget]
            lines.append({"scope": scope, "tokens": budget, "score": mean(there)})

    def chart(theme: Theme) -> alt.TopLevelMixin:
        colours = [theme.stages["healed"], theme.stages["repaired"], theme.stages["pruned"], *theme.extra][
            : len(scopes)
        ]
        x = alt.X("tokens:Q", title="budget of healing tokens (thousands)")
        y = alt.Y("score:Q", title="mean of six dev scores", scale=alt.Scale(zero=False), axis=alt.Axis(format="%"))
        legend = alt.Legend(title=None, orient="top", symbolSize=70)
        colour = alt.Color("scope:N", scale=alt.Scale(domain=scopes, range=colours), sort=scopes, legend=legend)
        shape = alt.Shape("scope:N", scale=alt.Scale(domain=scopes, range=list(SHAPES[: len(scopes)])), sort=scopes)
        data = alt.Chart(alt.Data(values=lines))
        seeds = alt.Chart(alt.Data(values=marks)).mark_point(size=45, filled=True, opacity=0.55)
        whole = alt.Chart(alt.Data(values=[{"score": top, "say": "unpruned"}]))
        layers = alt.layer(
            whole.mark_rule(strokeWidth=1.5, strokeDash=[5, 4], color=theme.stages["unpruned"]).encode(y=y),
            whole.mark_text(align="left", dx=4, dy=12, color=theme.muted).encode(y=y, x=alt.value(0), text="say:N"),
            data.mark_line(strokeWidth=2.2).encode(x=x, y=y, color=colour),
            seeds.encode(x=x, y=y, color=colour, shape=shape),
        )
        return framed(layers, theme, height=300)

    ends_at = {scope: [line for line in lines if line["scope"] == scope][-1]["score"] for scope in scopes}
    said = ", ".join(f"{scope} {score:.0%}" for scope, score in ends_at.items())
    figure = Figure(
        "recovery",
        "Recovery",
        "Mean dev score of the mini suite against healing tokens; marks are seeds, lines their means.",
        f"Line chart of the mean dev score against healing tokens. Pruned {start:.0%}; at the largest budget {said}.",
        chart,
    )
    save_figure(figure, stem.with_suffix(".png"))
    names = list(ends[PRUNED])
    text = ["scope,tokens,seed,trained,mean," + ",".join(names)]
    text += [f"{end},0,,0," + ",".join(f"{v:.4f}" for v in (mean(s.values()), *s.values())) for end, s in ends.items()]
    text += [
        f"{row['scope']},{row['tokens']},{row['seed']},{row['trained']},"
        + ",".join(f"{row[name]:.4f}" for name in ("mean", *names))
        for row in rows
    ]
    stem.with_suffix(".csv").write_text("\n".join(text) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path("recovery"))
    parser.add_argument("--model", default="embedded:smollm2-135m")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--remove", default="13,14")
    parser.add_argument("--scopes", default="all-lora,cut-lora,last-k")
    parser.add_argument("--budgets", default="6000,12000,24000")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--items", type=int, default=20, help="dev items a capability")
    parser.add_argument("--pool-examples", type=int, default=32)
    parser.add_argument("--sequences-per-update", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="begin no further step after this time")
    parser.add_argument("--draw", type=Path, help="write STEM.png and STEM.csv from the points that are there")
    options = parser.parse_args()
    began = time.monotonic()
    session = Session(options)
    for step in session.prepare():
        print(f"{step} after {time.monotonic() - began:.0f} s", flush=True)
        if time.monotonic() - began > options.seconds:
            return
    for point in points_of(options):
        if (options.folder / "evaluations" / point.name / "healing.json").exists():
            continue
        if time.monotonic() - began > options.seconds:
            break
        session.run(point)
        print(f"{point.name} after {time.monotonic() - began:.0f} s", flush=True)
    rows, ends = rows_of(options)
    print_table(rows, ends)
    if options.draw and rows:
        draw(rows, ends, options.draw)


if __name__ == "__main__":
    main()
