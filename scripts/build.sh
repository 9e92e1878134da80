#!/usr/bin/env bash
# Configures a preset, the first time, and builds it: scripts/build.sh PRESET [TARGET...]
# Says little when all is well; what failed is shown whole.
set -euo pipefail
cd "$(dirname "$0")/.."

preset=${1:?usage: scripts/build.sh PRESET [TARGET...]}
shift
dir=build-$preset
[ "$preset" = release ] && dir=build

if [ ! -e "$dir/build.ninja" ]; then
  mkdir -p "$dir"
  if ! cmake --preset "$preset" >"$dir/configure.log" 2>&1; then
    cat "$dir/configure.log" >&2
    exit 1
  fi
  sed -n 's/^-- extattn: /extattn: /p' "$dir/configure.log"
fi

quiet=--quiet
[ -t 1 ] && quiet= # on a terminal ninja keeps to one line that counts
# shellcheck disable=SC2086 # empty when not wanted
ninja -C "$dir" $quiet "$@"
