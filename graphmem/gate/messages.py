"""Errors of the gate, a class for each message."""

from __future__ import annotations

from pathlib import Path

from graphmem.errors import InputError


class NoConfigurationError(InputError):
    """There is no configuration, here or in a folder above."""

    def __init__(self, file: str, pyproject: str) -> None:
        super().__init__(
            f"there is no {file} here or above, and no [tool.graphmem] in a {pyproject}",
            hint="`graphmem init` writes one",
        )


class WrongConfigurationError(InputError):
    """A value in the configuration is of a wrong type."""

    def __init__(self, place: str, key: str, reason: str) -> None:
        super().__init__(f"{place}: {key}: {reason[:1].lower()}{reason[1:]}")


class UnknownKeyError(InputError):
    """The configuration has a key that nothing reads."""

    def __init__(self, place: str, name: object, hint: str | None) -> None:
        super().__init__(f"{place}: unknown key {name!r}", hint=hint)


class MissingKeyError(InputError):
    """The configuration lacks a key."""

    def __init__(self, place: str, key: str, lacking: object) -> None:
        super().__init__(f"{place}: {key} has no {lacking!r}")


class CannotReadError(InputError):
    """The operating system does not hand a file out."""

    def __init__(self, path: Path | str, reason: str | None) -> None:
        super().__init__(f"cannot read {path}: {reason}")


class TomlEncodingError(InputError):
    """A configuration is written in UTF-8."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not TOML: it is not UTF-8")


class NotTomlError(InputError):
    """A configuration is written in TOML."""

    def __init__(self, name: str, reason: object) -> None:
        super().__init__(f"{name} is not TOML: {reason}")


class UnknownTargetError(InputError):
    """The configuration has no target of that name."""

    def __init__(self, file: str, name: str, hint: str | None) -> None:
        super().__init__(f"{file} has no target {name!r}", hint=hint)


class NotReportError(InputError):
    """A file is not what `analyze --format json` writes."""

    def __init__(self, path: Path | str, reason: object) -> None:
        super().__init__(
            f"{path} is not a report: {reason}",
            hint="`graphmem analyze --format json -o` writes one",
        )


class NotRevisionsError(InputError):
    """`--git` names no two revisions."""

    def __init__(self, span: str) -> None:
        super().__init__(f"--git {span!r} is not BASE..HEAD", hint="write it like main..HEAD")


class GitFailedError(InputError):
    """git refuses."""

    def __init__(self, command: str, text: str, hint: str | None) -> None:
        super().__init__(f"git {command}: {text}", hint=hint)


class NoGitError(InputError):
    """git is not there."""

    def __init__(self, reason: str | None) -> None:
        super().__init__(f"git cannot be run: {reason}")


class NoDaskError(InputError):
    """`--dask` without the package."""

    def __init__(self) -> None:
        super().__init__(
            "--dask needs the package distributed", hint="pip install 'graphmem[dask]'"
        )


class NoSchedulerError(InputError):
    """Nothing answers at the address of `--dask`."""

    def __init__(self, address: str, reason: object) -> None:
        super().__init__(
            f"no Dask scheduler at {address}: {reason}",
            hint="start one with `dask scheduler`; it prints its address, as tcp://host:8786",
        )


class AnalysisDiedError(InputError):
    """A job did not return."""

    def __init__(self, kind: str, reason: object) -> None:
        super().__init__(f"the analysis died: {kind}: {reason}")


class LockSchemaError(InputError):
    """The baseline is of another version of graphmem."""

    def __init__(self, name: str, schema: str, known: str) -> None:
        super().__init__(f"{name} has the schema {schema!r}, not {known!r}")


class UnreadableLockError(InputError):
    """The operating system does not hand the baseline out."""

    def __init__(self, name: str, reason: str | None) -> None:
        super().__init__(f"cannot read {name}: {reason}")


class LockEncodingError(InputError):
    """A baseline is written in UTF-8."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is not a baseline: it is not UTF-8")


class NotLockError(InputError):
    """A file is not a baseline."""

    def __init__(self, name: str, reason: object) -> None:
        super().__init__(f"{name} is not a baseline: {reason}")


class NativeCrashError(InputError):
    """Native code ended the process of an analysis."""

    def __init__(self, at: str, signal: str) -> None:
        super().__init__(
            f"native code crashed{at} ({signal})",
            hint="an extension that the code under analysis calls, or torch itself, is at fault",
        )


class ProcessEndedError(InputError):
    """The code under analysis ended its process."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(
            f"the code under analysis ended its process with exit status {exit_code}",
            hint="os._exit() does that, and so does native code",
        )


class ProcessKilledError(InputError):
    """Something killed the process of an analysis."""

    def __init__(self) -> None:
        super().__init__(
            "the process of the analysis was killed (SIGKILL)",
            hint="the machine may have run out of memory: try with --jobs 1",
        )


class StoppedError(InputError):
    """The user stopped the check."""

    def __init__(self) -> None:
        super().__init__("stopped")
