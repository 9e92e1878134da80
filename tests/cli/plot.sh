#!/usr/bin/env bash
# Plots: what gnuplot makes of a result, and what happens where there is no gnuplot.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
chat=$source/examples/traces/chat.jsonl
small=(--heads 2/1 --head-dim 16 --budget 700 --requests 12 --device cpu)

# --- without gnuplot: said in one line before anything runs, and nothing is written -----------

expect 0 '' "$extattn" replay "$chat" "${small[@]}" -o "$work/a.json"
mkdir "$work/bin" "$work/none"
without() { (cd "$work/none" && env PATH="$work/bin" "$@"); }
echo precious >"$work/none/q.json"
refuse 1 '^extattn replay: --plot: gnuplot is not installed' without "$extattn" replay "$chat" "${small[@]}" --plot q.svg
refuse 1 '^extattn replay: --plot: gnuplot is not installed' without "$extattn" replay "$chat" "${small[@]}" --plot q.svg -o r.json
refuse 1 '^extattn bench: --plot: gnuplot is not installed' without "$extattn" bench cpu --shrink 512 --plot q.svg
refuse 1 '^extattn plot: --output: gnuplot is not installed' without "$extattn" plot "$work/a.json" -o q.svg
[ "$(ls "$work/none")" = q.json ] || fail "written without gnuplot: $(ls "$work/none")"
grep -qx precious "$work/none/q.json" || fail "another file was replaced"

# --- formats -------------------------------------------------------------------------------

for name in q.tif q q.svg.bak svg; do
  refuse 2 "^extattn plot: --output: found '$work/none/$name', allowed a name ending in .svg, .png or .pdf$" \
    "$extattn" plot "$work/a.json" -o "$work/none/$name"
  refuse 2 "^extattn replay: --plot: found '$work/none/$name', allowed a name ending in .svg, .png or .pdf$" \
    "$extattn" replay "$chat" "${small[@]}" --plot "$work/none/$name"
done

# --- a gnuplot that fails ----------------------------------------------------------------

printf '#!/bin/sh\necho >&2\necho "no terminal" >&2\nexit 1\n' >"$work/bin/gnuplot"
chmod +x "$work/bin/gnuplot"
refuse 1 'gnuplot failed: no terminal' env PATH="$work/bin:$PATH" "$extattn" plot "$work/a.json" -o "$work/a.svg"
[ ! -e "$work/a.svg" ] || fail "a plot by a gnuplot that failed"

# --- the file's plot is the first one: what gnuplot is told is the same to the last digit ---------

printf '#!/bin/sh\ncat\n' >"$work/bin/gnuplot"
expect 0 '' env PATH="$work/bin:$PATH" "$extattn" replay "$chat" "${small[@]}" --plot "$work/first.svg" -o "$work/told.json"
expect 0 '' env PATH="$work/bin:$PATH" "$extattn" plot "$work/told.json" -o "$work/again.svg"
cmp -s "$work/first.svg" "$work/again.svg" || fail "gnuplot is told other numbers from the file than at first"

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
refuse 2 'none.json: cannot read: No such file or directory$' "$extattn" plot "$work/none.json" -o "$work/a.svg"
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

expect 0 '' "$extattn" replay "$chat" "${small[@]}" --plot "$work/replay.svg" -o "$work/replay.json"
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

# The ending says the format.
for format in png:'PNG image' pdf:'PDF document' PNG:'PNG image'; do
  expect 0 '' "$extattn" plot "$work/replay.json" -o "$work/q.${format%%:*}"
  case ${format#*:} in
  PNG*) [ "$(head -c 4 "$work/q.${format%%:*}" | tail -c 3)" = PNG ] || fail "q.${format%%:*} is no PNG" ;;
  *) [ "$(head -c 4 "$work/q.${format%%:*}")" = %PDF ] || fail "q.${format%%:*} is no PDF" ;;
  esac
done

# The key is above the axes, where no point is: its lines are higher than the topmost tic and every point.
python3 - "$work/replay.svg" <<'END' || fail "the key covers the plot"
import re, sys
text = open(sys.argv[1]).read()
y = lambda label: [float(m) for m in re.findall(r"translate\([\d.]+,([\d.]+)\)[^>]*>\s*<text>[^\n]*" + label, text)]
keys = y("TFLOP/s, all batches") + y("TFLOP/s, the best batch")
points = [float(m) for m in re.findall(r"#gpPt6' transform='translate\([\d.]+,([\d.]+)\)", text)]
tics = y(r">\d+</tspan>")
assert len(keys) == 2 and points and tics and max(keys) + 10 < min(points + tics), (keys, min(points), tics)
END

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
  {"dtype": "f32", "head_dim": 128, "head_dim_v": 128, "num_q_heads": 32, "num_kv_heads": 8, "requests": 100, "stages_asked": 1, "tflops": 350}]}
END
expect 0 '' "$extattn" plot "$work/bench.json" -o "$work/bench.svg"
svg "$work/bench.svg" 'extattn bench seed' 'a card (sm_90)' 'depth 1' 'depth auto' 'cuBLAS, 784 TFLOP/s' '16/8' '1 x 16384' \
  '2 x (100+50), w 128' '64 x 1 to 2048' '32/4, ordered' '100 requests' 'f32 128'
expect 2 '--block: found for a result of .bench., allowed for one of .trace.' "$extattn" plot "$work/bench.json" --block 0 -o "$work/bench.svg"
finish
