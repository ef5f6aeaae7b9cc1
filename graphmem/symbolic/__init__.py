"""The requested bytes of a training step as an exact polynomial in the model's dimensions.

The step is traced at several sizes, storages are matched (`observation`), the bytes of each are
interpolated in rational numbers (`interpolation`), and the result is held against a size that was
not used (`closed_form`). What is not a polynomial is named and kept apart.
"""

from __future__ import annotations

from graphmem.symbolic.closed_form import ClosedForm, closed_form

__all__ = ["ClosedForm", "closed_form"]
