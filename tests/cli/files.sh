#!/usr/bin/env bash
# No command loses a file: an output that is an input or another output, by any way to it, and one that cannot be
# written are refused before the run; what is written is what was asked for, and `-` means the same everywhere.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$work" || exit
cp "$source/examples/traces/chat.jsonl" trace.jsonl
small=(--heads 2/1 --head-dim 16 --budget 700 --requests 3 --device cpu)
bench=(bench cpu --shrink 512 --warm-up 0 --repeats 1)
"$extattn" make-case -q -o case.st --seqs 1 --head-dim 16
"$extattn" replay trace.jsonl "${small[@]}" -o result.json >/dev/null
mkdir folder
for name in trace.jsonl case.st result.json; do
  ln -s "$name" "link-$name"
  ln "$name" "hard-$name"
  ln -s "../$name" "folder/link.svg-$name"
done
ln -s . here
sha256sum trace.jsonl case.st result.json >sums

# taken INPUT BY COMMAND...: refused with every name of INPUT behind the command's last option.
taken() {
  local input=$1 by=$2 name
  shift 2
  for name in "$input" "./$input" "$work/$input" "link-$input" "hard-$input" "here/$input" "folder/../$input" "folder/link.svg-$input"; do
    refuse 2 "found '$name', taken by $by, allowed another file\$" "$@" "$name"
  done
}
taken trace.jsonl TRACE "$extattn" replay trace.jsonl "${small[@]}" --output
taken trace.jsonl TRACE "$extattn" replay trace.jsonl "${small[@]}" --plot
taken trace.jsonl TRACE "$extattn" replay trace.jsonl --counts-only -o
taken trace.jsonl --trace "$extattn" bench replay --device cpu --trace trace.jsonl -o
taken trace.jsonl --trace "$extattn" bench replay --device cpu --trace trace.jsonl --plot
taken result.json RESULT "$extattn" plot result.json -o
taken case.st CASE "$extattn" run case.st --device cpu -o
taken case.st CASE "$extattn" trace case.st -o
refuse 2 "taken by TRACE" from trace.jsonl "$extattn" replay - "${small[@]}" -o hard-trace.jsonl
refuse 2 "taken by RESULT" from result.json "$extattn" plot - -o result.json

# Two outputs of one name, there or not.
for names in 'new.svg new.svg' 'new.svg ./new.svg' 'new.svg here/new.svg' 'link-result.json hard-result.json'; do
  read -r first second <<<"$names"
  refuse 2 "--plot: found '$second', taken by --output" "$extattn" replay trace.jsonl "${small[@]}" -o "$first" --plot "$second"
  refuse 2 "--plot: found '$second', taken by --output" "$extattn" "${bench[@]}" -o "$first" --plot "$second"
  refuse 2 "--plot: found '$second', taken by --output" "$extattn" trace --head-dim 64 -o "$first" --plot "$second"
done
for options in '--json -o -' '--json --plot -' '-o - --plot -'; do
  # shellcheck disable=SC2086 # words
  refuse 2 'found standard output, taken by --(json|output), allowed another file' "$extattn" replay trace.jsonl "${small[@]}" $options
  # shellcheck disable=SC2086
  refuse 2 'found standard output, taken by --(json|output), allowed another file' "$extattn" "${bench[@]}" $options
done
refuse 2 'found standard output, taken by --output' "$extattn" run case.st --device cpu --json -o -
checks=$((checks + 1)) # the text would go to the file that is replaced
# shellcheck disable=SC2094 # that is the point
! "$extattn" replay trace.jsonl "${small[@]}" -o same >same 2>err || fail "an output where standard output goes"
grep -q "found 'same', taken by standard output" err || fail "$(cat err)"

# Where nothing can be written, before the work: it would take minutes.
slow=(--heads 64/64 --head-dim 512 --device cpu --family reference)
for place in . folder here nowhere/x folder/x/ /proc/x.svg; do
  refuse 1 "^extattn replay: $place: cannot write: " timeout 20 "$extattn" replay trace.jsonl "${slow[@]}" -o "$place"
  refuse 1 "^extattn bench: $place: cannot write: " timeout 20 "$extattn" bench cpu --family reference -o "$place"
  refuse 1 "^extattn make-case: $place: cannot write: " timeout 20 "$extattn" make-case -o "$place" --extend 300000
  refuse 1 "^extattn run: $place: cannot write: " timeout 20 "$extattn" run case.st --device cpu -o "$place"
done
for place in nosuch trace.jsonl trace.jsonl/x; do
  refuse 1 "^extattn check: --directory: found '$place': .*, allowed a folder to write into\$" \
    timeout 20 "$extattn" check --device cpu --seconds 100 --directory "$place"
done

# Standard output, for every command that writes: the file's content and nothing else.
"$extattn" make-case -o - --seqs 1 --head-dim 16 >piped
cmp -s piped case.st || fail "make-case -o - is not what -o FILE has"
expect 0 '' "$extattn" run case.st --device cpu -o out.st
"$extattn" run case.st --device cpu -o - >piped
cmp -s piped out.st || fail "run -o - is not what -o FILE has"
expect 0 '' "$extattn" replay trace.jsonl "${small[@]}" -o -
json out "d['command'] == 'replay' and d['batches']"
expect 0 '' "$extattn" "${bench[@]}" -o -
json out "d['command'] == 'bench'"
if command -v gnuplot >/dev/null; then
  expect 0 '</svg>' "$extattn" plot result.json -o -
  expect 0 '</svg>' "$extattn" replay trace.jsonl "${small[@]}" --plot -
  expect 0 '</svg>' "$extattn" "${bench[@]}" --plot -
  [ "$(head -c 5 out)" = '<?xml' ] || fail "--plot -: text before the plot"
fi
[ ! -e - ] || fail "a file called -"

# --json: the result instead of the text, for every command that has it.
for command in info 'plan --head-dim 64' 'check --device cpu --cases 1 --promise bits' 'run case.st --device cpu -o out.st' \
  'replay trace.jsonl --counts-only' "replay trace.jsonl ${small[*]}" "${bench[*]}"; do
  for option in --json -j; do
    # shellcheck disable=SC2086 # words
    expect 0 '' "$extattn" $command $option
    json out 'bool(d)'
  done
done
for command in "replay trace.jsonl" 'bench cpu'; do
  # shellcheck disable=SC2086
  refuse 2 "--json: found 'x.json' behind it, allowed --output FILE to write a file" "$extattn" $command --json x.json
done

# Options that would be ignored.
idle() { refuse 2 "^extattn [a-z-]+: --$1: found .*, allowed " "$extattn" "${@:2}"; }
idle arch plan --head-dim 64 --arch sm_90 --device cpu
idle arch plan --head-dim 64 --device cpu --arch all
idle isa plan --head-dim 64 --isa portable
idle threads plan --head-dim 64 --threads 1
idle quiet run case.st --device cpu -q --json
idle quiet run case.st --device cpu -q -o -
idle quiet make-case -q -o -
idle mask-prefix make-case -o x --mask-prefix
idle mask-offsets make-case -o x --mask full --mask-offsets
for option in '--slots ordered' '--seed 1' '--pool-tokens 5' --summary '--heads 4' '--dtype f16' --shared-kv '--device cpu' \
  '--threads 1' '--stages 1' '--family cpu' '--isa portable' '--plot x.svg'; do
  name=${option#--}
  # shellcheck disable=SC2086
  idle "${name%% *}" replay trace.jsonl --counts-only $option
done
idle summary replay trace.jsonl "${small[@]}" --summary --json
idle trace bench cpu --trace trace.jsonl
idle requests bench cpu --requests 5
idle commit "${bench[@]}" --commit abc
idle cublas "${bench[@]}" --cublas x
idle cublas bench cpu --cublas x
for option in '-o x' '--plot x.svg' '--commit a' '--cublas x' '--warm-up 1' '--repeats 1' '--device cpu'; do
  # shellcheck disable=SC2086
  refuse 2 'found beside --list, allowed without it' "$extattn" bench seed --list $option
done
idle block plot result.json --block 1 -o x.svg
idle from plot result.json --from 1 -o x.svg
idle commit trace --head-dim 64 --commit abc

# A message names the file.
echo text >text.txt
refuse 2 '^extattn run: text.txt: ' "$extattn" run text.txt --device cpu
refuse 2 '^extattn run: EXTATTN_ISA: found ' env EXTATTN_ISA=sse "$extattn" run case.st --device cpu # not the file
refuse 2 '^extattn run: nosuch: cannot read: No such file' "$extattn" run nosuch --device cpu
refuse 2 '^extattn plot: nosuch: cannot read: No such file' "$extattn" plot nosuch -o x.svg
refuse 2 '^extattn plot: folder: cannot read: Is a directory' "$extattn" plot folder -o x.svg
refuse 2 '^extattn plot: text.txt: line 1: ' "$extattn" plot text.txt -o x.svg
refuse 2 '^extattn plot: standard input: line 1: ' from text.txt "$extattn" plot - -o x.svg

checks=$((checks + 1))
sha256sum --quiet -c sums || fail "an input has changed"
for name in x x.svg new.svg x.json; do [ ! -e "$name" ] || fail "$name: written by a refused command"; done
finish
