#!/usr/bin/env bash
# Builds the wheel of the Python package into dist/: one for every CPython from 3.10 on, and on Linux for every system
# with glibc 2.28 or newer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. pccl-py/venv.sh

cached_python build "$(find_python)" pccl-py/requirements-build.txt
portable=()
if [ "$(uname -s)" = Linux ]; then
    portable=(--zig --compatibility manylinux_2_28)
fi
rm -f dist/pccl-*.whl
PATH="$(dirname "$CACHED"):$PATH" "$CACHED" -m maturin build --quiet --release --locked \
    --manifest-path pccl-py/Cargo.toml --interpreter "$CACHED" --out dist "${portable[@]}"
ls -l dist/pccl-*.whl
