# The front door. Only make and Python 3.11 or newer are needed first; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell git ls-files '*.py' 'pyproject.toml' 2>/dev/null)

.PHONY: setup demo test test-fast lint types bench conformance schema clean

# Strict editable installs link file by file, so a new module needs a new install: the stamp depends on the file list.
STAMP := $(VENV)/.installed-$(shell (git ls-files '*.py'; git hash-object pyproject.toml) 2>/dev/null | git hash-object --stdin 2>/dev/null || echo any)

setup: $(STAMP)

$(STAMP):
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Onceward needs Python 3.11 or newer; say make PYTHON=python3.11"; exit 1; }
	@echo "installing into $(VENV)"
	@rm -rf build/__editable__*
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]' --config-settings editable_mode=strict
	@rm -f $(VENV)/.installed-*
	@touch $@

demo: setup
	@$(BIN)/onceward demo

test: setup
	$(BIN)/python -m pytest -n auto --dist loadgroup

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: setup
	$(BIN)/mypy

bench: setup
	$(BIN)/python -m onceward.evals.bench

conformance: setup
	$(BIN)/python tests/conformance/run.py

schema: setup
	$(BIN)/python -m onceward.contracts.schema

clean:
	rm -rf $(VENV) build dist *.egg-info .cache .pytest_cache .mypy_cache .ruff_cache
