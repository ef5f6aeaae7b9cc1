"""The dispatch mode under which the user's step runs: every ATen operation passes here.

Tensors on the traced device are fake: they have shape, dtype and storage identity, but no data.
Small tensors on the CPU stay real, so that schedules, masks and data loaders can read their values;
large ones are fake too. `data_dependent` says what comes of operations that ask for data.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from types import FrameType
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem.caller import Belongings
from graphmem.errors import InputError
from graphmem.graph import Op, OwnerKind, Source
from graphmem.trace.autocast import AutocastRegions
from graphmem.trace.composites import IN_PARTS, run_in_parts
from graphmem.trace.in_place_forms import WATCHED, InPlaceForms
from graphmem.trace.location import Location
from graphmem.trace.reads import Reads
from graphmem.trace.recorder import Recorder
from graphmem.trace.replayed_views import ReplayedViews
from graphmem.trace.saved_tensors import is_just_unpacked
from graphmem.trace.saved_variables import note_history
from graphmem.trace.saved_versions import note_write
from graphmem.trace.threads import NodeNumbers
from graphmem.trace.wrapper_tensors import is_wrapper
from graphmem.values.limits import INTEGERS
from graphmem.virtual_gpu.attention import FUSED_ATTENTION, as_returned, efficient_gradients
from graphmem.virtual_gpu.libraries.python_kernels import has_python_kernel, run_kernel
from graphmem.virtual_gpu.unreduced_losses import LOSSES, in_unreduced_storage

aten = torch.ops.aten

REAL_CPU_ELEMENTS = 1 << 16
"""A tensor made on the CPU is real up to this many elements, when the device is not the CPU."""

_FROM_SIZE = {
    aten.empty.memory_format,
    aten.empty_strided.default,
    aten.zeros.default,
    aten.ones.default,
    aten.full.default,
    aten.rand.default,
    aten.randn.default,
}
_RANDOM_INTEGERS = {aten.randint.default: 1, aten.randint.low: 2}
_INTEGERS = {torch.bool, torch.uint8, torch.int32, torch.int64, torch.long}
_CUDA = torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)
_KERNELS_ON_CARD = (
    torch._C.DispatchKey.CUDA,
    torch._C.DispatchKey.CompositeExplicitAutograd,
)
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
_PROFILER = (
    torch.ops.profiler._record_function_enter_new.default,
    torch.ops.profiler._record_function_exit._RecordFunction,
)
_FUSED_UPDATES = (
    aten._fused_sgd_.default,
    aten._fused_sgd_.tensor_lr,
    aten._fused_adagrad_.default,
    aten._fused_adagrad_.tensor_lr,
    aten._fused_adam_.tensor_lr,
    aten._fused_adamw_.tensor_lr,
)


class _OfThread(threading.local):
    node: Any = None
    keeps_graph = False


class _Special(dict[Any, Callable[..., Any] | None]):
    """What runs an operation in place of the fake tensors' mode; None for most."""

    def __init__(self, own_kernel: Callable[..., Any], higher_order: Callable[..., Any]) -> None:
        super().__init__()
        self._own_kernel = own_kernel
        self._higher_order = higher_order

    def __missing__(self, func: Any) -> Callable[..., Any] | None:
        if isinstance(func, HigherOrderOperator):
            found: Callable[..., Any] | None = self._higher_order
        else:
            found = self._own_kernel if has_python_kernel(func) else None
        self[func] = found
        return found


class TraceMode(TorchDispatchMode):
    """Runs each operation on fake tensors and has it recorded.

    Attributes:
        is_over: whether the program has ended, whose threads may go on.
        numbers: keeps the numbers of autograd's nodes apart.
        belongings: what was there before the program, if anybody asks for it afterwards.
        reads: answers what the program reads, and knows values; set before anything runs.
        is_host_counted: the memory that is counted is the CPU's.
    """

    reads: Reads
    supports_higher_order_operators = True
    _caller_depth = 1
    """How many frames up from `__torch_dispatch__` the instruction is that called the operation."""

    def __init__(
        self,
        recorder: Recorder,
        fake_mode: FakeTensorMode,
        location: Location,
        autocast: AutocastRegions,
        views: ReplayedViews,
        forms: InPlaceForms,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder
        self._fake_mode = fake_mode
        self._location = location
        self._autocast = autocast
        self._views = views
        self._forms = forms
        on_cpu = recorder.device.type == "cpu"
        self._real_elements: float = 1 if on_cpu else REAL_CPU_ELEMENTS
        self.is_over = False
        self.numbers = NodeNumbers()
        self._of_thread = _OfThread()
        self._one_at_a_time = threading.RLock()
        self.belongings: Belongings | None = None
        self.is_host_counted = on_cpu
        self._newest_node = torch._C._autograd._get_sequence_nr()
        self._op_of_node: dict[int, Op] = {}
        self._special = _Special(self._own_kernel, self._higher_order)
        self._special |= {
            aten.detach.default: self._detach,
            aten.clone.default: self._clone,
            torch.ops.prim.device.default: _device_of,
            **dict.fromkeys(_PROFILER, _run_unrecorded),
            **dict.fromkeys(LOSSES, self._loss),
            **dict.fromkeys(FUSED_ATTENTION, self._attention),
            aten._efficient_attention_backward.default: self._efficient_gradients,
            **dict.fromkeys(_FUSED_UPDATES, self._update),
            aten._scaled_mm.out: self._into_result,
        }
        if not on_cpu:
            self._special |= dict.fromkeys(IN_PARTS, self._run_in_parts)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Spare each operation a wrapper that only matters under `torch.compile`."""
        return False

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Whether the program may be compiled although this mode is on (`trace/compiled`)."""
        return True

    @property
    def node(self) -> Any:
        """The autograd node that runs in this thread, or None in a forward pass."""
        return self._of_thread.node

    @node.setter
    def node(self, node: Any) -> None:
        self._of_thread.node = node

    @property
    def keeps_graph(self) -> bool:
        """Whether the node that runs in this thread may run again."""
        return self._of_thread.keeps_graph

    @keeps_graph.setter
    def keeps_graph(self, keeps_graph: bool) -> None:
        self._of_thread.keeps_graph = keeps_graph

    def forward_of(self, node: Any) -> Op | None:
        """The operation for which autograd made a node."""
        return self._op_of_node.get(node._sequence_nr())

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if self.is_over:
            return func(*args, **kwargs)
        if any(map(is_wrapper, types)):
            return NotImplemented  # what it wraps passes here, once its class has taken it apart
        with self._one_at_a_time:
            self.numbers.go_on()
            special = self._special[func]
            if special is not None:
                return special(func, types, args, kwargs)
            if _is_inference(args) and func._can_decompose():
                return self._decompose(func, types, args, kwargs)
            if _has_no_kernel(func):
                with self:  # below the keys that the call has passed, unlike an inference tensor's
                    return func._op_dk(_COMPOSITE, *args, **kwargs)
            if func in WATCHED:
                caller = sys._getframe(self._caller_depth)
                return self._run_in_form(func, types, args, kwargs, caller)
            return self._run(func, types, args, kwargs)

    def _run_in_parts(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        with self:
            result = run_in_parts(func, args, kwargs)
        self.reads.known.follow(func, args, kwargs, result)  # `isinf`: numbers are finite
        return result

    def _own_kernel(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator of a library by its kernel, each part of which passes here."""
        if self._stays_real(func, args, kwargs) or self._recorder.device.type != "cuda":
            return self._run(func, types, args, kwargs)
        with self:
            return run_kernel(func, args, kwargs)

    def _higher_order(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run an operator that takes functions by its kernel, each part of which passes here."""
        kernels = (func.py_kernels.get(key) for key in _KERNELS_ON_CARD)
        kernel = next((each for each in kernels if each is not None), None)
        if kernel is None:
            raise InputError(
                f"operator {func.name()} has no kernel for a card{at(self._location.place())}",
                hint="leave it out of the step",
            )
        with self:
            return kernel(*args, **kwargs)

    def _run_in_form(
        self, func: Any, types: Any, args: Any, kwargs: dict[str, Any], caller: FrameType
    ) -> Any:
        form = self._forms.choose(func, args, self.node, caller)
        result = self._run(form, types, args, kwargs)
        self._forms.note(form, result, self.node, caller)
        return result

    def _decompose(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Run a composite operation by its parts, each of which passes here.

        Inference tensors, which have no autograd keys, bring composites this far. One that has a
        kernel for CUDA is whole there; attention's is the virtual GPU's own.
        """
        is_cuda = self._recorder.device.type == "cuda"
        if is_cuda and func is aten.scaled_dot_product_attention.default:
            with self:
                return func.redispatch(_CUDA, *args, **kwargs)
        if is_cuda and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CUDA"):
            return self._run(func, types, args, kwargs)
        # Autocast casts a composite's parts, not the composite: it needs the thread's keys back.
        with torch._C._RestorePythonTLSSnapshot(), self:  # type: ignore[attr-defined]
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE.name):
                # `decompose` would prefer a form in Python, which compilers want and which may
                # take more (torch/_decomp/decompositions.py: `dropout` in evaluation copies)
                return func._op_dk(_COMPOSITE, *args, **kwargs)
            return func.decompose(*args, **kwargs)

    def _run(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._stays_real(func, args, kwargs):
            return self._run_real(func, args, kwargs)
        tick = self._recorder.begin_op()
        try:
            result = self._fake_mode.dispatch(func, types, args, kwargs)
        except _EXPLAINED as error:
            result = self._dynamic(error, func, args, kwargs)
            if result is None:
                raise self._explain(error, func, args) from error
            return result
        except RuntimeError as error:
            if _lacks_sparse_kernel(error, args):
                raise self._explain(error, func, args) from error
            raise
        note_write(func, args)
        self._record(func, args, kwargs, result, tick)
        return result

    def _dynamic(self, error: Exception, func: Any, args: Any, kwargs: Any) -> Any:
        """The result of an operation that asked for data, None where it cannot be had."""
        return None

    def _run_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tick = self._recorder.begin_op()
        self._spare(func, args, kwargs)
        result = func(*args, **kwargs)
        if self._recorder.device.type == "cpu":
            self._record(func, args, kwargs, result, tick)
        return result

    def _spare(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """What was there before the program is copied before it is written into."""
        if self.belongings is not None:
            self.belongings.before(func, args, kwargs)

    def _stays_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether an operation runs on real data.

        It reads only real tensors of the CPU, and makes none elsewhere and, as a factory, no large
        one.
        """
        if args and isinstance(args[0], FakeTensor):
            return False
        device = kwargs.get("device")
        if device is not None and device.type != "cpu":
            return False
        reads_real = False
        for tensor in tensors_of((args, *kwargs.values())):
            if isinstance(tensor, FakeTensor):
                return False
            reads_real = True
        return reads_real or self._is_made_real(func, args, kwargs)

    def _is_made_real(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether what a factory makes on the CPU is real; integers decide more than others."""
        limit = self._real_elements
        if limit > 1 and (func in _RANDOM_INTEGERS or kwargs.get("dtype") in _INTEGERS):
            limit = max(limit, INTEGERS)
        return _elements(func, args) <= limit

    def _record(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any, tick: int
    ) -> Op:
        self._views.settle()
        forward = None
        module, source, autograd_node = self._location.module, None, None
        buffer = self._location.compiled(sys._getframe(1))
        newest = torch._C._autograd._get_sequence_nr()
        if self.node is None:
            source = self._location.source()
        else:
            autograd_node = self.node.name()
            made_by = self.forward_of(self.node)
            if made_by is not None:
                forward, source = made_by.index, made_by.source
                module = module or made_by.module
        if buffer is not None:
            module, source = buffer.module or module, buffer.source or source
        op = self._recorder.record_op(
            func,
            args,
            kwargs,
            result,
            tick=tick,
            module=module,
            source=source,
            autograd_node=autograd_node,
            forward=forward,
        )
        op.autocast = self._autocast.state_of(func)
        if buffer is not None and op.births:
            self._recorder.label(op.births[0], OwnerKind.COMPILED, str(buffer))
        if newest > self._newest_node:
            self._newest_node = newest
            self._op_of_node[newest - 1] = op
        self._views.note(newest - 1, args, result, self.node)
        self._recorder.newest_node = newest - 1
        note_history(args, result)
        if func is aten._to_copy.default and op.births:
            self._identify_autocast_copy(args[0], result)
        self.reads.known.follow(func, args, kwargs, result)
        return op

    def _identify_autocast_copy(self, weight: torch.Tensor, copy: torch.Tensor) -> None:
        """Name a copy that autocast keeps.

        Clauses of `cached_cast` (aten/src/ATen/autocast_mode.cpp): an fp32 leaf that requires grad,
        cast to autocast's lower precision while the cache is on.
        """
        kind = self._recorder.device.type
        if not (
            self._autocast.enabled
            and torch.is_autocast_cache_enabled()
            and copy.dtype == torch.get_autocast_dtype(kind)
            and weight.dtype == torch.float32
            and weight.is_leaf
            and weight.requires_grad
            and not weight._is_view()
        ):
            return
        storage = self._recorder.storage_of(weight)
        named = None if storage is None else storage.owned_as(OwnerKind.PARAMETER)
        name = "a leaf tensor" if named is None else named.name
        self._recorder.identify(copy, OwnerKind.AUTOCAST_CACHE, name)

    def _record_made(self, func: Any, args: tuple[Any, ...], kwargs: Any, result: Any) -> Any:
        self._record(func, args, kwargs, result, self._recorder.begin_op())
        return result

    def _loss(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        values, target = args[:2]
        if not isinstance(values, FakeTensor):
            return self._run(func, types, args, kwargs)
        tick = self._recorder.begin_op()
        loss: Any = self._fake_mode.dispatch(func, types, args, kwargs)
        result = in_unreduced_storage(self._fake_mode, loss, values, target)
        self._record(func, args, kwargs, result, tick)
        return result

    def _attention(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tick = self._recorder.begin_op()
        returned: Any = self._fake_mode.dispatch(func, types, args, kwargs)
        result = as_returned(self._fake_mode, func, args, returned)
        self._record(func, args, kwargs, result, tick)
        return result

    def _efficient_gradients(
        self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        tick = self._recorder.begin_op()
        result = efficient_gradients(self._fake_mode, args, kwargs)
        self._record(func, args, kwargs, result, tick)
        return result

    def _into_result(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """What compiled code writes into a tensor of its own, for which there is no meta kernel."""
        return self._record_made(func, args, kwargs, kwargs["out"])

    def _update(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> None:
        """What writes into its arguments and returns nothing can do without a meta kernel."""
        if self._stays_real(func, args, kwargs):
            self._run_real(func, args, kwargs)
        else:
            self._record(func, args, kwargs, None, self._recorder.begin_op())

    def _detach(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """Autograd makes a variable of what it unpacks, which takes no operation in a real run.

        It asks for a detached copy only because its argument is held twice at that moment
        (torch/csrc/autograd/variable.h, `make_variable`), so it may have the tensor itself.
        """
        (tensor,) = args
        if is_just_unpacked(tensor):
            return tensor
        return self._run(func, types, args, kwargs)

    def _clone(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
        """A node clones cuDNN's reserve space, which it writes into, only if it may run again.

        That is `retain_variables` in derivatives.yaml, which no engine but the real one can set.
        """
        is_recurrent = self.node is not None and self.node.name() == "CudnnRnnBackward0"
        if is_recurrent and not self.keeps_graph:
            return args[0]
        return self._run(func, types, args, kwargs)

    def _new_empty(self, shape: Sequence[int], like: FakeTensor, dtype: torch.dtype) -> FakeTensor:
        return self._empty_on(like.fake_device, shape, dtype)

    def _empty_on(
        self, device: torch.device, shape: Sequence[int], dtype: torch.dtype
    ) -> FakeTensor:
        with torch._C._DisableTorchDispatch():
            memory = torch.empty(shape, dtype=dtype, device="meta")
        return FakeTensor(self._fake_mode, memory, device)

    def _explain(self, error: Exception, func: Any, args: tuple[Any, ...]) -> InputError:
        where = at(self._location.place())
        if _has_sparse(args):
            return InputError(
                f"operator {func} of a sparse tensor cannot be followed{where}",
                hint="train sparse embeddings with torch.optim.SparseAdam, Adagrad or SGD without "
                "momentum, or leave out sparse=True",
            )
        if "nested_tensor" in func._schema.name:
            return InputError(
                f"strided nested tensors cannot be followed{where}",
                hint="pad the sequences; give nn.TransformerEncoder enable_nested_tensor=False, "
                "which makes one of a padding mask where it does not train",
            )
        if isinstance(error, UnsupportedOperatorException):
            return InputError(
                f"operator {func} has no meta kernel{where}",
                hint="register one with torch.library.register_fake, which says what shape comes "
                "out, or leave the operator out of the step",
            )
        if isinstance(error, DynamicOutputShapeException):
            return InputError(
                f"the shape that {func} returns depends on data{where}",
                hint="give it a static size, or compute it before the step",
            )
        return InputError(
            f"the value that {func} reads depends on data{where}",
            hint="decide it from sizes or settings, or give build() an argument that does",
        )


_EXPLAINED = (
    UnsupportedOperatorException,
    DynamicOutputShapeException,
    DataDependentOutputException,
)


def _has_sparse(args: tuple[Any, ...]) -> bool:
    return any(tensor.layout is not torch.strided for tensor in tensors_of(args))


@cache
def _has_no_kernel(func: Any) -> bool:
    """Whether an operation is nothing but its parts, on every device."""
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    kernels = [has_kernel(func.name(), key) for key in ("CPU", "CUDA", "CompositeExplicitAutograd")]
    return has_kernel(func.name(), _COMPOSITE.name) and not any(kernels)


def _lacks_sparse_kernel(error: RuntimeError, args: tuple[Any, ...]) -> bool:
    """Whether an operation has no kernel for fake sparse tensors.

    A CUDA build then calls the card's, which asks for a driver
    (c10/cuda/CUDAFunctions.cpp, `device_count_ensure_non_zero`).
    """
    is_missing = isinstance(error, NotImplementedError) or "NVIDIA driver" in str(error)
    return is_missing and _has_sparse(args)


def _device_of(func: Any, types: Any, args: tuple[FakeTensor], kwargs: Any) -> torch.device:
    """`tensor.device`, which is not an operation although it is dispatched as one."""
    (tensor,) = args
    return tensor.fake_device


def _run_unrecorded(func: Any, types: Any, args: tuple[Any, ...], kwargs: Any) -> Any:
    """What the profiler notes is no part of the step."""
    return func(*args, **kwargs)


def _is_inference(args: tuple[Any, ...]) -> bool:
    """Whether a call may bring inference tensors, which outlive the mode that made them."""
    return torch.is_inference_mode_enabled() or any(
        tensor.is_inference() for tensor in tensors_of(args)
    )


def at(source: Source | None) -> str:
    """A line of the user's at the end of a sentence."""
    return "" if source is None else f" at {source.in_words}"


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """The tensors among an operation's arguments."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (tuple, list)):
            yield from tensors_of(value)


def _elements(func: Any, args: tuple[Any, ...]) -> int:
    """How many elements a factory makes; 0 for one that is always small or already real."""
    position = _RANDOM_INTEGERS.get(func, 0 if func in _FROM_SIZE else None)
    if position is None:
        return 0
    count = 1
    for size in args[position]:
        count *= size
    return count
