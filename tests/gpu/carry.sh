#!/usr/bin/env bash
# Fills a folder with the packages of the lock that a machine with torch lacks, for its Python:
# `tests/gpu/run.sh` then needs no network there.  20 MB.
#
#   tests/gpu/carry.sh .cache/wheels 3.12
set -eu
cd "$(dirname "$0")/../.."
folder=${1:?a folder} version=${2:?the version of Python there, such as 3.12}
names='deepspeed hjson pydantic pydantic-core annotated-types'
pins=$(for name in $names; do sed -n "s/^\($name==[^ ]*\).*/\1/p" requirements.lock; done)
# shellcheck disable=SC2086
.venv/bin/uv pip install --quiet --no-deps --python-version "$version" \
  --python-platform x86_64-manylinux_2_28 --target "$folder" $pins
du -sh "$folder"
