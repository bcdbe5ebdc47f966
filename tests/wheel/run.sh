#!/usr/bin/env bash
# The Python package of PCCL 1.0, as published, with its libpccl.so replaced by ours. Downloads the package; Linux only,
# since the package is loaded from the name that its library has there.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. pccl-py/venv.sh

if [ "$(uname -s)" != Linux ]; then
    echo "left out: the package is tried on Linux"
    exit
fi
built="${CARGO_TARGET_DIR:-target}"
place="$built/wheel"
python="$(find_python)"
cargo build --quiet --locked --package pccl-ffi

stamp="$("$python" -VV && cat tests/wheel/requirements.txt)"
if [ "$(cat "$place/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$place"
    "$python" -m venv "$place/venv"
    install=("$place/venv/bin/python" -m pip --quiet --disable-pip-version-check)
    "${install[@]}" install -r tests/wheel/requirements.txt
    "${install[@]}" download --no-deps --only-binary=:all: --python-version 3.12 \
        --platform manylinux_2_17_x86_64 --dest "$place" pypccl==1.0.0
    "$place/venv/bin/python" -m zipfile -e "$place"/pypccl-1.0.0-*.whl "$place/unpacked"
    echo "$stamp" >"$place/stamp"
fi
cp "$built/debug/libpccl.so" "$place/unpacked/pccl/libpccl.so"
PYTHONPATH="$place/unpacked" timeout 300 "$place/venv/bin/python" tests/wheel/dropin.py
