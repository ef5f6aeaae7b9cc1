"""The settings of PYTORCH_CUDA_ALLOC_CONF, and the sizes that follow from them.

Read in `c10/core/AllocatorConfig.{h,cpp}` and `c10/cuda/CUDAAllocatorConfig.{h,cpp}` of torch
2.13 and 2.15. Keys that do not affect device memory (pinned memory, locks) are accepted and
ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from graphmem.allocator.messages import (
    AllocatorBackendError,
    BelowLargeSegmentError,
    LargeSegmentTooSmallError,
    MemoryFractionOutOfRangeError,
    NotPowerOfTwoError,
    SettingNotBooleanError,
    SettingNotNumberError,
    SettingNotWholeError,
    SettingTooLargeError,
    SettingWithoutValueError,
    ThresholdOutOfRangeError,
    UnclosedBracketError,
    UnknownAllocatorSettingError,
    UnmodelledSettingError,
)
from graphmem.torch_releases.differences import (
    LIMITS_OF_HOST_ARE_IN_SNAPSHOTS,
    NEWEST_TRIED,
    REST_IS_ABOVE_THE_LAST_CLASS,
    Release,
)

KIB = 1024
MIB = 1024 * KIB

# c10/core/AllocatorConfig.h
MIN_BLOCK = 512  # kMinBlockSize: the rounding unit
SMALL_LIMIT = 1 * MIB  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT = 2 * MIB  # kSmallBuffer
MIN_LARGE_ALLOC = 10 * MIB  # kMinLargeAlloc: from here on a request gets its own segment
ROUND_LARGE = 2 * MIB  # kRoundLarge

# Sixteen size classes, 1 MiB to 32 GiB and above: kRoundUpPowerOfTwoIntervals.
DIVISION_CLASSES = 16

_IGNORED_FLAGS = {
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
}
_IGNORED_NUMBERS = {
    "pinned_max_cached_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_reserve_segment_size_mb",
}
_DIVISIONS = "roundup_power2_divisions"
_RESERVE = "expandable_segments_reserve"
_RESERVE_OF_CLASSES = "expandable_segments_reserve_by_class"  # no Python function names a class
_REGISTER_THREADS = "pinned_num_register_threads"
_MAX_REGISTER_THREADS = 128  # pinned_max_register_threads
_IGNORED = {*_IGNORED_FLAGS, *_IGNORED_NUMBERS, _REGISTER_THREADS, _RESERVE_OF_CLASSES}
_SINCE: Mapping[str, Release] = {
    "per_process_memory_fraction": (2, 10),
    "pinned_reserve_segment_size_mb": (2, 10),
    "large_segment_size_mb": (2, 11),
    "throw_on_cudamalloc_oom": (2, 12),
    "pinned_max_cached_size_mb": (2, 13),
    "pinned_max_round_threshold_mb": (2, 13),
    "expandable_segments_reserve": (2, 15),
    "expandable_segments_reserve_by_class": (2, 15),
}
"""The first release that accepts a key of `PYTORCH_CUDA_ALLOC_CONF`, if that is after 2.9.

The names in libc10.so and libc10_cuda.so of 2.9.1 to 2.15.0; PR #192269 for the last two.
"""
_NUMBER = re.compile(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class ExpandableReserve:
    """The addresses of an expandable segment (`ExpandableSegmentReserveSpec`).

    Attributes:
        value: a share of the device's memory, or GiB.
        is_share: which of the two.
    """

    value: float
    is_share: bool

    def bytes_of(self, total_bytes: int) -> int:
        """The bytes on a device with this much memory."""
        return int(self.value * (total_bytes if self.is_share else 1 << 30))


@dataclass(frozen=True, slots=True)
class AllocatorSettings:
    """The settings of the caching allocator that affect device memory.

    Attributes:
        max_split_size: blocks of at least this size are never split; None: all may be.
        max_non_split_rounding: how much larger than an oversize request its block may be.
        roundup_power2_divisions: parts into which each power of two is divided when rounding, one
            number for each size class from 1 MiB upwards; empty: no such rounding.
        garbage_collection_threshold: share of the memory limit above which unused segments are
            returned; 0: never. As in PyTorch, it acts only if a memory fraction is set.
        expandable_segments: one growing segment per pool and stream.
        expandable_reserve: the addresses of each; None: 1 1/8 of the device's memory.
        large_segment_size: the segment opened for requests of 1 to 10 MiB.
        memory_fraction: share of the device that the process may reserve; None: all of it.
    """

    max_split_size: int | None = None
    max_non_split_rounding: int = 20 * MIB
    roundup_power2_divisions: tuple[int, ...] = ()
    garbage_collection_threshold: float = 0.0
    expandable_segments: bool = False
    expandable_reserve: ExpandableReserve | None = None
    large_segment_size: int = 20 * MIB
    memory_fraction: float | None = None

    def round_size(self, requested: int) -> int:
        """The size of the block that a request needs (`round_size`)."""
        if self.roundup_power2_divisions and requested >= MIN_BLOCK:
            size_class = min(max(requested.bit_length() - 21, 0), DIVISION_CLASSES - 1)
            divisions = self.roundup_power2_divisions[size_class]
            if divisions > 1 and requested > MIN_BLOCK * divisions:
                return _next_division(requested, divisions)
        return (requested + MIN_BLOCK - 1) & -MIN_BLOCK

    def segment_size(self, size: int) -> int:
        """The segment that cudaMalloc is asked for when no block fits (`get_allocation_size`)."""
        if size <= SMALL_LIMIT:
            return SMALL_SEGMENT
        if size < MIN_LARGE_ALLOC:
            return self.large_segment_size
        return (size + ROUND_LARGE - 1) & -ROUND_LARGE


def _next_division(size: int, divisions: int) -> int:
    """`roundup_power2_next_division`: 1200 with 4 divisions of 1024..2048 becomes 1280."""
    floor = 1 << (size.bit_length() - 1)
    if size == floor:
        return size
    step = floor // divisions
    if step == 0:
        return floor << 1
    return (size + step - 1) & -step


def parse_settings(text: str, release: Release = NEWEST_TRIED) -> AllocatorSettings:
    """Parse a PYTORCH_CUDA_ALLOC_CONF string such as `"max_split_size_mb:128"`.

    Args:
        text: the settings.
        release: the version of torch that reads them.

    Raises:
        InputError: PyTorch refuses a key or a value, or the backend is not modelled.
    """
    pairs = dict(_pairs(text))
    later = {key for key, since in _SINCE.items() if since > release}
    unknown = next((key for key in pairs if key not in _KNOWN - later), None)
    if unknown is not None:
        known = ", ".join(sorted(_PARSERS.keys() - later))
        raise UnknownAllocatorSettingError(unknown, known)
    for key in pairs.keys() & _IGNORED:
        _check_ignored(key, pairs[key])
    settings = AllocatorSettings()
    parsers = _PARSERS if REST_IS_ABOVE_THE_LAST_CLASS.holds_in(release) else _OLDER_PARSERS
    for key, parse in parsers.items():  # this order: large_segment_size_mb bounds others
        if key in pairs:
            settings = parse(settings, key, pairs[key])
    return settings


def settings_of_snapshot(recorded: Mapping[str, object]) -> AllocatorSettings:
    """Read the settings from a memory snapshot's `allocator_settings`."""
    split = recorded.get("max_split_size")
    divisions = recorded.get("roundup_power2_divisions")
    parts: tuple[int, ...] = ()
    if isinstance(divisions, Mapping):
        by_size = sorted((int(size), value) for size, value in divisions.items())
        parts = tuple(value if isinstance(value, int) else 0 for _, value in by_size)
    usable = len(parts) == DIVISION_CLASSES and any(parts)
    return AllocatorSettings(
        max_split_size=split if isinstance(split, int) and 0 < split < 1 << 62 else None,
        roundup_power2_divisions=parts if usable else (),
        expandable_segments=recorded.get("expandable_segments") is True,
    )


def host_limits(release: Release) -> dict[str, int]:
    """What a snapshot says of two settings of page-locked memory; -1, the largest size_t: none."""
    if not LIMITS_OF_HOST_ARE_IN_SNAPSHOTS.holds_in(release):
        return {}
    return {"max_round_threshold": -1, "max_cached_size": -1}


def release_of_snapshot(recorded: Mapping[str, object]) -> Release:
    """Whose rules apply to a snapshot, of which only its `allocator_settings` are known.

    One of 2.12 cannot be told from older ones, whose allocator looked at addresses only.
    """
    difference = LIMITS_OF_HOST_ARE_IN_SNAPSHOTS
    return difference.since if "max_cached_size" in recorded else (2, 11)


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    """`key:value` pairs; commas inside brackets belong to the value (`ConfigTokenizer`)."""
    compact = re.sub(r"\s", "", text)
    if compact.endswith(","):
        compact = compact[:-1]
    if not compact:
        return
    for item in re.split(r",(?![^\[]*\])", compact):
        key, colon, value = item.partition(":")
        if not (key and colon and value):
            raise SettingWithoutValueError(item)
        yield key, value


def _whole(key: str, value: str) -> int:
    if not value.isdecimal():
        raise SettingNotWholeError(key, value)
    return int(value)


def _fraction(key: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise SettingNotNumberError(key, value) from None


def _check_ignored(key: str, value: str) -> None:
    """Check the value of an ignored setting, as PyTorch does."""
    if key in _IGNORED_FLAGS:
        _truth(key, value)
    elif key == _RESERVE_OF_CLASSES:
        if not (value.startswith("[") and value.endswith("]")):
            raise UnclosedBracketError(key, value)
    elif key == _REGISTER_THREADS and _power_of_two(key, value) > _MAX_REGISTER_THREADS:
        raise SettingTooLargeError(key, value)
    else:
        _whole(key, value)


def _truth(key: str, value: str) -> bool:
    if value not in ("True", "False"):
        raise SettingNotBooleanError(key, value)
    return value == "True"


def _large_segment(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    size = _whole(key, value) * MIB
    if size <= MIN_LARGE_ALLOC:
        raise LargeSegmentTooSmallError(key, value)
    return replace(settings, large_segment_size=size, max_non_split_rounding=size)


def _at_least_large_segment(settings: AllocatorSettings, key: str, value: str) -> int:
    size = _whole(key, value) * MIB
    if size < settings.large_segment_size:
        least = settings.large_segment_size // MIB
        raise BelowLargeSegmentError(key, least, value)
    return size


def _max_split(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    return replace(settings, max_split_size=_at_least_large_segment(settings, key, value))


def _max_rounding(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    return replace(settings, max_non_split_rounding=_at_least_large_segment(settings, key, value))


def _threshold(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    threshold = _fraction(key, value)
    if not 0.0 < threshold < 1.0:
        raise ThresholdOutOfRangeError(key, value)
    return replace(settings, garbage_collection_threshold=threshold)


def _memory_fraction(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    fraction = _fraction(key, value)
    if not 0.0 <= fraction <= 1.0:
        raise MemoryFractionOutOfRangeError(key, value)
    return replace(settings, memory_fraction=fraction if fraction < 1.0 else None)


def _expandable(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    return replace(settings, expandable_segments=_truth(key, value))


def _reserve(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    """A share, or a number of GiB such as `40G`; PyTorch warns of any other and ignores it."""
    is_share = value[-1] not in "Gg"
    number = value if is_share else value[:-1]
    if not _NUMBER.fullmatch(number) or not 0.0 < float(number) < math.inf:
        return replace(settings, expandable_reserve=None)
    return replace(settings, expandable_reserve=ExpandableReserve(float(number), is_share))


def _backend(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    if value != "native":
        raise AllocatorBackendError(key, value)
    return settings


def _early_refusal(settings: AllocatorSettings, key: str, value: str) -> AllocatorSettings:
    """With a memory fraction, it refuses before emptying the cache (PR #177356, torch 2.12)."""
    if value == "True":
        raise UnmodelledSettingError(key)
    return settings


def _divisions(
    settings: AllocatorSettings, key: str, value: str, *, rest_after: int = 1
) -> AllocatorSettings:
    """One number for all size classes, or a list `[256:1,512:2,>:4]` (in MiB).

    What `>` stands for begins `rest_after` classes after the last bound.
    """
    if not value.startswith("["):
        return replace(
            settings, roundup_power2_divisions=(_power_of_two(key, value),) * DIVISION_CLASSES
        )
    if not value.endswith("]"):
        raise UnclosedBracketError(key, value)
    divisions = [0] * DIVISION_CLASSES
    last = 0  # as in PyTorch, if `>` comes first, the first class is the last bound
    first = True
    for entry in value[1:-1].split(","):
        bound, _, parts = entry.partition(":")
        count = 0 if parts == "0" else _power_of_two(key, parts)
        if bound == ">":
            rest = last + rest_after
            divisions[rest:] = [count] * (DIVISION_CLASSES - rest)
            continue
        last = min(_power_of_two(key, bound).bit_length() - 1, DIVISION_CLASSES - 1)
        if first:  # the first entry also covers all smaller sizes
            divisions[:last] = [count] * last
            first = False
        divisions[last] = count
    return replace(settings, roundup_power2_divisions=tuple(divisions))


def _power_of_two(key: str, value: str) -> int:
    number = _whole(key, value)
    if number < 1 or number & (number - 1):
        raise NotPowerOfTwoError(key, value)
    return number


_PARSERS = {
    "large_segment_size_mb": _large_segment,
    "max_split_size_mb": _max_split,
    "max_non_split_rounding_mb": _max_rounding,
    _DIVISIONS: _divisions,
    "garbage_collection_threshold": _threshold,
    "expandable_segments": _expandable,
    _RESERVE: _reserve,
    "per_process_memory_fraction": _memory_fraction,
    "backend": _backend,
    "throw_on_cudamalloc_oom": _early_refusal,
}
_OLDER_PARSERS = _PARSERS | {_DIVISIONS: partial(_divisions, rest_after=0)}
_KNOWN = _PARSERS.keys() | _IGNORED
