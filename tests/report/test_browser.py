"""The page in a real browser: every figure is drawn, the legend works, nothing is wider than a phone.

Skipped where Chromium, its driver or Selenium is missing.
"""

import json
import shutil

import pytest

from rscfed_jax.config.registry import metrics
from rscfed_jax.report.seeds import CURVES, in_a_sentence
from rscfed_jax.report.write import write_report
from tests.report.runs import write_run

pytest.importorskip("selenium", reason="needs selenium")

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

FIGURES = ("accuracy", "auc", "communication", "partition", "weights", "client_accuracy", "confusion")
JUDGED = ("kept_share", "kept_accuracy", "kept_share_by_class", "kept_accuracy_by_class")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one method, one run of another, one that goes on, and one of an older version."""
    here = tmp_path_factory.mktemp("runs")
    for seed in (0, 1):
        write_run(here / f"rscfed-seed{seed}", seed=seed, pseudo_labels=True, behind=0.1)
    write_run(here / "fedavg", method="fedavg", classes=100, clients=50)
    write_run(here / "going", method="sso", finished=False, stop=3, behind=0.1)
    write_run(here / "old", method="fed_consist", old=True)
    write_report([here])
    return here


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    yield driver
    driver.quit()


@pytest.fixture
def page(browser, runs):
    """The page, opened anew at the width of a desktop; whatever a test does there, the console stays silent."""
    browser.set_window_size(1280, 900)
    browser.get((runs / "report.html").as_uri())
    yield browser
    assert browser.get_log("browser") == []


def lines_in(page, figure):
    """The numbers of the lines that are drawn."""
    found = page.find_elements(By.CSS_SELECTOR, f"[data-figure={figure}] path.line")
    return [int(line.get_attribute("data-line")) for line in found if len(line.get_attribute("d")) > 20]


def drawn(page, figure):
    """How many shapes with an extent a figure holds."""
    shapes = f"[...document.querySelectorAll('[data-figure={figure}] svg :is(path, rect, text)')]"
    return page.execute_script(f"return {shapes}.map((s) => s.getBBox()).filter((b) => b.width + b.height > 0).length")


def choose(page, name):
    Select(page.find_element(By.ID, "run")).select_by_visible_text(name)


def point_at(page, selector):
    """Moves the pointer to the middle of an element, all of which is in view."""
    element = page.find_element(By.CSS_SELECTOR, selector)
    page.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    ActionChains(page).move_to_element(element).perform()


def test_every_figure_is_drawn(page):
    for figure in FIGURES[:3]:
        assert lines_in(page, figure) == [0, 1, 2, 3]
    for name in ("rscfed, seed 1", "fedavg, seed 0"):
        choose(page, name)
        for figure in FIGURES:
            assert drawn(page, figure) > 10, (name, figure)
    assert "NaN" not in page.page_source


def test_pseudo_labels_are_drawn_for_the_lines_that_have_them(page, runs):
    for figure in JUDGED:
        assert drawn(page, figure) > 5, figure
    assert lines_in(page, "kept_share") == lines_in(page, "kept_accuracy") == [2]
    assert page.find_elements(By.CSS_SELECTOR, "[data-figure=kept_share] path.band")
    point_at(page, "[data-figure=kept_accuracy_by_class] svg")
    shown = page.find_element(By.CSS_SELECTOR, "[data-figure=kept_accuracy_by_class] .tip").text
    assert "rscfed" in shown
    assert "kind" in shown
    assert len(page.find_elements(By.CSS_SELECTOR, "[data-figure=kept_accuracy_by_class] path.missing")) == 1
    page.find_elements(By.CSS_SELECTOR, "#legend button")[2].click()
    for figure in JUDGED:
        assert "No lines to show." in page.find_element(By.CSS_SELECTOR, f"[data-figure={figure}]").text


def test_lists_may_be_longer_than_a_stack(page):
    assert page.execute_script("return largest(new Array(300000).fill(2), 1)") == 2
    assert page.execute_script("return smallest(new Array(300000).fill(2))") == 2


def test_lines_lie_within_their_axes_and_rise_with_the_metric(page, runs):
    """The accuracy of a run by its pixels: linear, upward, and inside the picture."""
    for button in page.find_elements(By.CSS_SELECTOR, "#legend button")[1:4]:
        button.click()
    d = page.find_element(By.CSS_SELECTOR, "[data-figure=accuracy] path.line").get_attribute("d")
    xs, ys = zip(*(map(float, point.split()) for point in d[1:].split("L")), strict=True)
    records = [json.loads(line) for line in (runs / "fedavg" / "metrics.jsonl").read_text().splitlines()]
    for pixels, name in ((xs, "round"), (ys, "accuracy")):
        values = [record[name] for record in records]
        slope = (pixels[-1] - pixels[0]) / (values[-1] - values[0])
        assert pixels == pytest.approx([pixels[0] + slope * (value - values[0]) for value in values], abs=1)
    assert xs[0] < xs[-1] < 1280
    assert 20 < ys[-1] < ys[0] < 260


def test_what_was_not_recorded_is_said_to_be_so(page):
    choose(page, "old, seed 0")
    said = [part for part in page.find_elements(By.CSS_SELECTOR, ".lacking") if part.is_displayed()]
    assert [part.text for part in said] == ["Not recorded."] * 4
    assert drawn(page, "confusion") == 0
    choose(page, "going, unfinished, seed 0")
    assert drawn(page, "weights") > 10
    assert drawn(page, "confusion") == 0


def test_the_legend_switches_lines(page):
    buttons = page.find_elements(By.CSS_SELECTOR, "#legend button")
    assert [button.text for button in buttons] == ["fedavg", "old", "rscfed", "going, unfinished", "all or none"]
    buttons[1].click()
    assert buttons[1].get_attribute("aria-pressed") == "false"
    for figure in FIGURES[:3]:
        assert lines_in(page, figure) == [0, 2, 3]
    buttons[1].click()
    assert lines_in(page, "auc") == [0, 1, 2, 3]
    buttons[4].click()
    assert lines_in(page, "accuracy") == []
    assert "No lines to show." in page.find_element(By.CSS_SELECTOR, "[data-figure=accuracy]").text
    buttons[4].click()
    assert lines_in(page, "accuracy") == [0, 1, 2, 3]


def test_the_pointer_reads_values(page, runs):
    for button in page.find_elements(By.CSS_SELECTOR, "#legend button")[1:4]:
        button.click()
    point_at(page, "[data-figure=accuracy] path.line")  # its middle: round 3 of 6
    record = json.loads((runs / "fedavg" / "metrics.jsonl").read_text().splitlines()[3])
    tip = page.find_element(By.CSS_SELECTOR, "[data-figure=accuracy] .tip")
    assert tip.text.split() == ["round", "3", "fedavg", f"{100 * record['accuracy']:.2f}", "%"]
    point_at(page, "[data-figure=communication] svg")
    shown = page.find_element(By.CSS_SELECTOR, "[data-figure=communication] .tip").text
    assert "6.6 MB" in shown
    assert "models up" in shown
    choose(page, "rscfed, seed 0")
    point_at(page, "[data-figure=confusion] svg")
    assert "kind" in page.find_element(By.CSS_SELECTOR, "[data-figure=confusion] .tip").text


def test_the_numbers_are_those_of_the_summary(page, runs):
    page.find_element(By.CSS_SELECTOR, "details summary").click()
    rows = page.find_elements(By.CSS_SELECTOR, "#runs tbody tr")
    assert len(rows) == 5
    for row in rows:
        summary = runs / row.find_element(By.TAG_NAME, "th").text.rpartition("/")[2] / "summary.json"
        if not summary.exists():
            continue
        content = json.loads(summary.read_text())
        for part, shown in (("final", metrics()), ("best", CURVES)):
            for metric in shown:
                label = f"{part.title()} {in_a_sentence(metrics()[metric])}"
                cell = row.find_element(By.CSS_SELECTOR, f'td[data-label="{label}"]')
                if metric not in content[part]:
                    assert cell.text == "–"
                    continue
                assert float(cell.get_attribute("data-value")) == content[part][metric]
                assert cell.text == f"{100 * content[part][metric]:.2f}"


@pytest.mark.parametrize("mode", ["light", "dark"])
def test_a_phone_does_not_scroll_sideways(page, mode):
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    colours = {"features": [{"name": "prefers-color-scheme", "value": mode}]}
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", colours)
    page.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        page.refresh()
        for part in page.find_elements(By.CSS_SELECTOR, "details summary"):
            part.click()
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        wide = "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert page.execute_script(wide) == 0
        background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (mode == "light")
        for figure in FIGURES:
            assert drawn(page, figure) > 10
        for figure in JUDGED:
            assert drawn(page, figure) > 5
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_a_new_width_draws_anew(page):
    width = "return document.querySelector('[data-figure=accuracy] svg').viewBox.baseVal.width"
    before = page.execute_script(width)
    page.set_window_size(700, 900)
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert 280 < page.execute_script(width) != before
