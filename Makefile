# Ring to Rack. `make` alone prints the targets below, one line each.
#
# Variables:
#   PYTHON=python3.12   the Python to make the environment from (3.11 or later)
#   TORCH_INDEX=URL     take torch from this package index (a CPU wheel index for laptops)
#   NOTEBOOK=PATH       one notebook instead of all (make notebooks), or the one to open (make lab)
#   LAB_ARGS=...        more arguments for `jupyter lab`, such as --no-browser
#   JOBS=2              test files run at once; 0 runs them one after another

PYTHON      ?= python3
TORCH_INDEX ?=
NOTEBOOK    ?=
LAB_ARGS    ?=
TORCH       ?=
JOBS        ?= 2

VENV  := .venv
BIN   := $(VENV)/bin
STAMP := $(VENV)/.installed

# A shell command in a notebook (`!torchrun ...`) must find this environment's programs first.
WITH_PATH = PATH="$(CURDIR)/$(BIN):$$PATH"

# The server's folder is the whole course, so that its file browser reaches the labs too.
LAB_FLAGS = --ServerApp.root_dir="$(CURDIR)" \
  --LabApp.default_url=/lab/tree/$(or $(NOTEBOOK),notebooks/00_start_here.ipynb) \
  --LabApp.news_url= \
  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
  $(if $(filter 0,$(shell id -u)),--allow-root)

PYTEST_FLAGS = -p tests.nbval_guard --nbval --nbval-current-env --nbval-cell-timeout=120 \
  --nbval-sanitize-with=tests/nbval_sanitize.cfg \
  $(if $(filter-out 0,$(JOBS)),-n $(JOBS) --dist loadfile)

.PHONY: help lab test test-torch notebooks bench lint clean setup
.DEFAULT_GOAL := help

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

lab: $(STAMP) ## create the environment if needed and open JupyterLab at the first chapter
	@# Stored pictures are shown only in notebooks that are trusted: these are our own.
	@$(BIN)/jupyter trust $(wildcard notebooks/*.ipynb labs/*.ipynb) >/dev/null
	$(WITH_PATH) $(BIN)/jupyter lab $(LAB_FLAGS) $(LAB_ARGS)

test: lint ## create the environment if needed and run every test: code, notebooks, browser
	$(WITH_PATH) $(BIN)/python -m pytest $(PYTEST_FLAGS) tests notebooks labs

test-torch: ## run the simulated world's tests on another torch: make test-torch TORCH=2.14.1
	@test -n "$(TORCH)" || { echo "say which torch: make test-torch TORCH=2.14.1"; exit 2; }
	@$(MAKE) --no-print-directory setup VENV=.venv-torch-$(TORCH) TORCH=$(TORCH)
	.venv-torch-$(TORCH)/bin/python -m pytest $(wildcard tests/test_simulated*.py)

notebooks: $(STAMP) ## fill shown cells, run from the top, store pictures (NOTEBOOK=path for one)
	$(WITH_PATH) $(BIN)/python -m course.authoring build $(NOTEBOOK)

bench: $(STAMP) ## run the measurements in tests/bench, one after another
	@set -e; for file in tests/bench/*.py; do echo "== $$file"; $(WITH_PATH) $(BIN)/python $$file; done

lint: $(STAMP) ## check style and format with ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean: ## remove the environments and everything that tests and builds leave behind
	rm -rf .venv .venv-torch-* build *.egg-info .pytest_cache .ruff_cache .hypothesis
	rm -rf tests/artefacts
	find . -name __pycache__ -prune -exec rm -rf {} +

setup: $(STAMP)

# The stamp is removed first and written last: an interrupted install leaves none.
# torch goes in first, pinned, so that no later requirement can choose another build.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) was not found: set PYTHON= to a Python 3.11 or later"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed, not $$($(PYTHON) --version): set PYTHON="; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "Python's venv module is missing: install it (Debian and Ubuntu: apt install python3-venv)"; exit 1; }
	@rm -f $@
	$(PYTHON) -m venv $(VENV)
	@# another torch may need another setuptools than the pinned one
	@sed $(if $(TORCH),-e 's/^torch==.*/torch==$(TORCH)/' -e '/^setuptools==/d',-n p) constraints.txt > $(VENV)/constraints.txt
	$(BIN)/python -m pip install -c $(VENV)/constraints.txt $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install -c $(VENV)/constraints.txt -e '.[test]'
	@mkdir -p $(VENV)/share/jupyter/lab/settings
	@echo '{"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}' \
	  > $(VENV)/share/jupyter/lab/settings/overrides.json
	@touch $@
