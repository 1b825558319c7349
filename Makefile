# Every target does its own set-up: a fresh clone needs Python 3.11+, pip and make, nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-slow check bench conformance fuzz clean

demo: $(STAMP)
	$(BIN)/meshwright demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

check: $(STAMP)
	$(BIN)/ruff check src tests benchmarks examples
	$(BIN)/ruff format --check src tests benchmarks examples
	$(BIN)/mypy

bench: $(STAMP)
	$(BIN)/python -m benchmarks

# The suite is not on PyPI; ARRAY_API_TESTS=<folder> names a checkout of it (without one, the command says how to get it).
conformance: $(STAMP)
	$(BIN)/python tests/conformance/run_suite.py --beside jax.numpy

fuzz: $(STAMP)
	MESHWRIGHT_FUZZ_EXAMPLES=5000 $(BIN)/python -m pytest -m slow tests/executable/test_fuzz.py
	MESHWRIGHT_FUZZ_PROGRAMS=20000 $(BIN)/python -m pytest -m slow tests/fuzz
	MESHWRIGHT_FUZZ_EXAMPLES=20000 $(BIN)/python -m pytest -m slow tests/executable/test_damaged_programs.py
	MESHWRIGHT_FUZZ_EXAMPLES=3000 $(BIN)/python -m pytest -m slow tests/regions/test_region_fuzz.py

$(STAMP): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
