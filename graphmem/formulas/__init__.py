"""Published estimates of training memory, compared part by part with graphmem's exact result.

    analysis = run_analysis("model.py:build", Request())
    sheet = formulas_of(analysis)
    sheet.to_json()

`deepspeed`, `korthikanti`, `nanogpt` and `parallel_training` have the formulas as functions.
"""

from __future__ import annotations

from graphmem.formulas.sheet import Sheet, SheetSection, formulas_for, formulas_of

__all__ = ["Sheet", "SheetSection", "formulas_for", "formulas_of"]
