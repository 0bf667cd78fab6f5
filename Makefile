# On a machine with Python (3.11 or newer) and make:
#
#   make demo     train a small GPT within 40% of the memory it would need, and draw the memory over time
#   make test     run the tests
#   make docs     build the documentation as a site
#
# Everything is installed into $(VENV), once. JAX takes the device it finds; JAX_PLATFORMS=cpu chooses the CPU.

PYTHON ?= python3
VENV ?= .venv
DEMO_FLAGS ?=
PYTEST_FLAGS ?= -n 2 --dist worksteal
BENCH_FLAGS ?=

BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test texts coming slow lint format types bench gpu docs package clean

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1	/p' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-examples ## Train a small GPT within a budget and draw its memory
	$(BIN)/python examples/train_gpt.py $(DEMO_FLAGS)

test: $(VENV)/.installed-test ## Run the default tests
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

# What makes segments, saves values and differentiates both, with the flags of JAX that are to become its defaults.
COMING_TESTS ?= tests/test_coming_defaults.py tests/test_checkpoint.py tests/test_strategies.py \
  tests/planning/test_budgets.py tests/rewrite/test_policies.py tests/rewrite/test_schedules.py

coming: $(VENV)/.installed-test ## Run the core of the tests with JAX's coming defaults
	JAX_REMAT3=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) $(COMING_TESTS)
	JAX_REMAT3=1 JAX_REMAT_BARRIER_NO_COTANGENTS=1 $(BIN)/python -m pytest $(PYTEST_FLAGS) $(COMING_TESTS) \
	  tests/test_transforms.py tests/rewrite/test_pooling.py

texts: $(VENV)/.installed-test ## Run what the documents, notebooks and examples say
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m texts

slow: $(VENV)/.installed-test ## Run the tests that take minutes
	$(BIN)/python -m pytest $(PYTEST_FLAGS) -m slow

lint: $(VENV)/.installed-dev ## Check style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(VENV)/.installed-dev ## Repair style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(VENV)/.installed-dev ## Check types
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(VENV)/.installed-test ## Measure plans against what people write by hand
	$(BIN)/python -m benchmarks $(BENCH_FLAGS)

gpu: $(VENV)/.installed-test ## Run six models on the GPU that is here, as written, by hand and planned
	$(BIN)/python -m benchmarks.gpu.device $(BENCH_FLAGS)
	$(BIN)/python -m benchmarks gpu

docs: $(VENV)/.installed-docs ## Build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The wheel is made from the source distribution, so that both have all that it takes; then it is used without the clone.
package: $(VENV)/.installed-package ## Build wheel and source distribution, and try the wheel in an environment of its own
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python -m venv --clear $(VENV)-wheel
	$(VENV)-wheel/bin/python -m pip install --quiet dist/*.whl
	JAX_PLATFORMS=cpu $(VENV)-wheel/bin/python -P .ci/smoke.py

clean: ## Remove the environments and what is built
	rm -rf $(VENV) $(VENV)-wheel dist site

# One stamp for each set of extras: an install is repeated only when pyproject.toml changes.
$(VENV)/.installed-%: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	@touch $@

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; this is " \
	  + sys.version.split()[0] + ". Name another: make PYTHON=/path/to/python3.12")'
	$(PYTHON) -m venv $(VENV)
