# shellcheck shell=bash
# What the tests of the command share: NAME.sh EXTATTN SOURCE-DIR BUILD-DIR sources it first.
set -euo pipefail
# shellcheck disable=SC2034 # used by those who source this
extattn=$1 source=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0
checks=0

fail() {
  echo "FAILED: $*" >&2
  failures=$((failures + 1))
}

# expect CODE PATTERN COMMAND...: the exit code is CODE, and PATTERN (an extended regular
# expression, "" for anything) is in what was printed. Leaves $work/out and $work/err.
expect() {
  local code=$1 pattern=$2 found=0
  shift 2
  checks=$((checks + 1))
  "$@" >"$work/out" 2>"$work/err" </dev/null || found=$?
  [ "$found" -eq "$code" ] || fail "$*: exit $found, expected $code: $(head -c 600 "$work/err")"
  [ -z "$pattern" ] || grep -qE -e "$pattern" "$work/out" "$work/err" ||
    fail "$*: expected '$pattern', printed: $(head -c 600 "$work/out" "$work/err")"
}

# from FILE COMMAND...: with the file as standard input.
from() {
  local file=$1
  shift
  "$@" <"$file"
}

# refuse CODE PATTERN COMMAND...: as expect, and that is one line on standard error, nothing else.
refuse() {
  expect "$@"
  [ ! -s "$work/out" ] || fail "${*:3}: printed to standard output: $(head -n 3 "$work/out")"
  [ "$(wc -l <"$work/err")" -eq 1 ] || fail "${*:3}: not one line: $(cat "$work/err")"
}

# json FILE EXPRESSION: a Python expression of the file's content d is true.
json() {
  checks=$((checks + 1))
  python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not eval(f"({sys.argv[2]})"))' "$1" "$2" ||
    fail "$1: not true: $2"
}

# finish: the last line of a test.
finish() {
  echo "$checks checks, $failures failed"
  [ "$failures" -eq 0 ] && [ "$checks" -gt 0 ]
}
