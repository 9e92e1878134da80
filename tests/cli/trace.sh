#!/usr/bin/env bash
# extattn trace where there is nothing to record with: each mistake has its line. tests/emulator/trace.sh has the rest.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export CUDA_VISIBLE_DEVICES=''
trace() { refuse "$1" "$2" "$extattn" trace "${@:3}" -o "$work/out_of/x.json"; }
mkdir "$work/out_of"

trace 2 'found neither CASE nor --head-dim, allowed one of the two'
trace 2 "CASE: found 'a' beside options of a shape, allowed one of the two" a --extend 5
trace 2 "CASE: found 'b' too, allowed one file" a b
trace 2 "--cache-dtype: found e4m3, allowed in a CASE" --head-dim 64 --cache-dtype e4m3
trace 2 "--blocks: found '0', allowed 1 to 1024" --head-dim 64 --blocks 0
trace 2 "--records: found 'many', allowed 8 to 262143" --head-dim 64 --records many
trace 2 "--extend: found '0', allowed 1 to " --head-dim 64 --extend 0
trace 2 "--prefix: found '-1', allowed 0 to " --head-dim 64 --prefix -1
trace 2 "--seqs: found '', allowed 1 to " --head-dim 64 --seqs ''
trace 2 "--window: found '0', allowed 1 to " --head-dim 64 --window 0
trace 2 "--head-dim: found '577', allowed 1 to 576" --head-dim 577
trace 2 '--threads: found for a timeline, allowed on a CPU' --head-dim 64 --threads 2

# In a build that records: that there is no GPU.
trace 3 'this build: found kernels that record no times, allowed one configured with -DEA_TRACE=ON|device: ' --head-dim 64
[ -z "$(ls "$work/out_of")" ] || fail "written after a failure: $(ls "$work/out_of")"

# A plot needs no build of its own. What of a timeline is asked for must be there.
cat >"$work/timeline.json" <<'END'
{"command": "trace", "version": "1", "date": "now", "device": {"type": "cuda", "name": "a card", "arch": "sm_90"},
 "shape": {"num_q_heads": 16, "num_kv_heads": 8, "batch": "1 x (0 + 16384)"}, "plan": {"kernel": "hopper_d64_bf16", "stages": 3},
 "traceEvents": [
  {"name": "thread_name", "ph": "M", "pid": 4, "tid": 0, "args": {"name": "producer"}},
  {"name": "thread_name", "ph": "M", "pid": 4, "tid": 5, "args": {"name": "consumer 1"}},
  {"name": "item 0", "cat": "item", "ph": "X", "ts": 0, "dur": 30, "pid": 4, "tid": 0, "args": {"item": 0}},
  {"name": "copy K", "cat": "phase", "ph": "X", "ts": 0, "dur": 20, "pid": 4, "tid": 0, "args": {"item": 0, "tile": 7}},
  {"name": "wait V free", "cat": "phase", "ph": "X", "ts": 20, "dur": 10, "pid": 4, "tid": 0, "args": {"item": 0, "tile": 6}},
  {"name": "softmax", "cat": "phase", "ph": "X", "ts": 5, "dur": 15, "pid": 4, "tid": 5, "args": {"item": 0, "tile": 1234}}]}
END
plot() { "$extattn" plot "$work/timeline.json" -o "$work/$1.svg" "${@:2}"; }
if command -v gnuplot >/dev/null; then
  expect 0 '' plot all --block 4
  for text in 'hopper_d64_bf16, block 4, from 5.0 us' 'a card (sm_90), 16/8 heads, 1 x (0 + 16384), depth 3' producer \
    'consumer 1' 'copy K' 'wait V free' softmax 1234; do
    grep -qF -e "$text" "$work/all.svg" || fail "timeline: no '$text' in the plot"
  done
  expect 0 '' plot late --block 4 --from 21 --length 5
  grep -q 'wait V free' "$work/late.svg" || fail "timeline: what is in view is not drawn"
  ! grep -q softmax "$work/late.svg" || fail "timeline: what is out of view is drawn"
fi
if command -v gnuplot >/dev/null; then # names are somebody else's text, and gnuplot runs what is in backticks
  python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
d["traceEvents"][0]["args"]["name"] = d["plan"]["kernel"] = d["device"]["name"] = "\x60touch %s\x60 a\"b\x27c\n!touch %s" % (sys.argv[3], sys.argv[3])
json.dump(d, open(sys.argv[2], "w"))' "$work/timeline.json" "$work/hostile.json" "$work/ran"
  expect 0 '' "$extattn" plot "$work/hostile.json" --block 4 -o "$work/hostile.svg"
  [ ! -e "$work/ran" ] || fail "a plot ran a command that a name held"
fi
refuse 2 'timeline.json: block: found no span of block 0, allowed one that was recorded' plot none
refuse 2 "--length: found '0', allowed a finite number > 0" plot none --length 0
[ ! -e "$work/none.svg" ] || fail "a plot after a failure"
finish
