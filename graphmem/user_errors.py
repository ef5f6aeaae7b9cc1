"""Report errors of the user's code by the user's own lines."""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

from graphmem.errors import GraphmemError, InputError
from graphmem.frames import Origin, is_own_fault, is_program, origin_of, short_path

# In FakeTensorDeviceMismatchError (torch/_subclasses/fake_tensor.py) and in real kernels' errors;
# up to torch 2.12 fake tensors have words of their own.
_DEVICES_DIFFER = re.compile(
    "Expected all tensors to be on the same device|found two different devices"
)
_DEVICE = re.compile(r"\bcpu\b|\bcuda:\d+")
# CustomOpDef's error (torch/_library/custom_ops.py).
_NO_META_KERNEL = re.compile(r"no fake impl registered for <CustomOpDef\(([\w:]+)\)>")
# A table of kernels follows it (aten/src/ATen/core/dispatch/OperatorEntry.cpp).
_FIRST_SENTENCE = re.compile(
    r"(Could not run '[^']*' with arguments from the '\w*' backend\.).*", re.DOTALL
)
# The file of methods that the standard library writes (dataclasses.py, `_FuncBuilder`), and of
# what a program passes to `exec`: nobody can open it, and the lines around it are a file's.
_WRITTEN = "<string>"
_PLACE = "_graphmem_place"
_HINT = "_graphmem_hint"


class UserCodeError(InputError):
    """The user's code raised an exception."""

    def __init__(self, what: str, error: BaseException, summary: str, where: str) -> None:
        message = f"{what} raised {type(error).__name__}{': ' * bool(summary)}{summary}"
        super().__init__(f"{message} ({where})" if where else message, hint=_hint_for(error))


class UserSyntaxError(InputError):
    """A file of the user's has a syntax error."""

    def __init__(self, file: str, line: int | None, reason: str) -> None:
        super().__init__(f"syntax error in {short_path(file)}:{line}: {reason}")


class MissingImportError(InputError):
    """The user's code imports a module that is not there."""

    def __init__(self, what: str, module: str, at: str) -> None:
        message = f"{what} imports {module!r}, and there is no such module{at}"
        super().__init__(message, hint=_how_to_get(module))


class CalledExitError(InputError):
    """The user's code ends the process."""

    def __init__(self, what: str, code: object, at: str) -> None:
        super().__init__(
            f"{what} called sys.exit({code!r}){at}",
            hint='put what only the script needs below `if __name__ == "__main__":`',
        )


class MixedDevicesError(InputError):
    """An operation's tensors are on different devices."""

    def __init__(self, what: str, devices: str, at: str) -> None:
        super().__init__(
            f"{what} mixes tensors on {devices}{at}",
            hint="make each tensor where the others are, as in torch.zeros(…, device=x.device)",
        )


class NoFakeKernelError(InputError):
    """A custom operator has no fake kernel."""

    def __init__(self, operator: str, at: str) -> None:
        super().__init__(
            f"operator {operator} has no meta kernel{at}",
            hint="register one with its register_fake, which returns the shape of the result",
        )


@contextmanager
def blaming_the_user(what: str, within: str = "") -> Iterator[None]:
    """Turn errors of the user's code, including `sys.exit`, into an `InputError`.

    graphmem's own errors pass through, with the place in the program if they have none. So do
    interruptions from outside: `KeyboardInterrupt`, and signals of packages that are not an
    `Exception`, such as `pytest.skip`.

    Args:
        what: what is running, such as `build()`.
        within: the running target, in words, for package lines that no user line called.
    """
    try:
        yield
    except InputError as error:
        _add_place(error)
        raise
    except (GraphmemError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        if is_own_fault(error) or _is_signal(error):
            raise
        raise user_error(error, what, within) from error


def _add_place(error: InputError) -> None:
    place = place_of(error)
    if place and error.user_line is None and place not in str(error):
        error.args = (f"{error} ({place})",)
        error.user_line = place.rpartition("called from ")[2]


def _is_signal(error: BaseException) -> bool:
    if isinstance(error, (Exception, SystemExit)):
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and origin_of(frames[-1].filename) is Origin.LIBRARY


def user_error(error: BaseException, what: str, within: str = "") -> InputError:
    """Describe an error of the user's code and its place in one line, with the user's traceback.

    Args:
        error: the error; an `InputError` is returned unchanged.
        what: what was running, such as `build()`; the subject of the message.
        within: see `blaming_the_user`.
    """
    if isinstance(error, InputError):
        return error
    told = TracebackException.from_exception(error)
    _drop_callers(told)
    _keep_user_frames(told)
    where = _place_in(told.stack, within) or getattr(error, _PLACE, "") or _module_of(error)
    described = _described(error, what, where)
    has_lines = bool(told.stack) or isinstance(error, SyntaxError)
    lines = "".join(told.format() if told.stack else told.format_exception_only())
    lines = lines.replace(str(error), _without_kernels(str(error)))
    described.user_traceback = lines if has_lines else None
    described.user_line = _user_line(error, told.stack)
    return described


def _user_line(error: BaseException, stack: list[FrameSummary]) -> str | None:
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{short_path(error.filename)}:{error.lineno}"
    own = [frame for frame in stack if origin_of(frame.filename) is Origin.USER]
    return _line(own[-1]) if own else None


def _without_kernels(text: str) -> str:
    """The dispatcher's message without its table of kernels, which describes this machine."""
    return _FIRST_SENTENCE.sub(r"\1", text)


def note_place(error: BaseException, place: object) -> None:
    """Attach a place to an error whose traceback has no user frames."""
    if place and not hasattr(error, _PLACE):
        setattr(error, _PLACE, str(place))


def note_hint(error: BaseException, hint: str) -> None:
    """Attach a hint about a cause that the user cannot see."""
    if hint and not hasattr(error, _HINT):
        setattr(error, _HINT, hint)


def hint_of(error: BaseException) -> str:
    """The hint attached to an error, or ""."""
    hint: str = getattr(error, _HINT, "")
    return hint


def place_of(error: BaseException) -> str:
    """The program's line that raised an error, with the user's line; "" if there is none."""
    told = TracebackException.from_exception(error)
    _drop_callers(told)
    _keep_user_frames(told)
    return _place_in(told.stack) or getattr(error, _PLACE, "")


def _place_in(stack: list[FrameSummary], within: str = "") -> str:
    """The innermost line, with the user's line if the former is a package's."""
    if not stack:
        return ""
    own = [frame for frame in stack if origin_of(frame.filename) is Origin.USER]
    innermost = _line(stack[-1])
    if not own:
        return f"{innermost}, {within}" if within else innermost
    if own[-1] is stack[-1]:
        return innermost
    return f"{innermost}, called from {_line(own[-1])}"


def _line(frame: FrameSummary) -> str:
    return f"{short_path(frame.filename)}:{frame.lineno}"


def _drop_callers(told: TracebackException) -> None:
    """Drop the frames of graphmem's callers."""
    is_own = [origin_of(frame.filename) is Origin.GRAPHMEM for frame in told.stack]
    if True in is_own:
        del told.stack[: is_own.index(True)]


def _module_of(error: BaseException) -> str:
    """The innermost module that was running, and its name in the outermost one; else "".

    For models without user lines, as those made of torch's layers.
    """
    from torch.nn import Module

    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    selves = [frame.f_locals.get("self") for frame in frames]
    modules = [value for value in selves if isinstance(value, Module)]
    if not modules:
        return ""
    outermost, innermost = modules[0], modules[-1]
    name = next(name for name, each in _named_modules(outermost, innermost) if each is innermost)
    described = f"{type(innermost).__name__}({innermost.extra_repr()})"
    return f"module {name}, {described}" if name else described


def _named_modules(outermost: Any, otherwise: Any) -> Iterator[tuple[str, Any]]:
    """The modules of the model by name; one that it does not hold has none."""
    yield from outermost.named_modules()
    yield "", otherwise


def _keep_user_frames(told: TracebackException) -> None:
    """Drop the frames of torch, graphmem and the standard library, here and in the causes."""
    told.stack = StackSummary.from_list(
        [each for each in told.stack if is_program(each.filename) and each.filename != _WRITTEN]
    )
    for earlier in (told.__cause__, told.__context__):
        if earlier is not None:
            _keep_user_frames(earlier)
    if told.__cause__ is not None and not told.__cause__.stack:
        told.__cause__ = None
    if told.__context__ is not None and not told.__context__.stack:
        told.__context__ = None


def _described(error: BaseException, what: str, where: str) -> InputError:
    """The message for an error."""
    at = f" at {where}" if where else ""
    text = _without_kernels(str(error))
    match error:
        case SyntaxError(filename=str(file), lineno=line, msg=reason):
            return UserSyntaxError(file, line, reason)
        case ModuleNotFoundError(name=str(module)):
            return MissingImportError(what, module, at)
        case SystemExit(code=code):
            return CalledExitError(what, code, at)
        case RuntimeError() if _DEVICES_DIFFER.search(text):
            devices = " and ".join(sorted(set(_DEVICE.findall(text)))) or "different devices"
            return MixedDevicesError(what, devices, at)
        case RuntimeError() if operator := _NO_META_KERNEL.search(text):
            return NoFakeKernelError(operator[1], at)
    summary = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return UserCodeError(what, error, summary, where)


def _how_to_get(module: str) -> str | None:
    top = module.partition(".")[0]
    if top in sys.modules:
        return f"{top} is installed, but has no module of that name"
    return f"install {top} in graphmem's environment ({sys.prefix})"


def _hint_for(error: BaseException) -> str | None:
    if isinstance(error, ImportError) and "relative import" in str(error):
        return "name a file with relative imports by its package: package.module:build"
    return hint_of(error) or None
