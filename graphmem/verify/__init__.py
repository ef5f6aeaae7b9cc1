"""Check predictions, and the model of the caching allocator, against recorded CUDA runs.

The events of a recording are compared one by one with those of a prediction (`compare`), or
replayed through the allocator alone (`check_allocator`). If a run was not recorded but printed
figures, those are compared (`run_printed`). `run_suite` does so for every case file in a folder.
"""

from __future__ import annotations

from graphmem.verify.allocator_check import AllocatorCheck, check_allocator
from graphmem.verify.cases import Case, PrintedCase, RecordedCase, read_case, read_cases
from graphmem.verify.comparison import Comparison, compare
from graphmem.verify.prediction import Prediction, predict
from graphmem.verify.suite import PrintedRow, Suite, SuiteRow, run_printed, run_suite

__all__ = [
    "AllocatorCheck",
    "Case",
    "Comparison",
    "Prediction",
    "PrintedCase",
    "PrintedRow",
    "RecordedCase",
    "Suite",
    "SuiteRow",
    "check_allocator",
    "compare",
    "predict",
    "read_case",
    "read_cases",
    "run_printed",
    "run_suite",
]
