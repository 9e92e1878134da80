#!/usr/bin/env bash
# extattn info: what it says, and that its JSON says the same.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

expect 0 '^processor +.*, [0-9]+ threads?$' "$extattn" info
expect 0 '^instructions +(portable|avx2|avx512|avx512_bf16|amx)( \(also .*portable\))?$' "$extattn" info
expect 0 '^GPU kernels +(none in this build|sm_80 \([0-9]+\))' "$extattn" info
if grep -q '^GPUs' "$work/out"; then
  grep -qE '^GPUs +none: .+' "$work/out" || fail "no reason why there is no GPU"
else
  grep -qE '^GPU +name +arch +SMs' "$work/out" || fail "neither GPUs nor a reason"
fi
cp "$work/out" "$work/text"

expect 0 '' "$extattn" info --json
cp "$work/out" "$work/info.json"
json "$work/info.json" 'd["cpu"]["threads"] >= 1 and d["cpu"]["isa"] in d["cpu"]["isas"] and "portable" in d["cpu"]["isas"]'
json "$work/info.json" '(len(d["gpus"]) > 0) != bool(d.get("no_gpu_because"))'
json "$work/info.json" 'all(k["kernels"] for k in d["kernels"])'
for word in $(python3 -c 'import json, sys
d = json.load(open(sys.argv[1]))
print(d["version"], d["cpu"]["isa"], *(k["arch"] for k in d["kernels"]))' "$work/info.json"); do
  grep -q -- "$word" "$work/text" || fail "$word is in the JSON but not in the text"
done

expect 0 '^processor +.*, 1 thread$' env OMP_NUM_THREADS=1 "$extattn" info
expect 2 "unexpected argument 'x'" "$extattn" info x
finish
