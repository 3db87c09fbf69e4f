# Everything a contributor or CI runs. Each target makes its own environment (.venv) from a Python >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: help demo test check e2e stress bench clean
help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## the main job on a self-contained demo node, in half a minute
	@$(BIN)/python -m tests.demo

test: check e2e ## everything: the quick half, then the real node (Debian and root; elsewhere it says what did not run)

check: $(READY) ## the quick half: lint, types, import contracts, unit and property tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pytest -q -m "not e2e"

e2e: $(READY) ## the real-node half: builds and starts a real kubelet, docker and API server
	@PATH="$(CURDIR)/$(BIN):$$PATH" hack/e2e

stress: $(READY) ## real docker and real host-local churn while nodeleak cleans: FOR=60 seconds (python -m tests.stress --help)
	@hack/cluster start docker
	@$(BIN)/python -m tests.stress --cleaner=nodeleak --daemon=nodeleak --seconds=$(or $(FOR),60)

bench: $(READY) ## the figures of docs/figures.md, as ratios of one run
	@$(BIN)/python -m tests.bench

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nodeleak needs Python 3.11 or newer: set PYTHON=…" >&2; exit 1; }
	@echo "making $(VENV) (about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable . --group dev
	@touch $@

clean: ## forget the environment and the caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
