#!/bin/sh
# What a goal needs from the system: installs it where this is Debian and the user is
# root, names it in one line otherwise. Goals: build, demo, test; each includes the ones
# before it. A thing that is there from elsewhere (say, CMake from a tarball) counts too.
set -eu

goal=${1:?usage: scripts/need.sh build|demo|test}
missing=

# need PACKAGE PROBE...: a Debian 12 package, and the command that succeeds when it is there.
need() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || missing="$missing $package"
}

has() { command -v "$1"; }
has_library() { pkg-config --exists "$1"; }
has_header() { echo "#include <$1>" | cc -fsyntax-only -x c -; }
has_nvcc() { command -v "${CUDACXX:-nvcc}" || test -x /usr/local/cuda/bin/nvcc; }
has_gxx_for_nvcc() { ! has_nvcc || has g++; } # nvcc preprocesses by way of it
has_clang_openmp() { echo 'int main(void) { return 0; }' | clang -fopenmp -x c - -o /dev/null; }
has_clang_fuzzer() { echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' | clang -fsanitize=fuzzer,address -x c - -o /dev/null; }
has_pip_for_nvcc() { ! has_nvcc || has nvdisasm || python3 -m pip --version; } # brings nvdisasm for tests/gpu
has_venv() { python3 -c 'import ensurepip, venv'; }
has_numpy() { python3 -c 'import numpy' || /usr/bin/python3 -c 'import numpy'; }

need_build() {
  need gcc has cc
  need libc6-dev has_header stdio.h
  need g++ has_gxx_for_nvcc
  need cmake has cmake
  need ninja-build has ninja
  need pkg-config has pkg-config
  need libjansson-dev has_library jansson
  need libcmocka-dev has_library cmocka
}

need_demo() {
  need gnuplot-nox has gnuplot
}

need_test() {
  need gcc has gcc
  need g++ has g++
  need clang has clang
  need clang-format has clang-format
  need clang-tidy has clang-tidy
  need libomp-dev has_clang_openmp
  need libclang-rt-14-dev has_clang_fuzzer
  need shellcheck has shellcheck
  need python3-numpy has_numpy
  need python3-pip has_pip_for_nvcc
  need python3-venv has_venv
}

case $goal in
build) need_build ;;
demo) need_build && need_demo ;;
test) need_build && need_demo && need_test ;;
*) echo "need.sh: found goal $goal, allowed build, demo, test" >&2 && exit 2 ;;
esac
[ -n "$missing" ] || exit 0

if ! command -v apt-get >/dev/null; then
  echo "missing (by their names in Debian 12):$missing" >&2
  exit 1
elif [ "$(id -u)" -ne 0 ]; then
  echo "missing packages, type: sudo apt-get install$missing" >&2
  exit 1
fi

echo "installing:$missing"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# shellcheck disable=SC2086 # a list of package names
if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing; } \
  </dev/null >"$log" 2>&1; then
  cat "$log" >&2
  echo "apt-get could not install:$missing" >&2
  exit 1
fi
