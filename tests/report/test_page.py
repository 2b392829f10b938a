import json
import re
from html.parser import HTMLParser

import pytest

from regrow.records.checkpoint import CheckpointFacts, Step
from regrow.report.embed import content_policy, json_block, script, script_hash, vega_script
from regrow.report.page import write_page
from tests.report.sample_runs import all_stages, evaluation, loss_log, record_of, with_changed

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)><!-- \u2028 {{ 7 * 7 }} & \"'"


class Elements(HTMLParser):
    """Start tags with their attributes, and the text of each script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._in_script = tag == "script"
        if self._in_script:
            self.scripts.append((dict(attributes), ""))

    def handle_endtag(self, tag):
        self._in_script = False

    def handle_data(self, data):
        if self._in_script:
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in loss_log()))
    runs = [
        with_changed(run, "math-000", response=HOSTILE, details={"question": HOSTILE})
        if run[0].stage == "healed"
        else with_changed(run, "math-000", details={"question": HOSTILE})
        for run in all_stages(per_capability=20)
    ]
    runs = [(r.model_copy(update={"label": HOSTILE}) if r.stage == "repaired" else r, items) for r, items in runs]
    step = Step(kind="prune", options={"x": HOSTILE}, outcome={}, provenance=record_of("pruned").provenance)
    facts = CheckpointFacts(source="x", unpruned_blocks=30, removed_blocks=(13, 14), steps=(step,))
    write_page(folder / "report.html", runs, healing_log=log, facts=facts, commands=["regrow quickstart"])
    return (folder / "report.html").read_text("utf-8")


def test_three_scripts_and_no_others(page):
    found = Elements(page)
    kinds = [attributes.get("type", "") for attributes, _ in found.scripts]
    assert kinds == ["application/json", "", ""]
    assert not any(tag == "img" for tag, _ in found.tags)
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)


def test_the_policy_allows_exactly_the_scripts_of_the_page(page):
    found = Elements(page)
    policy = next(a["content"] for tag, a in found.tags if a.get("http-equiv") == "Content-Security-Policy")
    for attributes, text in found.scripts:
        if not attributes:
            assert script_hash(text) in policy
    assert "unsafe-eval" not in policy and "'unsafe-inline'" not in policy.split("style-src")[0]
    assert policy.startswith("default-src 'none'")


def test_nothing_is_fetched(page):
    found = Elements(page)
    for tag, attributes in found.tags:
        for name in ("src", "href", "action", "poster", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith(("#", "data:")), (tag, value)
    assert not re.search(r"@import|url\(", page.split("</style>")[0])


def test_hostile_text_is_shown_as_it_is(page):
    found = Elements(page)
    data = json.loads(found.scripts[0][1])
    item = next(row for row in data["items"]["rows"] if row["i"] == "math-000")
    assert item["r"][3] == HOSTILE and item["q"] == HOSTILE
    assert data["items"]["columns"][2] == HOSTILE
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in page
    assert "49" not in re.findall(r"\u2028 (\S+ \S+ \S+ \S+)", page)


def test_everything_of_the_report_is_on_the_page(page):
    for text in (
        "broke function calling",
        "Capped mean of retention",
        "Unsafe refused",
        "Perplexity",
        "regrow quickstart",
        "Weights sha256",
        "Generated tokens",
        "How to read this table",
        'id="chart-loss"',
    ):
        assert text in page
    found = Elements(page)
    assert sum(tag == "h1" for tag, _ in found.tags) == 1
    assert sum(tag == "table" for tag, _ in found.tags) >= 5
    assert all(a.get("aria-label") for tag, a in found.tags if "chart" in str(a.get("class", "")).split())


@pytest.mark.parametrize("stages", [["pruned"], ["unpruned"], ["unpruned", "healed"], ["pruned", "healed"]])
def test_any_subset_of_stages_makes_a_page(stages, tmp_path):
    table = write_page(tmp_path / "r.html", [evaluation(stage, per_capability=8) for stage in stages])
    text = (tmp_path / "r.html").read_text("utf-8")
    assert len(table.columns) == len(stages)
    assert ("verdict on" in text) == ("unpruned" in stages and len(stages) > 1)


def test_one_capability_without_charts_needs_no_vega(tmp_path):
    record, items = evaluation("pruned")
    write_page(tmp_path / "r.html", [(record, [i for i in items if i.capability == "math"])])
    assert (tmp_path / "r.html").stat().st_size < 200_000


def test_recorded_settings_become_a_command(tmp_path):
    write_page(tmp_path / "r.html", [evaluation("pruned", per_capability=8)])
    assert "regrow eval checkpoints/pruned --items 8 --output evaluations/pruned" in (tmp_path / "r.html").read_text()


def test_long_answers_are_cut_and_counted(tmp_path):
    run = with_changed(evaluation("pruned", per_capability=8), "math-000", response="a" * 100_000)
    write_page(tmp_path / "r.html", [run])
    text = (tmp_path / "r.html").read_text()
    assert "a" * 4_000 in text and "a" * 4_001 not in text


def test_embedding_refuses_what_it_cannot_hold():
    assert "<" not in str(json_block("x", {"a": "</script>"}))[40:-9]
    with pytest.raises(ValueError, match="JSON compliant"):
        json_block("x", float("nan"))
    for code in ("var a = '</script>'", "<!--", "a\r\n"):
        with pytest.raises(ValueError):
            script(code)
    assert script_hash("a") in content_policy(["a"])
    assert "</script" not in vega_script().lower()
