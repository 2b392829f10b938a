"""A study's page in a real browser: it draws, sorts, filters, traces numbers to runs and asks for nothing."""

import json

import pytest

from regrow.report.charts.paper.all import paper_figures
from regrow.report.paper.grids import grids_of
from regrow.report.study_page import write_study_page
from tests.report.browser import Browser, chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(chromium() is None, reason="no Chromium on the PATH"),
    pytest.mark.timeout(240),
]

DRAWN = "[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn)"


@pytest.fixture(scope="module")
def opened(paper, tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    page = folder / "report.html"
    write_study_page(page, paper, grids_of(paper), paper_figures(paper))
    with Browser(folder / "profile") as browser:
        browser.show(width=1280)
        browser.open(page)
        browser.wait_for(DRAWN, 120)
        yield browser, page
        assert browser.complaints == []
        assert {request for request in browser.requests if not request.startswith(("data:", "blob:"))} == {
            page.as_uri()
        }


def choose(browser, element, value, shown="shown"):
    browser.run(
        f"(() => {{ const e = document.getElementById('{element}'); e.value = {json.dumps(value)};"
        " e.dispatchEvent(new Event('input')); })()"
    )
    return browser.run(f"document.getElementById('{shown}').textContent")


def test_every_chart_of_every_figure_is_drawn(opened):
    browser, _ = opened
    drawn = browser.run(
        "[...document.querySelectorAll('.chart')].map(c => [c.id, c.querySelectorAll('svg path').length])"
    )
    assert len(drawn) == 18 and all(marks > 5 for _, marks in drawn), drawn
    assert browser.run("document.querySelectorAll('#figures figure').length") == 6


def test_labels_of_the_charts_do_not_touch(opened):
    browser, _ = opened
    overlaps = browser.run(
        """[...document.querySelectorAll('.chart')].flatMap(chart => {
          const texts = [...chart.querySelectorAll('.role-axis-label text')];
          const seen = texts.filter(t => getComputedStyle(t).opacity !== '0');
          const boxes = seen.map(t => t.getBoundingClientRect());
          const found = [];
          boxes.forEach((a, i) => boxes.slice(i + 1).forEach(b => {
            if (a.left < b.right - 0.5 && b.left < a.right - 0.5 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
              found.push(chart.id);
          }));
          return found;
        })"""
    )
    assert overlaps == []


def test_the_five_tables(opened):
    browser, _ = opened
    titles = browser.run("[...document.querySelectorAll('#tables h3')].map(h => h.textContent)")
    assert [title[:8] for title in titles] == [f"Table {number}." for number in range(1, 6)]
    assert browser.run("document.querySelectorAll('#table-results td b').length") >= 4


def test_a_number_leads_to_its_runs(opened):
    browser, _ = opened
    browser.run("[...document.querySelectorAll('#table-results .trace')][0].click()")
    named = browser.run("[...document.querySelectorAll('#tray-runs code')].map(c => c.textContent)")
    assert named[0] == "runs/llama-unpruned" and len(named) == 3
    lit = browser.run("[...document.querySelectorAll('#run-rows tr.lit')].map(line => line.dataset.run)")
    assert sorted(lit) == sorted(named)
    browser.run("document.dispatchEvent(new KeyboardEvent('keydown', {key: 'Escape'}))")
    assert browser.run("document.getElementById('tray').hidden")


def test_items_are_sorted_and_filtered(opened):
    browser, _ = opened
    assert browser.run("document.getElementById('shown').textContent") == "288 items"
    assert choose(browser, "by-family", "qwen") == "144 of 288 items"
    assert choose(browser, "by-capability", "Math") == "24 of 288 items"
    assert choose(browser, "search", "math-01") == "10 of 288 items"
    browser.run("document.querySelectorAll('#item-head button')[0].click()")
    browser.run("document.querySelectorAll('#item-head button')[0].click()")
    assert browser.run("document.querySelector('#item-rows td').textContent") == "math-019"
    browser.run("document.querySelector('#item-rows .open').click()")
    assert "to 19" in browser.run("document.querySelector('#item-rows .detail pre').textContent")
    choose(browser, "search", "")
    choose(browser, "by-capability", "")
    assert choose(browser, "by-family", "") == "288 items"


def test_runs_are_filtered(opened):
    browser, _ = opened
    assert choose(browser, "run-search", "llama rah-capped", "run-shown").startswith("2 of ")
    assert choose(browser, "run-search", "", "run-shown").endswith(" runs")


def test_a_whole_figure_can_be_saved(opened):
    browser, _ = opened
    browser.run('document.querySelector(\'[data-whole="scopes"][data-kind="svg"]\').click()')
    browser.wait_for("document.querySelector('[data-whole=\"scopes\"][data-kind=\"svg\"]').dataset.done === 'yes'")
    browser.run("document.querySelector('[data-file=\"table3-results.csv\"]').click()")


def test_dark(opened):
    browser, _ = opened
    light = browser.run("getComputedStyle(document.body).backgroundColor")
    browser.run("document.getElementById('theme').click()")
    browser.wait_for("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn === 'dark')", 120)
    assert browser.run("getComputedStyle(document.body).backgroundColor") != light
    browser.run("document.getElementById('theme').click()")
    browser.wait_for("[...document.querySelectorAll('.chart')].every(chart => chart.dataset.drawn === 'light')", 120)


def test_a_telephone(opened):
    browser, page = opened
    browser.show(width=420)
    browser.open(page)
    browser.wait_for(DRAWN, 120)
    assert browser.run("document.documentElement.scrollWidth <= window.innerWidth")
    signs = "[...document.querySelectorAll('#tables .scroll-sign')].map(s => s.classList.contains('on'))"
    assert browser.run(signs) == [True] * 5
