"""Errors about what the virtual GPU does not support, one class per message."""

from __future__ import annotations

from graphmem.errors import InputError


class PinnedHistoryError(InputError):
    """The history of pinned host memory is not recorded."""

    def __init__(self) -> None:
        super().__init__(
            "graphmem records no history of pinned host memory",
            hint="leave out record_pinned_host_memory; the report has the peak of pinned bytes",
        )


class NoDriverGraphError(InputError):
    """The program asks for the driver's handle of a CUDA graph."""

    def __init__(self) -> None:
        super().__init__(
            "the virtual GPU's CUDA graphs have no graph of the driver behind them",
            hint="leave `raw_cuda_graph` out of the run",
        )


class NoDeviceGuardError(InputError):
    """graphmem cannot register a device guard in this build of torch."""

    def __init__(self, version: object) -> None:
        super().__init__(
            f"this build of PyTorch ({version}) does not let graphmem stand in for a GPU",
            hint="install a released wheel, such as `pip install torch`",
        )


class MemoryInTraceError(InputError):
    """A traced step asks how much memory is in use."""

    def __init__(self) -> None:
        super().__init__(
            "the code asks torch.cuda how much memory is in use, which `analyze` cannot answer",
            hint="use `graphmem run script.py`, which answers while the script runs",
        )


class SaveInTraceError(InputError):
    """A traced step writes a tensor to a file."""

    def __init__(self) -> None:
        super().__init__(
            "the code saves tensors, which have no data in `analyze`",
            hint="leave that out, or use `graphmem run script.py`, which saves zeros instead",
        )


class PoolAllocatorError(InputError):
    """A memory pool has a custom allocator."""

    def __init__(self) -> None:
        super().__init__(
            "the virtual GPU does not model memory pools with an allocator of their own",
            hint="leave `allocator=` out",
        )


class OldPoolError(InputError):
    """A memory pool of a release whose pools followed contexts of their own."""

    def __init__(self) -> None:
        super().__init__(
            "the virtual GPU does not model memory pools of torch before 2.8",
            hint="leave `torch.cuda.MemPool` out of the run, or run it on a newer torch",
        )


class UnknownStandInError(InputError):
    """There is no stand-in of this name."""

    def __init__(self, name: str, known: str, group: str) -> None:
        super().__init__(
            f"there is no stand-in {name!r}: there are {known}",
            hint=f"a package can provide one by an entry point of the group {group} "
            "(docs/fine_tuning.md)",
        )


class NoStandInPartError(InputError):
    """A stand-in lacks a function.

    Args:
        install: the command that installs the package's Python part without its kernels.
    """

    def __init__(self, package: str, what: str, install: str | None = None) -> None:
        super().__init__(
            f"the stand-in for {package} has no {what}",
            hint=f"install the package's Python part ({install}): it runs over the same kernels"
            if install is not None
            else "docs/fine_tuning.md says what it has, and how to provide your own stand-in",
        )


class SharedEventError(InputError):
    """The program shares an event between processes."""

    def __init__(self) -> None:
        super().__init__(
            "events of the virtual GPU cannot be shared between processes",
            hint="run a single process",
        )


class OwnNcclGroupError(InputError):
    """A program makes a process group of NCCL itself."""

    def __init__(self) -> None:
        super().__init__(
            "the script makes a ProcessGroupNCCL itself, which needs a real card",
            hint="graphmem knows the groups that torch.distributed.init_process_group and "
            "new_group make",
        )


class UnsupportedReleaseError(InputError):
    """A package's installed release calls other kernels than those that have rules.

    Args:
        package: its name, as `pip` knows it.
        found: the release that is installed.
        oldest: the first that is supported.
        install: the command that installs a newer one; by default pip's.
    """

    def __init__(self, package: str, found: str, oldest: str, install: str | None = None) -> None:
        super().__init__(
            f"{package} {found} is installed; graphmem knows the kernels of {oldest} and later",
            hint=install or f"pip install '{package}>={oldest}'",
        )
