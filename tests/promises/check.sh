#!/usr/bin/env bash
# extattn check, from the outside: check.sh EXTATTN SOURCE-DIR
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/../cli/lib.sh"
cd "$work"

small=(--device cpu --max-size 100000)
expect 0 'seeds 7 to 9$' "$extattn" check "${small[@]}" --cases 3 --seed 7
for promise in written unseen bits accuracy extremes refusal merge shared_kv; do
  expect 0 "^$promise +[1-5]? +2 +0 +0 " "$extattn" check "${small[@]}" --cases 2 --seed 1 --promise "$promise"
done
expect 0 '^bits +3 +1 +0 +0 ' "$extattn" check "${small[@]}" --cases 1 --promise 3 --family reference
expect 0 'seeds [0-9]+ to [0-9]+$' "$extattn" check "${small[@]}" --seconds 0.2 --promise written

# One shape only, and the cases by name.
expect 0 'written, seed 5: .*f16 cache e4m3, heads 6/2, D 40/24,' \
  "$extattn" check "${small[@]}" -v --cases 1 --seed 5 --promise written \
  --heads 6/2 --head-dim 40 --head-dim-v 24 --dtype f16 --cache-dtype e4m3

expect 0 '' "$extattn" check "${small[@]}" --cases 2 --seed 3 --json
json out 'd["seed"] == 3 and d["cases"] == 2 and len(d["promises"]) == 8'
json out 'all(p["kept"] == 2 and p["skipped"] == 0 and "broken" not in p for p in d["promises"])'

# Nothing could be tried: that is not success.
expect 3 '^skipped: bits: stages: found 2, allowed 0 or 1 on a CPU context$' \
  "$extattn" check "${small[@]}" --cases 2 --promise bits --stages 2

refuse 2 "--promise: found '6', allowed written \(1\), unseen \(2\), bits \(3\), .*, merge, shared_kv" \
  "$extattn" check --promise 6
refuse 2 "--cases: found '0', allowed 1 to " "$extattn" check --cases 0
refuse 2 "--seed: found '-1', allowed 0 to " "$extattn" check --seed -1
refuse 2 "found the argument 'case', allowed options only" "$extattn" check case

finish
