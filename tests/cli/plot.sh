#!/usr/bin/env bash
# Plots: what gnuplot makes of a result, and what happens where there is no gnuplot.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
chat=$source/examples/traces/chat.jsonl
small=(--heads 2/1 --head-dim 16 --budget 700 --requests 12 --device cpu)

# --- without gnuplot: said in one line, and the result is kept ---------------------------

mkdir "$work/bin"
without() { env PATH="$work/bin" "$@"; }
expect 1 "gnuplot is not installed; later, 'extattn plot $work/a.json -o $work/a.svg' draws the plot" \
  without "$extattn" replay "$chat" "${small[@]}" --plot "$work/a.svg"
[ "$(wc -l <"$work/err")" -eq 1 ] || fail "not one line: $(cat "$work/err")"
json "$work/a.json" "d['command'] == 'replay' and len(d['batches']) > 3"
[ ! -e "$work/a.svg" ] || fail "a plot without gnuplot"
expect 1 "gnuplot is not installed; later, 'extattn plot $work/b.json -o $work/a.svg'" \
  without "$extattn" replay "$chat" "${small[@]}" --plot "$work/a.svg" --json "$work/b.json"
refuse 1 'gnuplot is not installed' without "$extattn" plot "$work/a.json" -o "$work/a.svg"

# --- a gnuplot that fails ----------------------------------------------------------------

printf '#!/bin/sh\necho >&2\necho "no terminal" >&2\nexit 1\n' >"$work/bin/gnuplot"
chmod +x "$work/bin/gnuplot"
refuse 1 'gnuplot failed: no terminal' env PATH="$work/bin:$PATH" "$extattn" plot "$work/a.json" -o "$work/a.svg"
[ ! -e "$work/a.svg" ] || fail "a plot by a gnuplot that failed"

# --- the file's plot is the first one: what gnuplot is told is the same to the last digit ---------

printf '#!/bin/sh\ncat\n' >"$work/bin/gnuplot"
expect 0 '' env PATH="$work/bin:$PATH" "$extattn" replay "$chat" "${small[@]}" --plot "$work/first" --json "$work/told.json"
expect 0 '' env PATH="$work/bin:$PATH" "$extattn" plot "$work/told.json" -o "$work/again"
cmp -s "$work/first" "$work/again" || fail "gnuplot is told other numbers from the file than at first"

# --- results that are refused ------------------------------------------------------------

change() { python3 -c "import json, sys; d = json.load(open('$work/a.json')); $1; json.dump(d, open('$work/changed.json', 'w'))"; }
change "d['command'] = 'check'"
refuse 2 "changed.json: command: found 'check', allowed replay, bench" "$extattn" plot "$work/changed.json" -o "$work/a.svg"
change "d['batches'][3]['elapsed_ms'] = -1"
refuse 2 'changed.json: elapsed_ms: found something else, allowed a number > 0' "$extattn" plot "$work/changed.json" -o "$work/a.svg"
change "del d['shape']['head_dim']"
refuse 2 'changed.json: head_dim: found nothing' "$extattn" plot "$work/changed.json" -o "$work/a.svg"
change "d['batches'] = []"
refuse 2 'changed.json: batches: found none' "$extattn" plot "$work/changed.json" -o "$work/a.svg"
head -c 200 "$work/a.json" >"$work/changed.json"
refuse 2 'changed.json: line [0-9]+' "$extattn" plot "$work/changed.json" -o "$work/a.svg"
refuse 2 'none.json: ' "$extattn" plot "$work/none.json" -o "$work/a.svg"
expect 2 '-o FILE.svg is missing' "$extattn" plot "$work/a.json"
expect 2 'RESULT.json is missing' "$extattn" plot -o "$work/a.svg"
[ ! -e "$work/a.svg" ] || fail "a refused result leaves a plot"

# --- with gnuplot ------------------------------------------------------------------------

if ! command -v gnuplot >/dev/null; then
  finish
  echo "skipped: gnuplot is not installed"
  exit 77
fi

# svg FILE PATTERN...: it is whole, and the texts are in it.
svg() {
  local file=$1
  checks=$((checks + 1))
  shift
  python3 -c 'import sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
assert root.tag.endswith("svg")
text = " ".join("".join(e.itertext()) for e in root.iter() if e.tag.endswith("text"))
for wanted in sys.argv[2:]:
    assert wanted in text, f"{wanted} is not in {text}"' "$file" "$@" 2>"$work/err" || fail "$file: $(tail -n 1 "$work/err")"
}

expect 0 '' "$extattn" replay "$chat" "${small[@]}" --plot "$work/replay.svg" --json "$work/replay.json"
svg "$work/replay.svg" 'chat.jsonl: 12 requests' '2/1 heads, head dim 16, bf16, slots: shuffled' 'time of a batch, ms' \
  'visible pairs of tokens in a batch' 'TFLOP/s'
points=$(grep -c "<use xlink:href='#gpPt6'" "$work/replay.svg")
json "$work/replay.json" "2 * len(d['batches']) <= $points" # each with a white rim
expect 0 '' "$extattn" plot "$work/replay.json" -o "$work/again.svg"
cmp -s "$work/replay.svg" "$work/again.svg" || fail "the plot from the file differs from the first one"
expect 0 '</svg>' "$extattn" plot "$work/replay.json" -o -
expect 0 '' from "$work/replay.json" "$extattn" plot - -o "$work/stdin.svg"
cmp -s "$work/replay.svg" "$work/stdin.svg" || fail "the plot from standard input differs from the file's"
refuse 1 'No such file' "$extattn" plot "$work/replay.json" -o /nowhere/x.svg

# What a result calls itself is text, not commands for gnuplot.
cp "$work/replay.json" "$work/a.json"
change "d['trace']['path'] = '\`touch $work/x\`\\\\n\\'; !touch $work/x; #<&>\"{/Bold ^_'; d['device']['name'] = '\$(touch x) %s %d'"
expect 0 '' "$extattn" plot "$work/changed.json" -o "$work/hostile.svg"
svg "$work/hostile.svg" '%s %d'
[ ! -e "$work/x" ] || fail "a result ran a command"

# Batches of very different sizes are drawn on log axes.
change "d['batches'] = [dict(b, visible_pairs=10 ** (3 + i % 6), elapsed_ms=10.0 ** (i % 6 - 2)) for i, b in enumerate(d['batches'])]"
expect 0 '' "$extattn" plot "$work/changed.json" -o "$work/log.svg"
svg "$work/log.svg" '0.01 ' ' 1000 '

# A suite of the benchmark.
cat >"$work/bench.json" <<'END'
{"command": "bench", "suite": "seed", "version": "1", "date": "now", "memory_bound": false,
 "device": {"type": "cuda", "name": "a card", "arch": "sm_90"}, "ceilings": {"product_tflops": 784, "copy_gbytes_per_s": 4200},
 "rows": [
  {"head_dim": 64, "head_dim_v": 64, "num_q_heads": 16, "num_kv_heads": 8, "window": 0, "seqs": 1, "prefix": 0, "extend": 16384, "stages_asked": 1, "tflops": 300},
  {"head_dim": 64, "head_dim_v": 64, "num_q_heads": 16, "num_kv_heads": 8, "window": 0, "seqs": 1, "prefix": 0, "extend": 16384, "stages_asked": 0, "tflops": 400},
  {"head_dim": 512, "head_dim_v": 512, "num_q_heads": 32, "num_kv_heads": 4, "window": 128, "seqs": 2, "prefix": 100, "extend": 50, "stages_asked": 1, "error": "does not fit"},
  {"head_dim": 64, "head_dim_v": 64, "num_q_heads": 16, "num_kv_heads": 8, "window": 0, "seqs": 64, "prefix": 0, "extend": 2048, "ragged": true, "slots": "shuffled", "stages_asked": 1, "tflops": 250},
  {"head_dim": 512, "head_dim_v": 512, "num_q_heads": 32, "num_kv_heads": 4, "window": 0, "seqs": 1, "prefix": 8192, "extend": 8192, "ragged": false, "slots": "ordered", "stages_asked": 1, "tflops": 500},
  {"head_dim": 128, "head_dim_v": 128, "num_q_heads": 32, "num_kv_heads": 8, "requests": 100, "stages_asked": 1, "tflops": 350}]}
END
expect 0 '' "$extattn" plot "$work/bench.json" -o "$work/bench.svg"
svg "$work/bench.svg" 'extattn bench seed' 'a card (sm_90)' 'depth 1' 'depth auto' 'cuBLAS, 784 TFLOP/s' '16/8' '1 x 16384' \
  '2 x (100+50), w 128' '64 x 1 to 2048' '32/4, ordered' '100 requests'
finish
