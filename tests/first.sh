#!/usr/bin/env bash
# Runs every test. Needs bash, git, a C compiler, Rust 1.95 with rustfmt and clippy, and CPython 3.10 or newer with
# pip and venv; sets up the rest itself, under .venv and target, and PyTorch and other interpreters' packages in a cache
# (see tests/README.md). Stops at the first step that fails.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. pccl-py/venv.sh

export CARGO_TERM_COLOR="${CARGO_TERM_COLOR:-never}"

step() {
    local name=$1 begin=$SECONDS
    shift
    printf '\n== %s: %s\n' "$name" "$*"
    "$@" || {
        local status=$?
        printf '== %s FAILED (exit %s) after %s s\n' "$name" "$status" "$((SECONDS - begin))"
        exit "$status"
    }
    printf '== %s ok, %s s\n' "$name" "$((SECONDS - begin))"
}

# nextest when it is there (it runs each test in a process of its own and ends those that hang), else cargo's own.
rust_tests() {
    if cargo nextest --version >/dev/null 2>&1; then
        cargo nextest run --profile ci --locked "$@"
    else
        cargo test --locked --lib --bins --tests "$@"
    fi
}

# What a few tests use besides, and say so if it is not here: taken from the system's packages where that asks nobody.
tools() {
    local missing=() tool
    for tool in valgrind cmake pkg-config; do
        command -v "$tool" >/dev/null 2>&1 || missing+=("$tool")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"; } \
            >/dev/null 2>&1 && return 0
    fi
    echo "without ${missing[*]}: the tests that use them leave that part out"
}

documentation() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --all-features --locked
}

# Types of the package, of its tests and of the example; and that the extension is as its stub says.
python_types() {
    (cd pccl-py/python && "$PYTHON" -m mypy --config-file ../pyproject.toml pccl) &&
        (cd pccl-py/tests && "$PYTHON" -m mypy --config-file ../pyproject.toml .) &&
        (cd pccl-py/tests && "$PYTHON" -m mypy.stubtest pccl --ignore-disjoint-bases) &&
        (cd examples/digits && "$PYTHON" -m mypy --config-file ../../pccl-py/pyproject.toml .)
}

# The wheel on the other interpreters of this machine, and with PyTorch, which is several GB in the cache.
python_with_torch() {
    if [ -n "${PCCL_TEST_NO_TORCH:-}" ]; then
        echo "left out: PCCL_TEST_NO_TORCH is set"
        return
    fi
    local site="${CARGO_TARGET_DIR:-target}/site-torch"
    cached_python torch "$(find_python)" pccl-py/requirements-run.txt pccl-py/requirements-torch.txt &&
        install_wheel "$site" &&
        PCCL_TEST_TORCH=1 PYTHONPATH="$site" "$CACHED" -m pytest pccl-py/tests/with_torch
}

# As somebody without the repository's tools installs it; the profile saves building everything once more.
python_from_source() {
    local place="${CARGO_TARGET_DIR:-target}/from-source"
    rm -rf "$place" && "$(find_python)" -m venv "$place" &&
        MATURIN_PEP517_ARGS="--profile dev --locked" "$place/bin/python" -m pip install --quiet \
            --disable-pip-version-check ./pccl-py &&
        "$place/bin/python" -c 'import pccl; print("pccl", pccl.__version__, "from", pccl.__file__)' &&
        "$place/bin/pccl_master" --help >/dev/null
}

step format cargo fmt --all --check
step lints cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
step rust rust_tests --workspace --all-features
