#!/usr/bin/env bash
# The wheel in dist/, installed and tested on every CPython from 3.10 to 3.13 that this machine has, besides the one that
# .venv is made with.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. pccl-py/venv.sh

built="${CARGO_TARGET_DIR:-target}"
first=$("$(find_python)" -c 'import sys; print(sys.version_info[1])')
for minor in 10 11 12 13; do
    if [ "$minor" = "$first" ]; then
        echo "CPython 3.$minor: that of .venv, tested there"
        continue
    fi
    interpreter=$(find_version "$minor") || {
        echo "CPython 3.$minor: left out, not on this machine"
        continue
    }
    cached_python "python-3.$minor" "$interpreter" pccl-py/requirements-run.txt
    site="$built/site-3.$minor"
    install_wheel "$site"
    echo "CPython 3.$minor:"
    PYTHONPATH="$site" "$CACHED" -m pytest --ignore pccl-py/tests/with_torch --ignore pccl-py/tests/test_numerics.py pccl-py/tests
done
