# make demo | test | lint | bench | clean
# Needs Python 3.11 or later, a C++ compiler and make. Everything else comes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(wildcard csrc/*)

.PHONY: demo test lint bench install clean distclean

demo: $(VENV)/.installed
	$(BIN)/outrider demo

test: lint $(VENV)/.model
	$(BIN)/python -m pytest

lint: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict

bench: $(VENV)/.installed
	$(BIN)/python benchmarks/first_table.py

install: $(VENV)/.installed

# The build's tools are installed beside the package, so that a second build is incremental.
$(VENV)/.tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Outrider needs Python 3.11 or later; say which with: make PYTHON=python3.12 ..." >&2; exit 1; }
	@command -v $${CXX:-c++} > /dev/null \
	  || { echo "Outrider needs a C++ compiler (set CXX, or install g++ or clang)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	@touch $@

$(VENV)/.installed: $(VENV)/.tools pyproject.toml $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m pip install --quiet --no-build-isolation --editable ".[dev]"
	@touch $@

# The default model, for the tests that are marked `model`.
$(VENV)/.model: $(VENV)/.installed
	$(BIN)/outrider pull smollm2
	@touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(VENV)/.installed $(VENV)/.model

distclean: clean
	rm -rf $(VENV)
