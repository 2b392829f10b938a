"""A study's page and figures without a browser."""

import json
import re

import pytest

from regrow.errors import ConfigError
from regrow.records.study_runs import Coordinates, Study, read_study
from regrow.report.charts.paper.all import paper_figures
from regrow.report.charts.paper.axes import decades
from regrow.report.charts.paper.palette import family_inks, rule_inks, scope_inks
from regrow.report.charts.paper.panel import save_paper_figure
from regrow.report.embed import vega_script
from regrow.report.paper.grids import grids_of
from regrow.report.paper.paper import paper_of
from regrow.report.scored import Drawing
from regrow.report.study_page import render_study_page
from regrow.report.theme import DARK, LIGHT
from tests.report.sample_study import CAPABILITIES, write_run

HOSTILE = "</script><script>window.hit = 1</script><img src=x onerror='window.hit = 2'>"


@pytest.fixture(scope="module")
def figures(paper):
    return paper_figures(paper)


def test_six_figures_in_order(figures):
    assert [figure.number for figure in figures] == [1, 2, 3, 4, 5, 6]
    assert [len(figure.panels) for figure in figures] == [2, 2, 2, 6, 4, 2]
    for figure in figures:
        assert figure.frame.height and figure.description and figure.caption
        assert len({panel.key for panel in figure.panels}) == len(figure.panels)


def test_a_page_of_a_study_under_way_loads_itself_anew(paper, figures):
    grids = grids_of(paper)
    assert '<meta http-equiv="refresh" content="30">' in render_study_page(paper, grids, figures, refresh_seconds=30)
    assert 'http-equiv="refresh"' not in render_study_page(paper, grids, figures)


def test_every_panel_names_the_data_that_it_has(figures):
    def named(spec):
        if isinstance(spec, dict):
            own = [spec["data"]["name"]] if isinstance(spec.get("data"), dict) and "name" in spec["data"] else []
            return own + [name for value in spec.values() for name in named(value)]
        return [name for part in spec for name in named(part)] if isinstance(spec, list) else []

    for figure in figures:
        for panel in figure.panels:
            spec = figure.panel_spec(panel, LIGHT)
            assert set(named({k: v for k, v in spec.items() if k != "datasets"})) <= set(spec["datasets"])
            assert spec["width"] == "container"
        whole = figure.whole_spec(DARK)
        assert {name for name in named(whole) if "/" in name} <= set(whole["datasets"])
        json.dumps(whole, allow_nan=False)


def test_a_figure_as_a_file(figures, tmp_path):
    for ending, begins in ((".png", b"\x89PNG"), (".pdf", b"%PDF"), (".svg", b"<svg")):
        save_paper_figure(figures[2], tmp_path / f"figure{ending}")
        assert (tmp_path / f"figure{ending}").read_bytes().startswith(begins)
    drawn = (tmp_path / "figure.svg").read_text()
    assert "all-lora" in drawn and "Worst case" in drawn and "qwen" in drawn
    with pytest.raises(ConfigError, match=r"\.jpg"):
        save_paper_figure(figures[2], tmp_path / "figure.jpg")


def test_colours_and_shapes_are_distinct():
    for inks in (
        family_inks(["a", "b", "c", "d"]),
        scope_inks(["all-lora", "cut-lora", "last-k", "head"]),
        rule_inks(["uniform", "damage-proportional", "rah", "rah-capped", "slowest-first", "token-matched", "doremi"]),
    ):
        assert len({ink.light for ink in inks}) == len({ink.dark for ink in inks}) == len(inks)
        assert len({(ink.shape, ink.light) for ink in inks}) == len(inks)


def test_ticks_of_tokens():
    assert decades(2_500, 3_000_000) == [3e3, 1e4, 3e4, 1e5, 3e5, 1e6, 3e6]
    assert decades(400_000, 6e6) == [5e5, 1e6, 2e6, 5e6]


def hostile(paper):
    runs = []
    for run in paper.study.runs:
        if run.coordinates.family != "llama" or run.coordinates.pilot or run.record.split != "test":
            continue
        if run.coordinates.rule not in ("", "uniform", "rah"):
            continue
        items = tuple(
            item.model_copy(update={"response": HOSTILE}) if item.item_id == "math-001" else item for item in run.items
        )
        model = run.record.model.model_copy(update={"source": HOSTILE})
        name = run.coordinates.family.replace("llama", "llama<b>")
        runs.append(
            run.model_copy(
                update={
                    "items": items,
                    "record": run.record.model_copy(update={"model": model}),
                    "coordinates": run.coordinates.model_copy(update={"family": name}),
                }
            )
        )
    return paper_of(Study(paper.study.path, tuple(runs)), drawing=Drawing(0, 100))


def test_nothing_that_was_not_written_by_us_is_markup(paper):
    other = hostile(paper)
    page = render_study_page(other, grids_of(other), paper_figures(other))
    assert "llama<b>" not in page and "llama&lt;b&gt;" in page
    ours = page.replace(vega_script(), "")
    assert "<img" not in ours and ours.count("</script>") == 4
    data = json.loads(re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S)[1])
    assert any(HOSTILE in row["r"] for row in data["items"]["rows"])
    assert 'http-equiv="Content-Security-Policy"' in page and "default-src &#39;none&#39;" in page


def test_what_the_page_holds(paper):
    page = render_study_page(paper, grids_of(paper), paper_figures(paper))
    data = json.loads(re.search(r'<script type="application/json" id="report-data">(.*?)</script>', page, re.S)[1])
    assert len(data["charts"]) == 18 and len(data["figures"]) == 6
    assert {"table1-retention.csv", "table4-tests.tex", "figure5-budgets.csv", "runs.csv"} <= set(data["files"])
    assert len(data["items"]["rows"]) == 2 * 6 * 24
    assert data["items"]["columns"][:2] == ["Unpruned", "Pruned"]
    places = {place for trace in data["traces"] for place in trace}
    assert places and places <= {run.place for run in paper.study.runs}
    assert page.count('class="trace"') > 150


def test_a_study_whose_unpruned_model_knows_nothing_has_a_page(tmp_path):
    right = dict.fromkeys(CAPABILITIES, 0.0)
    healed = Coordinates(family="llama", stage="healed", rule="uniform", scope="all-lora", budget=1_000, seed=0)
    for number, at in enumerate(
        (Coordinates(family="llama", stage="unpruned"), Coordinates(family="llama", stage="pruned"), healed)
    ):
        write_run(tmp_path, f"run-{number}", at, right, dict.fromkeys(CAPABILITIES, 4))
    nothing = paper_of(read_study(tmp_path))
    drawn = paper_figures(nothing)
    assert "budgets" not in [figure.key for figure in drawn]
    page = render_study_page(nothing, grids_of(nothing), drawn)
    assert "uniform" in page.lower() and "nan" not in re.findall(r">\s*(nan)\s*<", page.lower())
