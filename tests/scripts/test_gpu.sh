#!/usr/bin/env bash
# scripts/test_gpu.sh against programs that stand in for test_gpu, compute-sanitizer and python3: what it runs,
# in which order and how many at a time, what it says of steps that fail or hang: test_gpu.sh SOURCE-DIR
set -euo pipefail
source=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
checks=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# A program that notes its begin and end, takes a moment, and fails or hangs where FAKE_FAIL or FAKE_HANG is
# part of its command line.
export EVENTS=$work/events FAKE_FAIL='' FAKE_HANG='' FAKE_NO_GPU='' FAKE_NO_TORCH=''
build=$work/build
mkdir -p "$work/bin" "$build/tests/gpu"
cat >"$work/bin/compute-sanitizer" <<'END'
#!/usr/bin/env bash
line="${0##*/} $*"
case $line in
*no_such_test*)
  [ -z "$FAKE_NO_GPU" ] || { echo "skipped: no GPU: none here" && exit 77; }
  exit 0
  ;;
*"import pytest"*) [ -z "$FAKE_NO_TORCH" ] && exit 0 || exit 1 ;;
esac
echo "begin $line" >>"$EVENTS"
echo "the output of $line"
if [ -n "$FAKE_HANG" ] && [[ $line == *"$FAKE_HANG"* ]]; then sleep 1000; fi
sleep 0.2
echo "end $line" >>"$EVENTS"
if [ -n "$FAKE_FAIL" ] && [[ $line == *"$FAKE_FAIL"* ]]; then echo "why it fails" && exit 3; fi
END
chmod +x "$work/bin/compute-sanitizer"
cp "$work/bin/compute-sanitizer" "$work/bin/python3"
cp "$work/bin/compute-sanitizer" "$build/tests/gpu/test_gpu"

# run CODE OPTION...: leaves what was printed in $work/out.
run() {
  local code=$1 found=0
  shift
  : >"$EVENTS"
  PATH=$work/bin:$PATH timeout 120 "$source/scripts/test_gpu.sh" "$@" >"$work/out" 2>&1 || found=$?
  checks=$((checks + 1))
  [ "$found" -eq "$code" ] || fail "$*: exit $found, expected $code: $(cat "$work/out")"
}

# said FILE PATTERN: a line of the file is this, an extended regular expression.
said() {
  checks=$((checks + 1))
  grep -qxE -e "$2" "$1" || fail "no line '$2' in $1: $(cat "$1")"
}

# most_at_a_time: of the programs in the list of events.
most_at_a_time() { awk '$1 == "begin" && ++n > most { most = n } $1 == "end" { n-- } END { print most }' "$EVENTS"; }

# --- all is well --------------------------------------------------------------------------

log=$work/all.log
run 0 --jobs 4 "$build" "$log"
said "$log" '15 steps passed, 0 failed, 0 skipped, in [0-9]+ s, 4 at a time; the log is .*'
checks=$((checks + 1))
sed -nE 's/^ok      (.*) \([0-9]+ s\)$/\1/p' "$log" >"$work/order"
diff "$work/order" - <<'END' || fail "the order of the log"
compiled kernels
all tests
family portable
family hopper
memcheck, portable
memcheck, hopper
racecheck, portable
racecheck, hopper
synccheck, portable
synccheck, hopper
initcheck, portable
initcheck, hopper
no allocation
Python
Python, the host's overhead
END
[ "$(most_at_a_time)" = 4 ] || fail "$(most_at_a_time) steps at a time, expected 4"
# What measures the host comes last, alone.
event() { sed -n "$1p" "$EVENTS" >"$work/event" && said "$work/event" "$2"; }
[ "$(wc -l <"$EVENTS")" -eq 30 ] || fail "events: $(cat "$EVENTS")"
event 27 'begin test_gpu test_calls_do_not_allocate'
event 28 'end test_gpu test_calls_do_not_allocate'
event 29 'begin python3 .* -k test_overhead tests/python/test_gpu.py'
event 30 'end python3 .* -k test_overhead tests/python/test_gpu.py'
# Every step's own log is kept, and the other tests leave the lonely ones out.
[ "$(find "$work/all.log.steps" -name '*.log' | wc -l)" -eq 15 ] || fail "logs of steps: $(ls "$work/all.log.steps")"
said "$work/all.log.steps/02-all-tests.log" 'the output of test_gpu --skip test_calls_do_not_allocate'
said "$work/all.log.steps/08-racecheck-hopper.log" 'the output of compute-sanitizer --tool racecheck .*'
said "$work/all.log.steps/14-Python.log" 'the output of python3 .* -k not test_overhead tests/python'

# One at a time unless asked for more, the longest first.
run 0 "$build" "$log"
event 1 'begin compute-sanitizer --tool racecheck .* --small --family portable'
event 3 'begin compute-sanitizer --tool racecheck .* --small --family hopper'
[ "$(most_at_a_time)" = 1 ] || fail "$(most_at_a_time) steps at a time, expected 1"

# --- failing, hanging ---------------------------------------------------------------------

FAKE_FAIL='memcheck --error-exitcode 99' run 1 --jobs 8 "$build" "$log"
said "$log" 'FAILED  memcheck, portable: exit code 3 \([0-9]+ s\); all of it: .*/05-memcheck-portable.log'
said "$log" 'why it fails'
said "$log" 'ok      racecheck, hopper \([0-9]+ s\)'
said "$log" '13 steps passed, 2 failed, 0 skipped, .*'

FAKE_HANG='racecheck' run 1 --jobs 8 --timeout 2 "$build" "$log"
said "$log" 'FAILED  racecheck, portable: stopped after [2-9] s; all of it: .*'
said "$log" 'ok      Python \([0-9]+ s\)'
said "$log" '13 steps passed, 2 failed, 0 skipped, .*'

# --- what is not there --------------------------------------------------------------------

FAKE_NO_GPU=yes FAKE_NO_TORCH=yes run 77 "$build" "$log"
said "$log" 'skipped: no GPU: none here'
said "$log" 'skipped: Python: python3 has no torch with a GPU, or no pytest'
said "$log" '1 steps passed, 0 failed, 2 skipped, .*'

# --- refused ------------------------------------------------------------------------------

mkdir "$work/mine" && touch "$work/mine/notes.txt" "$work/mine.log"
FAKE_NO_GPU=yes FAKE_NO_TORCH=yes run 77 "$build" "$work/mine.log"
[ -e "$work/mine/notes.txt" ] || fail "a file beside the log that is none of the script's is gone"
run 2 "$work/missing"
said "$work/out" "BUILD-FOLDER: found no folder $work/missing in .*"
[ ! -e "$work/missing" ] || fail "a folder made where there was none"
run 2 --jobs 0 "$build"
said "$work/out" "--jobs: found '0', allowed a number from 1"
run 2 --timeout
said "$work/out" "--timeout: found '', allowed a number from 1"
run 2 --job 3
said "$work/out" 'found --job; usage: .*'
run 2 a b c
said "$work/out" 'found 3 places; usage: .*'

echo "$checks checks, $failures failed"
[ "$failures" -eq 0 ]
