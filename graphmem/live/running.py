"""Run a program on a virtual GPU to its end, however it ends."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from graphmem.errors import GraphmemError, InputError
from graphmem.files import flush
from graphmem.live import nvidia_smi
from graphmem.live.gpu import VirtualGpu
from graphmem.live.messages import CaughtRefusalError
from graphmem.live.script import NoSuchProgramError, Program, as_on_card
from graphmem.live.session import EnoughSteps
from graphmem.live.started_processes import end_processes, noting_processes, what_it_started
from graphmem.time_limit import time_limit
from graphmem.trace.naming import variables_of
from graphmem.user_errors import hint_of, place_of
from graphmem.virtual_device.stand_ins import (
    StandIn,
    asks_for_what_is_gone,
    stand_in_for,
    stand_in_named,
)

INTERRUPTED = 130
_LONGEST = 300
"""The most characters of an error's message in the last line."""
_BUILDS = "torch/utils/cpp_extension.py"
"""What compiles a program's extensions (`torch.utils.cpp_extension.load`)."""
_ASK_THE_DRIVER = frozenset({"cupy", "cupy_backends", "numba", "pycuda", "warp"})
"""Libraries that ask NVIDIA's driver for a card, not PyTorch."""
_ASKS_MPI = "deepspeed/comm/comm.py"
"""`init_distributed` without RANK, LOCAL_RANK, MASTER_ADDR, … (`mpi_discovery`)."""
_LACKS_RANK = "env:// rendezvous: environment variable "
"""`_env_rendezvous_handler`, torch/distributed/rendezvous.py."""

Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]
"""A `sys.excepthook`."""

_UNTRAINED = ", which counts forward passes until something trains: a larger N may reach that"


@dataclass(frozen=True)
class Ending:
    """How a program ended.

    Attributes:
        exit_code: Python's exit code.
        why: the reason, if the program did not just end.
        error: graphmem's own refusal that ended the program, to be raised after the report.
        was_stopped: whether it was stopped, rather than came to an end of its own.
    """

    exit_code: int
    why: str | None = None
    error: InputError | None = None
    was_stopped: bool = False


def run(program: Program, gpu: VirtualGpu, timeout: float | None = None) -> Ending:
    """Run a program on a device to its end.

    An exception is printed as Python prints it, without graphmem's frames.

    Args:
        program: the program.
        gpu: the device.
        timeout: the most seconds it may take.

    Raises:
        NoSuchProgramError: the program does not exist.
    """
    with noting_processes() as processes:
        ending = _run(program, gpu, timeout)
    if ending.was_stopped:
        end_processes()
    started = None if gpu.was_used else what_it_started(processes)
    if started is None:
        return ending
    why = ending.why or "nothing ran on the card"
    return replace(ending, why=f"{why.removesuffix('.')}; {started}")


def _run(program: Program, gpu: VirtualGpu, timeout: float | None) -> Ending:
    card = gpu.runtime.gpu
    gpu.enter(sys._getframe())
    show = sys.excepthook
    try:
        failure = None
        try:
            with (
                time_limit(timeout),
                nvidia_smi.on_path(card, gpu.memory.devices.count, gpu.bytes_in_use),
                _none_caught(gpu),
            ):
                program.run(gpu)
        except BaseException as error:
            failure = error
            show = sys.excepthook  # perhaps the program's
            raise
        finally:
            gpu.abandon()
            gpu.__exit__(type(failure) if failure else None, failure, None)
    except EnoughSteps as enough:
        return _enough(enough)
    except SystemExit as stop:
        return _stopped(gpu) or Ending(_exit_code(stop.code))
    except KeyboardInterrupt:
        return Ending(INTERRUPTED, "interrupted", was_stopped=True)
    except NoSuchProgramError:
        raise
    except InputError as error:
        return _refused(error)
    except GraphmemError:
        raise
    except BaseException as error:  # noqa: BLE001 - as the interpreter itself does
        return _stopped(gpu) or _failed(error, gpu, show)
    return _stopped(gpu) or Ending(0)


def _stopped(gpu: VirtualGpu) -> Ending | None:
    """How graphmem stopped the program, in a thread, or in code that caught it or then failed."""
    by = gpu.threads.stopped_by or gpu.enough
    if isinstance(by, InputError):
        return _refused(by)
    return _enough(by) if by is not None else None


def _failed(error: BaseException, gpu: VirtualGpu, show: Hook) -> Ending:
    _print_error(error, show)
    why = ": ".join(filter(None, [f"ended by {type(error).__name__}", _first_sentence(error)]))
    hint = _hint(error, gpu)
    return Ending(1, f"{why.removesuffix('.')}; {hint}" if hint else why)


def _refused(error: InputError) -> Ending:
    """The end at the program's line that was refused, unless the refusal names it."""
    place = place_of(error)
    why = f"stopped at {place}" if place and place not in str(error) else None
    return Ending(error.exit_code, why, error, was_stopped=True)


def _enough(enough: EnoughSteps) -> Ending:
    why = "stopped by --max-steps" + ("" if enough.has_trained else _UNTRAINED)
    return Ending(0, why, was_stopped=True)


@contextmanager
def _none_caught(gpu: VirtualGpu) -> Iterator[None]:
    """Refuse a program that ends as it does only because it caught a refusal."""
    end: BaseException | None = None
    try:
        yield
    except (SystemExit, EnoughSteps) as error:
        end = error
    except Exception as error:
        if isinstance(error, GraphmemError) or not _follows_refusal(error):
            raise
        end = error
    if gpu.refusal is not None and gpu.threads.stopped_by is None:
        raise CaughtRefusalError(gpu.refusal)
    if end is not None:
        raise end


def _exit_code(code: Any) -> int:
    """The exit code of a `SystemExit`, as Python's handle_system_exit decides it."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    flush(sys.stdout)
    sys.stderr.write(f"{code}\n")
    return 1


def _print_error(error: BaseException, show: Hook) -> None:
    flush(sys.stdout)
    for each in _chain(error):
        each.__traceback__ = as_on_card(each.__traceback__)
    try:
        show(type(error), error, error.__traceback__)
    except Exception:  # noqa: BLE001 - the program's hook; Python goes on in this way too
        sys.__excepthook__(type(error), error, error.__traceback__)


def _follows_refusal(error: BaseException) -> bool:
    return any(isinstance(each, InputError) for each in _chain(error))


def _chain(error: BaseException) -> list[BaseException]:
    """An error, and those during which it was raised."""
    chain: list[BaseException] = []
    at: BaseException | None = error
    while at is not None and all(at is not each for each in chain):  # NVML's have their own `==`
        chain.append(at)
        at = at.__cause__ or at.__context__
    return chain


def _hint(error: BaseException, gpu: VirtualGpu) -> str:
    stand_in = stand_in_for(error) or _stand_in_told_of(error)
    if stand_in is not None and asks_for_what_is_gone(error, stand_in):
        release = f"{stand_in.distribution} {stand_in.version}"
        return f"{release} no longer has that module, nor has its stand-in"
    if stand_in is not None and stand_in not in gpu.stand_ins:
        return f"--stand-in {stand_in.distribution} stands in for it"
    if stand_in is None and isinstance(error, ImportError):  # a name that a module lacks
        package = (error.name or "").partition(".")[0]
        stand_in = next((each for each in gpu.stand_ins if each.distribution == package), None)
    if stand_in is not None and isinstance(error, ImportError) and stand_in.install:
        return (
            f"the stand-in lacks it: install the package's Python part ({stand_in.install}), "
            "which runs over the same kernels"
        )
    return hint_of(error) or _hint_on_launcher(error) or _hint_on_extensions(error)


def _stand_in_told_of(error: BaseException) -> StandIn | None:
    """The stand-in for a kernel that no hub gave, or that a library says is not installed."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_code.co_name == "get_kernel" and package == "kernels":
            return stand_in_named(str(variables_of(frame).get("repo_id", "")))
    told = isinstance(error, ImportError) and error.name is None
    return stand_in_named(str(error)) if told else None


def _hint_on_launcher(error: BaseException) -> str:
    """What to say if no launcher has told the ranks, and DeepSpeed asks MPI for them."""
    if _LACKS_RANK in str(error):
        return "no launcher has set it: --nproc-per-node 1 does, as torchrun would"
    frames = traceback.walk_tb(error.__traceback__)
    asks = any(each.f_code.co_filename.endswith(_ASKS_MPI) for each, _ in frames)
    if not (asks and isinstance(error, ModuleNotFoundError) and error.name == "mpi4py"):
        return ""
    return "DeepSpeed looks for MPI where no launcher has set RANK: --nproc-per-node 1 sets it"


def _hint_on_extensions(error: BaseException) -> str:
    """What to say if the program asks for more of a card than PyTorch does."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(each.f_code.co_filename.endswith(_BUILDS) for each in frames):
        return (
            "CUDA code that a program compiles does not run on the virtual card, and what it "
            "allocates is not known"
        )
    library = frames[-1].f_globals.get("__name__", "").partition(".")[0] if frames else ""
    if library == "pynvml":
        return "NVML on the virtual card knows memory, names and idle sensors (docs/cuda_api.md)"
    if library not in _ASK_THE_DRIVER:
        return ""
    return f"{library} asks NVIDIA's driver for a card, and the virtual one is PyTorch's alone"


def _first_sentence(error: BaseException) -> str:
    """The message up to the details that the traceback has shown."""
    lines = str(error).strip().splitlines()
    line = next((each for each in lines if any(map(str.isalnum, each))), "")
    sentence, end, rest = line.partition(". ")
    sentence = sentence + end.strip() if rest else line
    return sentence if len(sentence) <= _LONGEST else f"{sentence[:_LONGEST]}…"
