"""The circumstances under which the allocators are compared."""

from __future__ import annotations

from dataclasses import dataclass, replace

from graphmem.allocator import AllocatorSettings, Device, parse_settings
from graphmem.allocator.addresses import DEFAULT_DRIVER, Driver
from graphmem.allocator.settings import MIB
from graphmem.torch_releases.differences import OLDEST, Release
from tools.real_allocator.libraries import Libraries

_ROOMY = 80 * 1024  # MiB


@dataclass(frozen=True)
class Mode:
    """One set of circumstances.

    Attributes:
        conf: PYTORCH_CUDA_ALLOC_CONF.
        mib: the memory of the card.
        fraction: the part of it that the process may take.
        driver: the order of addresses.
        pools: whether private pools are used.
        gives_up_pools: whether they also lose their users, so that their memory can be returned.
        checkpoints: whether states of pools are noted, and set again.
        since: the first release that has its settings.
    """

    conf: str = ""
    mib: int = _ROOMY
    fraction: float | None = None
    driver: Driver = DEFAULT_DRIVER
    pools: bool = False
    gives_up_pools: bool = False
    checkpoints: bool = False
    since: Release = OLDEST

    def suits(self, libraries: Libraries) -> bool:
        """Whether the libraries' release has the settings."""
        return libraries.release >= self.since

    def device(self) -> Device:
        """A card that nothing has used yet."""
        return Device(self.mib * MIB, driver=self.driver)

    def settings(self, release: Release) -> AllocatorSettings:
        """The settings as graphmem reads them."""
        return replace(parse_settings(self.conf, release), memory_fraction=self.fraction)


_EXPANDABLE = "expandable_segments:True"
_BY_SIZE = "roundup_power2_divisions:[1:2,4:4,16:8,>:1],max_split_size_mb:40"

MODES = {
    "plain": Mode(),
    "full": Mode(mib=350),
    "wddm": Mode(driver="wddm"),
    "max_split_size": Mode("max_split_size_mb:24", mib=350),
    "non_split_rounding": Mode("max_split_size_mb:24,max_non_split_rounding_mb:30", mib=350),
    "large_segments": Mode("large_segment_size_mb:40", since=(2, 11)),
    "garbage_collection": Mode("garbage_collection_threshold:0.5", mib=450, fraction=0.8),
    "power_of_two": Mode("roundup_power2_divisions:4"),
    "power_of_two_by_size": Mode(_BY_SIZE, mib=400, fraction=0.9),
    "expandable": Mode(_EXPANDABLE),
    "expandable_full": Mode(_EXPANDABLE, mib=350),
    "expandable_reserve": Mode(
        f"{_EXPANDABLE},expandable_segments_reserve:0.06", mib=1000, since=(2, 15)
    ),
    "pools": Mode(pools=True, gives_up_pools=True),
    "pools_full": Mode(mib=600, pools=True, gives_up_pools=True),
    # Not given up: PyTorch may then destroy a pool that has blocks in use, and crash (2.10, 2.11).
    # Its `allocation_count` grows with each extension and shrinks with each range returned.
    "pools_expandable": Mode(_EXPANDABLE, pools=True),
    "checkpoints": Mode(pools=True, gives_up_pools=True, checkpoints=True),
    "checkpoints_full": Mode(mib=600, pools=True, checkpoints=True),
    "checkpoints_max_split": Mode("max_split_size_mb:24", pools=True, checkpoints=True),
    "checkpoints_expandable": Mode(_EXPANDABLE, pools=True, checkpoints=True),
}
