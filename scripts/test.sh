#!/usr/bin/env bash
# Everything that `make test` promises, one step after another; a step that fails does not
# keep the others from running. The last line counts the tests of all steps.
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# As in tests/CMakeLists.txt, for the programs that tests start.
export OMP_WAIT_POLICY=passive LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp

passed=0
failed=0
skipped=0
reports=$(mktemp -d)
trap 'rm -rf "$reports"' EXIT

step() { printf '\n== %s (%d:%02d)\n' "$1" $((SECONDS / 60)) $((SECONDS % 60)); }

# count NAME: the value of an attribute of ctest's report.
attribute() { sed -n "s/^[[:space:]]*$2=\"\([0-9]*\)\".*/\1/p" "$1" | head -n 1; }

add_report() {
  local report=$1 tests failures skips
  tests=$(attribute "$report" tests)
  failures=$(attribute "$report" failures)
  skips=$(($(attribute "$report" skipped) + $(attribute "$report" disabled)))
  passed=$((passed + tests - failures - skips))
  failed=$((failed + failures))
  skipped=$((skipped + skips))
}

# build_and_test PRESET CTEST-OPTION...
build_and_test() {
  local preset=$1 report=$reports/$1.xml
  shift
  if ! scripts/build.sh "$preset"; then
    echo "$preset: the build failed"
    failed=$((failed + 1))
    return
  fi
  ctest --preset "$preset" --parallel "$(nproc)" --timeout 900 --output-junit "$report" "$@" |
    grep --line-buffered -vE '^ +Start +[0-9]+:|^Test project|^Label Time Summary|sec\*proc|^$'
  if [ -s "$report" ]; then
    add_report "$report"
  else
    echo "$preset: ctest left no report"
    failed=$((failed + 1))
  fi
}

step "gcc: every test, the linters and an installation"
build_and_test release

step "clang"
build_and_test clang --label-exclude 'lint|install|gpu'

step "AddressSanitizer and UndefinedBehaviorSanitizer, and a minute of fuzzing"
build_and_test fuzz --label-exclude 'lint|install|gpu'

step "done"
# Why tests were skipped, in their own words.
grep -ho 'skipped: .*' "$reports"/*.xml | sort -u
echo "tests: $passed passed, $failed failed, $skipped skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
