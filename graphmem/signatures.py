"""Read the parameters of a user's function, whose annotations may name what does not exist."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any


def parameters_of(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    """The parameters, with annotations that need not be evaluable.

    From Python 3.14 on they are evaluated when they are asked for (PEP 649), and may name what only
    type checkers import. There they are texts, as after `from __future__ import annotations`.

    Raises:
        TypeError: the function has no signature.
        ValueError: likewise.
    """
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(function, annotation_format=Format.STRING).parameters
    return inspect.signature(function).parameters
