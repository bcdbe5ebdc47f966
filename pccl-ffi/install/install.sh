#!/usr/bin/env bash
# Installs the C library under a prefix: headers, shared and static library, pkg-config and CMake files.
#   pccl-ffi/install/install.sh PREFIX [FOLDER]
# FOLDER holds a library that is built already; without it, one is built (release).
set -euo pipefail

if [ $# -lt 1 ] || [ $# -gt 2 ]; then
    sed -n '2,4s/^# //p' "$0" >&2
    exit 2
fi
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
prefix=$1
mkdir -p "$prefix"
prefix="$(cd "$prefix" && pwd)"

if [ $# -eq 2 ]; then
    built=$2
else
    cargo build --release --locked --package pccl-ffi --manifest-path "$root/Cargo.toml"
    built="${CARGO_TARGET_DIR:-$root/target}/release"
fi

# What the static library needs of the system.
case "$(uname -s)" in
Darwin)
    shared=libpccl.dylib
    private="-liconv -lSystem -lc -lm"
    ;;
*)
    shared=libpccl.so
    private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"
    ;;
esac
version="$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' "$root/Cargo.toml")"

fill() {
    sed -e "s|@VERSION@|$version|g" -e "s|@NUMBER@|${version%%-*}|g" -e "s|@SHARED@|$shared|g" -e "s|@PRIVATE@|$private|g" "$1"
}

mkdir -p "$prefix/include" "$prefix/lib/pkgconfig" "$prefix/lib/cmake/pccl"
cp "$root"/include/*.h "$prefix/include/"
cp "$built/$shared" "$built/libpccl.a" "$prefix/lib/"
fill "$here/pccl.pc.in" >"$prefix/lib/pkgconfig/pccl.pc"
fill "$here/pccl-config.cmake.in" >"$prefix/lib/cmake/pccl/pccl-config.cmake"
fill "$here/pccl-config-version.cmake.in" >"$prefix/lib/cmake/pccl/pccl-config-version.cmake"
echo "installed PCCL $version under $prefix"
