"""What can be wrong with the allocator's settings, a class for each message."""

from __future__ import annotations

from graphmem.errors import InputError


class UnknownAllocatorSettingError(InputError):
    """PyTorch has no setting of that name."""

    def __init__(self, unknown: str, known: str) -> None:
        super().__init__(f"Allocator setting {unknown!r} is not known. Known are: {known}.")


class SettingNotWholeError(InputError):
    """A setting counts something."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be a whole number, not {value!r}.")


class SettingNotBooleanError(InputError):
    """A setting is a switch."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be True or False, not {value!r}.")


class LargeSegmentTooSmallError(InputError):
    """Large segments are more than 10 MiB."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be more than 10, not {value}.")


class BelowLargeSegmentError(InputError):
    """A setting may not be below the size of large segments."""

    def __init__(self, key: str, least: int, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be at least {least}, not {value}.")


class ThresholdOutOfRangeError(InputError):
    """A threshold lies strictly between 0 and 1."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must lie between 0 and 1, not {value}.")


class MemoryFractionOutOfRangeError(InputError):
    """A share of the card's memory."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must lie in 0..1, not {value}.")


class AllocatorBackendError(InputError):
    """Another allocator than PyTorch's own."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator {key} {value!r} is not modelled; only 'native' is.")


class UnmodelledSettingError(InputError):
    """A setting of PyTorch's that graphmem does not follow."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Allocator setting {key} is not modelled.")


class UnclosedBracketError(InputError):
    """A list of divisions does not end."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} lacks its closing bracket: {value!r}.")


class NotPowerOfTwoError(InputError):
    """A setting takes powers of two."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} takes powers of two, not {value}.")


class SettingWithoutValueError(InputError):
    """A part of the settings has no colon."""

    def __init__(self, item: object) -> None:
        super().__init__(f"Allocator setting {item!r} is not of the form key:value.")


class SettingNotNumberError(InputError):
    """A setting is a number."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be a number, not {value!r}.")


class SettingTooLargeError(InputError):
    """PyTorch accepts no greater value."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be at most 128, not {value}.")
