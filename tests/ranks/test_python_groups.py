"""A process group that a program writes in Python, as torchft does for DistributedDataParallel."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Outcome

_PROGRAM = """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import Work

    class Done(Work):
        def __init__(self, tensors):
            super().__init__()
            self.future = torch.futures.Future()
            self.future.set_result(tensors)

        def wait(self, timeout=None):
            return True

        def get_future(self):
            return self.future

    class Discarding(dist.ProcessGroup):
        def size(self):
            return 1

        def allgather(self, outputs, inputs, opts):
            outputs[0][0].copy_(inputs[0])
            return Done(outputs[0])

        def broadcast(self, tensors, opts):
            return Done(tensors)

        def allreduce(self, tensors, opts):
            print(type(opts).__name__, [each.numel() for each in tensors])
            return Done(tensors)

    model = torch.nn.Linear(300, 200).to(DEVICE)
    net = torch.nn.parallel.DistributedDataParallel(
        model, process_group=Discarding(0, 1), find_unused_parameters=FINDS
    )
    for _ in range(2):
        net(torch.ones(4, 300, device=DEVICE)).sum().backward()
    print(sum(each.grad.numel() for each in model.parameters()))
"""


@pytest.mark.parametrize("finds", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_its_methods_are_called_as_cpp_calls_them(
    run_graphmem: Callable[..., Outcome], tmp_path: Path, finds: bool
) -> None:
    """With the options of the collective, which they may require: as on the real CPU."""
    written = []
    for device in ("cpu", "cuda"):
        path = tmp_path / f"on_{device}.py"
        path.write_text(f"DEVICE, FINDS = {device!r}, {finds}\n" + textwrap.dedent(_PROGRAM))
        written.append(path)
    command = [sys.executable, str(written[0])]
    real = subprocess.run(command, capture_output=True, text=True, check=True)

    done = run_graphmem("run", str(written[1]))

    assert (done.exit_code, done.stdout) == (0, real.stdout), done.stderr
    assert "AllreduceOptions [60200]" in real.stdout


def test_a_group_of_nccl_is_refused_even_if_that_is_caught(
    run_graphmem: Callable[..., Outcome], tmp_path: Path
) -> None:
    """torchft catches every error, makes no step, and tries again for ever."""
    path = tmp_path / "refused.py"
    path.write_text(
        "import torch\n"
        "import torch.distributed as dist\n"
        "model = torch.nn.Linear(8, 8).cuda()\n"
        "torch.optim.SGD(model.parameters())\n"
        "while True:\n"
        "    try:\n"
        "        options = dist.ProcessGroupNCCL.Options()\n"
        "        options.config.blocking = False\n"
        "        dist.ProcessGroupNCCL(dist.HashStore(), 0, 1, options)\n"
        "    except Exception:\n"
        "        model(torch.ones(4, 8, device='cuda')).sum().backward()\n"
    )

    done = run_graphmem("run", "--max-steps", "3", str(path))

    assert done.exit_code == 2
    assert "did not go on as on a card: the script makes a ProcessGroupNCCL itself" in done.stderr
    assert "refused.py:9" in done.stderr
