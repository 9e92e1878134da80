#!/usr/bin/env bash
# extattn bench: the lists of shapes, a suite made small on the CPU, a trace, what is refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
chat=$source/examples/traces/chat.jsonl
quick=(--device cpu --warm-up 0 --repeats 1)

# --- lists ------------------------------------------------------------------------------

# list SUITE EXPRESSION [OPTION...]: what --list prints, its cases as c.
list() {
  expect 0 '' "$extattn" bench "$1" --list "${@:3}"
  json "$work/out" "(lambda c: $2)(d['cases'])"
}
for suite in seed window mla prefix ragged chunks verify cpu; do
  expect 0 "^  $suite +[a-z0-9]" "$extattn" help bench
  list $suite "len(c) > 2 and all(len(x['extends']) == x['seqs'] and max(x['extends']) == x['extend'] for x in c)"
done
expect 0 '^  replay +a trace' "$extattn" help bench

# The lengths of a ragged batch: 1 to 2048 in even steps, mixed; and what is counted of them.
list ragged "sorted(c[0]['extends']) == [1 + 2047 * i // 63 for i in range(64)]"
list ragged "c[0]['extends'][:4] == [1, 1203, 325, 1528]"
list ragged "all(abs(x['flop'] / (4 * x['head_dim'] * x['num_q_heads'] * sum(n * (n + 1) // 2 for n in x['extends'])) - 1) < 1e-8
  for x in c)"
list ragged "all(abs(x['bytes'] / (4 * x['head_dim'] * (x['num_q_heads'] + x['num_kv_heads']) * sum(x['extends'])) - 1) < 1e-8
  for x in c)"
list ragged "{(x['head_dim'], x['num_q_heads'], x['num_kv_heads']) for x in c if x['ragged']} ==
  {(d, q, kv) for d in (64, 128, 256) for q, kv in ((16, 8), (32, 4))}"
list chunks "[(x['prefix'], x['extend'], x['slots']) for x in c] == [(0, 8192, 'shuffled')] +
  [(p, 8192, s) for p in (8192, 32768, 122880) for s in ('ordered', 'shuffled')]"

# Made smaller: the same shapes with fewer tokens, at least one of what is there.
list verify "[(x['seqs'], x['prefix'], x['extend']) for x in c] == [(64, 327, 1), (1, 1310, 1), (16, 81, 1)]" --shrink 100
list window "all(x['window'] == 1 and x['extend'] >= 1 for x in c)" --shrink 1000000

# --- runs -------------------------------------------------------------------------------

expect 0 '^bf16 +64/64 +16/8 +64 x \(0 \+ 1 to 16\)$' "$extattn" bench ragged "${quick[@]}" --shrink 128 --commit abc -o "$work/r.json"
grep -qE '^ +auto [0-9]+ .* same ' "$work/out" || fail "no row for a depth: $(cat "$work/out")"
json "$work/r.json" "d['suite'] == 'ragged' and d['shrink'] == 128 and d['commit'] == 'abc' and len(d['rows']) == 9"
json "$work/r.json" "all(r['same_bits'] and r['median_ms'] > 0 and r['tflops'] > 0 for r in d['rows'])"
expect 0 '^bf16 +512/512 +32/4 +1 x \(32 \+ 32\), ordered$' "$extattn" bench chunks "${quick[@]}" --shrink 256 -o "$work/c.json"
json "$work/c.json" "[r['slots'] for r in d['rows'][1:3]] == ['ordered', 'shuffled']"
for suite in seed window mla prefix verify cpu; do
  expect 0 '' "$extattn" bench $suite "${quick[@]}" --shrink 512 -o "$work/s.json"
  json "$work/s.json" "d['suite'] == '$suite' and all('median_ms' in r for r in d['rows'])"
done

# Rows that differ only in their type say so.
expect 0 '^bf16 +128/128 +8/8 +1 x \(0 \+ 4\)$' "$extattn" bench cpu "${quick[@]}" --shrink 512
grep -qE '^f32 +128/128 +8/8 +1 x \(0 \+ 4\)$' "$work/out" || fail "bench: a row without its type: $(cat "$work/out")"

# A trace: passes over its batches.
expect 0 '^chat.jsonl: 2 requests, 1 batches, ' "$extattn" bench replay "${quick[@]}" --trace "$chat" -n 2 -o "$work/t.json"
expect 0 '' "$extattn" replay "$chat" --counts-only -n 2 -o "$work/n.json"
json "$work/t.json" "all(d['trace'][k] == v for k, v in json.load(open('$work/n.json'))['counts'].items())"
json "$work/t.json" "len(d['rows']) == 1 and abs(d['rows'][0]['tflops'] * d['rows'][0]['median_ms'] * 1e9 /
  (2 * 256 * 32 * d['trace']['visible_pairs']) - 1) < 1e-6"
json "$work/t.json" "d['method']['warm_up'] == 0 and d['method']['repeats'] == 1 and d['trace']['file'] == 'chat.jsonl'"
expect 0 '' "$extattn" bench replay "${quick[@]}" --trace "$chat" -n 1 --json
json "$work/out" "d['trace']['requests'] == 1"

# --- nothing that could run ---------------------------------------------------------------

expect 3 'nothing could run' "$extattn" bench ragged "${quick[@]}" --shrink 128 --family hopper -o "$work/none.json" \
  --plot "$work/none.svg"
expect 3 'nothing could run' "$extattn" bench replay "${quick[@]}" --trace "$chat" -n 1 --stages 3
json "$work/none.json" "all('error' in x for x in d['rows'])"
[ ! -e "$work/none.svg" ] || fail "a plot of nothing"

# --- refused ----------------------------------------------------------------------------

refuse 2 "SUITE: found 'sead', allowed those that" "$extattn" bench sead
refuse 2 'suite replay: allowed with --trace FILE' "$extattn" bench replay
refuse 2 'suite replay: allowed with --trace FILE' "$extattn" bench replay --trace "$chat" --shrink 2
refuse 2 "none.jsonl" "$extattn" bench replay --device cpu --trace "$work/none.jsonl"
refuse 2 "bench: --shrink: found '0', allowed 1 to" "$extattn" bench seed --shrink 0
refuse 1 'no/such' "$extattn" bench cpu -o "$work/no/such.json"
finish
