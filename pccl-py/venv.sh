# To be sourced, at the root of the repository. Defines
#
#   prepare_python REQUIREMENTS...
#
# which makes sure that .venv has the module `pccl` as the sources are now, and what the requirement files
# list, and sets PYTHON to its interpreter. Does nothing if none of that has changed since. (Each step says `|| return`:
# where a caller tests the outcome, `set -e` does not count.)
# shellcheck shell=bash

# The newest CPython from 3.10 on that runs. PCCL_PYTHON chooses another.
find_python() {
    local candidate
    for candidate in ${PCCL_PYTHON:-} python3.{20..10} python3 python; do
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 10))' >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    echo "no CPython 3.10 or newer with venv on the PATH" >&2
    return 1
}

# Stands for everything that the environment is made from.
fingerprint() {
    local python=$1
    shift
    {
        "$python" -VV
        find Cargo.toml Cargo.lock pccl-core/Cargo.toml pccl-core/src pccl-py/Cargo.toml pccl-py/pyproject.toml \
            pccl-py/src pccl-py/python "$@" -type f ! -name '*.pyc' ! -name '*.so' | LC_ALL=C sort |
            while IFS= read -r file; do
                printf '%s ' "$file"
                git hash-object --no-filters "$file"
            done
    } | git hash-object --stdin
}

prepare_python() {
    local system wanted stamp=.venv/pccl-stamp
    system=$(find_python) || return
    wanted=$(fingerprint "$system" pccl-py/requirements-build.txt "$@") || return
    PYTHON=$PWD/.venv/bin/python
    [ -e .venv/Scripts ] && PYTHON=$PWD/.venv/Scripts/python
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$PYTHON" -c 'import pccl' >/dev/null 2>&1; then
        return
    fi
    rm -f "$stamp"
    local begin=$SECONDS file requirements=() installing
    echo "setting up .venv with $("$system" -V)"
    "$system" -m venv --clear .venv || return
    [ -e .venv/Scripts ] && PYTHON=$PWD/.venv/Scripts/python
    # Packages are compiled when they are imported: most of their modules never are.
    local install=("$PYTHON" -m pip install --quiet --disable-pip-version-check --no-compile)
    "${install[@]}" -r pccl-py/requirements-build.txt || return
    for file in "$@"; do
        requirements+=(-r "$file")
    done
    # Beside the build: one waits for the network and the disk, the other for the compiler.
    "${install[@]}" "${requirements[@]}" &
    installing=$!
    rm -rf dist
    "$PYTHON" -m maturin build --quiet --release --locked --manifest-path pccl-py/Cargo.toml --interpreter "$PYTHON" --out dist || {
        kill "$installing"
        return 1
    }
    wait "$installing" || return
    "${install[@]}" --no-deps --force-reinstall dist/pccl-*.whl || return
    "$PYTHON" -c 'import pccl; print("pccl", pccl.__version__, "is ready")' || return
    echo "$wanted" >"$stamp"
    echo "set up in $((SECONDS - begin)) s"
}
