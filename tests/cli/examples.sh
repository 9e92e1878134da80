#!/usr/bin/env bash
# The examples in the help and in the manual page: pasted into a shell, one after another in an empty folder, each ends
# with 0. Those that say "needs a GPU" are only read.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
manual=$3/help/extattn.1
needs_plots='--plot|extattn plot'
mkdir "$work/bin" "$work/empty"
ln -s "$extattn" "$work/bin/extattn"
export PATH=$work/bin:$PATH
cd "$work/empty" || exit

# examples COMMAND: its examples, as they stand there.
examples() { "$extattn" help "$1" | sed -nE '/^Examples?:/,/^[^ E]/s/^  ([a-z].*)/\1/p'; }
commands=$("$extattn" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z-]*\) .*/\1/p' | grep -v '^help$')
for command in $commands; do
  examples "$command" >"$work/examples"
  [ -s "$work/examples" ] || fail "$command: no examples"
  while IFS= read -r line; do
    checks=$((checks + 1))
    [ "${#line}" -le 78 ] || fail "$command: an example is wider than a terminal: $line"
    in_manual=$(sed 's/\\-/-/g; s/\\e/\\/g' "$manual" | grep -cxF -e "  $line" || true)
    [ "$in_manual" -gt 0 ] || fail "$command: not in the manual page: $line"
    case $line in *'# needs a GPU') continue ;; esac
    if [[ $line =~ $needs_plots ]] && ! command -v gnuplot >/dev/null; then continue; fi
    expect 0 '' bash -c "$line"
  done <"$work/examples"
done

# Tables fit a terminal of 80 columns.
for line in 'extattn plan --head-dim 576 --head-dim-v 512' 'extattn bench cpu --shrink 512' 'extattn info' \
  "extattn replay $source/examples/traces/chat.jsonl --budget 512 --heads 2/1 --head-dim 16 --device cpu" \
  'extattn replay trace.jsonl --counts-only'; do
  expect 0 '' bash -c "$line"
  wide=$(sed '/^arch  *reason/,$d; /^\(trace\|device\|processor\) /d' "$work/out" | grep -vE '^(GPUs|[0-9,]+ batches) ' | awk 'length > 80')
  [ -z "$wide" ] || fail "$line: wider than 80 columns: $wide"
done
"$extattn" --help | awk 'length > 80 { exit 1 }' || fail "--help is wider than 80 columns"
finish
