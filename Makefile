# Heddle's commands.  `make` lists them; Linux, Python 3.11 to 3.13 and make are all they need.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.heddle-setup

.DEFAULT_GOAL := help
.PHONY: help setup format check test test-fast test-kills test-e2e bench validate-cost demo kube-assets cluster cluster-down generate

help: ## List these commands
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create .venv and install the locked dependencies (VENV=PATH: elsewhere)

$(STAMP): requirements.lock pyproject.toml
	@[ "$$(uname -s)" = Linux ] || { \
	  echo "Heddle runs on Linux; this is $$(uname -s)."; exit 2; }
	@set -e; \
	for name in $(PYTHON) python3.11 python3.12 python3.13 python3; do \
	  if "$$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	    2>/dev/null; then python="$$name"; break; fi; \
	done; \
	if [ -z "$${python:-}" ]; then \
	  echo "Heddle needs Python 3.11, 3.12 or 3.13, found $$(python3 --version 2>&1 || true);" \
	    "install one of them, or name it: make setup PYTHON=/path/to/python3.11"; exit 2; fi; \
	if ! [ -x $(BIN)/uv ]; then \
	  if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	    echo "$$python lacks the venv module;" \
	      "on Debian and Ubuntu: apt install $$(basename "$$python")-venv"; exit 2; fi; \
	  echo "Setting up $(VENV) with $$("$$python" --version):" \
	    "downloads 3.3 GB unless cached, takes 6 GB of disk, 1 to 5 minutes."; \
	  "$$python" -m venv --clear $(VENV); \
	  awk '/^uv==/ { on = 1 } on { print; if (!/\\$$/) exit }' requirements.lock \
	    > $(VENV)/uv.lock; \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --require-hashes -r $(VENV)/uv.lock; \
	fi
	@$(BIN)/uv pip install --python $(BIN)/python --compile-bytecode --require-hashes \
	  -r requirements.lock
	@$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation -e .
	@touch $@

format: $(STAMP) ## Format the code and repair what ruff can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

check: $(STAMP) ## Lint, formatting, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

test: $(STAMP) ## Run every test that needs no Kubernetes, the demo end to end among them
	@$(BIN)/pytest --ignore=tests/cluster --ignore=tests/distributed/test_kills.py
	@echo "Not run here: tests/cluster, on a real Kubernetes; run make test-e2e (needs root)."
	@echo "Not run here: every kind of kill in every part of a change, 10 minutes; make test-kills."

test-kills: $(STAMP) ## Kill every kind of process in every part of a change; 10 minutes
	@$(BIN)/pytest tests/distributed/test_kills.py

test-e2e: kube-assets ## Run the tests on a real Kubernetes with emulated GPUs; needs root
	@$(BIN)/pytest tests/cluster

test-fast: $(STAMP) ## Run unit, law and contract tests in under 30 s
	@$(BIN)/pytest -q -m "not slow" tests/unit tests/laws tests/contracts

bench: $(STAMP) ## Measure the stall of join, drain and loss; writes to docs/results/
	@$(BIN)/python -m tests.benchmarks.stall

validate-cost: $(STAMP) ## Price measured plans and print how far the prices are off
	@$(BIN)/python -m planner.validate_cli --data tests/data/measured

demo: $(STAMP) ## Train a small model while nodes join and leave; no GPU, no cluster
	@$(BIN)/heddle demo

kube-assets: $(STAMP) ## Build the binaries of a real Kubernetes into the user's cache, once
	@$(BIN)/python -m tests.cluster assets

cluster: kube-assets ## Start a real Kubernetes with emulated GPUs; needs root
	@$(BIN)/python -m tests.cluster up

cluster-down: $(STAMP) ## End what `make cluster` started; nothing of it is left
	@$(BIN)/python -m tests.cluster down

generate: $(STAMP) ## Render the chart's CRD and docs/reference from manifests/crd
	@$(BIN)/python -m heddle_operator.generate
