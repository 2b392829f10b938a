"""The page in a real browser: it draws, sorts, filters, asks for nothing and runs nothing that a model wrote."""

import json

import pytest

from regrow.report.page import write_page
from tests.report.browser import Browser, chromium
from tests.report.sample_runs import all_stages, loss_log, with_changed

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on the PATH"),
    pytest.mark.timeout(180),
]

HOSTILE = "</script><script>window.hit = 1; alert(1)</script><img src=x onerror='window.hit = 2'>"
DRAWN = "[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn)"


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    log = folder / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in loss_log()))
    runs = []
    for record, items in all_stages():
        run = (record, items)
        for item_id in ("structured_output-000", "math-002"):
            run = with_changed(run, item_id, response=HOSTILE, details={"question": HOSTILE})
        runs.append((record.model_copy(update={"label": record.label + HOSTILE}), run[1]))
    write_page(folder / "report.html", runs, healing_log=log)
    with Browser(folder / "profile") as browser:
        browser.show(width=1280)
        browser.open(folder / "report.html")
        browser.wait_for(DRAWN)
        yield browser, folder / "report.html"
        assert browser.complaints == []
        assert browser.dialogs == []
        assert {request for request in browser.requests if not request.startswith("data:")} == {
            (folder / "report.html").as_uri()
        }
        assert browser.run("window.hit") is None


def test_every_chart_is_drawn(opened):
    browser, _ = opened
    keys = browser.run("[...document.querySelectorAll('.chart')].map(chart => chart.id)")
    assert keys == ["chart-retention", "chart-fates", "chart-refusal", "chart-reliability", "chart-loss"]
    marks = browser.run(
        "[...document.querySelectorAll('.chart')].map(chart => chart.querySelectorAll('svg path').length)"
    )
    assert all(count > 10 for count in marks)


def test_the_tables_are_there(opened):
    browser, _ = opened
    assert browser.run("document.querySelectorAll('table.main tbody tr').length") == 12
    assert browser.run("document.querySelector('table.main tbody th').textContent").startswith("Structured output")
    assert browser.run("document.querySelectorAll('#item-rows tr').length") == 25
    assert browser.run("document.getElementById('shown').textContent") == "360 items"


def test_sorting(opened):
    browser, _ = opened
    first = "document.querySelector('#item-rows td').textContent"
    browser.run("document.querySelectorAll('#item-head button')[0].click()")
    assert browser.run(first) == "function_calling-000"
    browser.run("document.querySelectorAll('#item-head button')[0].click()")
    assert browser.run(first) == "structured_output-059"
    assert browser.run("document.querySelector('#item-head th').getAttribute('aria-sort')") == "descending"
    browser.run("document.querySelectorAll('#item-head button')[3].click()")
    assert "wrong" in browser.run("document.querySelectorAll('#item-rows td')[3].textContent")


def test_filtering(opened):
    browser, _ = opened

    def choose(element, value):
        browser.run(
            f"(() => {{ const e = document.getElementById('{element}'); e.value = {json.dumps(value)};"
            " e.dispatchEvent(new Event('input')); })()"
        )
        return browser.run("document.getElementById('shown').textContent")

    assert choose("by-capability", "Math") == "60 of 360 items"
    assert int(choose("by-fate", "came back").split()[0]) > 0
    rows = browser.run("[...document.querySelectorAll('#item-rows tr')].map(row => row.cells[2].textContent)")
    assert set(rows) == {"came back"}
    choose("by-fate", "")
    assert choose("search", "math-01") == "10 of 360 items"
    assert choose("search", "no such words") == "0 of 360 items"
    assert browser.run("document.querySelector('#item-rows').textContent") == "No item matches."
    choose("search", "")
    assert choose("by-capability", "") == "360 items"


def test_more_items_can_be_shown(opened):
    browser, _ = opened
    before = browser.run("document.querySelectorAll('#item-rows tr').length")
    browser.run("document.getElementById('more').click()")
    assert browser.run("document.querySelectorAll('#item-rows tr').length") == before + 100


def test_what_a_model_wrote_is_text_and_nothing_else(opened):
    browser, _ = opened
    browser.run(
        "(() => { const s = document.getElementById('search'); s.value = 'math-002';"
        " s.dispatchEvent(new Event('input')); document.querySelector('#item-rows .open').click(); })()"
    )
    shown = browser.run("document.querySelector('#item-rows .detail pre').textContent")
    assert shown == HOSTILE
    assert browser.run("document.querySelectorAll('img').length") == 0
    assert browser.run("document.querySelectorAll('script').length") == 3
    browser.run("document.querySelectorAll('#item-rows .open')[0].click()")
    assert browser.run("document.querySelectorAll('#item-rows .detail').length") == 0


def test_answers_side_by_side(opened):
    browser, _ = opened
    assert browser.run("document.querySelectorAll('details.answers').length") == 6
    assert browser.run("document.querySelectorAll('details.answers[open] .answer').length") == 12


def test_retention_above_chance_can_be_shown(opened):
    browser, _ = opened
    seen = "[...document.querySelectorAll('td.kept .corrected')].filter(e => e.offsetParent).length"
    assert browser.run(seen) == 0
    browser.run("document.getElementById('above-chance').click()")
    assert browser.run(seen) > 0
    browser.run("document.getElementById('above-chance').click()")


def test_light_and_dark(opened):
    browser, _ = opened
    colour = "getComputedStyle(document.body).backgroundColor"
    browser.show(width=1280, dark=True)
    browser.wait_for("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn === 'dark')")
    dark = browser.run(colour)
    browser.run("document.getElementById('theme').click()")
    browser.wait_for("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn === 'light')")
    assert browser.run(colour) != dark
    browser.run("document.getElementById('theme').click()")
    browser.wait_for("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn === 'dark')")
    assert browser.run(colour) == dark


def test_a_telephone_scrolls_down_only(opened):
    browser, page = opened
    browser.show(width=420)
    browser.open(page)
    browser.wait_for(DRAWN)
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")


def test_a_wide_table_says_that_it_scrolls(opened):
    browser, _ = opened
    browser.show(width=420)
    sign = "document.querySelector('#table .scroll-sign')"
    browser.wait_for(f"{sign}.classList.contains('on')")
    assert "scroll" in browser.run(f"{sign}.textContent")
    assert browser.run("document.querySelector('#table .scroll').previousElementSibling.className").startswith(
        "scroll-sign"
    )


def test_the_names_of_the_capabilities_do_not_touch(opened):
    browser, _ = opened
    gaps = browser.run(
        """[...document.querySelectorAll('#chart-fates, #chart-retention')].map(chart => {
          const all = [...chart.querySelectorAll('.role-axis-label text')];
          const texts = all.filter(t => /[a-z]/.test(t.textContent));
          const boxes = texts.map(t => t.getBoundingClientRect()).filter(b => b.width);
          return Math.min(...boxes.flatMap((a, i) => boxes.slice(i + 1)
            .filter(b => a.left < b.right && b.left < a.right).map(b => Math.max(b.top - a.bottom, a.top - b.bottom))));
        })"""
    )
    assert len(gaps) == 2 and min(gaps) >= 2, gaps
