#!/bin/sh
# Pretrain on Python, fine-tune on English while a node joins and one dies, load the result.
# usage: run.sh [FOLDER]; the folder gets all files, and three minutes on two cores are enough.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:-finetune-run}"
cd "${1:-finetune-run}"

python "$here/english.py" texts
heddle data prepare --builtin text --max-bytes 4000000 --output-path python
heddle data prepare --input texts --output-path english
heddle train "$here/pretrain.yaml" --headless
heddle train "$here/finetune.yaml" --headless --nodes "$here/nodes.yaml" --script "$here/script.yaml"
python "$here/compare.py" pretrained finetuned
