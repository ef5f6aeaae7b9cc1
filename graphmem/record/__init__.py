"""The record: the result of one capture, and the file that stores it (docs/record.md).

    capture (a trace, or `graphmem run`)  ->  TracedStep  ->  every reader

`save` and `load` are each other's inverse. Nothing derived is stored: passes and the simulator run
again on a loaded step, so tomorrow's reader applies its own rules to today's record.
"""

from __future__ import annotations

from graphmem.record.file import load, save
from graphmem.record.step import Observed, TracedStep
from graphmem.targets import is_record

__all__ = ["Observed", "TracedStep", "is_record", "load", "save"]
