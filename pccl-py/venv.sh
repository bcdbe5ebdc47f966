# To be sourced, at the root of the repository. Defines
#
#   prepare_python REQUIREMENTS...
#
# which makes sure that .venv has the module `pccl` as the sources are now, and what the requirement files
# list, and sets PYTHON to its interpreter. Does nothing if none of that has changed since. (Each step says `|| return`:
# where a caller tests the outcome, `set -e` does not count.)
#
#   find_version MINOR
#
# which prints a CPython 3.MINOR of this machine, or fails.
#
#   install_wheel FOLDER
#
# which unpacks the wheel in dist/ there, to be put on PYTHONPATH.
#
#   cached_python NAME INTERPRETER REQUIREMENTS...
#
# which makes sure that an environment of that interpreter with these requirements is in the cache, outside the
# repository, and sets CACHED to its interpreter. PCCL_TEST_CACHE chooses the place.
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

find_version() {
    local candidate
    for candidate in "python3.$1" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$1".*/bin/python3; do
        if "$candidate" -c "import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, $1))" >/dev/null 2>&1; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

install_wheel() {
    rm -rf "$1"
    "$CACHED" -m pip install --quiet --disable-pip-version-check --no-compile --no-deps --target "$1" dist/pccl-*.whl
}

# Stands for everything that the environment is made from.
fingerprint() {
    local python=$1
    shift
    {
        "$python" -VV
        find Cargo.toml Cargo.lock pccl-core/Cargo.toml pccl-core/src pccl-py/Cargo.toml pccl-py/pyproject.toml \
            pccl-py/build.rs pccl-py/wheel.sh pccl-py/src pccl-py/python "$@" -type f ! -name '*.pyc' ! -name '*.so' | LC_ALL=C sort |
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
    for file in "$@"; do
        requirements+=(-r "$file")
    done
    # Beside the build: one waits for the network and the disk, the other for the compiler.
    "${install[@]}" "${requirements[@]}" &
    installing=$!
    bash pccl-py/wheel.sh || {
        kill "$installing"
        return 1
    }
    wait "$installing" || return
    "${install[@]}" --no-deps --force-reinstall dist/pccl-*.whl || return
    "$PYTHON" -c 'import pccl; print("pccl", pccl.__version__, "is ready")' || return
    echo "$wanted" >"$stamp"
    echo "set up in $((SECONDS - begin)) s"
}

cached_python() {
    local name=$1 interpreter=$2 file key place requirements=() begin=$SECONDS
    shift 2
    key=$({ "$interpreter" -VV && cat "$@"; } | git hash-object --stdin) || return
    for file in "$@"; do
        requirements+=(-r "$file")
    done
    place=${PCCL_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pccl-test}/$name-${key:0:12}
    CACHED=$place/bin/python
    if [ -x "$CACHED" ]; then
        return
    fi
    echo "setting up $place"
    # Under another name until it is whole. An environment may be moved as long as its scripts are not run by name.
    rm -rf "$place.part"
    "$interpreter" -m venv "$place.part" || return
    # Packages as large as these are not kept a second time in pip's own cache.
    "$place.part/bin/python" -m pip install --quiet --disable-pip-version-check --no-compile --no-cache-dir \
        "${requirements[@]}" || return
    mv "$place.part" "$place" || return
    echo "set up in $((SECONDS - begin)) s"
}
