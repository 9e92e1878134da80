#!/usr/bin/env bash
# extattn replay: counts by the rules, runs, results, traces and options that are refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
here=$(dirname "$0")
chat=$source/examples/traces/chat.jsonl
small=(--heads 2/1 --head-dim 16 --budget 700 --requests 6 --device cpu)

# --- counts -----------------------------------------------------------------------------

# Text, JSON and a second reading of the rules agree.
for budget in 8192 512 1; do
  for requests in 7 50; do
    expect 0 '' "$extattn" replay "$chat" --counts-only --budget $budget --requests $requests -o "$work/counts.json"
    python3 "$here/replay_rules.py" "$chat" $budget $requests >"$work/rules.json"
    json "$work/counts.json" "d['counts'] == json.load(open('$work/rules.json')) and
      d['trace']['requests'] == $requests and d['trace']['budget'] == $budget"
    json "$work/rules.json" "all(f'{name.replace(\"_\", \" \"):14} {value:>13,}'.split() in
      [line.split() for line in open('$work/out')] for name, value in d.items())"
  done
done
expect 0 '^requests +50$' from "$chat" "$extattn" replay --counts-only -
expect 0 '^batches +4$' "$extattn" replay --counts-only "$chat" --requests 1000000

# The example is what its generator makes, and all of it is new.
python3 "$source/examples/traces/make_chat.py" | cmp - "$chat" || fail "chat.jsonl is not what make_chat.py makes"

# Counting takes no memory for tokens: 2^40 pairs and more are no work.
echo '{"input_length": 1048576, "hash_ids": []}' >"$work/long.jsonl"
expect 0 '^visible pairs +549,756,338,176$' "$extattn" replay --counts-only "$work/long.jsonl"

# --- runs -------------------------------------------------------------------------------

expect 0 '^total +' "$extattn" replay "$chat" "${small[@]}" -o "$work/run.json"
grep -qE '^batch +seqs +new tokens +prefix +visible pairs +time ms +new tokens/s +TFLOP/s$' "$work/out" ||
  fail "no header: $(cat "$work/out")"
rows=$(grep -cE '^ +[0-9]+ +[0-9]+ +[0-9,]+ +[0-9,]+ +[0-9,]+ +[0-9.]+ +[0-9,]+ +[0-9.]+$' "$work/out")
json "$work/run.json" "len(d['batches']) == d['counts']['batches'] == $rows"
json "$work/run.json" "all(sum(b[k] for b in d['batches']) == d['counts'][k] for k in
  ('sequences', 'new_tokens', 'prefix_tokens', 'visible_pairs'))"
json "$work/run.json" "abs(sum(b['elapsed_ms'] for b in d['batches']) - d['totals']['elapsed_ms']) < 1e-6 * d['totals']['elapsed_ms']"
json "$work/run.json" "abs(d['totals']['tflops'] * d['totals']['elapsed_ms'] * 1e9 / (2 * 32 * 2 * d['counts']['visible_pairs']) - 1) < 1e-6"
json "$work/run.json" "d['shape']['num_q_heads'] == 2 and d['shape']['head_dim_v'] == 16 and d['device']['type'] == 'cpu'"
json "$work/run.json" "d['pool']['slots'] == 'shuffled' and d['pool']['tokens'] % 512 == 0"

# JSON instead of the text, and without the rows.
expect 0 '' "$extattn" replay "$chat" "${small[@]}" --json
json "$work/out" "d['command'] == 'replay' and d['totals']['elapsed_ms'] > 0"
expect 0 '^total +' "$extattn" replay "$chat" "${small[@]}" --summary
! grep -qE '^ +1 ' "$work/out" || fail "--summary prints a row for a batch"

# Every kind of slots, types and shapes; a pool that is too small for the trace is shared.
expect 0 'slots in order' "$extattn" replay "$chat" "${small[@]}" --slots ordered
expect 0 'pages of 16 shuffled' "$extattn" replay "$chat" "${small[@]}" --slots pages:16 -o "$work/pages.json"
json "$work/pages.json" "d['pool']['slots'] == 'pages' and d['pool']['page_size'] == 16"
expect 0 'pages of 1000 shuffled' "$extattn" replay "$chat" "${small[@]}" --slots pages:1000
expect 0 'blocks share slots: the trace caches [0-9,]+ tokens' "$extattn" replay "$chat" "${small[@]}" --pool-tokens 1
expect 0 '^pool +512 tokens' "$extattn" replay "$chat" "${small[@]}" --pool-tokens 1
expect 0 'head dim 24/16, f16, cache e5m2$' "$extattn" replay "$chat" "${small[@]}" --head-dim 24 --head-dim-v 16 \
  --dtype f16 --cache-dtype e5m2
expect 0 'f32, values in the keys$' "$extattn" replay "$chat" "${small[@]}" --head-dim-v 8 --dtype f32 --shared-kv
expect 0 'reference \(reference\)' "$extattn" replay "$chat" "${small[@]}" --requests 1 --family reference
expect 0 '^device .*, portable, 1 thread$' "$extattn" replay "$chat" "${small[@]}" --isa portable --threads 1
echo '{"input_length": 1200, "hash_ids": [1]}' >"$work/unnamed.jsonl" # fewer ids than blocks
expect 0 '^total +' "$extattn" replay "$work/unnamed.jsonl" "${small[@]}" --seed 7

# --- refused ----------------------------------------------------------------------------

echo '{"input_length": 5, "hash_ids": [0]}' >"$work/bad.jsonl"
echo '{"input_length": "5", "hash_ids": [0]}' >>"$work/bad.jsonl"
for arguments in --counts-only '--device cpu'; do
  # shellcheck disable=SC2086 # arguments are words
  refuse 2 'bad.jsonl: line 2: input_length: found a string, allowed an integer' \
    "$extattn" replay "$work/bad.jsonl" $arguments -o "$work/never.json" --requests 2
done
[ ! -e "$work/never.json" ] || fail "a refused trace leaves JSON behind"
refuse 2 'empty.jsonl: No such file' "$extattn" replay "$work/empty.jsonl"
: >"$work/empty.jsonl"
refuse 2 'empty.jsonl: found no request' "$extattn" replay "$work/empty.jsonl"
refuse 2 'directory' "$extattn" replay "$work"
head -c 100 "$chat" | tail -c 60 >"$work/cut.jsonl"
refuse 2 'cut.jsonl: line 1: byte' "$extattn" replay "$work/cut.jsonl"
expect 2 'TRACE is missing' "$extattn" replay
expect 2 "found a second trace" "$extattn" replay "$chat" "$chat"
refuse 2 "--slots: found 'random', allowed ordered, shuffled, pages:N" "$extattn" replay "$chat" --slots random
refuse 2 "--slots pages: found '0', allowed 1 to" "$extattn" replay "$chat" --slots pages:0
refuse 2 "--budget: found '0', allowed 1 to" "$extattn" replay "$chat" --budget 0
refuse 2 "--requests: found '-5', allowed 1 to" "$extattn" replay "$chat" --requests -5
refuse 2 '--plot: found beside --counts-only, allowed without it' "$extattn" replay "$chat" --counts-only --plot "$work/x.svg"
refuse 2 'head_dim_v: found 64' "$extattn" replay "$chat" "${small[@]}" --head-dim-v 64 --shared-kv
refuse 3 'stages: found 2' "$extattn" replay "$chat" "${small[@]}" --stages 2
refuse 3 'memory: found [0-9.]+ GiB free, needed [0-9.]+ for the largest batch' \
  "$extattn" replay "$work/long.jsonl" --budget 1000000 --heads 4096/4096 --head-dim 576 --device cpu
"$extattn" info --json >"$work/info.json"
if ! python3 -c "import json, sys; sys.exit(not json.load(open('$work/info.json'))['gpus'])"; then
  refuse 3 'found no NVIDIA driver|found' "$extattn" replay "$chat" --device cuda
fi

# Results that cannot be written are noticed before the work; others at the end.
refuse 1 '/nowhere/x.json: cannot write: No such file' "$extattn" replay "$chat" -o /nowhere/x.json
refuse 1 '/nowhere/x.svg: cannot write: No such file' "$extattn" replay "$chat" --plot /nowhere/x.svg
expect 1 'No space left' "$extattn" replay "$chat" "${small[@]}" -o /dev/full
finish
