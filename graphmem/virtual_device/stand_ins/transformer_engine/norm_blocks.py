"""How many blocks of Transformer Engine's norm kernels run at once on a multiprocessor.

A line is the width of a kernel's rows, and for float32, float16 and bfloat16: how many blocks
share a row, the rows of a block, and the blocks that run at once on compute capabilities 8.0, 8.6
and 8.9, 9.0, 10.0 and 12.0, a digit each (above 9 a letter: a is 10).

The first two are those that the kernels are registered with (`REGISTER_NORM_LAUNCHER` of
common/normalization/layernorm/ and rmsnorm/, NVIDIA/TransformerEngine d0067d0). The digits come
from their registers: NVRTC 13.5, which needs no card, compiled each kernel as Transformer Engine
does (common/util/rtc.cpp), and the occupancy is that of the CUDA programming guide for these
registers, threads and shared memory. NVRTC 12.9 gives the same digits for the backward kernels on
8.0 and 9.0. No card has confirmed them.

Forward kernels whose rows are not shared take no workspace, and are left out. `python -m
tools.norm_blocks` prints the tables.
"""

from __future__ import annotations

TABLES = {
    ("layernorm", "fwd", "tuned"): """\
10240 2x1:33333 1x1:22222 1x1:22222
12288 2x1:22233 2x1:44444 2x1:44433
12800 2x1:22222 2x1:22244 2x1:22233
15360 2x1:22222 2x1:22222 2x1:22222
16384 2x1:22222 2x1:33333 2x1:33322
18432 4x1:33344 2x1:22222 2x1:22222
20480 2x1:22222 2x1:22222 2x1:22222
24576 4x1:22233 2x1:22222 2x1:22222
25600 4x1:22233 2x1:22222 2x1:22222
30720 4x1:22222 4x1:22233 4x1:22222
32768 4x1:22222 4x1:33333 4x1:33322
40960 4x1:22222 4x1:22222 4x1:22222
49152 8x1:22233 4x1:22222 4x1:22222
65536 8x1:22222 8x1:33333 8x1:33322""",
    ("layernorm", "fwd", "general"): """\
8192 1x1:22222 1x1:22222 1x1:22222""",
    ("layernorm", "bwd", "tuned"): """\
768 1x4:33333 1x4:33344 1x4:33333
1024 1x4:22222 1x4:22233 1x4:22233
1536 1x1:66566 1x1:66566 1x1:66566
2048 1x1:55444 1x1:55455 1x1:55455
2304 1x1:33344 1x1:33344 1x1:33344
3072 1x1:33333 1x1:33344 1x1:33333
3840 1x1:22233 1x1:22233 1x1:22233
4096 1x1:22222 1x1:22233 1x1:22233
5120 1x1:22222 1x1:22222 1x1:22222
6144 1x1:11111 1x1:11122 1x1:11121
8192 2x1:22222 2x1:22233 2x1:22233
10240 2x1:22222 2x1:22222 2x1:22222
12288 4x1:33333 4x1:33344 4x1:33344
12800 5x1:44444 5x1:44444 5x1:44444
15360 4x1:22222 4x1:22233 4x1:22233
16384 4x1:22222 4x1:22233 4x1:22233
18432 4x1:22222 4x1:22222 4x1:22222
20480 4x1:22222 4x1:22222 4x1:22222
24576 4x1:11111 4x1:11122 4x1:11122
25600 5x1:22222 5x1:22222 5x1:22222
30720 4x1:11111 4x1:11111 4x1:11111
32768 4x1:11111 4x1:11111 4x1:11111
40960 4x1:11111 4x1:11111 4x1:11111
49152 8x1:11111 8x1:11122 8x1:11122
65536 8x1:11111 8x1:11111 8x1:11111""",
    ("layernorm", "bwd", "general"): """\
128 1x4:aca99 1x4:aca99 1x4:aca99
512 1x4:44433 1x4:44433 1x4:44433
1024 1x4:22222 1x4:22222 1x4:22222
2048 1x1:44444 1x1:44444 1x1:44444
4096 1x1:22222 1x1:22222 1x1:22222""",
    ("rmsnorm", "fwd", "tuned"): """\
""",
    ("rmsnorm", "fwd", "general"): """\
8192 1x1:33322 1x1:22222 1x1:22222""",
    ("rmsnorm", "bwd", "tuned"): """\
512 1x4:66566 1x4:66577 1x4:66666
768 1x4:44444 1x4:44444 1x4:44444
1024 1x4:33333 1x4:33344 1x4:33333
2048 1x1:66566 1x1:66567 1x1:66566
4096 1x1:33333 1x1:33334 1x1:33333
8192 1x1:22222 1x1:22222 1x1:22222""",
    ("rmsnorm", "bwd", "general"): """\
128 1x4:cccca 1x4:accca 1x4:accca
512 1x4:55544 1x4:55444 1x4:55444
1024 1x4:33322 1x4:33322 1x4:33322
2048 1x1:45454 1x1:55555 1x1:55555
4096 1x1:33333 1x1:33333 1x1:33333""",
}
