"""The fake tensor mode of a trace."""

from __future__ import annotations

from torch._subclasses.fake_tensor import FakeTensorMode


class VirtualFakeMode(FakeTensorMode):
    """Fake tensors beside real ones of the CPU; an operator without a meta kernel is an error."""

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True, allow_fallback_kernels=False)

    @property
    def avoid_device_init(self) -> bool:
        """True, although `torch.cuda.is_available()` says that there is a device.

        No operation may run on it for the sake of constants.
        """
        return True
