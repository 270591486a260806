#!/usr/bin/env bash
# Checks for the first minutes on a GPU: one line of JSON each, the most valuable first; none stops
# the others.  Within 10 minutes, without a network.  OUT gets gpu.jsonl, and gpu.log with tracebacks.
#
#   tests/gpu/run.sh                   on the GPU of this machine, with its own torch
#   tests/gpu/run.sh --only engine,job some of them
#   tests/gpu/run.sh --gpus 2          what one GPU cannot show: rates, a move, a killed peer
#   tests/gpu/run.sh --dry             the same checks on the simulated device; also with --gpus 2
#
# PYTHON: interpreter.  OUT: folder for lines and log.  WHEELS: folder that tests/gpu/carry.sh has
# filled with what this machine lacks.  BUDGET_S: seconds for all.  PATIENCE: factor of all limits.
set -u
cd "$(dirname "$0")/../.." || exit 2
export OUT=${OUT:-$(mktemp -d)}
mkdir -p "$OUT" || exit 2
export PYTHONPATH="$PWD${WHEELS:+:$WHEELS}${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" -m tests.gpu.runner "$@"
