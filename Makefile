# Every target does its own set-up: a fresh clone needs Python 3.11+, pip and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests start hundreds of processes, each of which would compile the package again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-slow test-torch test-tpu test-cuda test-plugin test-gpu targets check bench conformance fuzz clean

demo: $(STAMP)
	$(BIN)/meshwright demo

# Three for two cores: some tests wait for processes that they start.
test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist worksteal

# What takes minutes, and the cases that the tests above leave out (tests/conftest.py).
test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

# PyTorch and the libraries of models, also those around JAX, are large, and no part of the environment that the other targets use.
# PyTorch's newest wheel on PyPI is for CUDA and brings 2.6 GB of NVIDIA's libraries, whose installation takes an hour where the
# machine is busy; the one for CPUs, of 0.2 GB, is found where pip is told of it, or else on PyTorch's own index.
TORCH := .venv-torch
TORCH_CPU := 'torch==2.13.0+cpu' 'torchvision==0.28.0'
TORCH_INDEX := https://download.pytorch.org/whl/cpu
MODELS := transformers diffusers flax equinox dm-haiku optax chex
test-torch: $(TORCH)/.installed
	$(TORCH)/bin/python -m pytest tests/interop -m "slow or not slow"

$(TORCH)/.installed: pyproject.toml
	test -x $(TORCH)/bin/python || $(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_CPU) \
	  || $(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check --index-url $(TORCH_INDEX) $(TORCH_CPU)
	$(TORCH)/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,torch,jax]' $(MODELS)
	touch $(TORCH)/.installed

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The suite is not on PyPI; ARRAY_API_TESTS=<folder> names a checkout of it (without one, the command says how to get it).
conformance: $(STAMP)
	$(BIN)/python tests/conformance/run_suite.py --beside jax.numpy

# Takes hours, says how far it is, and goes on where it was stopped: .fuzz/ has what was found.
fuzz: $(STAMP)
	$(BIN)/python tests/long_runs.py

# Compilers for hardware go into environments of their own, where nothing else finds and starts them. That for TPUs is
# Google's, under the Google Cloud Platform Terms of Service; neither needs the hardware.
test-tpu: .venv-tpu/.installed
	.venv-tpu/bin/python -m pytest -m '' tests/targets -k tpu

test-cuda: .venv-cuda/.installed
	.venv-cuda/bin/python -m pytest -m '' tests/targets -k cuda

# XLA for CPUs as a plugin of PJRT's (Apache-2.0): how accelerators are reached, without one.
test-plugin: .venv-plugin/.installed
	.venv-plugin/bin/python -m pip install --quiet --disable-pip-version-check --no-deps lammps-jax-pjrt-cpu
	.venv-plugin/bin/python -m pytest tests/runtime/test_plugins.py

# On a machine with NVIDIA GPUs: with NVIDIA's libraries, which are large.
test-gpu: .venv-gpu/.installed
	.venv-gpu/bin/python -m pytest -m '' tests/targets tests/runtime/test_plugins.py -k 'cuda or gpu'

.venv-gpu/.installed: EXTRA = dev,cuda' 'jax-cuda13-plugin[with-cuda]
.venv-plugin/.installed: EXTRA = dev
.venv-%/.installed: EXTRA = dev,$*
.venv-%/.installed: pyproject.toml
	test -x .venv-$*/bin/python || $(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install --quiet --disable-pip-version-check -e '.[$(EXTRA)]'
	touch $@

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m compileall -q src
	touch $(STAMP)

clean:
	rm -rf $(VENV) $(wildcard .venv-*) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
