#!/usr/bin/env bash
# The tests of a GPU: scripts/test_gpu.sh [--jobs N] [--timeout SECONDS] [BUILD-FOLDER [LOG]]
#
# All tests by what a plan chooses and by each kernel family, the small cases under each of
# compute-sanitizer's tools, the Python package, and what the compiler made of the kernels, which
# needs no GPU. Needs no compiler and no CMake itself, so a build folder may be carried to the
# machine with the GPU.
#
# --jobs steps run at a time (1), the longest first; what measures the host's time or the GPU's
# free memory runs alone, after the others. A step that takes longer than --timeout (600) has
# failed. LOG (test-gpu.log in the build folder) tells card, driver, and each step's result and
# time in a fixed order; the folder LOG.steps has every step's own log. Both places are seen from the
# project's root. Exit code: 0, 1 where a step failed, 77 where there was no GPU to test, 2 for a mistake.
set -uo pipefail
usage="usage: scripts/test_gpu.sh [--jobs N] [--timeout SECONDS] [BUILD-FOLDER [LOG]]"

jobs=1
limit=600
places=()
while [ $# -gt 0 ]; do
  case $1 in
  --jobs | --timeout)
    [[ ${2:-} =~ ^[1-9][0-9]*$ ]] || { echo "$1: found '${2:-}', allowed a number from 1" >&2 && exit 2; }
    if [ "$1" = --jobs ]; then jobs=$2; else limit=$2; fi
    shift 2
    ;;
  -*) echo "found $1; $usage" >&2 && exit 2 ;;
  *) places+=("$1") && shift ;;
  esac
done
[ ${#places[@]} -le 2 ] || { echo "found ${#places[@]} places; $usage" >&2 && exit 2; }
cd "$(dirname "$0")/.." || exit
build=${places[0]:-build}
log=${places[1]:-$build/test-gpu.log}
folder=$log.steps
test=$build/tests/gpu/test_gpu
[ -d "$build" ] || { echo "BUILD-FOLDER: found no folder $build in $PWD" >&2 && exit 2; }
{ mkdir -p "$folder" && rm -f "$folder"/[0-9][0-9]-*.log "$folder"/[0-9][0-9]-*.result && : >"$log"; } || exit 2

say() { printf '%s\n' "$*" | tee -a "$log"; }

# ---- what the steps are ------------------------------------------------------------------------

names=()
weights=() # about the seconds that a step takes, for the order of starts; 0: alone, after the others
commands=()

# add WEIGHT NAME COMMAND...
add() {
  weights+=("$1")
  names+=("$2")
  shift 2
  commands+=("$(printf '%q ' "$@")")
}

find_sanitizer() {
  command -v compute-sanitizer || { [ -x /usr/local/cuda/bin/compute-sanitizer ] && echo /usr/local/cuda/bin/compute-sanitizer; }
}

# The Python package on this build's library, where python3 has a torch that sees the GPU: python_tests PYTEST-OPTION...
python_tests() {
  if ! python3 -c 'import pytest, torch, sys; sys.exit(not torch.cuda.is_available())' 2>/dev/null; then
    echo "skipped: Python: python3 has no torch with a GPU, or no pytest"
    return 77
  fi
  EXTATTN_LIBRARY=$library EXTATTN_COMMAND=$command PYTHONPATH=$PWD/python EXTATTN_SOURCE=$PWD \
    python3 -m pytest -q -rs -p no:cacheprovider "$@"
}
export -f python_tests
library=$(realpath "$build")/libextattn.so
command=$(realpath "$build")/extattn
export library command

add_gpu_tests() {
  local no_allocation=test_calls_do_not_allocate sanitizer tool
  add 80 "all tests" "$test" --skip $no_allocation
  add 60 "family portable" "$test" --family portable
  add 60 "family hopper" "$test" --family hopper
  if ! sanitizer=$(find_sanitizer); then
    say "skipped: compute-sanitizer is not installed"
  else
    for tool in memcheck racecheck synccheck initcheck; do
      local weight=100
      [ $tool != racecheck ] || weight=300
      add $weight "$tool, portable" "$sanitizer" --tool $tool --error-exitcode 99 "$test" --small --family portable
      add $weight "$tool, hopper" "$sanitizer" --tool $tool --error-exitcode 99 "$test" --small --family hopper
    done
  fi
  add 0 "no allocation" "$test" $no_allocation
}

# ---- running them ------------------------------------------------------------------------------

# step_file I: where a step's files are, without their ending.
step_file() { printf '%s/%02d-%s' "$folder" $(($1 + 1)) "$(tr -cs 'a-zA-Z0-9\n' - <<<"${names[$1]}")"; }

# run_step I: its output and its result (exit code and seconds) go into files.
run_step() {
  local start=$SECONDS status file
  file=$(step_file "$1")
  eval "set -- ${commands[$1]}"
  timeout --kill-after=10 "$limit" "$@" >"$file.log" 2>&1 </dev/null &
  # shellcheck disable=SC2064 # this step's process
  trap "kill $! 2>/dev/null" TERM
  wait $!
  status=$?
  echo "$status $((SECONDS - start))" >"$file.result"
}

# report I: one line about a step that has ended, and the end of its log where it failed.
report() {
  local status seconds file
  file=$(step_file "$1")
  read -r status seconds <"$file.result"
  if [ "$status" -eq 0 ]; then
    echo "ok      ${names[$1]} ($seconds s)"
  elif [ "$status" -eq 77 ]; then
    tail -n 1 "$file.log"
  else
    tail -n 40 "$file.log"
    if [ "$seconds" -ge "$limit" ]; then
      echo "FAILED  ${names[$1]}: stopped after $seconds s; all of it: $file.log"
    else
      echo "FAILED  ${names[$1]}: exit code $status ($seconds s); all of it: $file.log"
    fi
  fi
}

# Tells the terminal of each step when it has ended, and the log of all whose turn has come.
shown=()
logged=0
report_ended() {
  local i
  for i in "${!names[@]}"; do
    if [ -z "${shown[$i]:-}" ] && [ -e "$(step_file "$i").result" ]; then
      shown[i]=yes
      report "$i"
    fi
  done
  while [ "$logged" -lt ${#names[@]} ] && [ -n "${shown[$logged]:-}" ]; do
    report "$logged" >>"$log"
    logged=$((logged + 1))
  done
}

# by_weight: the steps that may run together, the longest first.
by_weight() {
  local i
  for i in "${!names[@]}"; do
    [ "${weights[$i]}" -eq 0 ] || echo "${weights[$i]} $i"
  done | sort -k1,1nr -k2,2n | cut -d ' ' -f 2
}

run_all() {
  local running=0 i
  for i in $(by_weight); do
    if [ "$running" -eq "$jobs" ]; then
      wait -n
      running=$((running - 1))
      report_ended
    fi
    run_step "$i" &
    running=$((running + 1))
  done
  while [ "$running" -gt 0 ]; do
    wait -n
    running=$((running - 1))
    report_ended
  done
  for i in "${!names[@]}"; do
    [ "${weights[$i]}" -eq 0 ] || continue
    run_step "$i" &
    wait $!
    report_ended
  done
}

# The steps' processes are in groups of their own, so they have to be told.
trap 'kill $(jobs -p) 2>/dev/null; echo "stopped" >>"$log"; exit 130' INT TERM

# ---- the whole ---------------------------------------------------------------------------------

start=$SECONDS
say "$(date -u +%Y-%m-%dT%H:%M:%SZ) $(git rev-parse --short HEAD 2>/dev/null || echo 'commit unknown')"
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null | tee -a "$log"

add 30 "compiled kernels" python3 tests/gpu/check_cubins.py "$build/cuda" src/plan/kernel_list.h --library "$library"
reason=$(timeout --kill-after=10 "$limit" "$test" --small no_such_test 2>&1)
status=$?
tested=yes
if [ $status -eq 77 ]; then
  say "$reason"
  tested=no
else # when something is wrong with it, each of them says what
  add_gpu_tests
fi
add 60 "Python" bash -c 'python_tests "$@"' bash -k 'not test_overhead' tests/python
add 0 "Python, the host's overhead" bash -c 'python_tests "$@"' bash -k test_overhead tests/python/test_gpu.py
run_all

failed=0
skipped=0
for i in "${!names[@]}"; do
  read -r status seconds <"$(step_file "$i").result"
  case $status in
  0) ;;
  77) skipped=$((skipped + 1)) ;;
  *) failed=$((failed + 1)) ;;
  esac
done
passed=$((${#names[@]} - failed - skipped))
say "$passed steps passed, $failed failed, $skipped skipped, in $((SECONDS - start)) s, $jobs at a time; the log is $log"
[ "$failed" -eq 0 ] || exit 1
[ "$tested" = yes ] || exit 77
