"""Transformer Engine's norm kernels: print the tables of its stand-in's `norm_blocks`.

    python -m tools.norm_blocks CHECKOUT NVRTC INCLUDE

CHECKOUT is one of NVIDIA/TransformerEngine, NVRTC the library (`libnvrtc.so` of the wheel
nvidia-cuda-nvrtc), INCLUDE the headers of the CUDA runtime (nvidia-cuda-runtime, for CUDA 13 with
nvidia-cuda-cccl). No card is needed: each registered kernel is compiled as
transformer_engine/common/util/rtc.cpp does, and its registers are read from the binary.

Occupancy follows "Technical Specifications per Compute Capability" of the CUDA C++ Programming
Guide: registers are given to a warp in units of 256, a quarter of them to each of four partitions;
a block reserves 1 KiB of shared memory, which binaries for 9.0 and later count themselves.
"""

from __future__ import annotations

import ctypes
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_KINDS = {"layernorm": ("layernorm", "ln"), "rmsnorm": ("rmsnorm", "rmsnorm")}
_STAGES = {"fwd": ("Forward", "fwd_cuda_kernel"), "bwd": ("Backward", "bwd_semi_cuda_kernel")}
_ARCHITECTURES = (80, 89, 90, 100, 120)
_SHARED = {80: 167_936, 89: 102_400, 90: 233_472, 100: 233_472, 120: 102_400}
_WARPS = {80: 64, 89: 48, 90: 64, 100: 64, 120: 48}
_BLOCKS = {80: 32, 89: 24, 90: 32, 100: 32, 120: 24}
_PARTITION_REGISTERS, _UNIT, _PARTITIONS = 16_384, 256, 4
_NAMESPACE = "::transformer_engine::normalization::"
_DTYPES = ("fp32", "fp16", "bf16")
_REGISTERS_OF_KERNEL = 0x2F  # EIATTR_REGCOUNT of `.nv.info`
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class Kernel(NamedTuple):
    """A line `REGISTER_NORM_LAUNCHER`."""

    kind: str
    stage: str
    launch: str
    width: int
    dtype: str
    blocks_of_row: int
    rows: int
    warps_of_row: int
    load_bytes: int

    def expression(self) -> str:
        """The kernel's name in C++."""
        types = ", ".join(_NAMESPACE + each for each in (*[self.dtype] * 3, "fp32"))
        numbers = (self.width, self.blocks_of_row, self.rows, self.warps_of_row, self.load_bytes)
        traits = f"{_NAMESPACE}Kernel_traits<{types}, uint32_t, {', '.join(map(str, numbers))}>"
        add = ", false" if (self.kind, self.stage) == ("rmsnorm", "bwd") else ""
        prefix = _KINDS[self.kind][1]
        return f"&{_NAMESPACE}{prefix}_{self.stage}_{self.launch}_kernel<{traits}{add}>"

    def dynamic_bytes(self) -> int:
        """Shared memory: sums of a row across warps, and of a column in the backward pass."""
        if self.launch == "general":
            return 0
        across = self.rows * self.warps_of_row * 16 if self.warps_of_row > 1 else 0
        has_columns = self.stage == "bwd" and self.blocks_of_row == 1
        return across + (self.rows * self.width * 4 if has_columns else 0)


def kernels(common: Path, kind: str, stage: str) -> Iterator[Kernel]:
    """The registered kernels whose operands have one type."""
    folder, prefix = _KINDS[kind]
    word, file = _STAGES[stage]
    text = (common / "normalization" / folder / f"{prefix}_{file}.cu").read_text()
    pattern = rf"REGISTER_NORM_LAUNCHER\((\w+), {word}, (tuned|general), ([^)]*)\);"
    for _, launch, rest in re.findall(pattern, text):
        width, *types = (each.strip() for each in rest.split(",")[:5])
        numbers = [int(each) for each in rest.split(",")[5:]]
        numbers = numbers if launch == "tuned" else [1, *numbers]
        if len(set(types[:3])) == 1:
            yield Kernel(kind, stage, launch, int(width), types[0], *numbers[:4])


class Compiler:
    """NVRTC."""

    def __init__(self, library: Path, include: Path) -> None:
        self._nvrtc = ctypes.CDLL(str(library))
        self._include = include

    def binary(
        self, source: Path, headers: dict[str, Path], expressions: list[str], architecture: int
    ) -> tuple[list[str], bytes]:
        """The mangled names of kernels, and their binary."""
        nvrtc, program = self._nvrtc, ctypes.c_void_p()
        texts = (ctypes.c_char_p * len(headers))(*(each.read_bytes() for each in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(each.encode() for each in headers))
        given = (ctypes.byref(program), source.read_bytes(), b"kernel.cu", len(headers))
        self._check(nvrtc.nvrtcCreateProgram(*given, texts, names))
        for each in expressions:
            self._check(nvrtc.nvrtcAddNameExpression(program, each.encode()))
        options = [b"--std=c++17", b"--gpu-architecture=sm_%d" % architecture]
        options.append(f"-I{self._include}".encode())
        array = (ctypes.c_char_p * len(options))(*options)
        self._check(nvrtc.nvrtcCompileProgram(program, len(options), array))
        mangled = []
        for each in expressions:
            name = ctypes.c_char_p()
            given_name = (program, each.encode(), ctypes.byref(name))
            self._check(nvrtc.nvrtcGetLoweredName(*given_name))
            mangled.append((name.value or b"").decode())
        size = ctypes.c_size_t()
        self._check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        self._check(nvrtc.nvrtcGetCUBIN(program, binary))
        return mangled, binary.raw

    @staticmethod
    def _check(code: int) -> None:
        if code:
            raise RuntimeError(f"NVRTC failed with code {code}")


def resources(binary: bytes) -> tuple[dict[str, int], dict[str, int]]:
    """Registers of a thread, and static shared bytes of a block, by kernel."""
    (begin,) = struct.unpack_from("<Q", binary, 0x28)
    size, count, names = struct.unpack_from("<HHH", binary, 0x3A)
    sections = [struct.unpack_from("<IIQQQQIIQQ", binary, begin + i * size) for i in range(count)]

    def text(table: int, offset: int) -> str:
        start = sections[table][4] + offset
        return binary[start : binary.index(b"\0", start)].decode()

    symbols = next(each for each in sections if each[1] == 2)  # SHT_SYMTAB

    def symbol(number: int) -> str:
        (offset,) = struct.unpack_from("<I", binary, symbols[4] + number * 24)
        return text(symbols[6], offset)

    registers, shared = {}, {}
    for section in sections:
        name = text(names, section[0])
        if name == ".nv.info":
            for number, value in _attributes(binary[section[4] : section[4] + section[5]]):
                registers[symbol(number)] = value
        elif name.startswith(".nv.shared."):
            shared[name.removeprefix(".nv.shared.")] = section[5]
    return registers, shared


def _attributes(data: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at < len(data):
        form, attribute, nbytes = struct.unpack_from("<BBH", data, at)
        at += 4
        if form == 4:  # EIFMT_SVAL
            if attribute == _REGISTERS_OF_KERNEL:
                yield struct.unpack_from("<II", data, at)
            at += nbytes


def at_once(kernel: Kernel, registers: int, static_bytes: int, architecture: int) -> int:
    """How many blocks run at once on a multiprocessor."""
    warps = kernel.rows * kernel.warps_of_row
    of_warp = -(-registers * 32 // _UNIT) * _UNIT
    by_registers = _PARTITION_REGISTERS // of_warp * _PARTITIONS // warps
    nbytes = kernel.dynamic_bytes() + static_bytes + (1024 if architecture < 90 else 0)
    by_shared = _SHARED[architecture] // (-(-nbytes // 128) * 128)
    return min(by_registers, by_shared, _WARPS[architecture] // warps, _BLOCKS[architecture])


def main(checkout: Path, library: Path, include: Path) -> None:
    """Print the tables."""
    common = checkout / "transformer_engine/common"
    base = common / "normalization"
    found = (*base.glob("*.h"), *base.glob("*/*.cuh"))
    headers = {each.name: each for each in found if each.name != "common.h"}
    headers |= {each: common / each for each in ("utils.cuh", "util/math.h")}
    compiler = Compiler(library, include)
    for kind, stage in ((kind, stage) for kind in _KINDS for stage in _STAGES):
        folder, prefix = _KINDS[kind]
        source = base / folder / "rtc" / f"{prefix}_{stage}_kernel.cu"
        all_of = list(kernels(common, kind, stage))
        counts: dict[Kernel, str] = dict.fromkeys(all_of, "")
        for architecture in _ARCHITECTURES:
            expressions = [each.expression() for each in all_of]
            names, binary = compiler.binary(source, headers, expressions, architecture)
            registers, shared = resources(binary)
            for kernel, name in zip(all_of, names, strict=True):
                blocks = at_once(kernel, registers[name], shared.get(name, 0), architecture)
                counts[kernel] += _DIGITS[blocks]
        _print(counts, kind, stage)


def _print(counts: dict[Kernel, str], kind: str, stage: str) -> None:
    for launch in ("tuned", "general"):
        print(f"{kind} {stage} {launch}")
        for width in sorted({each.width for each in counts if each.launch == launch}):
            words = [
                f"{kernel.blocks_of_row}x{kernel.rows}:{digits}"
                for dtype in _DTYPES
                for kernel, digits in counts.items()
                if (kernel.launch, kernel.width, kernel.dtype) == (launch, width, dtype)
            ]
            print(width, *words)


if __name__ == "__main__":
    main(*(Path(each) for each in sys.argv[1:]))
