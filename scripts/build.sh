#!/usr/bin/env bash
# Configures a preset, the first time, and builds it: scripts/build.sh PRESET [TARGET...]
# Says little when all is well, how far it is every ten seconds; what failed is shown whole.
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

# Of ninja's lines, those about its progress become one every ten seconds.
thin_out() {
  local line shown=$SECONDS percent steps
  while IFS= read -r line; do
    case $line in
    @progress\ *)
      ((SECONDS >= shown + 10)) || continue
      shown=$SECONDS
      read -r _ percent steps _ <<<"$line"
      echo "$dir: $percent, step $steps"
      ;;
    "ninja: Entering directory"* | "ninja: no work to do.") ;;
    *) printf '%s\n' "$line" ;;
    esac
  done
}

if [ -t 1 ]; then
  ninja -C "$dir" "$@" # keeps to one line that counts
else
  NINJA_STATUS='@progress %p %f/%t ' ninja -C "$dir" "$@" | thin_out
fi
