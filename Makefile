# The first use of any target creates the virtual environment. For another Python, use:
#   make PYTHON=python3.12 VENV=.venv312 test
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= 2
CORPUS ?= .venv-corpus
MLFLOW ?= .venv-mlflow
# Interpreters, each with a release of torch: the oldest that pyproject.toml names, and others.
PYTHONS ?= python3.10:2.6.0 python3.12:2.9.1 python3.13:2.9.1
ROUNDS ?= 3

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
READY := $(VENV)/ready.stamp

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test test-pythons test-browser test-gpu lint format schemas corpus corpus-fast bench bench-micro bench-commands bench-start bench-serve bench-weights screenshot torture torture-fast docs dist clean test-mlflow test-oci test-ray bench-scale

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-14s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

demo: $(READY) ## train a small model, package it, reload it elsewhere, and serve it
	@$(BIN)/python examples/demo

# One thread per worker: with more threads than cores, they mostly wait for each other.
test: $(READY) ## run the tests and the examples in docstrings and docs
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

# Downloads a torch of some GB for each interpreter. No constraints: the newest libraries are tested.
test-pythons: ## run the tests of units and of the bundled loader on other Pythons that are installed, and on the oldest torch
	@for each in $(PYTHONS); do \
		python=$${each%:*}; torch=$${each#*:}; folder=.venv-$${python##*/}; \
		$$python -c "" 2>/dev/null || { echo "$$python is not installed"; continue; }; \
		echo "$$python with torch $$torch" && $$python -m venv $$folder && \
		$$folder/bin/python -m pip --quiet --disable-pip-version-check install torch==$$torch && \
		$$folder/bin/python -m pip --quiet --disable-pip-version-check install --editable '.[dev]' && \
		OMP_NUM_THREADS=1 $$folder/bin/python -m pytest -n $(WORKERS) tests/unit tests/functional/test_bundled_loader.py || exit 1; \
	done

test-browser: $(READY) $(VENV)/docs.stamp ## run the browser tests of the HTML report, of the page of serve, and of the site; needs Chromium
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m browser tests/browser

test-gpu: $(READY) ## run the tests on a GPU; without one, they are skipped
	@$(BIN)/python -m pytest -m gpu -rs tests/gpu

test-mlflow: $(MLFLOW)/ready.stamp ## run the tests with MLflow, in an environment of its own
	@OMP_NUM_THREADS=1 $(MLFLOW)/bin/python -m pytest -m mlflow tests/integrations/test_mlflow.py tests/functional/test_doors.py tests/unit/test_docs.py

test-oci: $(READY) ## run the tests of OCI registries; needs docker-registry
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m oci tests/functional tests/unit/test_docs.py

test-ray: $(READY) ## run the tests that start Ray clusters, some minutes
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray

lint: $(READY) ## check style, types, and layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY) ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix-only .
	@$(BIN)/ruff format .

schemas: $(READY) ## write the JSON schemas in docs/reference/json
	@$(BIN)/python tools/schemas.py

# Takes 45 minutes, because parallel runs would distort the times.
# make corpus ONLY="timm_vit timm_swin" runs some recipes and does not write the page.
corpus: $(CORPUS)/ready.stamp ## package models of real libraries; writes docs/reference/corpus.md
	@$(CORPUS)/bin/python tools/corpus $(if $(ONLY),--only $(ONLY),--write)

corpus-fast: $(CORPUS)-fast/ready.stamp ## package a few small models, as in CI
	@$(CORPUS)-fast/bin/python tools/corpus --fast --no-torch --folder build/corpus-fast

torture: $(READY) ## run the torture tests, some minutes; writes a part of the security model
	@$(BIN)/python tools/torture --write
	@EXAMPLES_FACTOR=50 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests/property

torture-fast: $(READY) ## run a tenth of the torture tests, as in CI
	@$(BIN)/python tools/torture --fast

# Takes 20 minutes and 20 GB of disk; keep the machine idle. Writes below build, because /tmp is in
# memory on some machines, and slow after many deletions on others.
# make bench ONLY="load-one save-400" measures some rows, FAST=1 divides all sizes by 20. Neither
# writes the page.
bench: $(VENV)/bench.stamp ## compare modpack with other tools; writes parts of docs/reference/performance.md and the README
	@mkdir -p build
	@$(BIN)/python benchmarks/peers --folder build $(if $(FAST),--fast) $(if $(ONLY),--only $(ONLY)) $(if $(FAST)$(ONLY),,--write --keep build/bench.json)

bench-micro: $(READY) ## time single parts, and compare with the last run in build/micro
	@mkdir -p build/micro
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest benchmarks/micro -p no:cacheprovider --benchmark-storage=build/micro \
		--benchmark-autosave $(if $(wildcard build/micro/*/*.json),--benchmark-compare --benchmark-group-by=fullname) \
		--benchmark-columns=min,median,iqr,rounds --benchmark-sort=fullname

# Takes 12 minutes; keep the machine idle. make bench-start ONLY="gpt2 timm_vit" prints their rows.
bench-start: $(CORPUS)/ready.stamp ## time packages with and without waiting imports up to the first output; writes a part of docs/how-to/start-fast.md
	@OMP_NUM_THREADS=1 $(CORPUS)/bin/python benchmarks/start.py $(ONLY)

bench-weights: $(READY) ## measure a base model with ten adapters that share its weights; SIZE=2048 is its size in MiB
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/shared_weights.py --folder build $(if $(SIZE),--size $(SIZE))

# Takes 10 minutes; keep the machine idle. FAST=1 has a tenth of the rows, and does not write the page.
bench-scale: $(READY) ## compare rows per second in one process, several, and Ray; writes a part of docs/how-to/run-on-ray.md
	@mkdir -p build
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/scale.py --folder build $(if $(FAST),--fast,--write)

bench-commands: $(READY) ## time the commands on a large package; writes a part of docs/reference/performance.md
	@OMP_NUM_THREADS=1 $(BIN)/python benchmarks/commands.py

# Takes 9 minutes (ROUNDS=5: 14); keep the machine idle.
bench-serve: $(VENV)/bench.stamp ## compare modpack serve with apps on FastAPI and Starlette, and LitServe; writes a part of docs/reference/performance.md
	@mkdir -p build
	@$(BIN)/python benchmarks/serving --folder build --rounds $(ROUNDS) --write

screenshot: $(READY) ## take the screenshots of the HTML report; needs Chromium, writes docs/images/audit*.png
	@$(BIN)/python tools/screenshot

docs: $(VENV)/docs.stamp ## build the site of the documentation in build/site; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: $(READY) ## build the sdist and the wheel in dist, and check them as an index does
	@rm -rf dist && mkdir -p build
	@$(BIN)/python -m build --outdir dist >build/dist.log || { cat build/dist.log; exit 1; }
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl

clean: ## remove virtual environments, caches, and build results
	rm -rf $(VENV) $(CORPUS) $(CORPUS)-fast $(MLFLOW) .venv-python* build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find modpack tests fixtures docs -type d -name __pycache__ -prune -exec rm -rf {} +

# The stamp is created last, so that the next run repeats interrupted steps.
# torch is installed first, with constraints, so that no dependency chooses its build.
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

# The other tools of the benchmark, which the tests do not need.
$(VENV)/bench.stamp: $(READY)
	@$(PIP) install --editable '.[bench]' --constraint constraints.txt
	@touch $@

$(VENV)/docs.stamp: $(READY)
	@$(PIP) install --editable '.[docs]' --constraint constraints.txt
	@touch $@

# MLflow requires older versions of two libraries than those in constraints.txt.
$(MLFLOW)/ready.stamp: pyproject.toml constraints.txt
	@echo "Setting up $(@D), once; this takes a minute or two."
	@rm -f $@
	@$(PYTHON) -m venv $(@D)
	@$(@D)/bin/python -m pip --quiet --disable-pip-version-check install torch --constraint constraints.txt
	@grep -vE '^(importlib-metadata|pyarrow)=' constraints.txt >$(@D)/constraints.txt
	@$(@D)/bin/python -m pip --quiet --disable-pip-version-check install --editable '.[mlflow-tests]' --constraint $(@D)/constraints.txt
	@touch $@

# The libraries of the corpus. Those in the last list have unneeded requirements.
CORPUS_LISTS := $(wildcard tools/corpus/requirements*.txt) pyproject.toml constraints.txt
CORPUS_PIP = $(@D)/bin/python -m pip --quiet --disable-pip-version-check install

$(CORPUS)/ready.stamp: $(CORPUS_LISTS)
	@echo "Setting up $(@D), once; this takes some minutes."
	@rm -f $@
	@$(PYTHON) -m venv $(@D)
	@$(CORPUS_PIP) torch --constraint constraints.txt
	@$(CORPUS_PIP) --editable . --requirement tools/corpus/requirements.txt
	@$(CORPUS_PIP) --no-deps --requirement tools/corpus/requirements-no-deps.txt
	@touch $@

$(CORPUS)-fast/ready.stamp: $(CORPUS_LISTS)
	@echo "Setting up $(@D), once; this takes a minute."
	@rm -f $@
	@$(PYTHON) -m venv $(@D)
	@$(CORPUS_PIP) torch --constraint constraints.txt
	@$(CORPUS_PIP) --editable . --requirement tools/corpus/requirements-fast.txt --constraint tools/corpus/requirements.txt
	@touch $@
