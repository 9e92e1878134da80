#!/usr/bin/env bash
# `extattn trace` on the emulated GPU, whose kernels record their times there: what it writes, and that the kernels give
# the same results: trace.sh EXTATTN-TRACED SOURCE-DIR EXTATTN
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
plain=$3

# timeline FILE: it is in Chrome's trace format. Within a thread spans of work follow each other, items hold them, and
# the three agree on what an item is.
timeline() {
  checks=$((checks + 1))
  python3 - "$1" <<'END' || fail "$1: not a timeline"
import collections
import json
import sys

root = json.load(open(sys.argv[1]))
events = root["traceEvents"]
names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
processes = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
assert root["command"] == "trace" and processes and names
assert {pid for pid, _ in names} == set(processes)
threads = collections.defaultdict(lambda: {"phase": [], "item": []})
for e in events:
    assert e["ph"] in "MX"
    if e["ph"] == "X":
        assert e["ts"] >= 0 and e["dur"] >= 0
        threads[e["pid"], e["tid"]][e["cat"]].append(e)
assert set(threads) == set(names)
near = 1e-6
for thread, found in threads.items():
    for kind in found.values():
        assert kind
        for a, b in zip(kind, kind[1:]):
            assert a["ts"] + a["dur"] <= b["ts"] + near, (names[thread], a, b)
    for a, b in zip(found["phase"], found["phase"][1:]):
        assert abs(a["ts"] + a["dur"] - b["ts"]) < near, (names[thread], a, b)
    for item in found["item"]:
        inside = [e for e in found["phase"] if e["args"]["item"] == item["args"]["item"]]
        inside = [e for e in inside if e["name"] not in ("find work tile", "meet", "wait Q")]
        assert inside and all(
            item["ts"] <= e["ts"] + near and e["ts"] + e["dur"] <= item["ts"] + item["dur"] + near for e in inside
        )
        assert item["args"]["first_step"] < item["args"]["end_step"] and item["args"]["rows"] > 0
for pid in processes:
    items = [sorted(e["args"]["item"] for e in threads[t]["item"]) for t in names if t[0] == pid]
    assert all(i == items[0] for i in items)
total = sum(s["count"] for s in root["summary"])
assert total == sum(len(t["phase"]) for t in threads.values())
END
}

shape=(--head-dim 64 --heads 4/2 --prefix 70 --extend 150 --seqs 2)
expect 0 '^consumer 2 ' "$extattn" trace "${shape[@]}" -o "$work/shape.json"
timeline "$work/shape.json"
json "$work/shape.json" "d['plan']['kernel'] == 'hopper_d64_bf16' and d['dropped'] == 0 and d['shape']['batch'] == '2 x (70 + 150)'"
json "$work/shape.json" "{e['args']['name'] for e in d['traceEvents'] if e['name'] == 'thread_name'} == {'producer warp 0', 'producer warp 1', 'consumer 0', 'consumer 1', 'consumer 2'}"
json "$work/shape.json" "len({e['pid'] for e in d['traceEvents']}) == 2"
expect 0 '' "$extattn" trace "${shape[@]}" --blocks 3 --stages 1 --window 100 -o -
cp "$work/out" "$work/printed.json"
timeline "$work/printed.json"
json "$work/printed.json" "len({e['pid'] for e in d['traceEvents']}) == 3 and d['plan']['stages'] == 1"
expect 0 'marks more found no room' "$extattn" trace "${shape[@]}" --records 50 -o "$work/few.json"
json "$work/few.json" "d['dropped'] > 0"
expect 0 '^producer ' "$extattn" trace "${shape[@]}" # the table alone

# Cases, and each kind of kernel: the timeline, and the same results as of kernels that record nothing.
case_of() { "$extattn" make-case -q -o "$work/$1.safetensors" --seed 5 --seqs 3 --prefix 0..150 --extend 20..40 "${@:2}"; }
case_of narrow --heads 4/2 --head-dim 64
case_of wide --heads 4/2 --head-dim 512
case_of latent --heads 4/1 --head-dim 576 --head-dim-v 512 --shared-kv
for name in narrow wide latent; do
  expect 0 '^consumer 1 ' "$extattn" trace "$work/$name.safetensors" -o "$work/$name.json"
  timeline "$work/$name.json"
  json "$work/$name.json" "d['dropped'] == 0 and d['plan']['kernel'].startswith('hopper')"
  for program in "$plain" "$extattn"; do
    expect 0 'by hopper_' "$program" run "$work/$name.safetensors" --family hopper -o "$work/$name.out.${program##*/}"
  done
  checks=$((checks + 1))
  cmp -s "$work/$name.out.${plain##*/}" "$work/$name.out.${extattn##*/}" || fail "$name: marks change the result"
done

# Refused, and then nothing is written.
expect 0 '' mkdir "$work/out_of"
refuse 3 "family: found portable, allowed for a timeline: hopper" "$extattn" trace "${shape[@]}" --family portable -o "$work/out_of/x.json"
refuse 3 "family: found cpu, allowed for a timeline: hopper" "$extattn" trace "$work/narrow.safetensors" --device cpu --family cpu -o "$work/out_of/x.json"
refuse 2 "no-such" "$extattn" trace "$work/no-such.safetensors" -o "$work/out_of/x.json"
refuse 1 "No such file" "$extattn" trace "${shape[@]}" -o "$work/no-such/x.json"
refuse 3 "this build: found kernels that record no times, allowed one configured with -DEA_TRACE=ON" "$plain" trace "${shape[@]}" \
  -o "$work/out_of/x.json"
[ -z "$(ls "$work/out_of")" ] || fail "written after a failure: $(ls "$work/out_of")"

if command -v gnuplot >/dev/null; then
  expect 0 '^producer ' "$extattn" trace "${shape[@]}" --plot "$work/shape.svg"
  grep -q 'issue S, copy K' "$work/shape.svg" || fail "no bars in the plot"
  refuse 2 "block: found no span of block 7" "$extattn" plot "$work/shape.json" --block 7 -o "$work/out_of/x.svg"
fi
finish
