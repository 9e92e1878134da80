#!/usr/bin/env bash
# Runs every fuzz target of the fuzz preset, sharing the given seconds between them:
# scripts/fuzz.sh [SECONDS]. Starts from the kept corpus (tests/fuzz/corpus/TARGET); what a
# target finds new stays in build-fuzz/, and an input that breaks it is named at the end.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
mapfile -t targets < <(find build-fuzz -type f -executable -name 'fuzz_*' | sort)
if [ ${#targets[@]} -eq 0 ]; then
  echo "no fuzz target was built" >&2
  exit 1
fi
for target in "${targets[@]}"; do
  name=$(basename "$target")
  found=build-fuzz/found/$name
  mkdir -p "$found/corpus"
  # libFuzzer writes new inputs to its first folder and only reads the others.
  folders=("$found/corpus")
  [ -d "tests/fuzz/corpus/$name" ] && folders+=("tests/fuzz/corpus/$name")
  if ! "$target" -max_total_time=$((seconds / ${#targets[@]})) -artifact_prefix="$found/" -print_final_stats=1 \
    "${folders[@]}" >"$found/log" 2>&1; then
    tail -n 60 "$found/log" >&2
    echo "$name: a bad input, kept in $found" >&2
    exit 1
  fi
  sed -n "s/^stat::number_of_executed_units: */$name: inputs tried: /p" "$found/log"
done
