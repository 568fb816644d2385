# Every target builds its own .venv first; only python3 (3.11 or newer) has to be there.
# Another interpreter: make PYTHON=python3.12 install
# Without PyTorch and deepwave, whose tests are then skipped: make TORCH= test

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
DEMO := results/demo
TORCH ?= torch==2.13.0
DEEPWAVE ?= deepwave>=0.1.0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export NO_MKDOCS_2_WARNING := 1

.DEFAULT_GOAL := help
.PHONY: help install demo browser torch test test-slow evidence docs lint wheel-test clean

help:
	@echo "make install     create or update $(VENV)"
	@echo "make demo        a network, waves and a density beside their rivals: $(DEMO)/index.html"
	@echo "make test        the fast tests"
	@echo "make test-slow   the slow tests"
	@echo "make evidence    run every part behind the numbers of the documentation; MACHINE=gpu for the others"
	@echo "make docs        the documentation, into site/"
	@echo "make lint        ruff and pyright"
	@echo "make wheel-test  the wheel into dist/, installed by itself, against some of the tests"
	@echo "make clean       remove what the other targets made"

install: $(READY)

# The stamps are written last, so an interrupted installation is taken up again.
$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "natgrad needs Python 3.11 or newer, this is " + sys.version)'
	@echo "installing natgrad into $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq -e ".[studies]"
	@touch $@

$(READY): $(INSTALLED)
	@echo "installing its development tools into $(VENV)"
	@$(BIN)/python -m pip install -qq -e ".[dev]"
	@touch $@

# Again, after an interruption or not, it takes up what it finds there.
demo: $(INSTALLED)
	@if [ -e $(DEMO) ] && [ ! -e $(DEMO)/settings.toml ]; then \
		echo "$(DEMO) is from an older natgrad: remove it (rm -r $(DEMO)), then make demo" >&2; exit 2; fi
	@$(BIN)/natgrad study demo --output $(DEMO)
	@echo "next: natgrad list, or a notebook in notebooks/, or docs/quickstart.md"

# The tests' reference numbers are float64 on the CPU; `make test JAX_PLATFORMS=cuda` asks for a GPU.
test test-slow: export JAX_PLATFORMS ?= cpu
# The two processes have a core each: more threads of BLAS would only wait for each other.
test test-slow: export OPENBLAS_NUM_THREADS ?= 1

# The pages of reports are tested in a real browser; without one those tests are skipped.
BROWSER = command -v chromium >/dev/null && command -v chromedriver >/dev/null
APT = DEBIAN_FRONTEND=noninteractive timeout 300 apt-get -qq

browser:
	@$(BROWSER) || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
		&& echo "installing Debian's chromium for the tests of report pages" \
		&& { $(APT) update && $(APT) install -y --no-install-recommends chromium chromium-driver; } \
		>/dev/null 2>&1; $(BROWSER); } || echo "no chromium: the tests of report pages in a browser are skipped"

# Optional, so a failure is a line and no more; the package index may not have it. deepwave needs
# nothing but PyTorch, and must not bring another one.
torch: $(READY)
ifneq ($(TORCH),)
	@$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/python -m pip install -qq "$(TORCH)" >/dev/null 2>&1 \
		|| echo "$(TORCH) could not be installed: the tests that need it are skipped"
	@$(BIN)/python -c "import deepwave" 2>/dev/null \
		|| { $(BIN)/python -c "import torch" && $(BIN)/python -m pip install -qq --no-deps "$(DEEPWAVE)"; } >/dev/null 2>&1 \
		|| echo "$(DEEPWAVE) could not be installed: the tests that need it are skipped"
endif

# A file stays in one process, so that its tests share their compiled programs.
test: $(READY) browser torch
	@$(BIN)/pytest -q -n 2 --dist loadfile

test-slow: $(READY) torch
	@$(BIN)/pytest -q -n 2 --dist loadfile -m slow

# What is up to date in docs/evidence is skipped; some names: make evidence PARTS="gram waves"
MACHINE ?= cpu
evidence: $(READY)
	@$(BIN)/python benchmarks/evidence.py --machine $(MACHINE) $(PARTS)

docs: $(READY)
	@$(BIN)/mkdocs --quiet build --strict
	@echo "documentation: site/index.html"

lint: $(READY)
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-cache >/dev/null || $(BIN)/lint-imports --no-cache

# From outside the source tree, so that `import natgrad` finds the wheel's files only.
WHEEL_TESTS := core/test_grids.py descent/test_minimize.py report/test_report.py
wheel-test:
	@rm -rf dist build/wheel-test
	@$(PYTHON) -m venv build/wheel-test
	@build/wheel-test/bin/python -m pip install -qq build
	@build/wheel-test/bin/python -m build --outdir dist . >build/wheel-test/build.log || { cat build/wheel-test/build.log; exit 1; }
	@build/wheel-test/bin/python -m pip install -qq "$$(ls dist/*.whl)[test]"
	@cp -r tests examples pyproject.toml build/wheel-test
	@cd build/wheel-test && bin/python -c "import natgrad, pathlib; home = pathlib.Path(natgrad.__file__); assert 'site-packages' in home.parts, home"
	@cd build/wheel-test && JAX_PLATFORMS=cpu bin/python -m pytest -q $(addprefix tests/,$(WHEEL_TESTS))
	@build/wheel-test/bin/natgrad list

clean:
	@rm -rf $(VENV) results site dist build .pytest_cache .hypothesis .ruff_cache .benchmarks *.egg-info
	@find natgrad tests benchmarks examples docs -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
