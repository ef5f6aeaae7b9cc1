"""FullyShardedDataParallel: a card's number, and names for its memory.

(1) A card's number, as `device_id` or as that of the current card: it calls `torch.device(number)`,
    which asks C++ for an accelerator; a CPU build of PyTorch has none.
(2) It gathers all parameters of a module together, into one flat parameter that it uses until the
    module has run (`FlatParamHandle.unshard`, torch/distributed/fsdp/_flat_param.py).
(3) In `no_sync` the flat parameter keeps its gradient, whole, after each backward pass
    (`_post_backward_hook`, torch/distributed/fsdp/_runtime_utils.py).
(4) Else it keeps this rank's part of the sum, which no parameter has as its gradient before the
    backward pass ends (`_saved_grad_shard`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.fsdp import _init_utils, _runtime_utils, fully_sharded_data_parallel
from torch.distributed.fsdp._flat_param import FlatParamHandle

from graphmem.graph import OwnerKind
from graphmem.trace.location import Location, below, without_wrappers
from graphmem.trace.naming import name_copy, name_together
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.patching import Replacement
from graphmem.wording import GATHERED, NOT_REDUCED


def replacements(recorder: Recorder, location: Location) -> list[Replacement]:
    """List the functions to replace."""
    init_handle: Callable[..., Any] = _init_utils._init_device_handle
    get_device: Callable[..., Any] = _init_utils._get_device_from_device_id
    get_compute_device: Callable[..., Any] = _init_utils._get_compute_device

    def init_device_handle(state: Any, module: Any, ignored: Any, device_id: Any) -> Any:
        return init_handle(state, module, ignored, _named(device_id))

    def get_device_from_device_id(device_id: Any, rank: int, handle: Any = torch.cuda) -> Any:
        return get_device(_named(device_id), rank, _Named(handle))

    def compute_device(module: Any, ignored: Any, device: Any, rank: int, handle: Any) -> Any:
        return get_compute_device(module, ignored, device, rank, _Named(handle))

    return [
        (fully_sharded_data_parallel, "_init_device_handle", init_device_handle),
        (_init_utils, "_get_device_from_device_id", get_device_from_device_id),
        (_init_utils, "_get_compute_device", compute_device),
        (FlatParamHandle, "_use_unsharded_flat_param", _naming_gathered(recorder, location)),
        (_runtime_utils, "_post_backward_reshard", _naming_accumulated(recorder, location)),
        (_runtime_utils, "_post_reduce_grad_callback", _naming_reduced(recorder, location)),
    ]


def _naming_gathered(recorder: Recorder, location: Location) -> Callable[..., Any]:
    """Clause (2): `_use_unsharded_flat_param`, which begins to use what was gathered."""
    use: Callable[..., Any] = FlatParamHandle._use_unsharded_flat_param

    def use_and_name(handle: Any, gathered: torch.Tensor) -> None:
        use(handle, gathered)
        name = f"{_whole(recorder, location, handle)} {GATHERED}"
        name_copy(recorder, gathered, name)

    return use_and_name


def _naming_accumulated(recorder: Recorder, location: Location) -> Callable[..., Any]:
    """Clause (3): `_post_backward_reshard`, with which a module's backward pass ends."""
    reshard: Callable[..., Any] = _runtime_utils._post_backward_reshard

    def reshard_and_name(state: Any, handle: Any, *unused: Any) -> None:
        reshard(state, handle, *unused)
        gradient = handle.flat_param.grad
        if gradient is not None and not state._sync_gradients:
            name = f"{_whole(recorder, location, handle)}{NOT_REDUCED}"
            recorder.identify(gradient, OwnerKind.GRADIENT, name)

    return reshard_and_name


def _naming_reduced(recorder: Recorder, location: Location) -> Callable[..., Any]:
    """Clause (4): `_post_reduce_grad_callback`, which is given that part."""
    callback: Callable[..., Any] = _runtime_utils._post_reduce_grad_callback

    def name_and_call(state: Any, handle: Any, gradient: torch.Tensor) -> None:
        shard = recorder.identity_of(handle.flat_param._local_shard)
        name = f"{shard or _whole(recorder, location, handle)}.grad"
        recorder.identify(gradient, OwnerKind.GRADIENT, name)
        callback(state, handle, gradient)

    return name_and_call


def _whole(recorder: Recorder, location: Location, handle: Any) -> str:
    """The name of a flat parameter, of which the rank's shard may hold but some."""
    shard = recorder.identity_of(handle.flat_param._local_shard)
    if shard is not None and not handle._use_orig_params:
        return shard
    module = location.name_of(handle._fully_sharded_module)
    names = [below(module, without_wrappers(each)) for each in handle.flat_param._fqns]
    return name_together(names)


class _Named:
    """A device's module, such as `torch.cuda`, that gives the current card a name."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def current_device(self) -> Any:
        """The current device, as `torch.device` takes it."""
        return _named(self._handle.current_device())


def _named(device_id: Any) -> Any:
    return torch.device("cuda", device_id) if isinstance(device_id, int) else device_id
