"""Helpers for tests of the page in a browser."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec
from selenium import webdriver

Open = Callable[[str], webdriver.Chrome]


def wait_until(is_done: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_done():
        assert time.monotonic() < deadline, "the page did not get there"
        time.sleep(0.02)


def requests_of(browser: webdriver.Chrome) -> set[str]:
    messages = [
        msgspec.json.decode(e["message"])["message"] for e in browser.get_log("performance")
    ]
    return {
        message["params"]["request"]["url"]
        for message in messages
        if message["method"] == "Network.requestWillBeSent"
    }
