#!/usr/bin/env bash
# The tests of a GPU: scripts/test_gpu.sh [BUILD-FOLDER [LOG]]. First everything, then the small
# cases under each of compute-sanitizer's tools, and what the compiler made of the kernels, which
# needs no GPU. Needs no compiler and no CMake itself, so a build folder may be carried to the
# machine with the GPU. The log tells card, driver and result.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

build=${1:-build}
log=${2:-$build/test-gpu.log}
test=$build/tests/gpu/test_gpu
failed=0
: >"$log" || exit

say() { printf '%s\n' "$*" | tee -a "$log"; }

# step NAME COMMAND...: its output goes to the log, its end to the terminal.
step() {
  local name=$1 start=$SECONDS status output
  shift
  output=$(mktemp)
  "$@" >"$output" 2>&1
  status=$?
  { printf '\n== %s: %s\n' "$name" "$*" && cat "$output"; } >>"$log"
  if [ "$status" -eq 0 ]; then
    say "ok      $name ($((SECONDS - start)) s)"
  elif [ "$status" -eq 77 ]; then
    say "$(tail -n 1 "$output")"
  else
    tail -n 40 "$output"
    say "FAILED  $name: exit code $status ($((SECONDS - start)) s)"
    failed=$((failed + 1))
  fi
  rm -f "$output"
  return "$status"
}

find_sanitizer() {
  command -v compute-sanitizer || { [ -x /usr/local/cuda/bin/compute-sanitizer ] && echo /usr/local/cuda/bin/compute-sanitizer; }
}

say "$(date -u +%Y-%m-%dT%H:%M:%SZ) $(git rev-parse --short HEAD 2>/dev/null || echo 'commit unknown')"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee -a "$log"

step "compiled kernels" python3 tests/gpu/check_cubins.py "$build/cuda" src/plan/portable.h --library "$build/libextattn.so"

reason=$("$test" --small no_such_test)
status=$?
if [ "$status" -eq 77 ]; then
  say "$reason"
else
  step "all tests" "$test"
  step "family portable" "$test" --family portable
  step "family hopper" "$test" --family hopper
  if ! sanitizer=$(find_sanitizer); then
    say "skipped: compute-sanitizer is not installed"
  else
    for tool in memcheck racecheck synccheck initcheck; do
      step "$tool, portable" "$sanitizer" --tool "$tool" --error-exitcode 99 "$test" --small --family portable
      step "$tool, hopper" "$sanitizer" --tool "$tool" --error-exitcode 99 "$test" --small --family hopper
    done
  fi
fi

# The Python package on this build's library, where python3 has a torch that sees the GPU.
if python3 -c 'import pytest, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
  step "Python" env EXTATTN_LIBRARY="$(realpath "$build")/libextattn.so" EXTATTN_COMMAND="$(realpath "$build")/extattn" \
    PYTHONPATH="$PWD/python" EXTATTN_SOURCE="$PWD" \
    python3 -m pytest -q -rs -p no:cacheprovider tests/python
else
  say "skipped: Python: python3 has no torch with a GPU, or no pytest"
fi
say "$failed failures; the log is $log"
[ "$failed" -eq 0 ]
