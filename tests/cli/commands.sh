#!/usr/bin/env bash
# What holds for every command: help, version, exit codes, output that cannot be written.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

commands=$("$extattn" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' | grep -v '^help$')
for needed in run make-case check plan info replay plot trace bench; do
  grep -qx "$needed" <<<"$commands" || fail "$needed is not in 'extattn --help'"
done

expect 0 '^Usage: extattn ' "$extattn" --help
expect 0 '^Exit status: ' "$extattn" help
version=$(sed -n 's/^#define EA_VERSION_[A-Z]* \([0-9]*\)$/\1/p' "$source/include/extattn.h" | paste -sd .)
expect 0 "^extattn $version\$" "$extattn" --version
expect 0 "^extattn $version\$" "$extattn" -V

for command in $commands; do
  expect 0 "^Usage: extattn $command " "$extattn" "$command" --help
  cp "$work/out" "$work/help"
  expect 0 '^Examples?:' "$extattn" help "$command"
  cmp -s "$work/help" "$work/out" || fail "help $command and $command --help differ"
  grep -q "^  extattn $command" "$work/out" || fail "$command: no example of it in its help"
  expect 0 "^extattn $version\$" "$extattn" "$command" --version
  refuse_two_lines=$("$extattn" "$command" --no-such-option 2>&1 || true)
  grep -q "^extattn $command: unrecognized option" <<<"$refuse_two_lines" || fail "$command: $refuse_two_lines"
  expect 2 "unrecognized option '--no-such-option'" "$extattn" "$command" --no-such-option
done

# Every option that takes a value refuses nonsense with its name; that --help knows it is not enough.
refuse 2 "^extattn plan: --head-dim: found 'x', allowed 1 to 576\$" "$extattn" plan --head-dim x
refuse 2 "found '577', allowed 1 to 576" "$extattn" plan --head-dim 577
refuse 2 "found '64k', allowed 1 to 576" "$extattn" plan --head-dim 64k
refuse 2 "found '', allowed 1 to 576" "$extattn" plan --head-dim ''
refuse 2 "--heads: found '32/7', allowed" "$extattn" plan --head-dim 64 --heads 32/7
refuse 2 "--heads: found '8/', allowed" "$extattn" plan --head-dim 64 --heads 8/
refuse 2 "--heads: found '0/0', allowed" "$extattn" plan --head-dim 64 --heads 0/0
refuse 2 "--heads: found '4294967304/8', allowed" "$extattn" plan --head-dim 64 --heads 4294967304/8
refuse 2 "--dtype: found 'e4m3', allowed bf16, f16, f32" "$extattn" plan --head-dim 64 --dtype e4m3
refuse 2 "--cache-dtype: found 'int8', allowed bf16, f16, f32, e4m3, e5m2" "$extattn" plan --head-dim 64 --cache-dtype int8
refuse 2 "--stages: found '0', allowed auto, or as many as fit" "$extattn" plan --head-dim 64 --stages 0
refuse 2 "--family: found 'best', allowed auto" "$extattn" plan --head-dim 64 --family best
refuse 2 "--device: found 'tpu', allowed auto, cpu, cuda, cuda:N" "$extattn" plan --head-dim 64 --device tpu
refuse 2 "--device: found 'cuda:', allowed" "$extattn" plan --head-dim 64 --device cuda:
refuse 2 "--device: found 'cuda:-1', allowed" "$extattn" plan --head-dim 64 --device cuda:-1
refuse 2 "--isa: found 'sse', allowed auto" "$extattn" plan --head-dim 64 --isa sse
refuse 2 "--threads: found '-1', allowed 0 to" "$extattn" plan --head-dim 64 --threads -1
# The limit in a message is the one that holds.
most=$("$extattn" plan --head-dim 64 --threads -1 2>&1 | sed 's/.* to //' || true)
expect 0 '' "$extattn" plan --head-dim 64 --device cpu --threads "$most"
refuse 2 "--threads: found '$((most + 1))', allowed 0 to $most\$" "$extattn" plan --head-dim 64 --device cpu --threads $((most + 1))

refuse 2 "^extattn: 'reply' is not a command; did you mean 'replay'" "$extattn" reply
refuse 2 "did you mean 'plan'" "$extattn" paln
refuse 2 "did you mean 'bench'" "$extattn" be
refuse 2 "did you mean 'make-case'" "$extattn" make_case
refuse 2 "'xyzzy' is not a command; 'extattn --help'" "$extattn" xyzzy
refuse 2 "'' is not a command" "$extattn" ''
refuse 2 "'xyzzy' is not a command" "$extattn" help xyzzy
expect 2 '^Usage: extattn ' "$extattn"
[ ! -s "$work/out" ] || fail "without a command, help goes to standard output"
expect 2 "unrecognized option '--no-such-option'" "$extattn" --no-such-option

# Output that cannot be written.
for arguments in --help --version info 'info --json' 'help plan' 'plan --head-dim 64' 'plan --head-dim 64 --json' \
  "replay --counts-only $source/examples/traces/chat.jsonl"; do
  checks=$((checks + 1))
  # shellcheck disable=SC2086 # arguments are words
  if "$extattn" $arguments >/dev/full 2>"$work/err"; then fail "$arguments >/dev/full: exit 0"; fi
  grep -q 'No space left on device' "$work/err" || fail "$arguments >/dev/full: $(cat "$work/err")"
  # shellcheck disable=SC2086
  if "$extattn" $arguments >&- 2>"$work/err"; then fail "$arguments >&-: exit 0"; fi
  # A pipe that nobody reads, by a process that ignores its signal.
  # shellcheck disable=SC2086
  if ( trap '' PIPE; sleep 0.2; "$extattn" $arguments 2>"$work/err"; echo $? >"$work/code" ) | true; then :; fi
  [ "$(cat "$work/code")" = 1 ] || fail "$arguments into a broken pipe: exit $(cat "$work/code")"
  grep -q 'Broken pipe' "$work/err" || fail "$arguments into a broken pipe: $(cat "$work/err")"
done
finish
