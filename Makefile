# Everything that a contributor or CI runs. The targets create their own environment (.venv) with Python >= 3.11.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# Without bytecode, every process of a test compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE
# Many tests wait.
WORKERS := $(shell n=$$(($$(nproc) * 3)); echo $$((n < 8 ? n : 8)))
PYTEST := $(BIN)/pytest -q --numprocesses=$(WORKERS) --dist=worksteal
# Of Debian. Tests that need one say so if it is missing, and fail where CI=true.
TOOLS := binutils chromium containerd containernetworking-plugins fish iproute2 iptables openssl prometheus prometheus-alertmanager python3-venv runc zsh

# The methods of Path, which ruff's list of forbidden functions cannot name. (Nor perf_counter, which tests may use.)
REMOVES := '\.(unlink|rmdir|rename|hardlink_to|symlink_to)\(|\.replace\([^,()=]*\)|rmtree|shutil\.move'

.PHONY: help demo t test check fmt lint unit proof packages e2e newer-python pythons arm64 stress fuzz bench clean
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## find and release leaked addresses on a simulated node, in half a minute
	@$(BIN)/python -m tests.demo

t: $(READY) ## the tests of one area, in seconds: T=checks/addresses
	@$(BIN)/pytest -q --numprocesses=2 -m "not e2e" tests/$(T)

# A stage that fails does not keep the others from running.
test: packages ## run all tests (the real-node tests need Debian 12 and root, and say so if they did not run)
	@failed=; for stage in check newer-python proof e2e; do \
	began=$$(date +%s); $(MAKE) --no-print-directory $$stage || failed="$$failed $$stage"; \
	echo "make test: $$stage took $$(($$(date +%s) - began)) s"; done; \
	[ -z "$$failed" ] || { echo "make test: FAILED:$$failed"; exit 1; }

# The linters share the cores with the tests; their output follows the tests' output, so that lines do not mix.
check: $(READY) ## lint, types, import contracts, unit tests: 3 minutes on 2 cores
	@log=$$(mktemp); \
	nice $(MAKE) --no-print-directory lint >"$$log" 2>&1 & lint=$$!; \
	trap 'kill $$lint 2>/dev/null; rm -f "$$log"' EXIT; \
	$(MAKE) --no-print-directory unit; tests=$$?; \
	wait $$lint; code=$$?; cat "$$log"; \
	[ $$tests = 0 ] && [ $$code = 0 ]

fmt: $(READY) ## format the code, and repair what the linter can
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format --quiet .

lint: $(READY) ## only linters, types and import contracts
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	@! grep -rnE $(REMOVES) agent --include='*.py' | grep -vE '^agent/(cleanup/unlink|state/directory)\.py:' || \
	{ echo "only agent/cleanup/unlink.py and agent/state/directory.py remove or link files" >&2; exit 1; }
	@! grep -rn perf_counter agent --include='*.py' || { echo "time is an argument" >&2; exit 1; }
	$(BIN)/mypy
	hack/measure --check

unit: $(READY) ## only unit tests
	$(PYTEST) -m "not e2e and not proof"

proof: $(READY) ## what holds for every node and moment: the model checker (docs/proof.md), laws, a kill at each system call, a minute of attacks on the port
	$(PYTEST) -m proof tests/checks tests/cleanup tests/exporters/web tests/proof

packages: ## install the programs of Debian that tests run (Debian 12 and root)
	@[ "$$(id -u)" != 0 ] || hack/cluster packages $(TOOLS) || echo "some tests will say that they did not run" >&2

e2e: $(READY) ## the real-node tests: build and start a real kubelet, docker and API server
	@PATH="$(CURDIR)/$(BIN):$$PATH" hack/e2e

newer-python: ## the tests of tests/model and tests/checks with Python 3.13, of PATH or of Debian 13 (root): two minutes
	@nice hack/other-python 3.13 tests/model tests/checks

# Not in `make test`: the packages of a version take longer to install than its tests run.
pythons: ## the unit tests with Python 3.12 to 3.14, of PATH or of Debian (root): T=checks, or all of them
	@nice hack/other-python all $(if $(T),tests/$(T))

# Not in `make test` either: an emulated test takes ten times as long, and one that starts a program fails.
arm64: ## the unit tests of tests/model and tests/checks as arm64, emulated (root), in 3 minutes: T=checks/addresses
	@nice hack/arm64 $(if $(T),tests/$(T))

stress: $(READY) ## nodeleak cleans while real docker and host-local churn: FOR=60 seconds (python -m tests.stress --help)
	@trap 'exit 130' INT; trap 'exit 143' TERM; \
	docker --host=unix:///var/run/docker.sock info >/dev/null 2>&1 || \
	trap 'hack/cluster stop docker' EXIT; \
	hack/cluster start docker && $(BIN)/python -m tests.stress \
	--cleaner=nodeleak --daemon=nodeleak --seconds=$(or $(FOR),60)

fuzz: $(READY) ## every parser of foreign bytes on mutations of real samples: FOR=60 seconds each (an hour in all)
	@$(BIN)/python -m tests.fuzz --seconds=$(or $(FOR),60)

bench: $(READY) ## measure the figures of docs/figures.md: SECTIONS="daemon scale" (default: all, an hour)
	@nice -n 10 $(BIN)/python -m tests.bench $(SECTIONS)

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "nodeleak needs Python 3.11 or newer: set PYTHON=..." >&2; exit 1; }
	@echo "creating $(VENV) (about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -qq --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt --editable . --group dev
	@touch $@

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build *.egg-info
