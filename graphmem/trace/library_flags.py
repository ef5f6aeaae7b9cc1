"""Flags that make libraries choose kernels for which there is no rule; the report lists them.

They are read when a backward pass begins and when the trace ends; a flag that is set and reset
between two such moments is missed.
"""

from __future__ import annotations

import torch

from graphmem.trace.recorder import Recorder


def note_flags(recorder: Recorder) -> None:
    """List each flag that is currently set as an assumption, with its bound."""
    if any(name.startswith("aten.convolution") for name in recorder.operators):
        _note_flags_of_convolutions(recorder)


def _note_flags_of_convolutions(recorder: Recorder) -> None:
    if not torch.backends.cudnn.enabled:
        recorder.assume(
            "memory of convolutions without cuDNN",
            "none but their results",
            "torch.backends.cudnn.enabled = False takes PyTorch's own kernels, which unfold a "
            "sample into a buffer of its kernel's size for each position of the result "
            "(aten/src/ATen/native/cuda/ConvolutionMM2d.cu), and cuBLAS with its workspace",
            None,
        )
    if torch.backends.cudnn.deterministic or torch.are_deterministic_algorithms_enabled():
        recorder.assume(
            "workspace of cuDNN's deterministic plans",
            "as of others",
            "torch.backends.cudnn.deterministic and torch.use_deterministic_algorithms() leave out "
            "plans; the workspace of what is chosen is bounded by what is left on the card",
            None,
        )
    if torch.backends.cudnn.benchmark:
        recorder.assume(
            "workspaces of cuDNN's trials",
            "0 bytes",
            "torch.backends.cudnn.benchmark tries the plans for each new shape, with workspaces up "
            "to what is left on the card, then empties the cache: the first step's peak may be "
            "higher, reserved bytes lower",
            None,
        )
    if _is_without_tf32():
        recorder.assume(
            "workspace of cuDNN's convolutions without TF32",
            "as with it",
            "torch.backends.cudnn.allow_tf32 = False takes other kernels in float32: on an H100 "
            "most of those in NCHW take no workspace, with channels last all three tensors are "
            "copied",
            None,
        )


def _is_without_tf32() -> bool:
    """Unknown, and so not listed, if a program uses both APIs (aten/src/ATen/Context.cpp)."""
    try:
        return not torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return False
