# Two commands do everything: `make lab` to learn, `make test` to check.

VENV ?= .venv
PYTHON ?= python3
TORCH ?=
# JupyterLab refuses to run as root without this.
AS_ROOT = $(if $(filter 0,$(shell id -u)),--allow-root)
LAB_ARGS ?=
KIT_CACHE ?= $(CURDIR)/.cache/kit
# Its default is in the folder for temporary files, which is another one in each run.
export TORCHINDUCTOR_CACHE_DIR ?= $(CURDIR)/.cache/inductor
# Two groups of checks side by side, where make can keep what they print apart.
JOBS ?= $(if $(filter output-sync,$(.FEATURES)),2,1)

# The versions that were tried together; CONSTRAINTS= takes the newest of everything.
CONSTRAINTS ?= constraints.txt

BIN = $(VENV)/bin
# What the environment is ready for, so that a second run installs nothing.
READY_FOR_LAB = $(VENV)/.ready-for-lab
READY_FOR_TEST = $(VENV)/.ready-for-test
# The web site is built without PyTorch, in an environment of its own.
SITE_VENV ?= build/site-venv
READY_FOR_SITE = $(SITE_VENV)/.ready
INSTALL = $(BIN)/python -m pip install $(addprefix --constraint ,$(CONSTRAINTS)) \
  $(if $(TORCH),--extra-index-url https://download.pytorch.org/whl/$(TORCH))
# What a reader writes into the checkout is the reader's: style and spelling are checked
# in files that git knows, are there and hold text; without git, in the folders.
OWN = git grep -lzI -e '' --
FOLDERS = kit tests bench tutorials binder site
# Tests that start browsers, kernels and ranks, and wait for them.
PROCESSES = tests/browser tests/processes
# Two halves of the chapters, by the last digit of their numbers.
EVEN = $(wildcard tutorials/[01][02468]_*.ipynb)
ODD = $(wildcard tutorials/[01][13579]_*.ipynb)
APPENDICES = $(wildcard tutorials/more/*.ipynb)
PYTEST = KIT_CACHE="$(KIT_CACHE)" $(BIN)/python -m pytest --durations=10
# nbval runs notebooks as tests; tutorials/conftest.py has its settings.
NBVAL = PYTEST_ADDOPTS= $(PYTEST) --nbval-lax
# For once a night: tests that are marked so, and properties with more examples.
NIGHTLY = -m "nightly or not nightly" --hypothesis-profile=nightly --timeout=1200
SYNC = $(if $(filter-out 1,$(JOBS)),--output-sync=target)

ifneq ($(filter-out cpu,$(TORCH)),)
$(error TORCH=$(TORCH) is not known: leave it out, or say TORCH=cpu)
endif

.PHONY: help lab test test-all bench calibrate site clean
.PHONY: test-checks test-style test-odd test-even test-appendices test-processes test-kit

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' \
	  $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "The first run makes the environment, which takes some minutes. Settings:"
	@echo
	@echo "  VENV=.venv            where the environment is"
	@echo "  PYTHON=python3        the Python that makes it, 3.11 or later"
	@echo "  TORCH=cpu             take PyTorch's smaller wheels, without GPU"
	@echo "  CONSTRAINTS=          take the newest versions, not those of constraints.txt"
	@echo "  LAB_ARGS=--no-browser more options for JupyterLab"
	@echo "  JOBS=1                make test runs one group of checks after the other"

lab: $(READY_FOR_LAB)  ## Open JupyterLab at the first chapter
	$(BIN)/jupyter lab --ServerApp.root_dir="$(CURDIR)" \
	  --LabApp.default_url=/lab/tree/tutorials/00_start_here.ipynb $(AS_ROOT) $(LAB_ARGS)

# What it starts is marked, and has a folder of its own for temporary files: tests/leftovers.py
# looks for what is left. The folder's name is short, since paths of sockets have to be.
test: $(READY_FOR_TEST)  ## Run every check: style, spelling, tests, notebooks, claims
	@TMPDIR=$$(mktemp -d -t kit-XXXXXX); export TMPDIR KIT_MAKE_TEST=$$TMPDIR; \
	  trap 'rm -rf "$$TMPDIR" "$$TMPDIR.json"' EXIT; \
	  $(BIN)/python tests/leftovers.py before "$$TMPDIR.json"; \
	  $(MAKE) --no-print-directory test-checks; status=$$?; \
	  $(BIN)/python tests/leftovers.py after "$$TMPDIR.json" || status=1; \
	  exit $$status

test-checks:
	$(MAKE) --no-print-directory test-style
	$(MAKE) --no-print-directory --jobs=$(JOBS) $(SYNC) \
	  test-odd test-even test-processes test-kit
	$(BIN)/python tutorials/scripts/claims.py --check
	$(BIN)/python tutorials/scripts/what_helps.py --check

test-all: export PYTEST_ADDOPTS += $(NIGHTLY)
test-all: test  ## The same with appendices, what takes long, chapters at full length
	$(MAKE) --no-print-directory test-appendices
	$(BIN)/python bench/planted.py
	KIT_CACHE="$(KIT_CACHE)" $(BIN)/python tutorials/scripts/record.py --dry-run \
	  tutorials/[0-9]*.ipynb

test-style:
	@if git grep -q -e '' -- Makefile 2>/dev/null; then set -e; \
	  $(OWN) '*.py' '*.ipynb' | xargs -0 $(BIN)/ruff format --check; \
	  $(OWN) '*.py' '*.ipynb' pyproject.toml | xargs -0 $(BIN)/ruff check; \
	  $(OWN) . | xargs -0 $(BIN)/codespell; \
	else set -e; \
	  $(BIN)/ruff format --check $(FOLDERS); \
	  $(BIN)/ruff check $(FOLDERS) pyproject.toml; \
	  $(BIN)/codespell $(FOLDERS) *.md; \
	fi
	$(BIN)/lint-imports

test-processes:
	$(PYTEST) $(PROCESSES)

test-kit:
	$(PYTEST) $(patsubst %,--ignore=%,$(PROCESSES))

test-odd:
	$(NBVAL) $(ODD)

test-even:
	$(NBVAL) $(EVEN)

test-appendices:
	$(NBVAL) $(APPENDICES)

# Nothing else may run beside these two: they measure in earnest.
bench: $(READY_FOR_TEST)  ## Diagnose loops with known faults; try the finders (15 minutes)
	$(BIN)/python bench/planted.py
	$(BIN)/python bench/finders.py batch
	$(BIN)/python bench/finders.py loader

calibrate: $(READY_FOR_TEST)  ## Compare loops of known ratios (30 minutes), store the table
	$(BIN)/python bench/calibrate.py --write kit/MEASURING.md

# Sphinx runs no notebook. It ends at the first broken reference; the check looks at the
# built pages, and says so where there is no Chromium.
site: $(READY_FOR_SITE)  ## Build the web site in build/site, and check it in Chromium
	rm -rf build/site
	$(SITE_VENV)/bin/python -m sphinx --quiet --fail-on-warning --fresh-env \
	  --jobs auto --conf-dir site --doctree-dir build/site-doctrees . build/site
	$(SITE_VENV)/bin/python site/check.py build/site

clean:  ## Remove the environment, caches and build outputs
	@if [ -f $(VENV)/pyvenv.cfg ]; then rm -rf $(VENV); fi
	rm -rf build dist .cache .hypothesis .pytest_cache .ruff_cache
	find kit tests bench tutorials -depth -type d \
	  \( -name __pycache__ -o -name .ipynb_checkpoints \) -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "This needs Python 3.11 or later: say make PYTHON=python3.12, for example.")'
	$(PYTHON) -m venv $(VENV)

$(READY_FOR_LAB): pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing into $(VENV), which takes some minutes the first time."
	$(INSTALL) --editable '.[rl,store]'
	@touch $@

$(READY_FOR_TEST): pyproject.toml $(CONSTRAINTS) | $(VENV)/bin/python
	@echo "Installing into $(VENV), which takes some minutes the first time."
	$(INSTALL) --editable '.[rl,store,test]'
	@touch $@ $(READY_FOR_LAB)

$(READY_FOR_SITE): site/requirements.txt constraints.txt
	$(PYTHON) -m venv $(SITE_VENV)
	$(SITE_VENV)/bin/python -m pip install --requirement site/requirements.txt
	@touch $@
