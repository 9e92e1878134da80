#!/usr/bin/env bash
# extattn plan: the table, the JSON, and depths that do not fit.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

expect 0 '^arch +kernel +rows +keys +stages +bytes +allowed +threads$' \
  "$extattn" plan --head-dim 128
cp "$work/out" "$work/default"
for arch in sm_80 sm_86 sm_89 sm_90 sm_100 sm_120; do
  grep -qE "^$arch +[a-z]+_[a-z0-9_]+ +[0-9]+ +[0-9]+ +[0-9]+ of [0-9]+ +[0-9,]+ +[0-9,]+ +[0-9]+\$" "$work/default" ||
    fail "no row for $arch: $(cat "$work/default")"
  expect 0 "^$arch " "$extattn" plan --head-dim 128 --arch $arch
  [ "$(grep -c '^sm_' "$work/out")" -eq 2 ] || fail "--arch $arch: more than its numbers and its reason"
done
grep -q "^arch  *reason" "$work/default" || fail "no reasons"
expect 0 '' "$extattn" plan --head-dim 128 --arch all --heads 32/8 --dtype bf16
cmp -s "$work/out" "$work/default" || fail "the defaults are not what the manual says"

# The limits that NVIDIA documents, and a budget that adds up.
expect 0 '' "$extattn" plan --head-dim 128 --json
cp "$work/out" "$work/plan.json"
json "$work/plan.json" '{p["arch"]: p["smem_limit_bytes"] for p in d} == {"sm_80": 166912, "sm_86": 101376,
  "sm_89": 101376, "sm_90": 232448, "sm_100": 232448, "sm_120": 101376}'
json "$work/plan.json" 'all(1 <= p["stages"] <= p["max_stages"] and 0 < p["smem_bytes"] <= p["smem_limit_bytes"] for p in d)'
json "$work/plan.json" 'all(p["status"] == "EA_OK" and p["reason"] and p["tile_m"] > 0 and p["tile_n"] > 0 for p in d)'

# One stage more than the deepest does not fit: exit 3, both numbers, the deepest.
expect 0 '' "$extattn" plan --head-dim 512 --family portable --arch sm_90 --json
deepest=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))[0]["max_stages"])' "$work/out")
expect 0 'as asked' "$extattn" plan --head-dim 512 --family portable --arch sm_90 --stages "$deepest"
refuse 3 "stages: found $((deepest + 1)).* [0-9]{6} .*232448.* $deepest\$" \
  "$extattn" plan --head-dim 512 --family portable --arch sm_90 --stages $((deepest + 1))
expect 3 '"status": "EA_ERR_DOES_NOT_FIT"' \
  "$extattn" plan --head-dim 512 --family portable --arch sm_90 --stages $((deepest + 1)) --json
# Among all architectures it fits somewhere: a table, and still exit 3.
expect 3 '^sm_86 .*stages: found 2' "$extattn" plan --head-dim 512 --family portable --stages 2
grep -q 'architectures cannot do it' "$work/err" || fail "no summary: $(cat "$work/err")"

# The part of D beyond Dv counts: 576/512 takes more than 512/512.
expect 0 '' "$extattn" plan --head-dim 576 --head-dim-v 512 --family portable --arch sm_90 --stages 1 --json
cp "$work/out" "$work/wide.json"
expect 0 '' "$extattn" plan --head-dim 512 --family portable --arch sm_90 --stages 1 --json
json "$work/out" "d[0]['smem_bytes'] < json.load(open('$work/wide.json'))[0]['smem_bytes']"

expect 0 '^(portable|avx|amx)[a-z0-9_]* +(portable|avx|amx)[a-z0-9_]* ' "$extattn" plan --head-dim 128 --device cpu
expect 0 ' reference ' "$extattn" plan --head-dim 128 --device cpu --family reference
refuse 2 'arch: found .*sm_75.*, allowed sm_80' "$extattn" plan --head-dim 128 --arch sm_75
refuse 2 'head_dim_v: found 64' "$extattn" plan --head-dim 32 --head-dim-v 64 --shared-kv
refuse 2 'cache_dtype: found f16' "$extattn" plan --head-dim 32 --cache-dtype f16
refuse 3 'family: found hopper' "$extattn" plan --head-dim 128 --device cpu --family hopper
# What else a kernel depends on.
expect 0 ' hopper_d256_bf16 ' "$extattn" plan --head-dim 256 --arch sm_90
expect 0 ' hopper_d256w_bf16 ' "$extattn" plan --head-dim 256 --arch sm_90 --window 1024
expect 0 ' hopper_d128_bf16 ' "$extattn" plan --head-dim 128 --arch sm_90
expect 0 ' hopper_d128s_bf16 ' "$extattn" plan --head-dim 128 --arch sm_90 --cap 30
refuse 2 'cap: found .*0.*, allowed' "$extattn" plan --head-dim 128 --cap 0
refuse 2 'window: found .*0.*, allowed' "$extattn" plan --head-dim 128 --window 0
expect 2 '--head-dim is missing' "$extattn" plan
expect 2 "unexpected argument '128'" "$extattn" plan 128
finish
