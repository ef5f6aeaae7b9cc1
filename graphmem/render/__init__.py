"""Pictures of a step's memory: a page, drawings, plots, and files for other viewers.

No figures are computed here: all of them come from the report, the step graph and the timeline.
"""

from __future__ import annotations
