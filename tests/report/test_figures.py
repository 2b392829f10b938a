import pytest

from regrow.errors import ConfigError, DataError
from regrow.report.charts.reliability import reliability_of
from regrow.report.figures import figures_of, save_figure
from regrow.report.inputs import pair
from regrow.report.losslog import loss_points, read_loss_log
from regrow.report.tables import main_table
from regrow.report.theme import DARK, LIGHT, column_colours
from tests.report.sample_runs import all_stages, evaluation, loss_log


@pytest.fixture(scope="module")
def figures():
    paired = pair(all_stages())
    return {figure.key: figure for figure in figures_of(main_table(paired), paired, loss_points(loss_log()))}


def test_all_charts_are_there_and_described(figures):
    assert list(figures) == ["retention", "fates", "refusal", "reliability", "loss"]
    for figure in figures.values():
        spec = figure.spec(LIGHT)
        assert spec["description"] == figure.description and figure.description.endswith(".")
        assert spec["width"] == "container" and figure.spec(DARK) != spec


def test_the_retention_chart_shows_the_table(figures):
    table = main_table(all_stages())
    spec = figures["retention"].spec(LIGHT)
    points = [p for layer in spec["layer"] for p in layer.get("data", {}).get("values", []) if "model" in p]
    by_place = {(p["capability"], p["model"]): p["kept"] for p in points}
    assert by_place["Math", "healed"] == pytest.approx(table.row("math").kept[3].value)
    assert not any(model == "unpruned" for _, model in by_place)


def test_only_what_can_be_drawn_is_drawn():
    alone = pair([evaluation("unpruned")])
    assert [f.key for f in figures_of(main_table(alone), alone)] == ["refusal", "reliability"]
    record, items = evaluation("pruned")
    bare = pair([(record, [i for i in items if i.capability == "math"])])
    assert figures_of(main_table(bare), bare) == []


def test_reliability_needs_every_confidence():
    record, items = evaluation("unpruned")
    assert list(reliability_of(pair([(record, items)]))) == [0]
    items = [i.model_copy(update={"details": {}}) if i.item_id == "knowledge-003" else i for i in items]
    assert reliability_of(pair([(record, items)])) == {}


def test_charts_can_be_written(figures, tmp_path):
    save_figure(figures["retention"], tmp_path / "a.svg")
    text = (tmp_path / "a.svg").read_text()
    assert "Instruction" in text and "repaired" in text
    save_figure(figures["loss"], tmp_path / "a.png", theme=DARK)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ConfigError, match="bmp"):
        save_figure(figures["loss"], tmp_path / "a.bmp")


def test_models_of_one_stage_have_their_own_colours():
    colours = column_colours(["unpruned", "healed", "healed", "healed"], LIGHT)
    assert len(set(colours)) == 4 and colours[1] == LIGHT.stages["healed"]


def test_a_loss_log_is_read_and_a_broken_one_refused(tmp_path):
    file = tmp_path / "log.jsonl"
    file.write_text('{"tokens": 20, "loss": 1.5}\n\n{"event": "checkpoint"}\n{"tokens": 10, "loss": 2.0}\n{"tok')
    assert read_loss_log(file) == [(10, 2.0), (20, 1.5)]
    file.write_text('{"tok\n{"tokens": 10, "loss": 2.0}\n')
    with pytest.raises(DataError, match="line 1"):
        read_loss_log(file)
    assert loss_points([{"tokens": 1, "loss": float("nan")}, {"loss": 1.0}]) == []
