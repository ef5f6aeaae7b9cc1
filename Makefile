# Each target sets up all it needs: the first run makes .venv, later ones start at once.
#
#   make analyze    the main job on a shipped fixture
#   make test       the tests; PYTEST_ARGS="-k gpus -x" passes arguments on
#   make lint       ruff and mypy
#   make benchmark  graphmem's own speed

PYTHON ?= python3
VENV := .venv
INSTALLED := $(VENV)/.installed

.PHONY: analyze test lint benchmark clean

analyze: $(INSTALLED)
	$(VENV)/bin/graphmem analyze fixtures/gpt2.py:build

test: $(INSTALLED)
	$(VENV)/bin/python -m pytest -n 2 $(PYTEST_ARGS)

lint: $(INSTALLED)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

benchmark: $(INSTALLED)
	$(VENV)/bin/python tools/benchmark.py

clean:
	rm -rf $(VENV) build *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# torch comes first and alone: `pip install torch` beside other packages may choose a newer build,
# with gigabytes of CUDA libraries that graphmem has no use for.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "graphmem needs Python 3.11 or later: make PYTHON=python3.11 ...")'
	test -x $(VENV)/bin/pip || $(PYTHON) -m venv --clear $(VENV)
	$(VENV)/bin/pip install torch==2.13.0
	$(VENV)/bin/pip install -e '.[dev,transformers]'
	touch $@
