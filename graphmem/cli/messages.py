"""Errors in the options of a command, one class per message."""

from __future__ import annotations

from pathlib import Path

from graphmem.errors import InputError


class EmptyBatchError(InputError):
    """`--batch 0`."""

    def __init__(self) -> None:
        super().__init__("--batch must be at least 1", hint="write a size, or a factor as 0.5x")


class WrongFactorError(InputError):
    """`--batch` is neither a size nor a factor."""

    def __init__(self, text: str) -> None:
        super().__init__(
            f"--batch {text!r} is not a factor", hint="write it as 2x or 0.5x, or a size"
        )


class TimeoutOnClusterError(InputError):
    """`--timeout` with `--dask`."""

    def __init__(self) -> None:
        super().__init__(
            "--timeout ends processes of this machine, not those of a Dask cluster",
            hint="leave one of them out",
        )


class PartialUpdateError(InputError):
    """A baseline lost in a merge conflict can only be rewritten whole."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"{name} has a merge conflict, and not every target was measured",
            hint="update all targets at once; `graphmem check` says what is wrong with them",
        )


class NamedTwiceError(InputError):
    """A list of `KEY=VALUE` has a key twice."""

    def __init__(self, option: str, text: str | None) -> None:
        super().__init__(f"{option} {text} names one thing twice")


class NotPositiveError(InputError):
    """A size is a positive whole number."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"{option}: {text!r} is not a positive whole number")


class WhichTwoError(InputError):
    """`diff` without two sides."""

    def __init__(self) -> None:
        super().__init__("diff takes a BASE and a HEAD", hint="or --git main..HEAD [TARGET]…")


class AlreadyConfiguredError(InputError):
    """`init` never overwrites."""

    def __init__(self, file: str) -> None:
        super().__init__(f"there is a {file} already", hint="delete it first, or edit it")


class WrongRecordNameError(InputError):
    """The name of a saved step has another extension."""

    def __init__(self, path: Path, ending: str, better: Path) -> None:
        super().__init__(
            f"cannot save a step as {path}: its name must end in {ending}", hint=f"--save {better}"
        )


class NotKeyValueError(InputError):
    """A `KEY=VALUE` option lacks its key or its `=`."""

    def __init__(self, option: str, text: str) -> None:
        super().__init__(f"{option} {text!r} is not KEY=VALUE")


class SearchOptionsError(InputError):
    """Options of `plan --search` without it."""

    def __init__(self) -> None:
        super().__init__("--dask, --also, --sort and --top are for searches", hint="add --search")


class TwoShardingsError(InputError):
    """`--fsdp` and `--zero`."""

    def __init__(self) -> None:
        super().__init__("--fsdp and --zero are two ways of sharding", hint="take one of them")


class NothingGatheredError(InputError):
    """An option for weights that FSDP gathers, and none are."""

    def __init__(self, option: str) -> None:
        super().__init__(
            f"{option} is for weights that are sharded and gathered", hint="add --fsdp or --zero 3"
        )


class NoBucketsError(InputError):
    """`--bucket-view` for gradients that are in no buckets of DDP's."""

    def __init__(self, layout: object) -> None:
        super().__init__(
            f"--bucket-view keeps gradients in DDP's buckets; {layout} has none",
            hint="leave --bucket-view out",
        )


class UnknownOffloadError(InputError):
    """`--offload` names an unknown kind of state."""

    def __init__(self, unknown: str) -> None:
        super().__init__(
            f"--offload {unknown} is unknown", hint="optimizer, parameters, or optimizer,parameters"
        )


class SearchWithWrapError(InputError):
    """`--search` with `--wrap`."""

    def __init__(self) -> None:
        super().__init__(
            "--search chooses among layouts with FSDP's default units, not those of --wrap",
            hint="leave --wrap out, and plan the layout that it finds with --wrap",
        )


class StagesNotNumbersError(InputError):
    """`--stages` is a list of numbers of blocks."""

    def __init__(self, text: str | None) -> None:
        super().__init__(f"--stages {text!r} are not numbers", hint="such as 8,8,8,6")


class OneRankOnlyError(InputError):
    """`--html` and `--save` with several ranks."""

    def __init__(self) -> None:
        super().__init__(
            "--html and --save keep one rank, but several would run",
            hint="run one of them by itself, with --rank R",
        )


class WhichVerificationError(InputError):
    """`verify` compares one kind of thing at a time."""

    def __init__(self) -> None:
        super().__init__(
            "verify takes recordings, or --suite, and at most one of --target and --allocator",
            hint="graphmem verify RECORDING --target train.py:build",
        )


class SuiteHasOwnFilesError(InputError):
    """`verify --suite` with files."""

    def __init__(self) -> None:
        super().__init__("--suite takes its recordings from --recordings DIR")


class NoRecordingNamedError(InputError):
    """`verify --allocator` without files."""

    def __init__(self) -> None:
        super().__init__("--allocator needs at least one recording")


class OneRecordingOnlyError(InputError):
    """`verify --target` with several recordings, or none."""

    def __init__(self, count: int) -> None:
        super().__init__(f"--target is compared with one recording, not with {count}")


class RecordingHasOptionsError(InputError):
    """Options for a recording that stores its own."""

    def __init__(self) -> None:
        super().__init__(
            "a recording that knows its target knows its options",
            hint="leave them out, or name what to compare it with: --target train.py:build",
        )


class NoAutocastDtypeError(InputError):
    """`--dtype` changes weights, `--autocast` does not."""

    def __init__(self, dtype: object) -> None:
        super().__init__(f"--dtype {dtype} is without autocast", hint="leave one of them out")


class NoChangeError(InputError):
    """`whatif` without a change."""

    def __init__(self) -> None:
        super().__init__("nothing to change", hint="name a change, such as --autocast bf16")
