# The first use of any target makes the virtual environment. Another Python, beside it:
#   make PYTHON=python3.12 VENV=.venv312 test
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
READY := $(VENV)/ready.stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## train a small model, package it, reload it in a clean interpreter
	@$(BIN)/python -m modpack demo

# One thread a worker: more of them than cores mostly wait for each other.
test: $(READY) ## run the tests and the examples in docstrings and docs
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

lint: $(READY) ## check style, types and the layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

clean: ## remove the virtual environment, caches and build results
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find modpack tests fixtures docs -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamp comes last: whatever interrupts the steps before it, the next run repeats them.
# torch goes first and under the constraints, so that nothing else chooses its build.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "modpack needs Python 3.10 or newer; try: make PYTHON=python3.11")'
	@echo "Setting up $(VENV) with $$($(PYTHON) --version), once; this takes a minute or two."
	@rm -f $@
	@$(PYTHON) -m venv $(VENV)
	@echo "  installing torch"
	@$(PIP) install torch --constraint constraints.txt
	@echo "  installing modpack and its development tools"
	@$(PIP) install --editable '.[dev]' --constraint constraints.txt
	@touch $@
