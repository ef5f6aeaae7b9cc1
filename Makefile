# Each target sets up all it needs: the first run makes .venv, later ones start at once.
#
#   make analyze    the main job on a shipped fixture
#   make quick      the tests of the engine, in about a minute: while you work on it
#   make test       the tests but the slow ones; PYTEST_ARGS="-k gpus -x" passes arguments on
#   make test-all   the slow ones as well: before a release, and after a change to the gate's cache
#                   TORCH=2.15.0 runs them on that release, in an environment of its own, and writes
#                   its row of docs/versions.md; RESOLUTION=lowest installs the lowest version of
#                   every other dependency, in one of its own as well; TRITON=3.6.0 is what an
#                   older torch asks for (docs/compile.md)
#   make lint       ruff and mypy
#   make benchmark  graphmem's own speed

PYTHON ?= python3
TORCH ?=
TRITON ?=
RESOLUTION ?=
VENV := .venv$(addprefix -torch-,$(TORCH))$(addprefix -,$(RESOLUTION))
INSTALLED := $(VENV)/.installed
PIP := $(VENV)/bin/pip install --no-compile
XFORMERS_WHEELS := sys_platform == 'linux' and platform_machine == 'x86_64'

# Allocator, trace, autograd walk, passes, simulation and the house itself: 100 s of one core.
ENGINE := allocator gpus house/test_architecture.py passes/test_frozen_layers.py passes/test_interface.py \
    passes/test_output_reuse.py passes/test_saved_tensors.py passes/kernels/test_operators.py \
    passes/kernels/test_reductions.py passes/kernels/test_workspaces.py report targets/test_targets.py \
    test_pipeline.py test_simulate.py test_units.py torch_releases trace/test_dispatch.py \
    trace/test_engine_rules.py trace/test_location.py trace/test_recorder.py trace/test_retaining_lines.py \
    trace/test_tensor_kinds.py values/test_line_search.py virtual_device/test_linear_algebra.py \
    virtual_device/test_recurrent.py

# A worker takes whole files, so that what their tests share is made once; long files stay early.
PARALLEL := -n 2 --dist loadfile --no-loadscope-reorder

.PHONY: analyze quick test test-all lint benchmark clean

analyze: $(INSTALLED)
	$(VENV)/bin/graphmem analyze fixtures/gpt2.py:build

quick: $(INSTALLED)
	$(VENV)/bin/python -m pytest $(PARALLEL) $(ENGINE:%=tests/%) $(PYTEST_ARGS)

test: $(INSTALLED)
	$(VENV)/bin/python -m $(if $(TORCH),tools.versions,pytest $(PARALLEL) --durations=25 -m "not slow") $(PYTEST_ARGS)

test-all: $(INSTALLED)
	GRAPHMEM_OPINFO_SAMPLES=3 $(VENV)/bin/python -m pytest $(PARALLEL) $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

benchmark: $(INSTALLED)
	$(VENV)/bin/python -m tools.benchmark

clean:
	rm -rf .venv .venv-* build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and alone: `pip install torch` beside other packages may choose a newer build,
# with gigabytes of CUDA libraries that graphmem has no use for. A CUDA build brings its own Triton.
# The tests' figures, and docs/models.md, are of transformers 4; graphmem itself runs with 5 as well.
# pip compiles on one core what it installs; afterwards all cores do it.
# xformers' own Python is what its stand-in is compared with: 3 MB, a wheel for x86-64, and without its
# dependencies, so that torch stays. It needs torch 2.10 or later, so environments of other releases lack it.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "graphmem needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	$(PIP) torch==$(or $(TORCH),2.13.0)
	$(VENV)/bin/python -c 'import triton' 2>/dev/null || $(PIP) triton==$(or $(TRITON),3.7.1)
	$(if $(RESOLUTION),$(PYTHON) tools/lowest.py > $(VENV)/constraints.txt)
	$(PIP) $(if $(RESOLUTION),-c $(VENV)/constraints.txt) -e '.[dev,transformers]' 'transformers<5'
	$(if $(TORCH),,$(PIP) --no-deps "xformers==0.0.35; $(XFORMERS_WHEELS)")
	$(VENV)/bin/python -m compileall -q -j 0 $(VENV)/lib >/dev/null || true  # some files are templates
	touch $@
