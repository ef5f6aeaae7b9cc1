"""Memory that the figures leave out because only a library knows its size, or no rule exists.

Each clause that applies to the graph is listed as an assumption, so that no report is silently
approximate:
  (1) cuDNN chooses the workspace of a convolution at run time; a plan whose workspace cannot be
      allocated is skipped (aten/src/ATen/native/cudnn/Conv_v8.cpp); `kernels/convolution.py` has a
      rule for some, and on Hopper cards lists itself what it does not know;
  (2) LSTM, GRU and RNN run as one cuDNN operation, whose reserve space, dropout state and workspace
      were measured on an H100 (graphmem/cudnn_recurrent.py) and may differ on other cards;
  (3) operations with an operand whose layout a rule of `kernel_memory` needs but does not know;
  (4) cuSOLVER's and MAGMA's workspaces behind `torch.linalg`, and its composites that a trace runs
      in a different form than an unobserved run (docs/kernel_memory.md, last section);
  (5) derivatives whose formula depends on zeros among the data
      (graphmem/trace/formulas_by_data.py);
  (6) compiled operators of other libraries, as FBGEMM's, of which only shape functions are known.
      Those with kernels in Python run these instead (graphmem/virtual_device/libraries).
"""

from __future__ import annotations

from graphmem.annotations import KERNEL_MEMORY
from graphmem.graph import Assumption, Op, StepGraph
from graphmem.kernel_program import CONVOLUTION_WORKSPACE, KernelMemory, Take
from graphmem.pipeline import Annotations, Pass
from graphmem.runtime import Runtime
from graphmem.wording import listed

_CONVOLUTIONS = ("aten.convolution.", "aten.convolution_backward.")
_OTHER_CONVOLUTIONS = ("aten.cudnn_convolution",)
_RECURRENT = ("aten._cudnn_rnn.", "aten._cudnn_rnn_backward.")
_HOPPER = (9, 0)
_LINALG = ("aten._linalg_", "aten.linalg_")
_NO_SOLVER = ("aten.linalg_vector_norm.", "aten.linalg_cross.", "aten.linalg_solve_triangular.")
_KNOWN = (
    *("aten.", "prims.", "prim.", "c10d.", "_c10d_functional", "fsdp.", "_dtensor.", "inductor."),
    *("rngprims.", "quantized.", "symm_mem.", "torchvision.", "flash_attn", "DaoAILab."),
    *("bitsandbytes.", "quanto."),
)
"""Operators of PyTorch, and of the libraries that docs/kernel_memory.md and docs/fine_tuning.md
have rules for."""
_SCRATCH = "scratch memory of "
_PRODUCTS = frozenset({"ProdBackward0", "ProdBackward1", "CumprodBackward0"})


def find_unmodelled(
    graph: StepGraph, runtime: Runtime, annotations: Annotations
) -> tuple[Assumption, ...]:
    """Find one assumption for each clause that applies, at the first operation it applies to."""
    memory: KernelMemory = annotations.of(KERNEL_MEMORY)
    found = [
        _assumption(
            [op for op in _convolutions(graph, runtime) if not _has_workspace(op, memory)],
            "workspace of cuDNN's convolutions",
            "0 bytes",
            "cuDNN chooses it at run time, up to what is left on the card",
        ),
        _assumption(
            [] if _is_measured(runtime) else _matching(graph, _RECURRENT),
            "what cuDNN's recurrent layers keep and need",
            "as measured on an H100 with cuDNN 9.19",
            "cuDNN decides it",
        ),
        _assumption(
            [op for op in _matching(graph, _LINALG) if not op.target.startswith(_NO_SOLVER)],
            "workspace of torch.linalg's solvers",
            "0 bytes",
            "cuSOLVER or MAGMA decides it; svdvals() and eigvalsh() without a gradient are "
            "taken to compute vectors, too",
        ),
        _assumption(
            _of_nodes(graph, _PRODUCTS),
            "zeros among the factors of prod() or cumprod()",
            "none, and nothing for the search",
            "the derivative's formula depends on data; where there are some it takes more",
        ),
        _of_libraries(graph),
        *memory.assumptions,
    ]
    return tuple(each for each in found if each is not None)


def _is_measured(runtime: Runtime) -> bool:
    return runtime.gpu.compute_capability == _HOPPER


def _convolutions(graph: StepGraph, runtime: Runtime) -> list[Op]:
    """Those for which `kernels/convolution.py` lists nothing itself."""
    listed = () if _is_measured(runtime) else _CONVOLUTIONS
    return _matching(graph, (*listed, *_OTHER_CONVOLUTIONS))


def _matching(graph: StepGraph, prefixes: tuple[str, ...]) -> list[Op]:
    return [op for op in graph.ops if op.target.startswith(prefixes)]


def _has_workspace(op: Op, memory: KernelMemory) -> bool:
    program = memory.programs.get(op.index, ())
    return any(
        isinstance(step, Take) and step.scratch.what == CONVOLUTION_WORKSPACE for step in program
    )


def _of_nodes(graph: StepGraph, names: frozenset[str]) -> list[Op]:
    """One operation for each time that one of the nodes ran."""
    ran = {
        op.forward: op for op in graph.ops if op.autograd_node in names and op.forward is not None
    }
    return list(ran.values())


def _of_libraries(graph: StepGraph) -> Assumption | None:
    """Clause (6), but for kernels in Python that could not run, which are listed already."""
    found: dict[str, list[Op]] = {}
    for op in graph.ops:
        if not op.target.startswith(_KNOWN):
            found.setdefault(op.target.rpartition(".")[0], []).append(op)
    for each in graph.assumptions:
        found.pop(each.what.removeprefix(_SCRATCH), None)
    names = sorted(found)
    return _assumption(
        [op for name in names for op in found[name]],
        _SCRATCH + listed([*names[:3], *(["others"] if names[3:] else [])]),
        "0 bytes",
        "their library's compiled kernels decide it",
    )


def _assumption(ops: list[Op], what: str, value: str, why: str) -> Assumption | None:
    if not ops:
        return None
    return Assumption(
        what, value, why, ops[0].source, times=len(ops), ops=tuple(op.index for op in ops)
    )


UNMODELLED = Pass(provides="unmodelled", run=find_unmodelled, requires=("kernel_memory",))
