"""PyTorch's own CUDA build, run without a GPU above a card that computes nothing.

    python -m tools.pretended_card [--gpu h100-80gb] [--python PYTHON] COMMAND …

(1) `COMMAND` is what would follow `python`, such as `tools/record_cuda.py -o mlp
    fixtures/mlp.py:build`. PYTHON has a torch for CUDA, and gcc is installed.
(2) The runtime, the driver and cuBLAS are pretended (driver/): cudaMalloc hands out address space,
    kernels, also Triton's, load and do nothing, what is read from the card is zeros. Everything
    else is PyTorch's own: dispatcher, autograd, compiler, caching allocator, and the scratch memory
    that its host code and CUB's decide.
(3) The card has the name, memory, compute capability, multiprocessors and threads of graphmem's.

Not judged: what data decide, since data are zeros (`nonzero` finds nothing); what a kernel's
registers decide (CUB's reductions ask how many blocks fit); what cuDNN, cuFFT, cuSOLVER, cuSPARSE
and cuRAND decide, which answer with an error; cublasLt's choices; where segments lie; captured
graphs. docs/exactness.md says how far it was compared with a card.
"""
