"""A browser that opens pages from disk without a network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from tests.support.browser import Open, requests_of, wait_until

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync "
    "--window-size=1440,1000"
).split()


@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        if "CI" in os.environ:
            pytest.fail("CI needs a browser: apt-get install chromium chromium-driver")
        pytest.skip("no browser: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield started
    started.quit()


@pytest.fixture
def open_page(browser: webdriver.Chrome, tmp_path: Path) -> Iterator[Open]:
    """Open a page from disk; afterwards check for console errors and network requests."""
    file = tmp_path / "page.html"

    def load(html: str) -> webdriver.Chrome:
        file.write_text(html, encoding="utf-8")
        browser.get_log("performance")
        browser.get(file.as_uri())
        wait_until(lambda: browser.execute_script("return document.documentElement.dataset.ready"))
        return browser

    yield load

    assert browser.get_log("browser") == []
    assert [url for url in requests_of(browser) if url.startswith(("http", "ws"))] == []
