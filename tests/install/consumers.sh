#!/usr/bin/env bash
# Installs into a folder, moves it, and builds and runs programs against it as a user would:
# the examples through pkg-config (shared and static), a C99 and a C++11 program, and a
# CMake project through find_package: consumers.sh SOURCE-DIR BUILD-DIR CC
set -euo pipefail
source=$1 build=$2 cc=$3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
step() { echo "-- $*"; }
fail() {
  echo "$*" >&2
  exit 1
}
# quiet COMMAND...: its output is shown only when it fails.
quiet() { "$@" >"$work/log" 2>&1 || fail "$(cat "$work/log")"; }

step "install, then move what was installed"
quiet cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/prefix"
prefix=$work/prefix
lib=$(dirname "$(find "$prefix" -name libextattn.a)")
for file in include/extattn.h bin/extattn share/man/man1/extattn.1 share/bash-completion/completions/extattn; do
  [ -s "$prefix/$file" ] || fail "not installed: $file"
done
named=$(grep -rIl "$work/first\|$build\|$source" "$prefix" || true)
[ -z "$named" ] || fail "these name the folder they were built or installed in: $named"

version=$(sed -n 's/^#define EA_VERSION_[A-Z]* //p' "$prefix/include/extattn.h" | paste -sd .)
export PKG_CONFIG_PATH=$lib/pkgconfig
pc() { pkg-config "$@" extattn; }
[ "$(pc --modversion)" = "$version" ] || fail "version: pkg-config says $(pc --modversion), the header $version"
"$prefix/bin/extattn" --version | grep -F "$version"

# build_and_run NAME COMPILER... : compiles, then runs against the moved libraries.
build_and_run() {
  local program=$work/$1
  shift
  "$@" -o "$program"
  LD_LIBRARY_PATH=$lib "$program"
}

# The sources alone, so that nothing is found in the repository by accident.
cp "$source"/examples/*.c "$source"/tests/install/consumer/* "$work"
cd "$work"
warnings=(-Wall -Wextra -Wconversion -Wshadow -Werror -pedantic-errors)
read -ra shared <<<"$(pc --cflags --libs)"

for example in minimal chunked_prefill; do
  step "$example.c, shared, through pkg-config"
  build_and_run $example "$cc" -O2 "${warnings[@]}" $example.c "${shared[@]}" -lm
  grep -q libextattn.so <<<"$(ldd ./$example)" || fail "$example is not linked to the shared library"
done
step "consumer.c as C99"
build_and_run consumer99 "$cc" -std=c99 "${warnings[@]}" consumer.c "${shared[@]}"
step "consumer.cpp as C++11"
build_and_run consumer11 g++ -std=c++11 "${warnings[@]}" consumer.cpp "${shared[@]}"

step "a CMake project through find_package, shared and static"
quiet cmake -S . -B cmake-build -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix" -DEXPECTED_VERSION="$version"
quiet cmake --build cmake-build
for program in minimal_shared minimal_static consumer_cpp; do
  ./cmake-build/$program
done

step "static, through pkg-config, where no shared library is installed"
rm "$lib"/libextattn.so*
read -ra static <<<"$(pc --static --cflags --libs)"
for example in minimal chunked_prefill; do
  build_and_run $example-static "$cc" -O2 $example.c "${static[@]}"
done
