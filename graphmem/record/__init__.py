"""The record: what one capture found, and the file that keeps it (docs/record.md).

    capture (a trace, or `graphmem run`)  ->  TracedStep  ->  every reader

`save` and `load` are each other's inverse. Nothing derived is kept: passes and the simulator run
again on what is loaded, so that a reader of tomorrow reads the record of today with its own rules.
"""

from __future__ import annotations

from graphmem.record.file import load, save
from graphmem.record.step import Observed, TracedStep
from graphmem.targets import is_record

__all__ = ["Observed", "TracedStep", "is_record", "load", "save"]
