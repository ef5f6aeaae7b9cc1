"""The requested bytes of a training step as an exact polynomial in the model's dimensions.

The step is traced at several sizes, storages are matched (`observation`), the bytes of each are
interpolated in rational numbers (`interpolation`), and the result is checked at a size that was not
used (`closed_form`). Parts that are not polynomials are named and kept apart.
"""

from __future__ import annotations

from graphmem.symbolic.closed_form import ClosedForm, closed_form

__all__ = ["ClosedForm", "closed_form"]
