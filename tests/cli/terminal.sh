#!/usr/bin/env bash
# What is only for a person at a terminal: colour, the progress bar, lines that are wrapped.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
if ! command -v script >/dev/null; then
  echo "skipped: script (of bsdutils) is not there to make a terminal"
  exit 77
fi
chat=$source/examples/traces/chat.jsonl
escape=$(printf '\033')

# on_terminal NAME=VALUE... -- COMMAND...: what the command prints on a terminal of 100 columns.
on_terminal() {
  local settings=()
  while [ "$1" != -- ]; do settings+=("$1") && shift; done
  shift
  local quoted
  quoted=$(printf '%q ' "$@")
  env -u NO_COLOR TERM=xterm "${settings[@]}" script -qec "stty cols 100; $quoted" /dev/null </dev/null | tr -d '\r'
}

shows() {
  local what=$1 pattern=$2
  checks=$((checks + 1))
  grep -qE -e "$pattern" "$work/out" || fail "$what: no '$pattern' in $(head -c 800 "$work/out" | cat -v)"
}
shows_not() {
  local what=$1 pattern=$2
  checks=$((checks + 1))
  ! grep -qE -e "$pattern" "$work/out" || fail "$what: '$pattern' in $(head -c 800 "$work/out" | cat -v)"
}

plan=("$extattn" plan --head-dim 128 --arch sm_90)
replay=("$extattn" replay "$chat" --heads 2/1 --head-dim 64 --budget 512 --device cpu)
on_terminal -- "${plan[@]}" >"$work/out"
shows "a table on a terminal" "$escape\\[1march"
long=$(awk 'length > 110' "$work/out" | grep -v "$escape" || true)
[ -z "$long" ] || fail "a reason is not wrapped: $(cat "$work/out")"
on_terminal NO_COLOR=1 -- "${plan[@]}" >"$work/out"
shows_not "NO_COLOR" "$escape"
on_terminal NO_COLOR= -- "${plan[@]}" >"$work/out"
shows "an empty NO_COLOR" "$escape"
on_terminal TERM=dumb -- "${plan[@]}" >"$work/out"
shows_not "a dumb terminal" "$escape"
"${plan[@]}" >"$work/out" 2>&1
shows_not "a pipe" "$escape"

on_terminal -- "${replay[@]}" >"$work/out"
shows "a replay on a terminal" '\[#*\.*\] +[0-9]+%  batch [0-9]+ of [0-9]+'
shows "a replay on a terminal" "$escape\\[K" # the bar is wiped off
tail -n 3 "$work/out" >"$work/end"
! grep -q '\[#' "$work/end" || fail "the bar is left behind: $(cat -v "$work/end")"
on_terminal TERM=dumb -- "${replay[@]}" >"$work/out"
shows_not "a replay on a dumb terminal" '\[#*\.*\]'
"${replay[@]}" >"$work/out" 2>&1
shows_not "a replay into a file" "$escape|\\[#*\\.*\\]"
finish
