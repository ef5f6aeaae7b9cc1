"""The page in a real browser: its figures are the report's, and it makes no network requests."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from graphmem.analysis import Analysis, Request, run_analysis
from graphmem.cli import main
from graphmem.record import save
from graphmem.render.page import page
from graphmem.report.advice_info import AdviceInfo, BatchInfo
from graphmem.report.categories import CATEGORY_COLOURS
from graphmem.report.schema import Findings
from graphmem.units import format_bytes
from tests.support.browser import Open, wait_until
from tests.support.places import ROOT
from tests.support.rendered import HOSTILE_NAMES, hostile_analysis, small_analysis

LEFT, TOP, BOTTOM = 74, 40, 46  # MARGIN of timeline.js

# How high above the axis the dot of the peak is, in pixels; its radius is 4.
PEAK_HEIGHT = f"""
const [canvas] = arguments;
const {{ width, height }} = canvas;
const {{ data }} = canvas.getContext("2d").getImageData(0, 0, width, height);
const accent = getComputedStyle(document.documentElement).getPropertyValue("--accent").trim();
const wanted = parseInt(accent.slice(1), 16);
const isAccent = (at) => (data[at] << 16 | data[at + 1] << 8 | data[at + 2]) === wanted;
for (let at = data.length - 4; at >= 0; at -= 4) {{
  if (isAccent(at)) return height - {BOTTOM} - (Math.floor(at / 4 / width) + 1 - 4);
}}
"""

# The colours of the picture.
COLOURS = """
const [canvas] = arguments;
const { width, height } = canvas;
const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
const found = new Set();
for (let at = 0; at < data.length; at += 4) found.add(data.slice(at, at + 3).join());
return [...found];
"""

# WCAG 2.2, 1.4.3: 4.5 to 1, large text 3 to 1; text on a picture counts as on white.
CONTRASTS = """
const parts = (text) => {
  const [r, g, b, a] = text.match(/[\\d.]+/g).map(Number);
  return [r, g, b, a === undefined ? 1 : a];
};
const over = (front, back) =>
  [0, 1, 2].map((i) => front[i] * front[3] + back[i] * (1 - front[3])).concat(1);
const light = (colour) => {
  const [r, g, b] = colour.slice(0, 3).map((each) => {
    const part = each / 255;
    return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  if (!element) return [255, 255, 255, 1];
  const style = getComputedStyle(element);
  const colour = parts(style.backgroundColor);
  if (style.backgroundImage !== "none") return [255, 255, 255, 1];
  return colour[3] === 1 ? colour : over(colour, behind(element.parentElement));
};
const found = [];
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (!texts.currentNode.data.trim() || !element.checkVisibility()) continue;
  if (["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"].includes(element.tagName)) continue;
  const style = getComputedStyle(element);
  const back = behind(element);
  const isDrawn = element.namespaceURI.endsWith("svg");
  const [a, b] = [over(parts(isDrawn ? style.fill : style.color), back), back].map(light);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
  if (ratio < (isLarge ? 3 : 4.5)) {
    found.push([texts.currentNode.data.trim().slice(0, 40), ratio.toFixed(2)]);
  }
}
// What the canvas writes and draws: text, and lines, which need 3 to 1 (1.4.11).
const root = getComputedStyle(document.documentElement);
const variable = (name) => {
  const probe = document.body.appendChild(document.createElement("i"));
  probe.style.color = root.getPropertyValue(`--${name}`);
  const colour = parts(getComputedStyle(probe).color);
  probe.remove();
  return colour;
};
for (const band of ["band", "band-other"]) {
  const back = over(variable(band), variable("surface"));
  for (const name of ["text", "muted", "accent", "more"]) {
    const [a, b] = [variable(name), back].map(light);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push([`${name} on ${band}`, ratio.toFixed(2)]);
  }
}
return found;
"""


def text_of(browser: webdriver.Chrome, element: str) -> str:
    return browser.find_element(By.ID, element).text


def click_timeline(browser: webdriver.Chrome, x: float, y: float) -> None:
    """Click at an offset from the canvas's upper left corner."""
    canvas = browser.find_element(By.ID, "timeline")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    size = canvas.size
    moves = ActionChains(browser).move_to_element_with_offset(
        canvas, int(x - size["width"] / 2), int(y - size["height"] / 2)
    )
    moves.click().perform()


def exact(nbytes: int) -> str:
    return f"{nbytes:,} bytes"


def peak_x(browser: webdriver.Chrome, analysis: Analysis) -> float:
    """Where the peak is drawn: initially the step of the peak fills the canvas."""
    ticks = [moment.tick for moment in analysis.timeline.moments]
    phases = analysis.graph.phases_of(analysis.report.peak.step)
    first = next(i for i, tick in enumerate(ticks) if tick >= phases[0].start)
    last = next((i for i, tick in enumerate(ticks) if tick > phases[-1].end), len(ticks))
    allocated = [moment.allocated for moment in analysis.timeline.moments]
    width = browser.find_element(By.ID, "timeline").size["width"] - LEFT - 14
    return LEFT + (allocated.index(max(allocated)) + 0.5 - first) / (last - first) * width


def test_a_click_on_the_peak_shows_the_figures_of_the_report(open_page: Open) -> None:
    analysis = small_analysis()
    peak = analysis.report.peak
    browser = open_page(page(analysis))

    browser.find_element(By.ID, "timeline").send_keys(Keys.HOME)
    assert text_of(browser, "moment-allocated") == exact(0)
    browser.find_element(By.ID, "peak-step").click()
    click_timeline(browser, peak_x(browser, analysis), TOP + 60)

    assert text_of(browser, "moment-allocated") == exact(peak.allocated)
    assert text_of(browser, "moment-requested") == exact(peak.requested)
    assert text_of(browser, "moment-reserved") == exact(peak.reserved)
    assert text_of(browser, "moment-phase") == f"step {peak.step} {peak.phase}"


@pytest.mark.parametrize("compiled", [False, True])
def test_the_categories_at_the_peak_are_those_of_the_report(
    open_page: Open, compiled: bool
) -> None:
    """Compiled, the peak is in the backward pass, which has taken over what was saved."""
    if compiled:
        pytest.importorskip("triton")
    analysis = small_analysis(compiled=compiled)
    browser = open_page(page(analysis))

    items = browser.find_elements(By.CSS_SELECTOR, "#categories li")
    shown = {
        item.get_attribute("data-category"): int(item.get_attribute("data-bytes") or 0)
        for item in items
    }

    by_category = analysis.report.at_peak.by_category
    assert shown == {name: nbytes for name, nbytes in by_category.items() if nbytes}


def test_the_table_lists_the_holders_of_the_report(open_page: Open) -> None:
    analysis = small_analysis()
    browser = open_page(page(analysis))

    rows = browser.find_elements(By.CSS_SELECTOR, "#holders-body tr")
    shown = [int(row.get_attribute("data-bytes") or 0) for row in rows]
    reasons = [row.find_elements(By.TAG_NAME, "td")[3].text for row in rows]

    holders = analysis.report.at_peak.holders[: len(rows)]
    assert shown == [holder.bytes for holder in holders]
    assert sorted(reasons) == sorted(holder.reason for holder in holders)


def test_the_sums_by_module_are_those_of_the_report(open_page: Open) -> None:
    analysis = small_analysis()
    browser = open_page(page(analysis))

    browser.find_element(By.CSS_SELECTOR, "#group-by option:nth-child(2)").click()
    rows = browser.find_elements(By.CSS_SELECTOR, "#holders-body tr")
    shown = {
        row.find_elements(By.TAG_NAME, "td")[1].text: int(row.get_attribute("data-bytes") or 0)
        for row in rows
    }

    assert shown == analysis.report.at_peak.by_module


def test_a_click_on_a_band_shows_a_storage_with_its_owners(open_page: Open) -> None:
    browser = open_page(page(small_analysis()))

    size = browser.find_element(By.ID, "timeline").size
    click_timeline(browser, size["width"] / 2, size["height"] - 52)

    assert text_of(browser, "storage-bytes").endswith(" bytes")
    assert browser.find_elements(By.CSS_SELECTOR, ".owners li")


def test_everything_can_be_reached_by_keyboard(open_page: Open) -> None:
    analysis = small_analysis()
    browser = open_page(page(analysis))
    canvas = browser.find_element(By.ID, "timeline")

    canvas.send_keys(Keys.HOME, "0", "p", Keys.ARROW_UP)

    assert text_of(browser, "moment-allocated") == exact(analysis.report.peak.allocated)
    assert text_of(browser, "storage-bytes") == exact(analysis.report.at_peak.holders[0].bytes)


def test_search_finds_the_storages_of_a_module(open_page: Open) -> None:
    browser = open_page(page(small_analysis()))

    browser.find_element(By.ID, "search").send_keys("geluBackward0.self")
    rows = browser.find_elements(By.CSS_SELECTOR, "#holders-body tr")

    assert text_of(browser, "search-result").endswith(f" storages, {len(rows)} in the table")
    assert rows
    assert all("GeluBackward0.self" in row.text for row in rows)


def refused_analysis() -> Analysis:
    """4 layers that save 4 x 128 MiB on a card of 512 MiB."""

    def wide() -> Any:
        layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh()) for _ in range(4)]
        return torch.nn.Sequential(*layers), torch.randn(1 << 17, 256)

    card = "name=small,memory=768MiB,sm=8.0,multiprocessors=40"
    return run_analysis(wide, Request(steps=1, gpu=card))


def test_the_page_begins_with_the_verdict(open_page: Open) -> None:
    analysis = refused_analysis()
    browser = open_page(page(analysis))

    headline = text_of(browser, "verdict-title")
    assert headline.startswith("does NOT fit on small")
    colour = browser.find_element(By.ID, "verdict-title").value_of_css_property("color")
    red, green, blue = (int(each) for each in re.findall(r"\d+", colour)[:3])
    assert red > 2 * max(green, blue)
    refused = analysis.report.on_card
    assert refused is not None
    assert refused.refused is not None
    assert f"({refused.refused.requested:,} bytes)" in text_of(browser, "verdict")


def test_the_picture_shows_where_the_card_ends(open_page: Open) -> None:
    """Above the card's capacity the background is red; for a step that fits nothing is."""
    analysis = refused_analysis()
    card = analysis.report.on_card
    assert card is not None

    browser = open_page(page(analysis))
    assert f"card capacity, {format_bytes(card.capacity)}" in text_of(browser, "legend")
    red, _, blue, _ = pixel_at_the_top(browser)
    assert red - blue > 5

    browser = open_page(page(small_analysis()))
    red, _, blue, _ = pixel_at_the_top(browser)
    assert red - blue <= 5


def is_like(pixel: str, colour: str) -> bool:
    """Whether a pixel has a shade of this colour that fills: edges are darker."""
    found, wanted = [int(each) for each in pixel.split(",")], bytes.fromhex(colour[1:])
    shares = [part / whole for part, whole in zip(found, wanted, strict=True)]
    return max(shares) - min(shares) < 0.02 and 0.7 < min(shares) <= 1


def pixel_at_the_top(browser: webdriver.Chrome) -> list[int]:
    """At the right edge of the picture."""
    found: list[int] = browser.execute_script(
        "const canvas = document.getElementById('timeline');"
        "const context = canvas.getContext('2d');"
        f"return [...context.getImageData(canvas.width - 30, {TOP + 6}, 1, 1).data]"
    )
    return found


def test_neighbours_of_one_category_differ_in_colour(open_page: Open) -> None:
    """The saved activations of four layers have at least four fills."""
    browser = open_page(page(small_analysis()))

    def purple() -> list[str]:
        colours = browser.execute_script(COLOURS, browser.find_element(By.ID, "timeline"))
        return [each for each in colours if is_like(each, CATEGORY_COLOURS["activation"])]

    wait_until(lambda: len(purple()) >= 4)  # it is painted after the page is ready


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_has_the_contrast_wcag_requires(open_page: Open, theme: str) -> None:
    browser = open_page(page(refused_analysis()))
    browser.execute_script("document.documentElement.dataset.theme = arguments[0]", theme)

    assert browser.execute_script(CONTRASTS) == []


def test_a_narrow_screen_shows_all_of_it(open_page: Open) -> None:
    analysis = refused_analysis()
    batch = BatchInfo(64, 32, 33, f"graphmem analyze {'model.py:build --gpu t4 ' * 5}")
    report = replace(analysis.report, advice=AdviceInfo(batch, []))
    browser = open_page(page(dataclasses.replace(analysis, report=report), analysis))
    size = {"width": 400, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        widths = browser.execute_script(
            "const { scrollWidth, clientWidth } = document.documentElement;"
            "const command = document.querySelector('#advice pre');"
            "const words = [...command.querySelectorAll('span')];"
            "const lines = Math.max(...words.map((word) => word.getClientRects().length));"
            "const names = [...document.querySelectorAll('.compared th, .source-lines th')];"
            "const narrow = names.filter(({ textContent, offsetWidth, offsetHeight }) =>"
            "  /\\w{2}/.test(textContent) && offsetHeight > 2 * offsetWidth);"
            "return [scrollWidth, clientWidth, command.scrollWidth, command.clientWidth, lines,"
            "  names.length, narrow.length]"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    assert widths[0] == widths[1] <= 400
    assert widths[2] == widths[3]
    assert widths[4] == 1, "a word of a command, such as --gpu, is broken"
    assert widths[5] > widths[6] == 0, "a name or number is broken into letters"


def test_two_reports_are_compared(open_page: Open) -> None:
    analysis = small_analysis()
    other = hostile_analysis().report
    browser = open_page(page(analysis, other))

    [row] = browser.find_elements(By.CSS_SELECTOR, '[data-name="allocated at the peak"]')

    change = analysis.report.peak.allocated - other.peak.allocated
    assert row.get_attribute("data-change") == str(change)


def test_two_runs_stand_side_by_side_on_one_scale(open_page: Open, tmp_path: Path) -> None:
    """Saved steps: both pictures have the height of the larger one, and the differences add up."""
    smaller, larger = small_analysis(), refused_analysis()
    files = [str(tmp_path / name) for name in ("smaller.graphmem", "larger.graphmem")]
    for analysis, file, batch in zip((smaller, larger), files, (2, 4), strict=True):
        save(dataclasses.replace(analysis.step, options=f"--set batch={batch}"), Path(file))
    html = tmp_path / "both.html"

    assert main(["render", files[0], "--compare", files[1], "-o", str(html)]) == 0
    browser = open_page(html.read_text(encoding="utf-8"))

    captions = [each.text for each in browser.find_elements(By.CSS_SELECTOR, "#runs figcaption")]
    assert [re.findall(r"--set batch=\d", each) for each in captions] == [
        ["--set batch=4"],
        ["--set batch=2"],
    ]
    pictures = browser.find_elements(By.CSS_SELECTOR, "#runs canvas")
    peaks = [format_bytes(each.report.peak.allocated) for each in (larger, smaller)]
    labels = [each.get_attribute("aria-label") or "" for each in pictures]
    assert [label.split(": ")[1] for label in labels] == [
        f"{peak} allocated at the peak" for peak in peaks
    ]
    heights = [browser.execute_script(PEAK_HEIGHT, picture) for picture in pictures]
    expected = smaller.report.peak.allocated / larger.report.peak.allocated
    assert heights[1] / heights[0] == pytest.approx(expected, abs=0.01)
    rows = browser.find_elements(By.CSS_SELECTOR, ".compared:last-child tbody tr")
    changes = [int(row.get_attribute("data-change") or 0) for row in rows]
    assert sum(changes) == smaller.report.peak.allocated - larger.report.peak.allocated


def test_each_picture_and_table_is_one_tab_stop(open_page: Open) -> None:
    browser = open_page(page(small_analysis()))

    for group in ("icicle", "keepers", "holders-body"):
        buttons = browser.find_elements(By.CSS_SELECTOR, f"#{group} :is(button, [role=button])")
        stops = [each for each in buttons if each.get_attribute("tabindex") == "0"]
        assert len(buttons) > 1
        assert len(stops) == 1
        stops[0].send_keys(Keys.ARROW_RIGHT)
        assert browser.switch_to.active_element == buttons[1]


def test_names_that_look_like_markup_stay_text(open_page: Open) -> None:
    analysis = hostile_analysis()
    browser = open_page(page(analysis))

    browser.find_element(By.CSS_SELECTOR, "#group-by option:nth-child(2)").click()
    cells = browser.find_elements(By.CSS_SELECTOR, "#holders-body td:nth-child(2)")
    shown = " ".join(cell.get_attribute("textContent") or "" for cell in cells)

    assert [name for name in HOSTILE_NAMES if name not in shown] == []
    assert browser.find_elements(By.CSS_SELECTOR, "main img, main b b, main script") == []
    assert "owned" not in browser.title


def test_what_stands_in_backticks_is_code(open_page: Open) -> None:
    analysis = small_analysis()
    found = Findings("a pass", ["`kept` (a.py:3) holds <b>1</b> of `it`"])
    report = replace(analysis.report, findings=[found])
    browser = open_page(page(dataclasses.replace(analysis, report=report)))

    line = browser.find_element(By.CSS_SELECTOR, ".findings p")
    assert [each.text for each in line.find_elements(By.TAG_NAME, "code")] == ["kept", "it"]
    assert line.text == "kept (a.py:3) holds <b>1</b> of it"


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_can_be_light_and_dark(open_page: Open, theme: str) -> None:
    browser = open_page(page(small_analysis()))

    for _ in range(2):
        if browser.execute_script("return document.documentElement.dataset.theme") != theme:
            browser.find_element(By.ID, "theme").click()
    colour = browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    brightness = sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))
    assert (brightness > 3 * 128) == (theme == "light")


def test_the_page_of_gpt2_is_small(open_page: Open) -> None:
    html = page(run_analysis(f"{ROOT}/fixtures/gpt2.py:build", Request()))

    open_page(html)

    assert len(html.encode()) < 2_000_000


@pytest.mark.slow
def test_a_decoder_of_126_layers_opens(open_page: Open) -> None:
    small = {"width": "64", "ffn": "128", "heads": "2", "kv_heads": "1", "seq": "64"}
    request = Request(steps=1, settings={"layers": "126", **small})
    html = page(run_analysis(f"{ROOT}/fixtures/llama.py:build", request))

    open_page(html)

    assert len(html.encode()) < 2_000_000


def test_analyze_writes_the_page_as_well(tmp_path: Path) -> None:
    target = f"{ROOT}/fixtures/mlp.py:build"
    report, html = tmp_path / "report.txt", tmp_path / "page.html"

    assert main(["analyze", target, "-o", str(report), "--html", str(html)]) == 0

    assert "peak" in report.read_text()
    assert html.read_text().startswith("<!doctype html>")
    assert "<span>--advice</span>" in html.read_text(), "how to learn what would help"
