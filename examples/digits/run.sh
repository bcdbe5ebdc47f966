#!/usr/bin/env bash
# Sets up what is needed, under .venv and target, and runs the digits job. Its options are passed on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
. pccl-py/venv.sh
# Everything that any script here needs, so that they share one environment.
prepare_python pccl-py/requirements-test.txt pccl-py/requirements-run.txt examples/digits/requirements.txt
exec "$PYTHON" examples/digits/digits.py "$@"
