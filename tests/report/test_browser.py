"""The page in a real browser: figures, legend, sorting, comparison, and nothing is wider than a phone.

Skipped where Chromium, its driver or Selenium is missing.
"""

import json
import shutil
from statistics import stdev

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
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

FIGURES = ("accuracy", "auc", "communication", "partition", "weights", "client_accuracy", "confusion")
JUDGED = ("kept_share", "kept_accuracy", "kept_share_by_class", "kept_accuracy_by_class")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one method, one run of another, one that goes on, and one of an older version.

    In the order of their lines: fedavg, old, rscfed, going.
    """
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


def choose(page, name, select="run"):
    Select(page.find_element(By.ID, select)).select_by_visible_text(name)


def rows_of(page, table):
    return page.find_elements(By.CSS_SELECTOR, f"#{table} tbody tr")


def names_in(page, table):
    """The first column, from top to bottom."""
    return [row.find_element(By.TAG_NAME, "th").text for row in rows_of(page, table)]


def head_of(page, table, title):
    return page.find_element(By.XPATH, f"//table[@id='{table}']//th[button='{title}']")


def differences(page):
    """The rows of the comparison: A, B and their difference, by measure."""
    rows = rows_of(page, "differences")
    fields = [[field.text for field in row.find_elements(By.TAG_NAME, "td")] for row in rows]
    return dict(zip(names_in(page, "differences"), fields, strict=True))


def classes_in(page):
    """The class names and the signed numbers of the bars."""
    texts = page.find_elements(By.CSS_SELECTOR, "[data-figure=recall_difference] svg text")
    numbers = [text.text for text in texts if text.get_attribute("class") == "on"]
    names = [text.text for text in texts if text.text.startswith(tuple("0123456789")) and " kind" in text.text]
    return names, numbers


def choose_order(page, name):
    """Sorts the cards of a phone."""
    choice = page.find_element(By.CSS_SELECTOR, "label.sort select")
    assert choice.is_displayed()
    Select(choice).select_by_visible_text(name)


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
    said = [part for part in page.find_elements(By.CSS_SELECTOR, "#inside .lacking") if part.is_displayed()]
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
    page.find_element(By.CSS_SELECTOR, "details:has(#runs) > summary").click()
    rows = {row.find_element(By.TAG_NAME, "th").text.rpartition("/")[2]: row for row in rows_of(page, "runs")}
    assert set(rows) == {"rscfed-seed0", "rscfed-seed1", "fedavg", "going", "old"}
    for name, row in rows.items():
        summary = runs / name / "summary.json"
        if name == "going":
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
        page.execute_script("document.querySelectorAll('details').forEach((part) => { part.open = true; })")
        assert page.execute_script("return document.documentElement.scrollWidth") == 390
        wide = "return [...document.querySelectorAll('.scroll')].filter((e) => e.scrollWidth > e.clientWidth).length"
        assert page.execute_script(wide) == 0
        background = page.execute_script("return getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (mode == "light")
        choose_order(page, "Calibration error, lowest first")
        assert names_in(page, "final")[-1] == "old"
        for figure in FIGURES:
            assert drawn(page, figure) > 10
        for figure in JUDGED:
            assert drawn(page, figure) > 5
    finally:
        page.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


def test_heads_sort_their_table(page):
    assert names_in(page, "final") == ["fedavg", "old", "rscfed", "going, unfinished"]
    accuracy = head_of(page, "final", "Accuracy")
    assert accuracy.get_attribute("aria-sort") == "descending"
    accuracy.find_element(By.TAG_NAME, "button").click()
    assert accuracy.get_attribute("aria-sort") == "ascending"
    assert names_in(page, "final") == ["going, unfinished", "rscfed", "old", "fedavg"]
    assert names_in(page, "best") == ["fedavg", "old", "rscfed", "going, unfinished"]
    head_of(page, "final", "Run").find_element(By.TAG_NAME, "button").click()
    assert accuracy.get_attribute("aria-sort") is None
    assert names_in(page, "final") == ["fedavg", "going, unfinished", "old", "rscfed"]


def test_rows_without_a_number_stay_last(page):
    button = head_of(page, "final", "Calibration error").find_element(By.TAG_NAME, "button")
    for sign in (1, -1):
        button.click()
        *others, last = rows_of(page, "final")
        values = [
            float(row.find_element(By.CSS_SELECTOR, 'td[data-label="Calibration error"]').get_attribute("data-value"))
            for row in others
        ]
        assert values == sorted(values, key=lambda value: sign * value)
        assert last.find_element(By.TAG_NAME, "th").text == "old"


def test_heads_are_reached_and_pressed_by_keys(page):
    button = head_of(page, "final", "AUC").find_element(By.TAG_NAME, "button")
    page.execute_script("arguments[0].focus()", head_of(page, "final", "Accuracy").find_element(By.TAG_NAME, "button"))
    ActionChains(page).send_keys(Keys.TAB).perform()
    assert page.switch_to.active_element == button
    ActionChains(page).send_keys(Keys.ENTER).perform()
    assert head_of(page, "final", "AUC").get_attribute("aria-sort") == "descending"


def test_seeds_have_a_band(page):
    for figure in FIGURES[:3]:
        bands = page.find_elements(By.CSS_SELECTOR, f"[data-figure={figure}] path.band")
        assert [band.get_attribute("data-line") for band in bands] == ["2"]


def test_a_button_of_the_legend_dims_the_other_lines(page):
    point_at(page, "#legend button[data-line='2']")
    dim = page.find_elements(By.CSS_SELECTOR, "[data-figure=accuracy] path.line.dim")
    assert sorted(line.get_attribute("data-line") for line in dim) == ["0", "1", "3"]
    point_at(page, "h1")
    assert not page.find_elements(By.CSS_SELECTOR, ".dim")


def test_settings_fold(page):
    for is_shown in (True, False, True):
        assert page.find_element(By.ID, "differing").is_displayed() == is_shown
        page.find_element(By.CSS_SELECTOR, "details:has(#differing) > summary").click()


def test_two_runs_are_compared_by_their_metrics(page, runs):
    final = {
        name: json.loads((runs / name / "summary.json").read_text())["final"]
        for name in ("fedavg", "old", "rscfed-seed0", "rscfed-seed1")
    }
    shown = differences(page)  # the two most accurate
    a, b = (100 * final[name]["accuracy"] for name in ("fedavg", "old"))
    assert shown["Accuracy"] == [f"{a:.2f}", f"{b:.2f}", f"+{a - b:.2f}"]
    assert shown["Macro F1"][1:] == ["–", "–"]
    choose(page, "rscfed, seed 1", "first")
    choose(page, "rscfed, seed 0", "second")
    shown = differences(page)
    for name, title in metrics().items():
        a, b = (100 * final[f"rscfed-seed{seed}"][name] for seed in (1, 0))
        assert shown[title][:2] == [f"{a:.2f}", f"{b:.2f}"]
        assert shown[title][2] == f"{a - b:+.2f}".replace("-", "−")
        bold = page.find_elements(By.XPATH, f"//table[@id='differences']//tr[th='{title}']/td[strong]")
        assert [text.text for text in bold] == [f"{(min if name == 'calibration_error' else max)(a, b):.2f}"]
    assert shown["Sent up, MB"] == ["13.20", "13.20", "0.00"]
    folded = page.find_element(By.CSS_SELECTOR, "#other_settings details")
    folded.find_element(By.TAG_NAME, "summary").click()
    assert folded.find_element(By.TAG_NAME, "table").text.split() == ["Setting", "A", "B", "seed", "1", "0"]


def test_two_runs_are_compared_by_class(page, runs):
    choose(page, "rscfed, seed 1", "first")
    choose(page, "rscfed, seed 0", "second")
    recalls = []
    for seed in (1, 0):
        confusion = json.loads((runs / f"rscfed-seed{seed}" / "summary.json").read_text())["confusion"]
        recalls.append([100 * row[label] / sum(row) for label, row in enumerate(confusion)])
    expected = [a - b for a, b in zip(*recalls, strict=True)]
    names, numbers = classes_in(page)
    assert names == [f"{label} kind {label}" for label in range(4)]
    assert numbers == [f"{value:+.1f}".replace("-", "−") for value in expected]
    for kind in ("more", "less"):
        bars = page.find_elements(By.CSS_SELECTOR, f"[data-figure=recall_difference] rect.{kind}")
        assert len(bars) == sum((value > 0) == (kind == "more") for value in expected)
    point_at(page, "[data-figure=recall_difference] svg")
    assert "kind" in page.find_element(By.CSS_SELECTOR, "[data-figure=recall_difference] .tip").text


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("fedavg", "rscfed", "The two runs have different classes."),
        ("old", "rscfed", "No confusion matrix for A."),
        ("rscfed", "going, unfinished", "No confusion matrix for B."),
        ("rscfed", "rscfed", "Choose two different runs."),
    ],
)
def test_classes_that_cannot_be_compared_are_said_to_be_so(page, first, second, said):
    choose(page, first, "first")
    choose(page, second, "second")
    assert page.find_element(By.CSS_SELECTOR, "#compare .lacking").text == said
    assert drawn(page, "recall_difference") == 0


def test_the_difference_of_two_means_is_paired_by_seed(page):
    a = {"seeds": [0, 1, 2], "values": [[0.5, 0.6, 0.7]]}
    b = {"seeds": [2, 0, 1], "values": [[0.6, 0.4, 0.4]]}
    found = page.execute_script("return differenceOf(...arguments, 0)", a, b)
    assert found["difference"] == pytest.approx(0.6 - 1.4 / 3)
    assert found["deviation"] == pytest.approx(stdev([0.1, 0.2, 0.1]))
    for seeds in ([0, 1, 3], [0, 1, 1]):
        found = page.execute_script("return differenceOf(...arguments, 0)", a, b | {"seeds": seeds})
        assert found["deviation"] is None
        assert found["difference"] == pytest.approx(0.6 - 1.4 / 3)


def test_of_many_classes_the_most_different_are_drawn(page):
    classes = [{"value": value} for value in range(-50, 51)]
    shown = [found["value"] for found in page.execute_script("return mostDifferent(arguments[0])", classes)]
    assert shown == [*range(50, 38, -1), *range(-39, -51, -1)]


def test_of_many_lines_the_most_accurate_are_drawn(browser, tmp_path):
    for number in range(12):
        write_run(tmp_path / f"cell{number}", tau=0.05 + 0.05 * number, behind=0.008 * number, rounds=3)
    write_report([tmp_path])
    browser.get((tmp_path / "report.html").as_uri())
    assert lines_in(browser, "accuracy") == list(range(10))
    browser.find_element(By.CSS_SELECTOR, "#legend button.all").click()
    assert lines_in(browser, "accuracy") == list(range(12))
    bold = browser.find_elements(By.CSS_SELECTOR, "#final strong")
    assert {text.find_element(By.XPATH, "..").get_attribute("data-label") for text in bold} == set(metrics().values())
    assert all(int(text.value_of_css_property("font-weight")) >= 700 for text in bold)
    assert browser.get_log("browser") == []


def test_a_single_run_has_nothing_to_compare(browser, tmp_path):
    write_run(tmp_path / "going", finished=False, stop=2)
    write_report([tmp_path])
    browser.get((tmp_path / "report.html").as_uri())
    assert lines_in(browser, "accuracy") == [0]
    assert not browser.find_elements(By.ID, "compare")
    assert not browser.find_elements(By.CSS_SELECTOR, "#final button, #final strong")
    assert browser.get_log("browser") == []


def test_without_a_script_the_tables_remain(page):
    page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        page.refresh()
        assert names_in(page, "final") == ["fedavg", "old", "rscfed", "going, unfinished"]
        assert page.find_element(By.CSS_SELECTOR, "main noscript p").is_displayed()
        assert not [part for part in page.find_elements(By.CSS_SELECTOR, "figure, select") if part.is_displayed()]
        assert not page.find_elements(By.CSS_SELECTOR, "thead button")
        page.find_element(By.CSS_SELECTOR, "details:has(#runs) > summary").click()
        assert page.find_element(By.ID, "runs").is_displayed()
    finally:
        page.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})


def test_paper_has_what_is_folded_on_a_screen(page):
    page.execute_script("dispatchEvent(new Event('beforeprint'))")
    assert not page.find_elements(By.CSS_SELECTOR, "details:not([open])")
    page.execute_script("dispatchEvent(new Event('afterprint'))")
    assert page.find_elements(By.CSS_SELECTOR, "details:not([open])")


def test_a_new_width_draws_anew(page):
    width = "return document.querySelector('[data-figure=accuracy] svg').viewBox.baseVal.width"
    before = page.execute_script(width)
    page.set_window_size(700, 900)
    page.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert 280 < page.execute_script(width) != before
