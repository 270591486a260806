#!/usr/bin/env bash
# Checks for the first minutes on a GPU: each in a process of its own with a limit, one line of JSON
# each, the most valuable first; none stops the others.  Within 10 minutes, without a network.
#
#   tests/gpu/run.sh          on the GPU of this machine, with its own torch
#   tests/gpu/run.sh --gpus 2 what one GPU cannot show: rates, a move, a life with a killed peer
#   tests/gpu/run.sh --dry    the same checks on the simulated device; also with --gpus 2
#
# PYTHON: interpreter.  OUT: folder for the lines and logs.  WHEELS: folder of unpacked pure wheels
# that this machine lacks, such as DeepSpeed's.  PATIENCE: factor of the limits on a busy machine.
set -u
cd "$(dirname "$0")/../.." || exit 2
python=${PYTHON:-python3}
out=${OUT:-$(mktemp -d)}
mkdir -p "$out"
export PYTHONPATH="$PWD:${WHEELS:-}" OMP_NUM_THREADS=1 GLOO_SOCKET_IFNAME=lo LOCAL_RANK=0
export MASTER_ADDR=127.0.0.1 PYTORCH_NVML_BASED_CUDA_CHECK=1 DS_ACCELERATOR=cpu
checks="versions:20 fork:40 device:20 wire:40 update:30 story:110 nccl_alone:30 nccl_pair:30
  nccl_gone:30 attention:40 engine:60 job:80 profile:70"
case " $* " in *" --gpus 2 "*) checks="two_rates:120 two_moves:120 two_lives:240" ;; esac
status=0
for one in $checks; do
  check=${one%:*} limit=$((${one#*:} * ${PATIENCE:-1}))
  line=$(timeout --kill-after=5 "$limit" "$python" -m tests.gpu.checks "$check" "$@" \
    2>"$out/$check.log")
  code=$?
  if [ $code != 0 ]; then
    status=1
    [ -n "$line" ] || line="{\"check\": \"$check\", \"ok\": false, \"exit\": $code}"
  fi
  printf '%s\n' "$line" | tee -a "$out/gpu.jsonl"
done
exit $status
