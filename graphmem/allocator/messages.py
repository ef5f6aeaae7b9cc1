"""Errors in the allocator's settings, one class per message."""

from __future__ import annotations

from graphmem.errors import InputError


class AllocatorSettingError(InputError):
    """PyTorch refuses the setting, too."""


class UnknownAllocatorSettingError(AllocatorSettingError):
    """PyTorch has no setting of this name."""

    def __init__(self, unknown: str, known: str) -> None:
        super().__init__(f"Allocator setting {unknown!r} is unknown. Choose from: {known}.")


class SettingNotWholeError(AllocatorSettingError):
    """The value of a setting is not a whole number."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be a whole number, not {value!r}.")


class SettingNotBooleanError(AllocatorSettingError):
    """The value of a setting is neither True nor False."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be True or False, not {value!r}.")


class LargeSegmentTooSmallError(AllocatorSettingError):
    """The size of large segments is not above 10 MiB."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be more than 10, not {value}.")


class BelowLargeSegmentError(AllocatorSettingError):
    """The value of a setting is below the size of large segments."""

    def __init__(self, key: str, least: int, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be at least {least}, not {value}.")


class ThresholdOutOfRangeError(AllocatorSettingError):
    """A threshold is not strictly between 0 and 1."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be between 0 and 1, not {value}.")


class MemoryFractionOutOfRangeError(AllocatorSettingError):
    """A share of the card's memory is not between 0 and 1."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be from 0 to 1, not {value}.")


class AllocatorBackendError(InputError):
    """The settings select an allocator other than PyTorch's own."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator {key} {value!r} is not modelled; only 'native' is.")


class UnmodelledSettingError(InputError):
    """graphmem does not model a setting of PyTorch."""

    def __init__(self, key: str) -> None:
        super().__init__(f"Allocator setting {key} is not modelled.")


class UnclosedBracketError(AllocatorSettingError):
    """A list of divisions is not closed."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} lacks its closing bracket: {value!r}.")


class NotPowerOfTwoError(AllocatorSettingError):
    """The value of a setting is not a power of two."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} takes powers of two, not {value}.")


class SettingWithoutValueError(AllocatorSettingError):
    """A part of the settings lacks a colon or a value."""

    def __init__(self, item: object) -> None:
        super().__init__(f"Allocator setting {item!r} does not have the form key:value.")


class SettingNotNumberError(AllocatorSettingError):
    """The value of a setting is not a number."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be a number, not {value!r}.")


class SettingTooLargeError(AllocatorSettingError):
    """The value of a setting is larger than PyTorch accepts."""

    def __init__(self, key: str, value: str) -> None:
        super().__init__(f"Allocator setting {key} must be at most 128, not {value}.")
