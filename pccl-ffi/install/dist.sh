#!/usr/bin/env bash
# Builds the C library for other machines into dist/: on Linux for every system with glibc 2.28 or newer.
#   pccl-ffi/install/dist.sh
# Leaves dist/libpccl-VERSION-SYSTEM/, as install.sh would make it, and the same as .tar.gz.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

version="$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)"
system="$(uname -s | tr '[:upper:]' '[:lower:]')-$(uname -m)"
target_folder="${CARGO_TARGET_DIR:-$PWD/target}"

if [ "$(uname -s)" = Linux ]; then
    # The linker of Zig binds to the symbols of an older glibc than this machine's.
    . pccl-py/venv.sh
    cached_python build "$(find_python)" pccl-py/requirements-build.txt
    triple="$(uname -m)-unknown-linux-gnu"
    tools="$(dirname "$CACHED")"
    PATH="$tools:$PATH" CARGO_ZIGBUILD_PYTHON_PATH="$CACHED" \
        cargo-zigbuild zigbuild --release --locked --package pccl-ffi --target "$triple.2.28"
    built="$target_folder/$triple/release"
    highest="$(objdump -T "$built/libpccl.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)"
    if [ "$(printf '%s\n' "$highest" GLIBC_2.28 | sort -V | tail -n 1)" != GLIBC_2.28 ]; then
        echo "libpccl.so needs $highest" >&2
        exit 1
    fi
    echo "libpccl.so needs $highest at most"
else
    cargo build --release --locked --package pccl-ffi
    built="$target_folder/release"
fi

name="libpccl-$version-$system"
rm -rf "dist/$name" "dist/$name.tar.gz"
bash pccl-ffi/install/install.sh "dist/$name" "$built"
tar -C dist -czf "dist/$name.tar.gz" "$name"
ls -l "dist/$name.tar.gz"
