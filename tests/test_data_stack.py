"""Calls at any depth of a program with room take no new memory."""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from threading import Thread

import pytest

from graphmem.data_stack import with_room

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts a thread's page faults")

CALLS = 500
DEPTHS = 300  # frames of more than 40 bytes each fill a chunk of 16 KiB


def test_without_room_the_calls_at_some_depth_fault() -> None:
    assert max(in_a_thread(lambda: faults_by_depth(DEPTHS))) >= CALLS


def test_with_room_the_calls_at_no_depth_fault() -> None:
    assert max(in_a_thread(with_room(lambda: faults_by_depth(DEPTHS)))) < CALLS / 4


def in_a_thread(function: Callable[[], list[int]]) -> list[int]:
    """The function's result, with a data stack of its own."""
    results: list[list[int]] = []
    thread = Thread(target=lambda: results.append(function()))
    thread.start()
    thread.join()
    return results[0]


def faults_by_depth(depth: int) -> list[int]:
    """How many pages the calls at each depth have mapped; their frames are as large as its own."""
    if depth < 0:
        return []
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    for _ in range(CALLS):
        faults_by_depth(-1)
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before
    return [faults, *faults_by_depth(depth - 1)]
