"""What a program must not do on a virtual GPU, one class per message."""

from __future__ import annotations

from dataclasses import dataclass

from graphmem.errors import InputError
from graphmem.graph import Source


class EnteredTwiceError(InputError):
    """A virtual GPU is entered again."""

    def __init__(self) -> None:
        super().__init__(
            "a virtual GPU can be entered only once",
            hint="make another with graphmem.virtual_gpu(…)",
        )


class SecondGpuError(InputError):
    """One virtual GPU is entered inside of another."""

    def __init__(self, present: str) -> None:
        super().__init__(
            f"there is a virtual GPU already, {present}",
            hint="exit it before entering the next; under `graphmem run` the script needs none",
        )


@dataclass(frozen=True)
class RefusedCall:
    """What graphmem refused.

    Attributes:
        why: the error's message, which may name the line.
        hint: what to do.
        place: the program's line.
    """

    why: str
    hint: str | None
    place: Source | None

    def __str__(self) -> str:
        if self.place is None or str(self.place) in self.why:
            return self.why
        return f"{self.why} ({self.place.in_words})"


class CaughtRefusalError(InputError):
    """A program catches graphmem's refusal and goes on, as it would not on a card."""

    def __init__(self, refusal: RefusedCall) -> None:
        super().__init__(
            f"the script caught graphmem's error, and did not go on as on a card: {refusal}",
            hint=refusal.hint,
        )


class WrongCardError(InputError):
    """A rank puts a tensor on another rank's card."""

    def __init__(self, own: object, device: object, place: str) -> None:
        super().__init__(
            f"this rank works on {own}, and a tensor goes to {device}{place}",
            hint="call torch.cuda.set_device(LOCAL_RANK) before the first tensor; RANK, WORLD_SIZE "
            "and CUDA_VISIBLE_DEVICES=0 give a rank one card, cuda:0",
        )


class SentTensorError(InputError):
    """A script hands a tensor of the device to another process."""

    def __init__(self) -> None:
        super().__init__(
            "the script sends a CUDA tensor to another process, and graphmem run has only one",
            hint="train in the main process, or send CPU tensors",
        )


class ArgumentsForTargetError(InputError):
    """Arguments follow a target, which takes none."""

    def __init__(self, target: str, argument: str) -> None:
        super().__init__(
            f"{target} takes no arguments, and {argument} follows it",
            hint="graphmem's options go before it; to change the step, change build()'s defaults",
        )
