# Heddle's commands.  `make` lists them; Linux, Python 3.11 to 3.13 and make are all they need.

VENV ?= .venv
# The images that the chart pulls: heddle-operator and heddle-worker with its version as the tag.
REPOSITORY ?= heddle
TAG ?= $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
BIN := $(VENV)/bin
STAMP := $(VENV)/.heddle-setup
# Tests run side by side on the cores, but for those whose clusters and jobs have times.
HARNESS := tests/cluster
SYSTEM := tests/distributed/faults/test_faults.py tests/distributed/faults/test_slow_rank.py \
  tests/distributed/faults/test_staged_faults.py tests/distributed/faults/test_connecting_faults.py \
  tests/e2e/test_demo.py tests/e2e/test_finetune.py \
  tests/e2e/test_full_disk.py tests/e2e/test_given_plan.py tests/e2e/test_terminal.py
WHOLE := tests/e2e/kubernetes tests/e2e/image
ON_CLUSTER := tests/contracts $(WHOLE)
SAMPLE := tests/distributed/faults/test_fault_sample.py tests/e2e/test_short_demo.py
NOT_AT_ONCE = $(patsubst %,--ignore=%,$(HARNESS) $(SYSTEM) $(WHOLE) $(SAMPLE) $(KILLS))
# The whole campaign of faults takes too long for every run, which has a sample of it.
KILLS := tests/distributed/faults/test_kills.py
# Each has a policy; qwen3-64b is planned by that of qwen3-32b.
MODELS := llama3-8b qwen3-32b mixtral-8x7b qwen3-30b-a3b deepseek-v3-like gpt-neo-2.7b
# Without these binaries, or without root, tests on a real Kubernetes are left out, each with its reason.
ASSETS = [ "$$(id -u)" != 0 ] || $(BIN)/python -m tests.cluster assets || echo "No binaries of Kubernetes."
# One worker more than there are cores, four at most: many tests wait for processes of their own.
WORKERS := -n $(shell n=$$(($$(nproc) + 1)); echo $$((n > 4 ? 4 : n)))
AT_ONCE := $(WORKERS) --dist worksteal
# Files whose tests share a long job stay whole: two workers would run that job twice.
FILES_AT_ONCE := $(WORKERS) --dist loadfile --no-loadscope-reorder
# Without written bytecode every run would compile the tests again, which takes 10 s.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup format check test test-fast test-kills test-samples test-system test-cluster test-harness bench stale bench-planner bench-policy paper-plans paper-policies paper validate-cost demo demo-kubernetes kube-assets cluster cluster-down image generate

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
	@$(BIN)/python -m planner.compilation
	@touch $@

format: $(STAMP) ## Format the code and repair what ruff can repair
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

check: $(STAMP) ## Lint, formatting, types, import contracts, generated files, pages of results
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python -m heddle_operator.resources.generate --check
	@$(BIN)/python -m benchmarks.stale --check

test: $(STAMP) ## Run the tests that need neither root nor servers; the end says what is left out
	@status=0; \
	HEDDLE_TEST_SERVERS=no $(BIN)/pytest $(AT_ONCE) -m "not system" $(NOT_AT_ONCE) || status=$$?; \
	$(BIN)/pytest $(SAMPLE) || status=$$?; \
	echo "Left out: whole jobs, faults and long draws (make test-system), a real Kubernetes" \
	  "(make test-cluster), its harness (make test-harness), every fault (make test-kills)."; \
	exit $$status

test-system: $(STAMP) ## Run faults, whole jobs and long draws on the processes of this machine
	@status=0; \
	$(BIN)/pytest $(FILES_AT_ONCE) -m system $(NOT_AT_ONCE) || status=$$?; \
	$(BIN)/pytest $(SYSTEM) || status=$$?; \
	exit $$status

test-cluster: $(STAMP) ## Run contracts and jobs on a real Kubernetes with emulated GPUs; needs root
	@$(ASSETS)
	@HEDDLE_TEST_SERVERS=only $(BIN)/pytest $(ON_CLUSTER)

test-harness: $(STAMP) ## Run the tests of the emulated cluster itself; needs root
	@$(ASSETS)
	@$(BIN)/pytest $(HARNESS)

test-kills: $(STAMP) ## Kill, stop, cut off or slow every kind of process in every part of a change; 45 minutes
	@HEDDLE_FAULTS=3200 $(BIN)/pytest -q $(AT_ONCE) tests/laws/operator/test_faults.py
	@$(BIN)/pytest $(KILLS)

test-samples: $(STAMP) ## Draw 1,000 random gangs, notices and shared nodes, and 300 lives of a job, on a virtual clock; 30 minutes
	@HEDDLE_GANGS=1000 HEDDLE_NOTICES=1000 HEDDLE_ARBITERS=1000 HEDDLE_LOOPS=300 $(BIN)/pytest -q $(AT_ONCE) \
	  tests/laws/operator/test_gang.py tests/laws/operator/test_notices.py tests/laws/operator/test_arbiter.py tests/laws/operator/test_loop.py

test-fast: $(STAMP) ## Run unit, law and contract tests in about a minute
	@$(BIN)/pytest -q $(AT_ONCE) --hypothesis-profile fast -m "not slow" \
	  tests/unit tests/laws tests/contracts

bench: $(STAMP) ## Measure the stall of join, drain and loss, on Kubernetes too; writes docs/results/
	@$(BIN)/python -m benchmarks.stall
	@$(BIN)/python -m benchmarks.stall_by_size
	@$(BIN)/python -m benchmarks.start
	@$(BIN)/python -m benchmarks.operator_scale.pure_core
	@if [ "$$(id -u)" = 0 ]; then \
	  $(BIN)/python -m tests.cluster assets && $(BIN)/python -m benchmarks.kubernetes && \
	  $(BIN)/python -m benchmarks.operator_scale; \
	else echo "Not measured: a job on Kubernetes, which needs root."; fi

stale: $(STAMP) ## List the pages of results whose measured folders changed since; needs history
	@$(BIN)/python -m benchmarks.stale

bench-planner: $(STAMP) ## Measure the planner's speed and quality; an hour; writes docs/results/planner.md
	@$(BIN)/python -m benchmarks.planner

bench-policy: $(STAMP) ## Measure the learned planner; hours; writes docs/results/policy.md
	@$(BIN)/python -m benchmarks.policy

paper-plans: $(STAMP) ## Plan the paper's cells with all planners; an hour or more, resumable; fills benchmarks/paper/plans
	@$(BIN)/python -m benchmarks.paper plans $(if $(BUDGET_S),--budget-s $(BUDGET_S))

paper-policies: $(STAMP) ## Train ablations, flat-RL, and a policy of all GPU types for each model; hours, resumable
	@$(BIN)/python -m benchmarks.paper plans --figures "" --beside ablations,flat-rl
	@set -e; for model in $(MODELS); do \
	  out=build/policies/$$model; \
	  if [ -f $$out/card.json ]; then continue; fi; \
	  resume=; if [ -f $$out/checkpoint.pt ]; then resume=--resume; fi; \
	  $(BIN)/heddle train-policy --model $$model --output-path $$out $$resume \
	    --compositions 1692 --teacher-steps 2000 --groups 3200; \
	done

paper: $(STAMP) ## Draw the paper's figures and tables from the stored plans; writes docs/results/paper
	@$(BIN)/python -m benchmarks.paper draw

validate-cost: $(STAMP) ## Price measured plans and print how far the prices are off
	@$(BIN)/python -m benchmarks.validation --data tests/data/measured

demo: $(STAMP) ## Train a small model while nodes join and leave; no GPU, no cluster
	@$(BIN)/heddle demo

kube-assets: $(STAMP) ## Build the binaries of a real Kubernetes into the user's cache, once
	@$(BIN)/python -m tests.cluster assets

demo-kubernetes: kube-assets ## Let a job survive what happens to the nodes of a real Kubernetes; needs root
	@$(BIN)/python -m tests.e2e.kubernetes.demo

cluster: kube-assets ## Start a real Kubernetes with emulated GPUs; needs root
	@$(BIN)/python -m tests.cluster up

cluster-down: $(STAMP) ## End what `make cluster` started; nothing of it is left
	@$(BIN)/python -m tests.cluster down

image: ## Build the images of operator and worker with buildah, podman or docker (REPOSITORY=, TAG=)
	@for tool in buildah podman docker; do \
	  if command -v $$tool >/dev/null; then \
	    echo "Building $(REPOSITORY)-operator:$(TAG) and $(REPOSITORY)-worker:$(TAG) with $$tool:" \
	      "downloads 3.4 GB, 6 GB on disk."; \
	    $$tool build --build-arg COMMIT=$$(git rev-parse HEAD 2>/dev/null) \
	      --target operator --tag $(REPOSITORY)-operator:$(TAG) . && \
	      exec $$tool build --target worker --tag $(REPOSITORY)-worker:$(TAG) .; exit; fi; \
	done; \
	echo "Nothing here builds images: install buildah (apt install buildah), podman or docker."; exit 2

generate: $(STAMP) ## Render CRD, chart and docs/reference from models and commands
	@$(BIN)/python -m heddle_operator.resources.generate
	@$(BIN)/python -m tests.documents.commands
