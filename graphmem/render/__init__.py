"""Pictures of a step's memory: a page, drawings, plots, and files that other viewers open.

Nothing here computes a figure: what is drawn is read from the report, the step graph and the
timeline.
"""

from __future__ import annotations
