#!/usr/bin/env bash
# Builds the C library for other machines, and tries it: what it needs and exports, scenarios over real sockets, linked
# both ways.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ "$(uname -s)" != Linux ]; then
    echo "left out: the library for other machines is built on Linux only"
    exit 0
fi
bash pccl-ffi/install/dist.sh
prefix="$(find dist -maxdepth 1 -type d -name 'libpccl-*' | sort | tail -n 1)"
library="$prefix/lib/libpccl.so"

# A switch of the tests is no part of it.
if grep -q PCCL_TEST_PANIC "$library"; then
    echo "$library has panics that can be planted" >&2
    exit 1
fi
exported="$(nm -D --defined-only "$library" | awk '{print $3}' | sort)"
declared="$(grep -o 'PCCL_EXPORT [a-zA-Z_]* \(char \)\?\*\?pccl[A-Za-z]*' include/pccl.h | grep -o 'pccl[A-Za-z]*$' | sort)"
if [ "$exported" != "$declared" ]; then
    echo "$library exports other symbols than the header declares:" >&2
    diff <(echo "$declared") <(echo "$exported") >&2
    exit 1
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
compile=(cc -std=c99 -Wall -Wextra -pedantic -Werror -D_GNU_SOURCE "-I$prefix/include" pccl-ffi/tests/c/scenarios.c)
private="$(sed -n 's/^Libs.private: //p' "$prefix/lib/pkgconfig/pccl.pc")"
"${compile[@]}" -o "$work/shared" "-L$prefix/lib" -lpccl -lpthread "-Wl,-rpath,$PWD/$prefix/lib"
# shellcheck disable=SC2086
"${compile[@]}" -o "$work/alone" "$prefix/lib/libpccl.a" $private
for program in shared alone; do
    for number in 27 34 40 42 43 45; do
        timeout 60 "$work/$program" "$number"
    done
    echo "$program: scenarios passed"
done
