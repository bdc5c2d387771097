# Everything a checkout needs. `make help` lists the targets.
# Each target sets up what it needs in .venv and repeats nothing that is already done.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
SHELL := /bin/bash

.DEFAULT_GOAL := help
.PHONY: help setup train test lint format bench wheel lock clean

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: .venv/.package ## Makes .venv from the lock file and builds the FFI extension.

train: setup ## Trains the demo into runs/demo; ARGS=--resume continues a stopped run.
	$(BIN)/python -m jaxload.train --config configs/demo.py --workdir runs/demo $(ARGS)

test: setup ## Runs every test; ARGS="-m 'not slow'" leaves out the slow ones.
	JAXLOAD_REQUIRE_KERNELS=cpu $(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

lint: setup ## Checks format, lint and types of Python and C++.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(wildcard ffi/*.h ffi/*.cc)
	$(BIN)/pyright --warnings

format: setup ## Formats Python and C++.
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(wildcard ffi/*.h ffi/*.cc)

bench: setup ## Runs the benchmarks; each prints ratios from one run.
	$(BIN)/python -m benchmarks.layer_norm_modulate $(ARGS)

wheel: setup ## Builds a wheel into dist/.
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: setup ## Resolves the newest versions that work together into requirements.lock.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade \
	  --group dev --no-header --no-annotate pyproject.toml -o requirements.lock

clean: ## Removes .venv and everything that was built; runs/ and datasets/ stay.
	rm -rf .venv build dist

.venv/.deps: requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  f"make: expected Python 3.11 or newer, got {v[0]}.{v[1]}; set PYTHON=/path/to/python3.11")'
	@echo "making .venv from requirements.lock: a minute or two, once"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	@touch $@

# Editable: Python files are used in place; the extension is built again when ffi/ changes.
.venv/.package: .venv/.deps pyproject.toml $(wildcard ffi/*)
	CMAKE_GENERATOR=Ninja PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m pip install --quiet \
	  --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
