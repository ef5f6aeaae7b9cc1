"""Make the screens and drawings of the documentation: `python -m tools.screens [NAME…]`.

docs/screens.md gets the first terminal lines of each case, docs/images/ the first screen of its
page, 1400 and 400 pixels wide, light and dark, and the pictures of docs/pictures.md. Needs
chromium, chromium-driver, graphviz, matplotlib and, for QLoRA, bitsandbytes and peft.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from selenium import webdriver
from selenium.webdriver.common.by import By

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
PAGE = ROOT / "docs" / "screens.md"
GRAPHMEM = Path(sys.executable).parent / "graphmem"
SETTLE_SECONDS = 1.0
LINES = 24


@dataclass(frozen=True)
class Case:
    """One story.

    Attributes:
        name: prefix of its images.
        title: its heading.
        command: arguments of graphmem.
        sections: parts of the page with a separate image, by the id of their headings.
    """

    name: str
    title: str
    command: str
    sections: tuple[tuple[str, str], ...] = ()


CASES = (
    Case(
        "gpt2",
        "A step that fits",
        "analyze fixtures/recorded_nanogpt.py:build --gpu a100-80gb --torch 2.0",
        (
            ("made-of-gpt2", "made-of-title"),
            ("kept-alive-gpt2", "keepers-title"),
            ("lines-gpt2", "source-title"),
        ),
    ),
    Case("t4", "A card that is too small", "analyze fixtures/gpt2.py:build --gpu t4"),
    Case("qlora", "A QLoRA step", "run --gpu t4 fixtures/finetune/qlora_bnb.py"),
    Case("leak", "A script that leaks", "run --gpu t4 tests/scripts/leaking_fast.py 98304"),
    Case(
        "llama126",
        "A decoder of 126 layers",
        "analyze fixtures/llama.py:build --set layers=126 --gpu h100-80gb",
    ),
    Case("resnet", "A ResNet", "analyze fixtures/resnet.py:build --gpu t4"),
)
COMPARED = "compared-gpt2"
BEFORE = "fixtures/gpt2.py:build"
AFTER = (BEFORE, "--checkpoint", "h.*")
DRAWINGS = {
    "liveness-gpt2": "fixtures/gpt2.py:build",
    "around-peak-gpt2": "fixtures/gpt2.py:build --around peak",
    "timeline-gpt2": "fixtures/gpt2.py:build --plot timeline",
}
_BEGIN = """\
# Screens

The first lines of the output and the first screen of the page, made by `python -m tools.screens`.
"""


def main(names: Sequence[str]) -> None:
    """Make the screens of these names, or all."""
    texts = [_BEGIN]
    with browser() as driver, tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if names and case.name not in names:
                continue
            html = Path(folder) / f"{case.name}.html"
            texts.append(_text(case, html))
            _shoot(driver, case, html)
        if not names or COMPARED in names:
            _compare(driver, Path(folder))
    for name, arguments in DRAWINGS.items():
        if not names or name in names:
            _call("render", "-o", IMAGES / f"{name}.png", *shlex.split(arguments))
            _fewer_colours(IMAGES / f"{name}.png")
    if not names:
        PAGE.write_text("\n".join(texts), encoding="utf-8")


def _text(case: Case, html: Path) -> str:
    """The beginning of the command's output; writes the page too."""
    command, *arguments = shlex.split(case.command)
    lines = _call(command, "--html", html, *arguments).splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(("fits on", "does NOT fit")))
    shown = "\n".join(lines[first : first + LINES])
    images = "\n".join(
        f"![{case.title}, {width} pixels](images/page-{case.name}-{width}-{theme}.png)"
        for width, theme in ((1400, "light"), (400, "dark"))
    )
    return f"## {case.title}\n\n```\n$ graphmem {case.command}\n{shown}\n…\n```\n\n{images}\n"


def _call(*arguments: str | Path) -> str:
    """Call graphmem; some of the cases fail on purpose."""
    done = subprocess.run(
        [GRAPHMEM, *arguments],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    return done.stdout


@contextmanager
def browser() -> Iterator[webdriver.Chrome]:
    """A headless browser."""
    options = webdriver.ChromeOptions()
    for flag in ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    options.binary_location = shutil.which("chromium") or ""
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        yield driver
    finally:
        driver.quit()


def _shoot(driver: webdriver.Chrome, case: Case, html: Path) -> None:
    for width in (1400, 400):
        for theme in ("light", "dark"):
            _resize(driver, width, theme)
            driver.get(html.as_uri())
            time.sleep(SETTLE_SECONDS)
            _save(driver.get_screenshot_as_png(), f"page-{case.name}-{width}-{theme}")
    for name, heading in case.sections:
        _shoot_section(driver, html, name, heading)


def _compare(driver: webdriver.Chrome, folder: Path) -> None:
    """GPT-2 beside itself without checkpointing; only the timelines and the first table."""
    html, before, after = (folder / name for name in ("both.html", "a.graphmem", "b.graphmem"))
    _call("analyze", BEFORE, "--save", before)
    _call("analyze", *AFTER, "--save", after)
    _call("render", after, "--compare", before, "-o", html)
    hidden = "document.querySelectorAll('.compared ~ .compared').forEach((each) => each.remove())"
    _shoot_section(driver, html, COMPARED, "comparison-title", hidden)


def _shoot_section(
    driver: webdriver.Chrome, html: Path, name: str, heading: str, script: str = ""
) -> None:
    _resize(driver, 1400, "light")
    driver.get(html.as_uri())
    time.sleep(SETTLE_SECONDS)
    driver.execute_script(script)
    section = driver.find_element(By.XPATH, f"//section[@aria-labelledby='{heading}']")
    driver.execute_script("arguments[0].scrollIntoView()", section)
    _save(section.screenshot_as_png, name)


def _resize(driver: webdriver.Chrome, width: int, theme: str) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def _save(png: bytes, name: str) -> None:
    file = IMAGES / f"{name}.png"
    file.write_bytes(png)
    _fewer_colours(file)


def _fewer_colours(file: Path) -> None:
    """Keep 256, rare ones included, such as those of a legend: a third of the bytes."""
    with Image.open(file) as image:
        image.convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(file, optimize=True)


if __name__ == "__main__":
    main(sys.argv[1:])
