# make demo | test | lint | format | bench | clean
# Needs Python 3.11 or later, a C++ compiler and make. Everything else comes into $(VENV).

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
CXX_FILES = $(wildcard csrc/*/*.h csrc/*/*.cpp)
NATIVE := CMakeLists.txt $(wildcard csrc/*/*)

.PHONY: demo test lint format bench install clean distclean

demo: $(VENV)/.package
	$(BIN)/outrider demo

# Two files at a time, in their order: the long ones come first.
test: lint $(VENV)/.model
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

lint: $(VENV)/.dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(CXX_FILES)

bench: $(VENV)/.package
	$(BIN)/python benchmarks/first_table.py

install: $(VENV)/.package

# The build's tools go beside the package, so that a second build is incremental.
$(VENV)/.tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Outrider needs Python 3.11 or later; say which: make PYTHON=python3.12 ..." >&2; exit 1; }
	@command -v $${CXX:-c++} > /dev/null \
	  || { echo "Outrider needs a C++ compiler: install g++ or clang, or set CXX" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	@touch $@

$(VENV)/.package: $(VENV)/.tools pyproject.toml $(NATIVE)
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --quiet --no-build-isolation --editable .
	@touch $@

# What only lint and tests need: the extra `dev` of pyproject.toml.
$(VENV)/.dev: $(VENV)/.package
	$(PIP) install --quiet $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])')
	@touch $@

# The default model, for the tests that are marked `model`.
$(VENV)/.model: $(VENV)/.package
	$(BIN)/outrider pull smollm2
	@touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(VENV)/.package $(VENV)/.dev $(VENV)/.model

distclean: clean
	rm -rf $(VENV)
