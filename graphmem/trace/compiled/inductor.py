"""Stand-ins for what Inductor runs on a card while it compiles, and for what its wrapper calls.

The wrapper is not changed: its text is loaded and executed as in PyTorch, and the functions that it
imports from `torch._C` make tensors on the virtual card.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from graphmem.compiled_code import CompiledCode
from graphmem.torch_releases import installed_release
from graphmem.torch_releases.installed_build import KERNELS_ARE_COMPILED_BY_WORKERS
from graphmem.trace.compiled.kernels import (
    make_launchers,
    precompile_config,
    precompiling,
    precompiling_whole,
)
from graphmem.trace.compiled.padding import Product, product_of
from graphmem.trace.compiled.registers import UNKNOWN, NotCompiledError, Usage, usage_of
from graphmem.trace.compiled.unknowns import Unknowns
from graphmem.trace.recorder import Recorder
from graphmem.virtual_device.device_memory import DeviceMemory
from graphmem.virtual_device.device_properties import largest_l2_cache
from graphmem.virtual_device.libraries.timing import Timing
from graphmem.virtual_device.libraries.triton import run_timed
from graphmem.virtual_device.patching import Replacement, replaced

_COMPARING = ("benchmark_codegened_module", "benchmark_fused_nodes")  # the latter to torch 2.6
_COPYING = "copy_args_to_cpu_if_needed"
SETTINGS = {
    "compile_threads": 1,  # there is nothing to compile
}


def replacements(
    recorded: Callable[[], AbstractContextManager[None]],
    unknowns: Unknowns,
    code: CompiledCode,
    recorder: Recorder,
    *,
    knows_memory: bool,
    memory: DeviceMemory | None,
) -> list[Replacement]:
    """The attributes to replace.

    Args:
        recorded: opens a context that records operations on the card.
        unknowns: answers what only a card knows.
        code: what has been compiled.
        recorder: names what benchmarks allocate.
        knows_memory: whether the program can ask how much memory is in use.
        memory: the device's, if it can be followed; otherwise CUDA graphs are left out.
    """
    from torch._inductor import config, cudagraph_utils
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codegen.triton import TritonScheduling
    from torch._inductor.fx_passes import pad_mm
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder
    from torch._inductor.runtime import benchmarking, triton_helpers

    def leave_out_graph(devices: Any) -> str:
        unknowns.graphs_left_out()
        return "this command leaves CUDA graphs out"

    def benchmark(*args: Any, **kwargs: Any) -> float:
        if config.max_autotune or config.max_autotune_gemm:
            unknowns.tunes()
        return _benchmark(unknowns, recorder, *args, **kwargs)

    folder = UniformValueConstantFolder
    compares = next(name for name in _COMPARING if hasattr(TritonScheduling, name))
    return [
        (folder, "__init__", _on_host(folder.__init__)),  # what is multiplied by zero
        (folder, "_deduce_value", _on_host(folder._deduce_value)),
        *([(AsyncCompile, "triton", _load)] if _has_workers() else []),
        *_kernels(None if knows_memory else _budget(memory), unknowns),
        _choice_of_configurations(unknowns.tuned, code),
        (triton_helpers, "set_driver_to_gpu", lambda: None),
        # Which of them is used is decided when their module is imported.
        *(
            (getattr(benchmarking, name), "benchmark_gpu", benchmark)
            for name in ("InductorBenchmarker", "TritonBenchmarker")
            if hasattr(benchmarking, name)
        ),
        *_operands(recorder),
        (pad_mm, "no_dispatch", recorded),
        (TritonScheduling, compares, _within(recorded, getattr(TritonScheduling, compares))),
        *_padding(unknowns.pads),
        *(
            []
            if memory
            else [(cudagraph_utils, "check_lowering_disable_cudagraph", leave_out_graph)]
        ),
        *_functions_of_wrappers(),
    ]


def _operands(recorder: Recorder) -> list[Replacement]:
    """Name the operands of products that are timed, which one function makes since torch 2.8."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    inputs_of = getattr(AlgorithmSelectorCache, "get_inputs", None)
    if inputs_of is None:
        return []

    def get_inputs(*args: Any, **kwargs: Any) -> Any:
        with _named(recorder):
            return inputs_of(*args, **kwargs)

    return [(AlgorithmSelectorCache, "get_inputs", staticmethod(get_inputs))]


def _kernels(
    budget: Callable[[], list[Replacement]] | None, unknowns: Unknowns
) -> list[Replacement]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    usage = _usage(unknowns)
    found: list[Replacement]
    if _has_workers():
        found = [
            (CachingAutotuner, "precompile", precompiling(usage)),
            (CachingAutotuner, "_precompile_config", precompile_config),
            (CachingAutotuner, "_make_launchers", make_launchers),
        ]
    else:
        whole = precompiling_whole(CachingAutotuner.precompile, usage)
        found = [(CachingAutotuner, "precompile", whole)]
    if not hasattr(CachingAutotuner, _COPYING):  # before torch 2.6
        return found
    copy_args = _within(unknowns.unseen, getattr(CachingAutotuner, _COPYING))
    if not _timing().copies_to_host:
        budget, copy_args = None, _copying_nothing
    answering = copy_args if budget is None else _answering(budget, copy_args)
    return [*found, (CachingAutotuner, _COPYING, answering)]


def _has_workers() -> bool:
    return KERNELS_ARE_COMPILED_BY_WORKERS.holds_in(installed_release())


def _copying_nothing(autotuner: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """`copy_args_to_cpu_if_needed`, after which `bench` clones what the kernel changes."""
    return {}


def _timing() -> Timing:
    from triton.runtime.driver import driver

    timing: Timing = driver.active.timing
    return timing


def _usage(unknowns: Unknowns) -> Callable[[Any, Any], Usage]:
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner

    compile_config = CachingAutotuner._precompile_config

    def usage(autotuner: Any, config: Any) -> Usage:
        if unknowns.counts_registers():
            try:
                return usage_of(autotuner, config, compile_config)
            except NotCompiledError as error:
                unknowns.compiles_no_kernel(str(error))
        return UNKNOWN

    return usage


def _choice_of_configurations(tuned: Callable[[], bool], code: CompiledCode) -> Replacement:
    """`AutotuneCache.read_best`: what an earlier run wrote beside a kernel's source.

    With it the kernel has one configuration, and nothing is timed (`check_autotune_cache` in
    torch/_inductor/runtime/triton_heuristics.py). Which it is makes no difference here.
    """
    from torch._inductor.runtime.autotune_cache import AutotuneCache

    read_best = AutotuneCache.read_best

    def read(cache: Any, inductor_meta: Any, configs: Any) -> Any:
        if not tuned():
            found = read_best(cache, inductor_meta, configs)
            code.is_timed |= found is None
            return found
        best = configs[0]
        if inductor_meta.get("coordinate_descent_tuning"):
            best.found_by_coordesc = True
        return best

    return AutotuneCache, "read_best", read


def _functions_of_wrappers() -> list[Replacement]:
    guards = torch._C._dynamo.guards
    return [
        (guards, "_empty_strided_cuda", _empty_strided_cuda),
        (guards, "_reinterpret_tensor", _reinterpret_tensor),
        (guards, "copy_if_misaligned", _copy_if_misaligned),
    ]


def _padding(pads: Callable[[Product], bool]) -> list[Replacement]:
    from torch._inductor.fx_passes import pad_mm

    key_of, asked = pad_mm.should_pad_bench_key, list[Product]()

    def note(match: Any, left: torch.Tensor, right: torch.Tensor, *args: Any, **kwargs: Any) -> str:
        asked[:] = [product_of(pad_mm, match, left, right)]
        return key_of(match, left, right, *args, **kwargs)

    def answer() -> bool:
        return pads(asked[0])

    noted = (pad_mm, "should_pad_bench_key", note)
    if hasattr(pad_mm, "is_padded_faster"):
        return [noted, (pad_mm, "is_padded_faster", lambda key, time, padded_time: answer())]
    return [noted, (pad_mm, "_skip_do_bench_times", _Asked(answer))]


class _Asked(int):
    """A flag that is evaluated on use; an int, so that it can be serialised to JSON."""

    ask: Callable[[], bool]

    def __new__(cls, ask: Callable[[], bool]) -> Self:
        made = super().__new__(cls, True)
        made.ask = ask
        return made

    def __bool__(self) -> bool:
        return self.ask()


def _on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Run a function that reads values of the small tensors it makes with those on the host."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with _OnHost():  # type: ignore[no-untyped-call]
            return function(*args, **kwargs)

    return run


class _OnHost(TorchDispatchMode):
    """Factories and copies between devices make their tensors on the host."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return func(*map(_host, args), **{name: _host(it) for name, it in (kwargs or {}).items()})


def _host(argument: Any) -> Any:
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


def _within(
    context: Callable[[], AbstractContextManager[None]], function: Callable[..., Any]
) -> Callable[..., Any]:
    """Run a function within a context, such as a comparison of fused kernels and its copies."""

    def run(*args: Any, **kwargs: Any) -> Any:
        with context():
            return function(*args, **kwargs)

    return run


def _budget(memory: DeviceMemory | None) -> Callable[[], list[Replacement]]:
    """Answer how far memory is below its peak: within that, a benchmark clones its arguments.

    The others are copied to the host, and all of them where memory is not followed. That is too
    low by what is cloned if the buffer that a benchmark flushes then raises the peak.
    """

    def answers() -> list[Replacement]:
        highest = now = 0
        if memory is not None:
            memory.before_use()
            allocated = memory.settled().statistics.allocated_bytes
            highest, now = allocated.peak, allocated.current
        return [
            (module, name, lambda answer=answer: answer)
            for module in (torch.cuda, getattr(torch, "accelerator", torch.cuda))
            for name, answer in (("max_memory_allocated", highest), ("memory_allocated", now))
        ]

    return answers


def _answering(
    answers: Callable[[], list[Replacement]], function: Callable[..., Any]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with replaced(answers()):
            return function(*args, **kwargs)

    return run


def _load(compiler: Any, name: str, source: str, *args: Any, **kwargs: Any) -> Any:
    """`AsyncCompile.triton`: a kernel with the configurations among which Inductor chooses.

    A worker process executes the source anew each time (`PyCodeCache.load_by_key_path`, unless
    `in_toplevel_process`), and then finds the configuration that an earlier call has chosen. Up to
    torch 2.6 the program's process executes it.
    """
    from torch._inductor.codecache import PyCodeCache
    from torch._inductor.runtime.compile_tasks import _reload_python_module

    module = _reload_python_module(*PyCodeCache.write(source))
    sys.modules.pop(module.__name__, None)
    kernel = getattr(module, name)
    kernel.precompile()
    return kernel


def _benchmark(
    unknowns: Unknowns,
    recorder: Recorder,
    benchmarker: Any,
    function: Callable[[], Any],
    *args: Any,
    **kwargs: Any,
) -> float:
    """`InductorBenchmarker.benchmark_gpu` and, if configured, Triton's `do_bench`.

    All candidates are equally fast here, so the first is chosen.
    """
    with _named(recorder):
        run_timed(function, _flushed_bytes(unknowns))
    return 1.0


@contextmanager
def _named(recorder: Recorder) -> Iterator[None]:
    """Name what is made meanwhile, even if a benchmark runs out of memory."""
    first = len(recorder.graph.ops)
    try:
        yield
    finally:
        recorder.label_since(first, "made while Inductor times kernels")


def _flushed_bytes(unknowns: Unknowns) -> int:
    from torch._inductor import config

    uses_own = getattr(config, "use_experimental_benchmarker", True)  # torch 2.7 has it
    if not (uses_own and _timing().has_own_buffer):
        return _timing().flushed_bytes
    card = torch.cuda.get_device_properties(0)
    size: int | None = getattr(card, "L2_cache_size", None)
    if size is None:
        size = largest_l2_cache((card.major, card.minor))
        unknowns.flushes(size)
    return size


def _empty_strided_cuda(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    """`_empty_strided_device` (torch/csrc/dynamo/guards.cpp)."""
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _reinterpret_tensor(
    tensor: torch.Tensor, size: Any, stride: Any, offset: int = 0
) -> torch.Tensor:
    """`_reinterpret_tensor` (torch/csrc/inductor/inductor_ops.cpp): offsets add up.

    The result is no view, which would keep its base.
    """
    with torch._C._AutoDispatchBelowADInplaceOrView():
        return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _copy_if_misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """`copy_if_misaligned` (torch/csrc/dynamo/guards.cpp)."""
    from torch._inductor.utils import ALIGNMENT, clone_preserve_strides

    return clone_preserve_strides(tensor) if tensor.data_ptr() % ALIGNMENT else tensor
