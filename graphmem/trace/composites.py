"""Operators that PyTorch composes from others, in the same way on every device.

They have their own derivative, so autograd saves what that needs and calls them whole. Their C++
code is a few lines of other operators, whose temporaries a card allocates
(`CompositeExplicitAutograd` in aten/src/ATen/native/native_functions.yaml). That code runs here,
part by part, and each part passes through the trace.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import LDEXP_IS_A_KERNEL

aten = torch.ops.aten

_KEYS = (
    torch._C.DispatchKey.CompositeExplicitAutograd,
    torch._C.DispatchKey.CompositeExplicitAutogradNonFunctional,
    torch._C.DispatchKey.CompositeImplicitAutograd,
)

IN_PARTS = frozenset(
    {
        aten._euclidean_dist.default,
        aten._linalg_check_errors.default,  # looks whether any status is not zero
        aten._trilinear.default,
        aten.affine_grid_generator.default,
        aten.dist.default,
        aten.isfinite.default,  # which `isclose` calls, in `allclose`
        aten.isinf.default,
        aten.ldexp.Tensor,
        aten.linalg_pinv.atol_rtol_tensor,
        aten.mvlgamma.default,
    }
)

MARKED_VIEWS = frozenset({aten.chunk.default, aten.narrow.default})
"""Composites whose results PyTorch marks as views, so that their parts must not have done so.

`VIEW_FUNCTIONS` in tools/autograd/gen_inplace_or_view_type.py; the others' parts are marked.
"""


def run_in_parts(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a composite; its parts go to the active mode."""
    if func is aten.ldexp.Tensor and _is_scaled_by_a_kernel(*args):
        # The C++ code would call the kernel, which fake tensors have no memory for.
        return torch.empty_like(args[0].expand(torch.broadcast_shapes(*(x.shape for x in args))))
    return func._op_dk(_key_of(func.name()), *args, **kwargs)


def _is_scaled_by_a_kernel(x: torch.Tensor, exponent: torch.Tensor) -> bool:
    are_whole = not (exponent.is_floating_point() or exponent.is_complex())
    return LDEXP_IS_A_KERNEL.holds_in(installed_release()) and x.is_floating_point() and are_whole


@cache
def is_pure(func: Any) -> bool:
    """Whether an operation is a composite on every device, and has no derivative of its own."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    kernels = [has_kernel(func.name(), key) for key in ("CPU", "CUDA", "CompositeExplicitAutograd")]
    return has_kernel(func.name(), _KEYS[-1].name) and not any(kernels)


@cache
def _key_of(name: str) -> Any:
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return next(key for key in _KEYS if has_kernel(name, key.name))
